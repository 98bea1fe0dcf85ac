"""An open repository: where it is, who commits, what its revisions and settings are."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mvc import workspace
from mvc.errors import UsageError, translate_os_errors

if TYPE_CHECKING:
    from typing import Self

    from mvc.history.values import Head, Identity
    from mvc.ids import GitId
    from mvc.storage.protocol import Storage
    from mvc.workspace.context import Context
    from mvc.workspace.worktree import StrPath


def _open_promised(context: Context) -> Sequence[Storage]:
    from mvc.remotes.promised import open_promised  # noqa: PLC0415  few repositories need it

    return open_promised(context)


class OpenRepo:
    """An open repository: where it is, who commits, what its revisions and settings are."""

    def __init__(
        self,
        path: StrPath = ".",
        *,
        identity: Identity | None = None,
        threads: int | None = None,
        niceness: Callable[[], int] | None = None,
    ) -> None:
        """Open the repository of a folder, or of the nearest folder above it that has one.

        Args:
            path: a folder inside the worktree.
            identity: who commits, unless a call names an author; defaults to the name Git would
                use at that moment: ``GIT_AUTHOR_NAME`` and ``GIT_AUTHOR_EMAIL``, the repository's
                config, the user's Git config, ``EMAIL``, the login name.
            threads: workers for hashing and encoding; defaults to all cores.
            niceness: how much lower than this thread's the priority of a write's workers should be,
                asked again and again; None means not at all. Only on Linux.

        Raises:
            RepositoryNotFoundError: there is none.
        """
        self._context = workspace.context.discover(Path(path))
        self._context.open_promised = _open_promised
        self._context.identity = identity
        self._context.threads = threads
        self._context.niceness = niceness

    @classmethod
    def init(
        cls, path: StrPath = ".", *, branch: str = "main", store: StrPath | None = None
    ) -> Self:
        """Create ``.mvc`` in a folder, which is made if missing, and open it.

        An existing repository is opened unchanged.

        Args:
            path: the folder.
            branch: the first branch.
            store: URL of a store that is to have the content: each commit is pushed there, and reads
                take from there what is not here. It becomes the remote ``origin``.

        Raises:
            UsageError: not a valid branch name or URL, or the path cannot be a folder.
            ConflictError: the store has a history already, or the repository another ``origin``.
            StorageError: the machine failed, or the store cannot be reached.
            UnsupportedError: the store does not keep what refs need.
        """
        folder, is_made = Path(path), not Path(path).exists()
        try:
            with translate_os_errors(f"make folder {folder}"):
                folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise UsageError(f"{folder} is not a folder") from None
        except FileNotFoundError:
            raise UsageError(
                f"cannot make folder {folder}: its parent folder is missing or does not accept folders",
                hint="name a folder elsewhere",
            ) from None
        is_new = not (folder / workspace.context.GIT_DIR_NAME).exists()
        context = workspace.context.init(folder, branch=branch)
        if store is not None:
            from mvc.operations.only_store import keep_on_store  # noqa: PLC0415  few have one

            try:
                keep_on_store(context, os.fspath(store))
            except BaseException:
                if is_new:
                    import shutil  # noqa: PLC0415  brings much

                    shutil.rmtree(folder if is_made else context.git_dir, ignore_errors=True)
                raise
        return cls(folder)

    @classmethod
    def open(
        cls,
        path: StrPath = ".",
        *,
        identity: Identity | None = None,
        threads: int | None = None,
        niceness: Callable[[], int] | None = None,
    ) -> Self:
        """Return ``Repo(path, ...)``, the other name of the same.

        Raises:
            RepositoryNotFoundError: there is none.
        """
        return cls(path, identity=identity, threads=threads, niceness=niceness)

    def close(self) -> None:
        """Close the files that reads keep open; the next read opens them again."""
        self._context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"mvc.Repo({os.fspath(self.worktree)!r})"

    @property
    def worktree(self) -> Path:
        """Folder with the user's files."""
        return self._context.worktree

    @property
    def git_dir(self) -> Path:
        """The ``.mvc`` folder, a Git directory."""
        return self._context.git_dir

    @property
    def chunk_bytes(self) -> int:
        """Length of chunks: tensors are cut at its multiples (``mvc.chunkbytes``)."""
        return self._context.chunk_bytes

    @property
    def head(self) -> Head:
        """HEAD's branch (None if detached) and commit (None before the first one)."""
        return self._context.history.head()

    @property
    def is_interrupted(self) -> bool:
        """Whether a checkout was cut short and waits for the next change or ``status`` to finish it."""
        return workspace.recovery.is_interrupted(self._context)

    @property
    def identity(self) -> Identity | None:
        """Who commits, unless a call names an author; None means whom Git would name."""
        return self._context.identity

    @identity.setter
    def identity(self, identity: Identity | None) -> None:
        self._context.identity = identity

    def check_identity(self) -> None:
        """Check that commits can name who makes them, before work that ends in one.

        Raises:
            UsageError: ``identity``, or whom Git would name, has no name.
        """
        self._context.check_identity()

    def resolve(self, revision: str) -> GitId:
        """Return the commit id of a revision.

        Raises:
            NotFoundError: no such revision.
        """
        return self._context.history.resolve(revision)

    def merge_base(self, left: str, right: str) -> GitId | None:
        """Return the best common ancestor of two revisions, or None if they share none.

        Raises:
            NotFoundError: no such revision.
        """
        return next(
            iter(self._context.history.find_merge_bases(self.resolve(left), self.resolve(right))),
            None,
        )

    def config(self) -> dict[str, str]:
        """Return the repository's settings, and the user's where it has none.

        As ``section.key`` → value.

        Raises:
            FormatError: the config is damaged.
        """
        return self._context.history.config.read()

    def set_config(self, key: str, value: str | None) -> None:
        """Set one setting, or remove it with None.

        Raises:
            NotFoundError: there is no such setting to remove.
            UsageError: not a valid key or value.
        """
        self._context.forget_settings()
        if value is None:
            self._context.history.config.unset(key)
        else:
            key = workspace.settings.check_setting(key, value, is_users=False)
            if key.startswith("remote."):
                from mvc.remotes.settings import check_remote_setting  # noqa: PLC0415  few have any

                check_remote_setting(key, value)
            if key == workspace.context.STORE:
                from mvc.operations.only_store import begin  # noqa: PLC0415  as above

                begin(self._context, value)
            self._context.history.config.set(key, value)
