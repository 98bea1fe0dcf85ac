"""The merge of a model in several files, where a tensor is in one file on one side and in another on the other.

A tensor is the same wherever it is, so all shards are merged as one. Which file has which tensor is as on
ours, or as on the side that alone changed that; the index beside the shards says what came out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from mvc.checkpoints.safetensors import METADATA_KEY
from mvc.errors import FormatError
from mvc.history.values import MODE_SYMLINK, TreeEntry
from mvc.merging.checkpoint import CheckpointMerge, place_tensors
from mvc.merging.decided import Fit, Resolve, decide_tensors, read_tensors
from mvc.merging.table import decide
from mvc.workspace.manifests import find_manifest
from mvc.workspace.state_files import read_small_file

if TYPE_CHECKING:
    from mvc.workspace.context import Context
    from mvc.workspace.tensors import ModelTensor

Tree: TypeAlias = Mapping[str, TreeEntry]
Layout: TypeAlias = Mapping[str, str]
"""Tensor → the file that it is in."""
Files: TypeAlias = dict[str, CheckpointMerge | TreeEntry | bytes | None]
_INDEX = ".index.json"
_FILE = re.compile(r"(?P<stem>.+?)(?P<number>-\d+-of-\d+)?\.safetensors(?:\.index\.json)?")
_TOTALS = (("total_size", "size_bytes"), ("total_parameters", "elements"))


def find_models(paths: Iterable[str]) -> list[list[str]]:
    """Return the paths of every model that is in several files, its index among them."""
    found: dict[str, list[str]] = {}
    sharded: set[str] = set()
    for path in sorted(paths):
        match = _FILE.fullmatch(path)
        if match is not None:
            found.setdefault(match["stem"], []).append(path)
            sharded |= {match["stem"]} if match["number"] else set()
    return [found[stem] for stem in found if stem in sharded]


def merge_model(
    context: Context,
    base: Tree,
    sides: Sequence[Tree],
    find_strategy: Callable[[str, str], str | None],
    resolve: Resolve,
    fit: Fit | None = None,
) -> Files | None:
    """Plan the merge of a model, given its files; None if each file can be merged by itself.

    ``find_strategy`` takes a file of the result and a tensor. The result says of every path what is
    there: a shard, an index (that of a side, or a new one), or None.
    """
    if sum(side != base for side in sides) <= 1 or not all(sides):
        return None
    trees = [base, *sides]
    tensors = [shards for tree in trees if (shards := _read(context, tree)) is not None]
    if len(tensors) < len(trees):
        return None
    layouts = [{name: tensor.path for name, tensor in shards.items()} for shards in tensors]
    # Where rows are aligned by token, tensors grow, and the index says how large all are.
    if fit is None and not _differ(layouts) and not _is_index_disputed(trees):
        return None
    side = 1 + _choose_side(layouts)
    indexes = _read_indexes(context, trees[side])
    if indexes is None:
        return None
    files: Files = dict.fromkeys(path for tree in trees for path in tree)
    homes = _find_homes(layouts[side], layouts)
    for path, decided in decide_tensors(tensors, homes, find_strategy, resolve, fit).items():
        if decided.result or decided.conflicts:
            versions, strategy = (
                [tree.get(path) for tree in trees],
                find_strategy(path, METADATA_KEY),
            )
            shard = place_tensors(context, path, versions, decided, strategy)
            assert isinstance(shard, CheckpointMerge)  # a safetensors file can always be rewritten
            files[path] = shard
    merged = [file for file in files.values() if isinstance(file, CheckpointMerge)]
    for path, index in indexes.items():
        new = _renew(index, merged, tensors[side].values())
        # As the transformers library writes an index.
        text = json.dumps(new, indent=2, sort_keys=True) + "\n"
        files[path] = trees[side][path] if new == index else text.encode()
    return files


def lacks_tensors(context: Context, versions: Sequence[TreeEntry | None]) -> bool:
    """Return whether versions of a shard differ in which tensors they have."""
    manifests = [
        None if version is None else find_manifest(context, version.blob) for version in versions
    ]
    names = [
        None if manifest is None else manifest.tensors_by_name().keys() for manifest in manifests
    ]
    return any(name != names[0] for name in names)


def _read(context: Context, tree: Tree) -> Mapping[str, ModelTensor] | None:
    """Return the tensors of all shards; None if a file is not safetensors, or two hold the same name."""
    shards = {path: entry for path, entry in tree.items() if not path.endswith(_INDEX)}
    count = 0
    for entry in shards.values():
        manifest = None if entry.mode == MODE_SYMLINK else find_manifest(context, entry.blob)
        if manifest is None or manifest.format != "safetensors":
            return None
        count += len(manifest.segments)
    tensors = read_tensors(context, shards)
    return tensors if len(tensors) == count else None


def _differ(layouts: Sequence[Layout]) -> bool:
    """Return whether a tensor is in several files."""
    seen: dict[str, str] = {}
    return any(
        seen.setdefault(name, path) != path for layout in layouts for name, path in layout.items()
    )


def _is_index_disputed(trees: Sequence[Tree]) -> bool:
    """Return whether several sides changed the index beside the shards."""
    base, *sides = (
        tuple(sorted((path, entry.blob) for path, entry in tree.items() if path.endswith(_INDEX)))
        for tree in trees
    )
    return decide(base or None, sides).side is None


def _choose_side(layouts: Sequence[Layout]) -> int:
    """Return the side whose files the result has: the one that moved tensors that all have, or ours."""
    common = sorted(set.intersection(*(set(layout) for layout in layouts if layout)))
    base, *sides = (tuple(map(layout.get, common)) if layout else None for layout in layouts)
    return decide(base, sides).side or 0


def _find_homes(chosen: Layout, layouts: Sequence[Layout]) -> dict[str, str]:
    """Return a file of ``chosen`` for every name; a new one goes where the one before it is."""
    homes = dict(chosen)
    last = next(iter(chosen.values()))
    for layout in layouts:
        for name in layout:
            last = homes.setdefault(name, last)
    return homes


def _read_indexes(context: Context, tree: Tree) -> dict[str, dict[str, Any]] | None:
    """Return path → content of the index of a side; None if it is not valid."""
    indexes: dict[str, dict[str, Any]] = {}
    for path in tree:
        if path.endswith(_INDEX):
            try:
                index = json.loads(read_small_file(context, tree[path].blob, path))
            except (ValueError, RecursionError, FormatError):
                return None
            if not isinstance(index, dict) or not isinstance(index.get("weight_map"), dict):
                return None
            indexes[path] = index
    return indexes


def _renew(
    index: Mapping[str, Any], shards: Sequence[CheckpointMerge], before: Collection[ModelTensor]
) -> dict[str, Any]:
    """Return an index of the merged tensors; its totals change by what was added and removed."""
    files = {name: shard.path.rpartition("/")[2] for shard in shards for name in shard.tensors}
    after = [tensor for shard in shards for tensor in shard.tensors.values()]
    metadata = index.get("metadata")
    if not isinstance(metadata, dict):
        return {**index, "weight_map": files}
    totals = {
        key: metadata[key] + sum(getattr(one, unit) for one in after)
        - sum(getattr(one, unit) for one in before)
        for key, unit in _TOTALS
        if isinstance(metadata.get(key), int | float)
    }  # fmt: skip
    return {**index, "metadata": {**metadata, **totals}, "weight_map": files}
