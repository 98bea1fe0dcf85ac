"""The processes of a distributed run: what they say to each other, and the state each has of its own."""
