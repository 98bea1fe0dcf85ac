"""What verbs share: the open repository, files ⇄ manifests, worktree, transitions, notes."""

from mvc.lazy import lazy_modules

__getattr__ = lazy_modules(__name__)
