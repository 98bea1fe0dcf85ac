"""A commit's model as one nested value, to be written in another format.

Its leaves are tensors, plain values, and objects of DCP folders as they are stored. Where each belongs
comes from the ``.metadata`` of a DCP folder or from ``state.json``; the tensors of all other files are
at the top, by name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mvc.checkpoints.dcp.objects import MAX_OBJECT_BYTES, parse_object
from mvc.dtypes import get_dtype
from mvc.errors import ConflictError, FormatError, NotFoundError, UnsupportedError
from mvc.formats.layout import TensorView, view_extent_bytes
from mvc.states.document import STATE_FILE
from mvc.states.outline import ArrayPlace, locate_arrays
from mvc.tensor_names import takes
from mvc.workspace.dcp_folders import DcpFolder, find_stored_folders, read_items
from mvc.workspace.models import check_there, find_tensors
from mvc.workspace.pathspec import select_paths
from mvc.workspace.state_files import find_state_files, read_small_file
from mvc.workspace.tensors import ModelTensor

if TYPE_CHECKING:
    from mvc.checkpoints.dcp.metadata import DcpItem, Path
    from mvc.history.values import TreeEntry
    from mvc.workspace.context import Context
    from mvc.workspace.models import Version


@dataclass(frozen=True, slots=True, eq=False)
class StoredObject:
    """An object of a DCP folder."""

    folder: DcpFolder
    item: DcpItem


@dataclass(frozen=True, slots=True, eq=False)
class ModelTree:
    """All that is written."""

    tree: Mapping[str, TreeEntry]  # the files of the commit
    # key → path in the nested value, and what is there, which may be nested again
    leaves: dict[str, tuple[Path, object]] = field(default_factory=dict)

    def add(self, key: str, path: Path, leaf: object) -> None:
        """Add a leaf; ConflictError if there is one of that key."""
        if key in self.leaves:
            raise ConflictError(f"two files hold {key!r}", hint="name one of the files or folders")
        self.leaves[key] = (path, leaf)

    @property
    def tensors(self) -> list[ModelTensor]:
        """All tensors."""
        return [one for _, leaf in self.leaves.values() for one in tensors_in(leaf)]

    def flatten(self) -> ModelTree:
        """Return the same with keys as DCP makes them: of dicts, and of lists that hold tensors or dicts."""
        result = ModelTree(self.tree)
        for path, leaf in self.leaves.values():
            _flatten(result, path, leaf)
        return result

    def select(self, pattern: str) -> ModelTree:
        """Return only tensors, those that a pattern takes."""
        leaves: dict[str, tuple[Path, object]] = {
            key: (path, leaf)
            for key, (path, leaf) in self.flatten().leaves.items()
            if isinstance(leaf, ModelTensor) and takes(pattern, key)
        }
        return ModelTree(self.tree, leaves)


def _flatten(result: ModelTree, path: Path, value: object) -> None:
    if isinstance(value, dict):
        for key, one in value.items():
            _flatten(result, (*path, str(key)), one)
    elif isinstance(value, list) and any(tensors_in(value) or _find_dicts(value)):
        for number, one in enumerate(value):
            _flatten(result, (*path, number), one)
    else:
        result.add(".".join(map(str, path)), path, value)


def _find_dicts(value: list[object]) -> Iterator[bool]:
    for one in value:
        if isinstance(one, dict):
            yield True
        elif isinstance(one, list):
            yield from _find_dicts(one)


def tensors_in(value: object) -> Iterable[ModelTensor]:
    """Yield the tensors of a nested value."""
    if isinstance(value, ModelTensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_in(one)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def read_model_tree(
    context: Context, revision: str, paths: Sequence[str], pattern: str | None, command: str
) -> ModelTree:
    """Return what some files of a revision hold; with a ``pattern``, only tensors that it takes."""
    commit = context.history.resolve(revision)
    tree = context.history.read_tree(commit)
    chosen = select_paths(paths, list(tree))
    result = ModelTree(tree)
    state = find_state_files(context, tree) if STATE_FILE in chosen else set()
    if state and state <= set(chosen):
        for key, value in _read_state(context, (commit, tree)).items():
            result.add(key, (key,), value)
        chosen = [one for one in chosen if one not in state]
    folders = find_stored_folders(context, tree, chosen)
    paths_of = {key: path for folder in folders for key, path in folder.metadata.paths.items()}
    for tensor in find_tensors(context, (commit, tree), chosen):
        result.add(tensor.name, paths_of.get(tensor.name, (tensor.name,)), tensor)
    for folder in folders:
        for item in (item for items in folder.metadata.files.values() for item in items):
            if item.box is None:
                path = folder.metadata.paths.get(item.key, (item.key,))
                result.add(item.key, path, StoredObject(folder, item))
    if pattern is not None:
        result = result.select(pattern)
    if not result.tensors:
        what = "no tensor" if pattern is None else f"no tensor that matches {pattern!r}"
        raise NotFoundError(f"{revision} has {what}", hint=f'"mvc ls {revision}" lists them')
    check_there(context, (commit, tree), result.tensors, command)
    return result


def _read_state(context: Context, version: Version) -> dict[str, Any]:
    """Return a training state with tensors of files for its arrays."""
    _, tree = version
    value = locate_arrays(read_small_file(context, tree[STATE_FILE].blob))
    files: dict[str, dict[str, ModelTensor]] = {}

    def replace_places(one: Any) -> Any:
        if isinstance(one, ArrayPlace):
            if one.file not in files:
                found = find_tensors(context, version, [one.file] if one.file in tree else [])
                files[one.file] = {tensor.name: tensor for tensor in found}
            return _find_array(files[one.file], one)
        if type(one) in (dict, OrderedDict):
            return {key: replace_places(item) for key, item in one.items()}
        if type(one) in (list, tuple):
            return type(one)(map(replace_places, one))
        return one

    return {key: replace_places(one) for key, one in value.items()}


def _find_array(held: Mapping[str, ModelTensor], place: ArrayPlace) -> ModelTensor:
    tensor = held.get(place.name)
    if tensor is None:
        raise FormatError(f"state.json names {place.name!r}, which {place.file} does not hold")
    shape, strides = place.shape, None
    if place.byte_strides is not None:
        step = get_dtype(tensor.view.dtype).block_bytes
        strides = tuple(stride // step for stride in place.byte_strides)
    elif shape != tensor.view.shape:
        raise FormatError(f"tensor {place.name!r} of {place.file} has another shape in state.json")
    view = TensorView(place.name, tensor.view.dtype, shape, place.offset_bytes, strides)
    if place.offset_bytes < 0 or view.offset_bytes + view_extent_bytes(view) > tensor.size_bytes:
        raise FormatError(f"tensor {place.name!r} of {place.file} is shorter than in state.json")
    return replace(tensor, view=view)


_KEYS = (str, int, float, bool, bytes, type(None))


class Cleaner:
    """Takes out what is not plain data; the names of that are in ``left_out``."""

    def __init__(self, context: Context, model: ModelTree) -> None:
        self.left_out: list[str] = []
        self._data: dict[StoredObject, bytes] = {}
        for folder in {leaf.folder.path: leaf.folder for leaf in _stored(model)}.values():
            small = [
                leaf
                for leaf in _stored(model)
                if leaf.folder is folder and leaf.item.size_bytes <= MAX_OBJECT_BYTES
            ]
            items = read_items(context, folder, model.tree, [leaf.item for leaf in small])
            self._data |= {leaf: items[leaf.item.key] for leaf in small if not leaf.item.transforms}

    def clean(self, model: ModelTree, *, keep_stored: bool = False) -> ModelTree:
        """Return what is left of all leaves; stored objects may stay as they are."""
        result = ModelTree(model.tree)
        for key, (path, leaf) in model.leaves.items():
            if keep_stored and isinstance(leaf, StoredObject):
                result.add(key, path, leaf)
                continue
            try:
                result.add(key, path, self._clean(leaf, key))
            except UnsupportedError:
                self.left_out.append(key)
        return result

    def _clean(self, value: object, name: str) -> object:
        if isinstance(value, ModelTensor):
            return value
        if isinstance(value, StoredObject):
            return parse_object(self._data.get(value, b""))
        if isinstance(value, dict):
            return self._clean_dict(value, name)
        if type(value) in (list, tuple):
            return type(value)(self._clean(one, name) for one in value)  # type: ignore[attr-defined,call-arg]
        if type(value) in _KEYS:
            return value
        raise UnsupportedError(f"{name} is no plain data")

    def _clean_dict(self, value: dict[object, object], name: str) -> dict[object, object]:
        kept: dict[object, object] = {}
        for key, one in value.items():
            if type(key) not in _KEYS:
                self.left_out.append(f"{name}.{key}")
                continue
            try:
                kept[key] = self._clean(one, f"{name}.{key}")
            except UnsupportedError:
                self.left_out.append(f"{name}.{key}")
        return kept


def _stored(model: ModelTree) -> Iterator[StoredObject]:
    for _, leaf in model.leaves.values():
        if isinstance(leaf, StoredObject):
            yield leaf
