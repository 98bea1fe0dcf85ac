"""What was committed, and the names it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc import operations
from mvc.repo.opening import OpenRepo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc.history.values import ReflogEntry
    from mvc.ids import GitId
    from mvc.operations.branch import RefInfo
    from mvc.operations.log import LogEntry


class History(OpenRepo):
    """What was committed, and the names it has."""

    def log(
        self,
        *revisions: str,
        everything: bool = False,
        limit: int | None = None,
        first_parent: bool = False,
    ) -> Iterator[LogEntry]:
        """Yield commits newest first, children before parents.

        Args:
            revisions: where to start, by default HEAD; ``A..B``, ``A...B`` and ``^A`` exclude
                commits, as in Git.
            everything: start from every ref as well.
            limit: at most this many.
            first_parent: follow only the first parent of merges.

        Raises:
            NotFoundError: a revision does not exist; raised on the first step of the iteration.
        """
        return operations.log.log(
            self._context, revisions, everything=everything, limit=limit, first_parent=first_parent
        )

    def show(self, revision: str = "HEAD") -> LogEntry:
        """Return one commit with its step and metrics.

        Raises:
            NotFoundError: no such revision.
        """
        return operations.log.show(self._context, revision)

    def reflog(self, ref: str = "HEAD") -> list[ReflogEntry]:
        """Return where a ref has been, newest first.

        Raises:
            NotFoundError: no such ref.
        """
        return operations.log.reflog(self._context, ref)

    def branches(self, *, remote: bool = False) -> list[RefInfo]:
        """Return all branches, or with ``remote`` those of remotes, as last heard of."""
        prefix = "refs/remotes/" if remote else "refs/heads/"
        return operations.branch.list_refs(self._context, prefix)

    def tags(self) -> list[RefInfo]:
        """Return all tags."""
        return operations.branch.list_refs(self._context, "refs/tags/")

    def tag_message(self, name: str) -> str | None:
        """Return the message of an annotated tag, or None for any other name.

        Raises:
            FormatError: the tag is damaged.
        """
        return self._context.history.find_tag_message(name)

    def create_branch(self, name: str, start: str = "HEAD", *, force: bool = False) -> GitId:
        """Make a branch without going there; return its commit.

        Raises:
            ConflictError: it exists, and not ``force``; or it is checked out.
        """
        return operations.branch.create_branch(self._context, name, start, force=force)

    def delete_branch(self, name: str, *, force: bool = False) -> GitId:
        """Delete a branch (an unmerged one with ``force``); return the commit it pointed to.

        Raises:
            ConflictError: it is checked out, or not merged and not ``force``.
        """
        return operations.branch.delete_branch(self._context, name, force=force)

    def rename_branch(self, old: str, new: str, *, force: bool = False) -> None:
        """Rename a branch with its reflog; HEAD follows.

        Raises:
            ConflictError: ``new`` exists, and not ``force``; or it is checked out.
        """
        operations.branch.rename_branch(self._context, old, new, force=force)

    def create_tag(
        self, name: str, revision: str = "HEAD", *, message: str | None = None, force: bool = False
    ) -> GitId:
        """Tag a commit, with an annotated tag if there is a message; return the commit.

        With ``force`` a tag that exists is moved, and from then on it is an alias: the log shows it as
        ``@name``, and ``name@{1}`` is where it was.

        Raises:
            ConflictError: the tag exists, and not ``force``.
            UsageError: not a valid tag name, or an empty message.
        """
        return operations.branch.create_tag(
            self._context, name, revision, message=message, force=force
        )

    def delete_tag(self, name: str) -> GitId:
        """Delete a tag; return the commit or tag object it pointed to.

        Raises:
            NotFoundError: no such tag.
        """
        return operations.branch.delete_tag(self._context, name)
