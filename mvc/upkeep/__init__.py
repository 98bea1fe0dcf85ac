"""What is kept, what shares it and what it costs: the ground of gc, repack, prune and du."""
