"""The other process: hashes, encodes, packs and commits, while the training goes on."""
