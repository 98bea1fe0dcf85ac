from support.kept_repo import whole_run
from support.opened_repo import context, no_waiting_for_the_disk, repo, root

__all__ = ["context", "no_waiting_for_the_disk", "repo", "root", "whole_run"]
