"""What the repository shares with others: remotes, and what travels there and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc import operations, remotes, workspace
from mvc.repo.opening import OpenRepo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from mvc.ids import GitId
    from mvc.operations.fetch import FetchResult, RefFetch
    from mvc.operations.merge import FastForward
    from mvc.operations.publish import Publication
    from mvc.operations.pull import PullResult
    from mvc.operations.push import PushResult
    from mvc.operations.remotes import RemoteRefs, RemoteState
    from mvc.remotes.settings import RemoteSettings
    from mvc.remotes.tracking import Upstream
    from mvc.repo.opening import Progress
    from mvc.storage.probe import ProbeReport
    from mvc.workspace.whereabouts import Whereabouts


class Remotes(OpenRepo):
    """What the repository shares with others: remotes, and what travels there and back.

    ``remote`` is the name of a remote, or a URL or path; by default ``origin``, or the only one.
    """

    def remotes(self) -> dict[str, RemoteSettings]:
        """Return name → settings of all remotes.

        Raises:
            UsageError: the config says what cannot be used.
        """
        return remotes.settings.list_remotes(self._context)

    def add_remote(self, name: str, url: str, content_url: str | None = None) -> RemoteSettings:
        """Add a remote; nothing is asked of it yet.

        Args:
            name: such as ``origin``.
            url: as of ``mvc.clone``; credentials are never part of it.
            content_url: if ``url`` is a repository on a Git host: the store that has the content of
                checkpoints. Without one, only history without checkpoints can be pushed there.

        Raises:
            ConflictError: there is one of that name.
            UsageError: not a valid name or URL.
        """
        return operations.remotes.add(self._context, name, url, content_url)

    def rename_remote(self, old: str, new: str) -> RemoteSettings:
        """Rename a remote, with all that follows it.

        Raises:
            NotFoundError: there is none of the old name.
            ConflictError: there is one of the new name.
        """
        return operations.remotes.rename(self._context, old, new)

    def remove_remote(self, name: str) -> None:
        """Remove a remote and all that follows it here; nothing changes there.

        Raises:
            NotFoundError: there is none of that name.
        """
        operations.remotes.remove(self._context, name)

    def set_remote_url(self, name: str, url: str, content_url: str | None = None) -> RemoteSettings:
        """Let a remote be elsewhere; from one Git host to another, the store of its content stays.

        Raises:
            NotFoundError: there is none of that name.
            UsageError: not a valid URL.
        """
        return operations.remotes.set_url(self._context, name, url, content_url)

    def check_remote(self, remote: str | None = None) -> ProbeReport:
        """Ask the store of a remote what it keeps of its promises, and remember if it is enough.

        Small objects are written below ``check/``, and removed. A push asks a store that was not
        checked for what refs need, by itself.

        Raises:
            NotFoundError: there is no such remote.
            StorageError: it cannot be reached, or does not let anything be written.
        """
        return operations.remotes.check(self._context, remote)

    def list_remote(self, remote: str | None = None) -> RemoteRefs:
        """Return the refs of a remote as they are there now, and the branch that a clone checks out.

        Raises:
            NotFoundError: there is no such remote, or nothing was pushed to it.
            StorageError: it cannot be reached.
        """
        return operations.remotes.list_refs_there(self._context, remote)

    def show_remote(self, remote: str | None = None) -> RemoteState:
        """Compare a remote as it is now with what is known of it here.

        Raises:
            NotFoundError: there is no such remote, or nothing was pushed to it.
            StorageError: it cannot be reached.
        """
        return operations.remotes.show(self._context, remote)

    def prune_remote(self, remote: str | None = None) -> list[RefFetch]:
        """Delete the refs here that follow what is gone on a remote; return them.

        Raises:
            NotFoundError: there is no such remote, or nothing was pushed to it.
            StorageError: it cannot be reached.
        """
        return operations.remotes.prune(self._context, remote)

    def upstream(self, branch: str | None = None) -> Upstream | None:
        """Return what a branch (by default the current one) follows, as last heard of, or None.

        Raises:
            UsageError: the config says what cannot be used.
        """
        branch = branch or self._context.history.head().branch
        return remotes.tracking.find_upstream(self._context, branch)

    def set_upstream(self, branch: str, remote: str | None, target: str | None = None) -> None:
        """Let a branch follow one of a remote, of the same name unless ``target`` says another.

        Args:
            branch: a branch here.
            remote: name of a remote, or a branch of one as it is known here, such as
                ``origin/main``; None to follow none.
            target: the branch there.

        Raises:
            NotFoundError: there is no such branch or remote.
        """
        if branch != self._context.history.head().branch:
            self._context.history.get_branch(branch)
        if remote is None:
            remotes.tracking.unset_upstream(self._context, branch)
            return
        if target is None and remotes.tracking.follow(self._context, branch, remote):
            return
        remotes.remote.open_remote(self._context, remote)
        remotes.tracking.set_upstream(self._context, branch, remote, target or branch)

    def push(
        self,
        remote: str | None = None,
        refspecs: Sequence[str] = (),
        *,
        force: bool = False,
        all_branches: bool = False,
        tags: bool = False,
        lease: Mapping[str, GitId | None] | bool = False,
        set_upstream: bool = False,
        dry_run: bool = False,
        limit_bytes_s: int | None = None,
        progress: Progress = None,
    ) -> PushResult:
        """Send what refs name and the remote lacks, then move its refs, all of them or none.

        Args:
            remote: where to.
            refspecs: as in Git: ``main``, ``main:other``, ``+main``, ``:other`` to delete; by
                default the current branch.
            force: let refs there lose commits.
            all_branches: push all branches.
            tags: push all tags.
            lease: force, but only what still is what was last seen of it; or full name → commit.
            set_upstream: let what is pushed follow what it is pushed to.
            dry_run: say what would move; nothing is sent.
            limit_bytes_s: at most so many bytes in a second.
            progress: called with bytes sent.

        Raises:
            ConflictError: a ref there has commits that would be lost, or moved meanwhile.
            NotFoundError: a ref or content to push is not here.
            CorruptionError: a pack here is damaged; nothing of it is pushed.
            UnsupportedError: the store does not keep what refs need.
            StorageError: the store cannot be reached, or refuses.
        """
        return operations.push.push(
            self._context,
            remote,
            refspecs,
            force=force,
            all_branches=all_branches,
            tags=tags,
            lease=lease,
            set_upstream=set_upstream,
            dry_run=dry_run,
            limit_bytes_s=limit_bytes_s,
            progress=progress,
        )

    def fetch(
        self,
        remote: str | None = None,
        refspecs: Sequence[str] = (),
        *,
        prune: bool = False,
        tags: bool | None = None,
        content: bool | None = None,
        content_of: Sequence[str] = (),
        depth: int | None = None,
        unshallow: bool = False,
        limit_bytes_s: int | None = None,
        progress: Progress = None,
    ) -> FetchResult:
        """Bring what refs of a remote name, verified, and let the refs here that follow them move.

        Args:
            remote: where from.
            refspecs: as in Git; by default those of the remote.
            prune: delete refs here that follow what is gone there.
            tags: bring all new tags too; by default unless there are ``refspecs``.
            content: bring the content of checkpoints too, not just the history; by default unless
                the clone was made without. What does not come is read from the remote when needed.
            content_of: revisions of which all content is brought, and of nothing else.
            depth: let the history of a shallow clone be so many commits deep, or as deep as it is.
            unshallow: bring the whole history.
            limit_bytes_s: at most so many bytes in a second.
            progress: called with bytes that came.

        Raises:
            NotFoundError: there is no such remote or ref, or nothing was pushed.
            ConflictError: a ref here would lose commits, or is the branch that is checked out.
            FormatError: the remote sent what is damaged or incomplete; nothing of it is kept.
            StorageError: the store cannot be reached, or refuses.
        """
        return operations.fetch.fetch(
            self._context,
            remote,
            refspecs,
            prune=prune,
            tags=tags,
            content=content,
            content_of=content_of,
            depth=depth,
            unshallow=unshallow,
            limit_bytes_s=limit_bytes_s,
            progress=progress,
        )

    def bring_commit(self, commit: str) -> None:
        """Have the history of a commit here that another machine of a run has made, and read its content.

        It comes from the store that has the content (``mvc.store``); content itself comes when it is
        read. Without such a store it has to be here.

        Raises:
            NotFoundError: it is neither here nor there.
            StorageError: the store cannot be reached.
        """
        operations.send_share.bring_commit(self._context, commit)

    def catch_up(self, branch: str) -> str | None:
        """Move a branch to where it is on the store that has the content (``mvc.store``), if that is further.

        Its content comes when it is read. Of a branch that has moved elsewhere, as a rollback moves it,
        nothing is lost either: the store has what it left.

        Returns:
            The commit that the branch is at now, or None: it was there already, or there is no store.

        Raises:
            ConflictError: the branch has commits here that the store lacks, and others there; or files of
                the worktree are in the way.
            StorageError: the store cannot be reached.
        """
        from mvc.operations.catch_up import catch_up  # noqa: PLC0415  few have a store

        return catch_up(self._context, branch)

    def leave_mark(self) -> AbstractContextManager[str]:
        """Leave a mark in the repository's folder, which ``look_for_mark`` finds; usable as a context manager.

        It yields the name of the mark, which is there until the end of the block.

        Raises:
            StorageError: nothing can be written there.
        """
        return workspace.whereabouts.leave_mark(self._context)

    def look_for_mark(self, mark: str) -> Whereabouts:
        """Return where this repository is, as compared with the one in which a mark was left.

        Raises:
            UsageError: that is not the name of a mark.
        """
        return operations.send_share.look_for_mark(self._context, mark)

    def pull(
        self,
        remote: str | None = None,
        branch: str | None = None,
        *,
        fast_forward: FastForward = "allowed",
        limit_bytes_s: int | None = None,
        progress: Progress = None,
    ) -> PullResult:
        """Fetch, and merge what the current branch follows (or ``branch`` of ``remote``).

        Raises:
            UsageError: the current branch follows nothing.
            ConflictError: as of ``merge``.
        """
        return operations.pull.pull(
            self._context,
            remote,
            branch,
            fast_forward=fast_forward,
            limit_bytes_s=limit_bytes_s,
            progress=progress,
        )

    def publish(
        self,
        channel: str,
        revision: str = "HEAD",
        *,
        remote: str | None = None,
        limit_bytes_s: int | None = None,
        progress: Progress = None,
    ) -> Publication:
        """Send a commit to a remote and let a channel name it, for those who follow that.

        Args:
            channel: its name, such as ``prod``.
            revision: an older one takes the channel back; its number goes on counting.
            remote: where to.
            limit_bytes_s: how many bytes of packs may travel in a second; any number by default.
            progress: called with bytes sent.

        Raises:
            ConflictError: the channel moved meanwhile.
            NotFoundError: there is no such revision or remote.
            StorageError: the store cannot be reached, or refuses.
        """
        return operations.publish.publish(
            self._context,
            channel,
            revision,
            remote=remote,
            limit_bytes_s=limit_bytes_s,
            progress=progress,
        )
