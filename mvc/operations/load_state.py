"""load_state: a training state from a commit, as new objects or into live tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal

from mvc.chunkstore.parallel import for_each
from mvc.errors import CorruptionError
from mvc.states.outline import outline_state as outline_text
from mvc.states.state import plan_state
from mvc.workspace.released import check_content
from mvc.workspace.state_files import TensorIds, TensorSizes, read_state_text, read_state_tree
from mvc.workspace.tensors import ModelTensor, read_part, stored_tensors

if TYPE_CHECKING:
    from mvc.history.values import TreeEntry
    from mvc.states.factory import Reader
    from mvc.states.reads import TensorRead
    from mvc.workspace.context import Context


def load_state(
    context: Context,
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
    commit = context.history.resolve(revision)
    tree = read_state_tree(context, commit, folder)
    text = read_state_text(context, commit, revision, folder)
    plan = plan_state(text, TensorSizes(context, tree), framework=framework, into=into)
    files = sorted({read.file for read in plan.reads})
    check_content(context, [(path, tree[path].blob) for path in files], commit=commit)
    try:
        fill_reads(context, tree, plan.reads)
    except CorruptionError:  # damaged, or released while it was read?
        check_content(context, [(path, tree[path].blob) for path in files], commit=commit)
        raise
    return plan.build()


def outline_state(
    context: Context,
    revision: str = "HEAD",
    *,
    folder: str | None = None,
    with_content: bool = False,
) -> dict[str, Any]:
    """Return the structure of a commit's state, with an ``ArrayOutline`` for each array.

    ``folder`` is where in the commit the state is: ``ranks/3`` has what was rank 3's alone.
    ``with_content`` has every outline say, in ``content``, what is the same for the same bytes.

    Raises:
        NotFoundError: no such revision, or the commit holds no state.
        ReleasedError: content of that commit was released.
    """
    commit = context.history.resolve(revision)
    text = read_state_text(context, commit, revision, folder)
    if not with_content:
        return outline_text(text)
    ids = TensorIds(context, read_state_tree(context, commit, folder))
    return outline_text(text, ids.find)


def fill_reads(
    context: Context, tree: Mapping[str, TreeEntry], reads: Iterable[TensorRead]
) -> None:
    """Fill the arrays: those of many chunks one by one, chunks in parallel; the others at once."""

    @cache
    def tensors_of(path: str) -> dict[str, ModelTensor]:
        blob = tree[path].blob
        manifest = context.manifests.read(blob)
        return {one.name: one for one in stored_tensors(context, (path, blob, None), manifest)}

    # One chunk gives threads nothing to share, so tensors of one chunk are read side by side.
    short: list[tuple[TensorRead, Reader]] = []
    for read in reads:
        tensor = tensors_of(read.file)[read.tensor]
        count, into = len(tensor.chunks or ()), tensor.read_into
        if read.part is not None:
            runs = tuple(read.part.cut(tensor.chunk_bytes))
            count, into = len(runs), partial(read_part, context, tensor, read.part, runs)
        if count == 1:
            short.append((read, into))
        else:
            read.fill(into)

    def fill(job: tuple[TensorRead, Reader], _: None) -> int:
        read, into = job
        read.fill(into)
        return read.size_bytes

    for_each(short, lambda: None, fill, threads=context.store.threads)
