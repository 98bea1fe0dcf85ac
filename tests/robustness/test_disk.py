"""Disks that are full, forbid or change under our hands; things in the worktree that are no files."""
