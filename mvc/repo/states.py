"""Training states, in memory."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal

from mvc import operations, states, workspace
from mvc.repo.opening import OpenRepo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from mvc.chunkstore.nearby import Nearby
    from mvc.chunkstore.values import WriteCounts
    from mvc.history.values import Identity
    from mvc.operations import aftercare, commit_shares, commit_state, load_state, open_state  # noqa: F401
    from mvc.operations.open_state import StoredState
    from mvc.operations.verify import StateCheck
    from mvc.repo.opening import Paths, Progress
    from mvc.states.share import CheckPeers, Peers, Share
    from mvc.workspace.commits import CommitResult
    from mvc.workspace.held import HeldChunks
    from mvc.workspace.stored_share import StoredShare


class TrainingStates(OpenRepo):
    """Training states, in memory."""

    def commit_state(
        self,
        state: Mapping[str, object],
        *,
        message: str,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
        meta: Mapping[str, str] | None = None,
        branch: str | None = None,
        author: Identity | None = None,
        time_s: int | None = None,
        delta: bool | None = None,
        previous: Mapping[str, object] | None = None,
        parent: str | None = None,
        files: Mapping[str, bytes | str] | None = None,
        no_gate: bool = False,
        progress: Progress = None,
    ) -> CommitResult:
        """Commit a nested state (state dicts, scalars, RNG states) without writing a file.

        It checks out as one safetensors file for each top-level name with a tensor in it, and
        ``state.json``. The state dict of one model by itself, ``model.state_dict()``, is one
        ``model.safetensors``.

        Args:
            state: top-level names → nested dicts, lists, tensors, arrays, scalars.
            message: subject, and body after an empty line.
            step: training step.
            metrics: name → number.
            meta: name → one line of text.
            branch: branch to move; defaults to the current one. A branch that does not exist yet
                begins with this commit. Moving another branch leaves HEAD and the index alone.
            author: defaults to ``identity``.
            time_s: when, in seconds since 1970; defaults to now.
            delta: as for ``add``; differences are taken from the branch's last commit.
            previous: the unchanged state of that commit, if it is still in memory: differences
                are then taken from it, and nothing has to be read from the store. It is hashed
                before it is trusted.
            parent: id of the commit that the branch must be at ("" for a branch without one).
            files: path → content of other files for the commit, such as a ``config.json``. Those
                of earlier commits stay until they are given again.
            no_gate: as for ``commit``.
            progress: called with bytes taken since the last call.

        Raises:
            GateError: a gate refuses the state.
            UnsupportedError: a value that is not data; the message names its path.
            UsageError: a path of ``files`` that no commit may hold, or that the state itself has.
            ConflictError: the branch moved meanwhile, is not at ``parent``, or a file of the same
                name is staged; nothing is lost.
        """
        encode = states.state.encode_state
        result = operations.commit_state.commit_state(
            self._context,
            encode(state),
            message,
            annotations=workspace.trailers.Annotations(step, metrics, meta),
            branch=branch,
            author=author,
            time_s=time_s,
            delta=delta,
            previous=() if previous is None else encode(previous),
            parent=parent,
            beside=[
                states.files.given_file(self._paths(path)[0], content)
                for path, content in (files or {}).items()
            ],
            no_gate=no_gate,
            progress=progress,
        )
        return operations.aftercare.keep_up(self._context, result)

    def commit_image(
        self,
        files: Mapping[str, memoryview],
        *,
        message: str,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
        meta: Mapping[str, str] | None = None,
        branch: str | None = None,
        delta: bool | None = None,
        parent: str | None = None,
        describe: Callable[[WriteCounts], Mapping[str, str]] | None = None,
        no_gate: bool = False,
        texts: Mapping[str, bytes] | None = None,
        progress: Progress = None,
    ) -> CommitResult:
        """Commit the image of a state (see ``mvc.training.layout_state``) as ``commit_state`` would.

        ``files`` is name → bytes of every file of the image; they must not change meanwhile.
        ``describe`` is called once everything but the commit itself is durable, and what it
        returns joins ``meta``. ``texts`` are path → content of small files to be committed too; the
        states after it leave them as they are. All else is as for ``commit_state``.

        Raises:
            FormatError: not the files of a state.
            ConflictError, GateError: as for ``commit_state``.
        """
        result = operations.commit_state.commit_state(
            self._context,
            states.state.open_image(files),
            message,
            annotations=workspace.trailers.Annotations(step, metrics, meta),
            branch=branch,
            delta=delta,
            parent=parent,
            describe=describe,
            no_gate=no_gate,
            texts=texts,
            progress=progress,
        )
        return operations.aftercare.keep_up(self._context, result)

    def open_share(self, image: memoryview, form: bytes, previous: Share | None = None) -> Share:
        """Return what a rank of a sharded run keeps of its state.

        Args:
            image: the bytes of its layout, copied (see ``mvc.training.layout_state``).
            form: that of the layout.
            previous: the share of an earlier commit; it saves planning if the form is the same.

        Raises:
            FormatError: not such a form.
        """
        return states.share.open_share(image, form, self._context.chunk_bytes, previous)

    def store_share(
        self,
        share: Share,
        peers: CheckPeers,
        *,
        branch: str | None = None,
        delta: bool | None = None,
        send: bool = False,
        progress: Progress = None,
    ) -> AbstractContextManager[StoredShare]:
        """Store the chunks that a rank owns, for ``commit_shares``; usable as a context manager.

        They are durable when its block begins, and safe from ``gc`` until it ends: keep it open until
        the commit is made.

        Args:
            share: of this rank.
            peers: the other ranks, for the rest of chunks that straddle ranks; ``fetch_checked`` is only
                asked if the share has a ``check``.
            branch: whose last commit differences are taken from; defaults to the current one.
            delta: as for ``add``.
            send: whether they are on the store (``mvc.store``) too when the block begins: for a rank whose
                repository is not that of rank 0.
            progress: called with bytes taken since the last call.

        Raises:
            StorageError: another rank is gone, the disk is full, or the store cannot be reached.
            UsageError: they are to be sent, and there is no store.
        """
        return operations.commit_shares.store_share(
            self._context, share, peers, branch=branch, delta=delta, send=send, progress=progress
        )

    def commit_shares(
        self,
        share: Share,
        stored: Sequence[StoredShare],
        *,
        message: str,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
        meta: Mapping[str, str] | None = None,
        branch: str | None = None,
        parent: str | None = None,
        describe: Callable[[WriteCounts], Mapping[str, str]] | None = None,
        no_gate: bool = False,
        texts: Mapping[str, bytes] | None = None,
    ) -> CommitResult:
        """Commit what all ranks have stored, as ``commit_state`` would commit the whole.

        Args:
            share: that of rank 0, which calls this.
            stored: what every rank's ``store_share`` gave, while their blocks are open.
            message: subject, and body after an empty line.
            step: training step.
            metrics: name → number.
            meta: name → one line of text.
            branch: branch to move; defaults to the current one.
            parent: id of the commit that the branch must be at ("" for a branch without one).
            describe: as for ``commit_image``.
            no_gate: as for ``commit``.
            texts: as for ``commit_image``.

        Where ranks have checked what others keep, ``agreement`` of the result says what came of it; a
        difference does not keep the commit from being made.

        Raises:
            FormatError: not the shares of all ranks.
            StorageError: what a rank has stored is neither here nor on the store.
            ConflictError: they are of different states; or as for ``commit_state``.
            GateError: a gate refuses the state.
        """
        result = operations.commit_shares.commit_shares(
            self._context,
            share,
            stored,
            message,
            annotations=workspace.trailers.Annotations(step, metrics, meta),
            branch=branch,
            parent=parent,
            describe=describe,
            no_gate=no_gate,
            texts=texts,
        )
        return operations.aftercare.keep_up(self._context, result)

    def open_state(
        self, revision: str = "HEAD", *, folder: str | None = None, paths: Paths = ()
    ) -> StoredState:
        """Return the state of a commit to be read in parts; of a commit of files, their tensors.

        Args:
            revision: which commit.
            folder: as for ``outline_state``.
            paths: only the tensors of these files, folders or wildcards, by their names.

        Raises:
            ConflictError: two files hold a tensor of the same name: say which with ``paths``.
        """
        return operations.open_state.open_state(
            self._context, revision, folder=folder, paths=self._paths(paths)
        )

    def outline_state(
        self, revision: str = "HEAD", *, folder: str | None = None, with_content: bool = False
    ) -> dict[str, Any]:
        """Return the structure of a commit's state, with an ``ArrayOutline`` for each array.

        ``folder`` is where in the commit the state is: ``ranks/3`` has what was rank 3's alone.
        ``with_content`` has every outline say, in ``content``, what is the same for the same bytes.

        Raises:
            NotFoundError: no such revision, or the commit holds no state.
            ReleasedError: content of that commit was released.
        """
        return operations.load_state.outline_state(
            self._context, revision, folder=folder, with_content=with_content
        )

    def load_state(
        self,
        revision: str = "HEAD",
        *,
        framework: Literal["torch", "pt", "numpy", "np"] = "torch",
        into: Mapping[str, object] | None = None,
        folder: str | None = None,
    ) -> dict[str, Any]:
        """Return the state of a commit: same structure, types and bits, shared tensors shared.

        Args:
            revision: which commit.
            framework: ``torch`` (or ``pt``) returns what was committed, ``numpy`` (or ``np``) arrays
                for all tensors (and needs no torch).
            into: live tensors of the same structure to fill in place; a DTensor takes its part, and
                only the chunks with something of that are read.
            folder: as for ``outline_state``.

        Raises:
            ConflictError: ``into`` has another structure or shape than the state.
        """
        return operations.load_state.load_state(
            self._context, revision, framework=framework, into=into, folder=folder
        )

    @contextlib.contextmanager
    def reading_nearby(self, *nearby: Nearby) -> Iterator[None]:
        """Meanwhile, ask for chunks in the memory of other processes before they are read from the store.

        They are hashed like all others; those that are wrong come from the store. Several places are asked
        in turn, those of an inner block first.
        """
        places = self._context.nearby
        places[:0] = nearby
        try:
            yield
        finally:
            del places[: len(nearby)]

    def find_held(
        self,
        files: Mapping[str, memoryview],
        revision: str = "HEAD",
        *,
        share: Share | None = None,
        peers: Peers | None = None,
    ) -> HeldChunks:
        """Return the chunks of a commit that are still in memory, for ``reading_nearby``.

        Args:
            files: path → content, as it was committed.
            revision: which commit.
            share: what one rank kept of it, whichever.
            peers: the shares of all ranks.

        Raises:
            NotFoundError: no such revision.
        """
        return workspace.held.find_held(self._context, revision, files, share, peers)

    def verify_state(
        self, state: Mapping[str, object], revision: str = "HEAD", *, folder: str | None = None
    ) -> StateCheck:
        """Compare a live state with a commit's, bit by bit; nothing is changed.

        Args:
            state: nested, as for ``commit_state``.
            revision: which commit.
            folder: as for ``outline_state``.

        Raises:
            UnsupportedError: a live value that is not data; the message names its path.
            FormatError: the commit lacks something that its state names.
        """
        return operations.verify.verify_state(self._context, state, revision, folder=folder)
