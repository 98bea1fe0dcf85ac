"""Tar files of samples, as webdataset writes them: the files of a sample follow each other.

A sample is {"__key__": the path up to the first dot of its name, extension: bytes, ...}.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from mvc import FormatError
from mvc.shards import FileStream, TarSample, list_tar_samples
from mvc_data.readers.reader import naming_shard

if TYPE_CHECKING:
    from collections.abc import Sequence


class TarSamples:
    """The samples of a tar file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY)
        try:
            with naming_shard(path):
                self._samples = list(list_tar_samples(FileStream(self._file)))
        except BaseException:
            self.close()
            raise

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(self._samples)

    def read(self, numbers: Sequence[int]) -> list[Any]:
        """Return some samples."""
        return [self._read(self._samples[number]) for number in numbers]

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _read(self, found: TarSample) -> dict[str, Any]:
        sample: dict[str, Any] = {"__key__": found.key}
        for extension, offset, size in found.files:
            data = os.pread(self._file, size, offset)
            if len(data) != size:
                raise FormatError(f"shard {self.path} became shorter: {found.key!r} is cut off")
            sample[extension] = data
        return sample
