"""A repository written by an enemy: nothing outside the worktree is touched, nothing grows."""
