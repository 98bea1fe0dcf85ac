"""A storage in an object store (S3, GCS, Azure, memory), through obstore.

An object on its way is spooled to a file of its own and uploaded when it is published, since its key
(the hash of its bytes) is not known before. Only single puts can be conditional. Some stores want the
tag of a conditional put quoted, as HTTP says, others (Ceph) bare. One that refuses the quoted tag of
what is still there gets bare ones from then on.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import obstore
from obstore import exceptions as failures
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from mvc.errors import ConflictError, CorruptionError, StorageError
from mvc.storage.protocol import ObjectInfo, Tagged, check_key, check_prefix, check_whole, is_key

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import BinaryIO, Self

    from mvc.progress import ByteProgress
    from mvc.storage.protocol import Buffer

PART_BYTES = 8 * 2**20
"""What an upload sends at once; S3 takes parts from 5 MiB on."""
_PARALLEL_PARTS = 4
_COALESCE_BYTES = 2**16
_REASON_CHARS = 200
_LOST = (failures.PreconditionError, failures.AlreadyExistsError, failures.NotModifiedError)
_CERTIFICATE_HINT = (
    "SSL_CERT_FILE in the environment names a file of certificate authorities to trust"
)
_REFUSED_HINT = "check the credentials, and what they allow on this bucket"


def _reason(error: BaseException, name: str, waited_s: float) -> str:
    """Return why a store did not do what was asked of it.

    Messages of the client name URLs with what is signed into them, so only their beginning is kept.
    """
    text = str(error).partition("\n")[0]
    if "InvalidCertificate" in str(error):
        return f"{name} has a certificate that is not trusted"
    if "error sending request" in text:
        waited = f" (waited {waited_s:.0f} s)" if waited_s >= 1 else ""
        return f"{name} does not answer{waited}"
    status = re.search(r"status code: (\d{3}[ A-Za-z]*)", text)
    if status:
        return f"{name} answers {status[1].strip()}"
    return re.sub(r"https?://\S+", name, text)[:_REASON_CHARS]


@contextlib.contextmanager
def translate_failures(action: str, name: str) -> Iterator[None]:
    """Turn what the store called ``name``, or the way there, fails with into the errors of mvc."""
    start_s = time.monotonic()
    try:
        yield
    except FileNotFoundError:
        raise
    except (failures.PermissionDeniedError, failures.UnauthenticatedError):
        reason = f"cannot {action}: {name} refuses"
        raise StorageError(reason, hint=_REFUSED_HINT) from None
    except (failures.BaseError, OSError) as error:
        waited_s = time.monotonic() - start_s
        reason = _reason(error, name, waited_s)
        hint = _CERTIFICATE_HINT if "certificate" in reason else None
        raise StorageError(f"cannot {action}: {reason}", hint=hint) from None


class ObjectStorage:
    """Objects below the prefix of a bucket; safe for many threads and processes.

    Args:
        store: as obstore makes it, with the prefix.
        spool: the folder of objects on their way; the system's own by default.
        name: what errors call it.
        quotes_tags: False: the store is known to want bare tags, which is found out otherwise.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        spool: Path | None = None,
        name: str = "the store",
        quotes_tags: bool = True,
    ) -> None:
        self._store = store
        self._name = name
        self._spool = spool
        self._quotes_tags = quotes_tags

    def create(self, prefix: str = "") -> SpooledObject:
        """Begin a new object."""
        check_prefix(prefix)
        return SpooledObject(self, self._spool)

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset`` on, with one request."""
        if not len(buffer):
            if self.find_size(key) is None:
                raise FileNotFoundError(key)
            return
        buffer[:] = memoryview(self.read_ranges(key, [(offset, len(buffer))])[0])

    def read(self, key: str) -> bytes:
        """Return a whole (small) object."""
        tagged = self.read_tagged(key)
        if tagged is None:
            raise FileNotFoundError(key)
        return tagged.data

    def find_size(self, key: str) -> int | None:
        """Return the length of an object in bytes, or None if there is none."""
        check_key(key)
        try:
            with self._asking(f"look at {key}"):
                return obstore.head(self._store, key)["size"]
        except FileNotFoundError:
            return None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects below a folder prefix, sorted by key."""
        check_prefix(prefix)
        with self._asking(f"list {prefix or 'the store'}"):
            infos = [
                ObjectInfo(meta["path"], meta["size"], meta["last_modified"].timestamp())
                for part in obstore.list(self._store, prefix or None)
                for meta in part
            ]
        kept = (meta for meta in infos if is_key(meta.key) and meta.key.startswith(prefix))
        yield from sorted(kept, key=lambda info: info.key)

    def sync(self, prefix: str) -> None:
        """Do nothing: what a store acknowledged is durable."""
        check_prefix(prefix)

    def delete(self, *keys: str) -> None:
        """Remove objects; removing one that is not there is not an error."""
        for key in keys:
            check_key(key)
        with self._asking("delete objects"):
            try:
                obstore.delete(self._store, list(keys))
            except FileNotFoundError:  # some stores say so, and stop there
                for key in keys:
                    with contextlib.suppress(FileNotFoundError):
                        obstore.delete(self._store, key)

    def read_tagged(self, key: str) -> Tagged | None:
        """Return a small object with its tag, or None if there is none."""
        check_key(key)
        try:
            with self._asking(f"read {key}"):
                answer = obstore.get(self._store, key)
                check_whole(key, answer.meta["size"])
                return Tagged(bytes(answer.bytes()), _join_tag(answer.meta))
        except FileNotFoundError:
            return None

    def replace(self, key: str, data: bytes, tag: str | None) -> None:
        """Put an object in the place of the version with a tag, in one conditional put."""
        check_key(key)
        if self.put_if(key, data, tag, quoted=self._quotes_tags):
            return
        if tag and self._quotes_tags and self.is_current(key, tag):
            self._quotes_tags = False
            if self.put_if(key, data, tag, quoted=self._quotes_tags):
                return
        raise ConflictError(f"{key} has been replaced meanwhile")

    def put_if(self, key: str, data: bytes, tag: str | None, *, quoted: bool) -> bool:
        """Put on condition that a version is there, or none; return whether the store did."""
        mode: Any = "create"
        if tag is not None:
            e_tag, _, version = tag.partition("\n")
            parts = {"e_tag": e_tag if quoted else e_tag.strip('"'), "version": version}
            mode = {key: value for key, value in parts.items() if value}
        with self._asking(f"write {key}"):
            try:
                obstore.put(self._store, key, data, mode=mode, use_multipart=False)
            except _LOST:
                return False
            except FileNotFoundError:
                if tag is None:
                    raise StorageError(f"cannot write {key}: the bucket does not exist") from None
                return False
        return True

    @property
    def is_s3(self) -> bool:
        """Whether it speaks S3, where an object has a version only if the bucket keeps old ones."""
        return isinstance(self._store, S3Store)

    def sign(self, method: Any, key: str) -> str:
        """Return a URL that does one thing to one object for a minute, for those who may see it."""
        if not isinstance(self._store, S3Store | GCSStore | AzureStore):
            raise StorageError("this kind of store signs no URLs")
        with self._asking(f"sign a URL of {key}"):
            return obstore.sign(self._store, method, key, timedelta(minutes=1))

    def _asking(self, action: str) -> AbstractContextManager[None]:
        return translate_failures(action, self._name)

    def is_current(self, key: str, tag: str) -> bool:
        """Return whether the version of an object with a tag is still there."""
        check_key(key)
        try:
            with self._asking(f"look at {key}"):
                return _join_tag(obstore.head(self._store, key)) == tag
        except FileNotFoundError:
            return False

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Buffer]:
        """Return runs of one object; what lies close together travels in one request."""
        check_key(key)
        starts, lengths = [part[0] for part in ranges], [part[1] for part in ranges]
        parts: list[Buffer] = []
        try:
            with self._asking(f"read {key}"):
                answers = obstore.get_ranges(
                    self._store, key, starts=starts, lengths=lengths, coalesce=_COALESCE_BYTES
                )
            parts = [memoryview(part) for part in answers]
        except StorageError:
            self._check_end(key, ranges)
            raise
        if any(len(part) != length for part, length in zip(parts, lengths, strict=True)):
            self._check_end(key, ranges)
            raise StorageError(f"cannot read {key}: the store sent less than was asked for")
        return parts

    def _check_end(self, key: str, ranges: Sequence[tuple[int, int]]) -> None:
        size_bytes = self.find_size(key)
        if size_bytes is None:
            raise FileNotFoundError(key)
        end = max(sum(run) for run in ranges)
        if size_bytes < end:
            raise CorruptionError(f"{key} ends at {size_bytes:,} bytes, {end:,} were expected")

    def upload(self, key: str, path: Path, progress: ByteProgress = None) -> None:
        """Make a file an object, in parts of 8 MiB, some at once."""
        check_key(key)
        with path.open("rb") as file:
            self.send(key, file if progress is None else _Counted(file, progress))

    def send(self, key: str, file: Any) -> None:
        """Make what a file has from its position on an object."""
        with self._asking(f"write {key}"):
            obstore.put(
                self._store, key, file, chunk_size=PART_BYTES, max_concurrency=_PARALLEL_PARTS
            )


