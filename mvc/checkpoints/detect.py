"""From a file's bytes and name to its layout, whatever it is and however damaged.

Content decides, the name helps: it settles what has no magic of its own (safetensors), and a file
that cannot be read but by its name *claims* to be a checkpoint gets a warning. A format's module is
imported when the first file of it is met.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from mvc.checkpoints.names import GGUF_MAGIC, NPY_MAGIC, ZIP_MAGIC, is_checkpoint_name
from mvc.errors import FormatError
from mvc.formats.layout import FileLayout
from mvc.sources import ByteSource, read_bytes

if TYPE_CHECKING:
    Parser = Callable[[ByteSource], FileLayout]

LEGACY_WARNING = "legacy torch pickle is stored as opaque bytes"
PICKLE_WARNING = "pickle is stored as opaque bytes"
MAX_WARNING_CHARACTERS = 300
"""A warning quotes hostile text; one screen line or two is enough."""
_HEAD_BYTES = 16
# PROTO 2, then LONG1 with the number that begins every file of torch.save before 1.6.
_LEGACY_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
_PICKLE_MAGIC = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
_WEIGHTS_PREFIX = "pytorch_model"


def read_layout(source: ByteSource, name: str) -> FileLayout:
    """Return where the tensors of a file are; ``opaque`` for a file that has none to name.

    The layout passes ``check_layout``. Its warning is set if a file that claims to be a checkpoint,
    by suffix or magic, could not be read as one. ConflictError: the file became shorter meanwhile.
    """
    own_name = name.rpartition("/")[2]
    name = own_name.lower()
    head = read_bytes(source, 0, min(_HEAD_BYTES, source.size_bytes))
    if name.endswith(".distcp") and not _begins_like_safetensors(head, source.size_bytes):
        from mvc.checkpoints.dcp.layout import parse_distcp  # noqa: PLC0415  see the module's text

        parse: Parser | None = partial(parse_distcp, name=own_name)
    else:
        parse = _find_parser(source, head, name)
    if parse is None:
        return _opaque(source, _explain_unknown(head, name))
    try:
        return parse(source)
    except FormatError as error:
        if parse is _parse_safetensors and not name.endswith(".safetensors"):
            return _opaque(source, _explain_unknown(head, name))  # only looked a little like one
        claims = head.startswith((GGUF_MAGIC, NPY_MAGIC)) or is_checkpoint_name(name)
        return _opaque(source, error.message if claims else None)


def _opaque(source: ByteSource, warning: str | None) -> FileLayout:
    if warning is not None and len(warning) > MAX_WARNING_CHARACTERS:
        warning = warning[: MAX_WARNING_CHARACTERS - 3] + "..."
    return FileLayout("opaque", source.size_bytes, (), warning)


def _find_parser(source: ByteSource, head: bytes, name: str) -> Parser | None:
    # A name settles the one clash: a header of 67 MB makes a safetensors file begin as a zip.
    if name.endswith(".safetensors") and head[8:9] == b"{":
        return _parse_safetensors
    if head.startswith(GGUF_MAGIC):
        from mvc.checkpoints.gguf import parse_gguf  # noqa: PLC0415  see the module's text

        return parse_gguf
    if head.startswith(NPY_MAGIC):
        from mvc.checkpoints.npy import parse_npy  # noqa: PLC0415  as above

        return parse_npy
    from mvc.checkpoints.zip_directory import ends_like_zip  # noqa: PLC0415  as above

    if head.startswith(ZIP_MAGIC) or ends_like_zip(source):
        return _parse_zip
    if name.endswith(".safetensors") or _begins_like_safetensors(head, source.size_bytes):
        return _parse_safetensors
    return None


def _parse_safetensors(source: ByteSource) -> FileLayout:
    from mvc.checkpoints.safetensors import parse_safetensors  # noqa: PLC0415  as above

    return parse_safetensors(source)


def _parse_zip(source: ByteSource) -> FileLayout:
    from mvc.checkpoints.torch_zip import find_pickles, layout_torch  # noqa: PLC0415  as above
    from mvc.checkpoints.zip_directory import parse_zip_directory  # noqa: PLC0415

    entries = parse_zip_directory(source)
    if find_pickles(entries):
        return layout_torch(source, entries)
    if any(entry.name.endswith(".npy") for entry in entries):
        from mvc.checkpoints.npy import layout_npz  # noqa: PLC0415  as above

        return layout_npz(source, entries)
    raise FormatError("zip archive holds neither a torch pickle nor numpy arrays")


def _begins_like_safetensors(head: bytes, size_bytes: int) -> bool:
    if head[8:9] != b"{":
        return False
    from mvc.checkpoints.safetensors import LENGTH_BYTES, MAX_HEADER_BYTES  # noqa: PLC0415  as above

    header_bytes = int.from_bytes(head[:LENGTH_BYTES], "little")
    return 0 < header_bytes <= min(MAX_HEADER_BYTES, size_bytes - LENGTH_BYTES)


def _explain_unknown(head: bytes, name: str) -> str | None:
    """Return why a file without any magic is opaque, if its name promised a checkpoint."""
    if name.endswith(_TORCH_SUFFIXES):
        if head.startswith(_LEGACY_MAGIC):
            return LEGACY_WARNING
        if head.startswith(_PICKLE_MAGIC):
            return PICKLE_WARNING
        if name.endswith(".bin") and not name.startswith(_WEIGHTS_PREFIX):
            return None  # the suffix of any binary data
        return "file is not a torch archive: it does not begin as a zip file"
    if is_checkpoint_name(name):
        return f"file does not begin as {name.rpartition('.')[2]} files do"
    return None
