"""What verbs share: the open repository, files ⇄ manifests, worktree, transitions, notes."""
