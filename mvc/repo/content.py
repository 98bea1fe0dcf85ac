"""What a commit holds: files and tensors."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, overload

from mvc import operations
from mvc.repo.opening import OpenRepo

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from mvc.operations import cat  # noqa: F401
    from mvc.operations.export import ExportResult
    from mvc.operations.ls import FileInfo
    from mvc.repo.opening import Paths, Progress, StrPath


class Content(OpenRepo):
    """What a commit holds: files and tensors."""

    def ls(
        self, revision: str = "HEAD", *, paths: Paths = (), tensors: str | None = None
    ) -> list[FileInfo]:
        """Return the files of a revision and their tensors; no tensor byte is read.

        Args:
            revision: which commit.
            paths: only these files, folders or wildcards.
            tensors: only these tensors, and files that have one.

        Raises:
            NotFoundError: no such revision or path.
        """
        return operations.ls.list_files(
            self._context, revision, paths=self._paths(paths), tensors=tensors
        )

    def read_file(self, revision: str, path: StrPath) -> bytes | None:
        """Return a plain file's bytes or a link's text; None for a file that is kept in chunks.

        Raises:
            NotFoundError: no such revision or path.
        """
        return operations.cat.read_plain_file(self._context, revision, self._paths(path)[0])

    @overload
    def tensor(
        self, revision: str, path: StrPath, name: str, *, framework: Literal["numpy", "np"] = ...
    ) -> NDArray[np.generic]: ...
    @overload
    def tensor(
        self, revision: str, path: StrPath, name: str, *, framework: Literal["torch", "pt"]
    ) -> torch.Tensor: ...

    def tensor(
        self, revision: str, path: StrPath, name: str, *, framework: str = "numpy"
    ) -> NDArray[np.generic] | torch.Tensor:
        """Return one tensor's values; only its own chunks are read, each verified.

        Args:
            revision: which commit.
            path: which checkpoint.
            name: which tensor.
            framework: ``numpy`` (or ``np``) for an array (of an ml_dtypes type if NumPy has none),
                ``torch`` (or ``pt``) for a torch.Tensor.

        Returns:
            A new array or tensor of the stored shape; packed types arrive as uint8 bytes.

        Raises:
            UnsupportedError: torch is not installed, or lacks the dtype.
            UsageError: another framework.
        """
        place = self._paths(path)[0]
        value: NDArray[np.generic] | torch.Tensor = operations.cat.read_tensor(
            self._context, revision, place, name, framework
        )
        return value

    def tensors(
        self,
        revision: str = "HEAD",
        *,
        paths: Paths = (),
        tensors: str | None = None,
        framework: Literal["numpy", "np", "torch", "pt"] = "numpy",
    ) -> Iterator[tuple[str, Any]]:
        """Return (name, values) of a revision's tensors, file by file, each read when it is due.

        ``dict(repo.tensors("HEAD", framework="pt"))`` is a state dict.

        Args:
            revision: which commit.
            paths: only those of these files, folders or wildcards.
            tensors: only these.
            framework: as for ``tensor``.

        Raises:
            NotFoundError: no such revision or path, or no tensor matches.
            ConflictError: two files hold a tensor of the same name: say which with ``paths``.
        """
        return operations.cat.read_tensors(
            self._context,
            revision,
            paths=self._paths(paths),
            tensors=tensors,
            framework=framework,
        )

    def export(
        self,
        revision: str,
        output: StrPath,
        *,
        path: StrPath | None = None,
        tensors: str | None = None,
        format: str | None = None,  # noqa: A002  the word of the command line
        force: bool = False,
        progress: Progress = None,
    ) -> ExportResult:
        """Write the files of a revision into a folder, or its model in another format.

        Args:
            revision: which commit.
            output: the folder, made if missing, or the file: a name that ends like a checkpoint's, or
                any name with ``path`` or ``tensors``. A relative path starts at the current folder.
            path: only this checkpoint, or this folder; defaults to all of the revision's.
            tensors: only these tensors.
            format: ``safetensors``: one file, or files of the Hub in a folder; ``torch``: a file that
                ``torch.load(weights_only=True)`` reads; ``dcp``: a folder for ``dcp.load``; ``files``:
                the files as they are, in a folder. Defaults to what the name of the file says. Shards of a DCP folder become whole tensors; DCP and
                torch also take plain values of states and DCP folders, nested as they were.
            force: replace existing files.
            progress: called with bytes written.

        Raises:
            NotFoundError: no such revision or path, or no tensor matches.
            ConflictError: a file exists or is in the way, or two tensors have the same name.
            UsageError: the output is a folder and a file is wanted, or the other way round; the
                folder of the file does not exist; the folder is in ``.mvc``; a file name of another
                format, or a format that is none.
            UnsupportedError: a dtype or name that the format cannot hold.
            FormatError: the shards of a tensor in a DCP folder leave gaps or overlap.
        """
        return operations.export.export(
            self._context,
            revision,
            os.fspath(output),
            path=None if path is None else self._paths(path)[0],
            tensors=tensors,
            kind=format,
            force=force,
            progress=progress,
        )