class _Counted:
    """A file that says how much was read of it."""

    def __init__(self, file: BinaryIO, progress: ByteProgress) -> None:
        self._file, self._progress = file, progress

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        if self._progress is not None:
            self._progress(len(data))
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


class SpooledObject:
    """An object on its way into an ``ObjectStorage``, in a file without a name."""

    def __init__(self, storage: ObjectStorage, spool: Path | None) -> None:
        self._storage = storage
        self._file: BinaryIO | None = tempfile.TemporaryFile(dir=spool)  # noqa: SIM115  see abort
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._size_bytes

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append the buffers."""
        file = self._check_open()
        try:
            for buffer in buffers:
                self._size_bytes += file.write(buffer)
        except OSError as error:
            self.abort()
            raise StorageError(f"cannot spool an object: {error.strerror}") from error

    def publish(self, key: str) -> None:
        """Upload the object under ``key``."""
        check_key(key)
        file = self._check_open()
        try:
            if self._storage.find_size(key) != self._size_bytes:
                file.seek(0)
                self._storage.send(key, file)
        finally:
            self.abort()

    def abort(self) -> None:
        """Forget everything written; harmless after ``publish``."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _check_open(self) -> BinaryIO:
        if self._file is None:
            raise StorageError("writer is closed")
        return self._file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.abort()


def _join_tag(meta: Any) -> str:
    """Return ETag and version (stores use one or the other) as one opaque tag."""
    return f"{meta['e_tag'] or ''}\n{meta['version'] or ''}"
