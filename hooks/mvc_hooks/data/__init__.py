"""What a run knows of its data: which samples it draws, from which shards, and what it has seen."""
