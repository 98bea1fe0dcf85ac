"""Where a commit is read from at a resume before the store is: the memory of this machine, and of others."""
