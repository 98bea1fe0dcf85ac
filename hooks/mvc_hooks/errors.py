"""Errors that only a training run raises; all are ``mvc.MvcError``."""

from __future__ import annotations

from typing import ClassVar

from mvc import MvcError


class CommitFailedError(MvcError):
    """A commit was not made: its writer was killed, the disk is full, the repository is gone.

    The last good commit stays good; the next one is tried again with a new writer.
    """

    kind: ClassVar[str] = "commit-failed"
    exit_code: ClassVar[int] = 6


class DivergedError(MvcError):
    """The run diverged, and its ladder has no answer left."""

    kind: ClassVar[str] = "diverged"
    exit_code: ClassVar[int] = 11
