"""The tokenizers of a merge of branches: does a row stand for the same token on all sides?

They are read beside each checkpoint, from the tree of every side. Where a merge chooses a tokenizer,
embeddings and heads get its rows on all sides before anything else is decided about them, and the files
of the tokenizer follow; where it does not, nothing is computed from rows of different tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from mvc.checkpoints.names import is_checkpoint_name
from mvc.errors import FormatError, NotFoundError, UsageError
from mvc.merging.companions import CONFIG, TOKENIZER_FILES, merged_files, read_vocabulary
from mvc.merging.recipe import TokenizerChoice
from mvc.merging.tokenizer import (
    align_vocabularies,
    check_same,
    find_row_count,
    is_row_name,
    is_vocabulary,
)
from mvc.workspace.manifests import find_manifest
from mvc.workspace.models import read_tree_model
from mvc.workspace.state_files import read_small_file

if TYPE_CHECKING:
    from mvc.formats.tokenizer import Vocabulary
    from mvc.history.values import TreeEntry
    from mvc.ids import GitId
    from mvc.merging.table import MergeRow
    from mvc.merging.tokenizer import Alignment
    from mvc.workspace.context import Context
    from mvc.workspace.tensors import ModelTensor

    Tree = Mapping[str, TreeEntry]
    Files = Mapping[str, Mapping[str, bytes]]

_SETTINGS = (
    "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
"""What belongs to a tokenizer and has no rows of its own."""
_VOCAB_SIZE = re.compile(rb'("vocab_size"\s*:\s*)(\d+)')
_HINT = "a merge with `tokenizer` aligns the rows by token: union, base, ours or theirs"


@dataclass(frozen=True, slots=True)
class _Folder:
    """What lies beside the checkpoints of one folder, by side."""

    vocabularies: Mapping[str, Vocabulary | None]
    rows: Mapping[str, int | None]  # how many tokens the embedding has rows for, or None
    # where the rows of the result come from; None if they stay where they are
    alignment: Alignment | None = None
    # name → content of the tokenizer of the result, if rows are aligned
    files: Mapping[str, bytes] | None = None


class Tokens:
    """The tokenizers beside the checkpoints of a merge, read when they are asked for."""

    def __init__(
        self, context: Context, base: Tree, trees: Sequence[Tree], choice: str | None
    ) -> None:
        self._context = context
        self._choice = choice
        others = [f"branch {number}" for number in range(1, len(trees))]
        names = ("base", "ours", *(others if len(others) > 1 else ["theirs"]))
        self._trees = dict(zip(names, (base, *trees), strict=True))
        self._folders: dict[str, _Folder] = {}

    def aligns(self, path: str) -> bool:
        """Return whether rows of a file of that folder are aligned."""
        return self._choice is not None and self._beside(path).alignment is not None

    def check(self, path: str, row: MergeRow[ModelTensor]) -> None:
        """Check that the rows of a tensor that a method computes stand for the same tokens; UsageError if not."""
        if not is_row_name(row.name):
            return  # so that no tokenizer is read
        versions = self._versions(row)
        found = self._beside(path)
        if self.aligns(path) or not self._are_rows(found, row.name, versions):
            return
        check_same(found.vocabularies, versions, _HINT)
        counts = {name: version.view.shape[0] for name, version in versions.items()}
        if len(set(counts.values())) > 1:
            rows = ", ".join(f"{count:,} in {name}" for name, count in counts.items())
            raise UsageError(f"{row.name!r} has rows for different tokens: {rows}", hint=_HINT)

    def fit(self, path: str, row: MergeRow[ModelTensor]) -> MergeRow[ModelTensor]:
        """Return the versions of a tensor with the rows of the result."""
        found, versions = self._beside(path), self._versions(row)
        alignment = found.alignment
        if alignment is None or not self._are_rows(found, row.name, versions):
            return row
        fitted = {name: alignment.align(name, versions) for name in versions}
        base, *sides = (fitted.get(name) for name in self._trees)
        return replace(row, base=base, sides=tuple(sides))

    def owns(self, path: str) -> bool:
        """Return whether a file belongs to a tokenizer, by its name."""
        return path.rpartition("/")[2] in TOKENIZER_FILES

    def follows(self, path: str) -> bool:
        """Return whether a file depends on how many rows there are, by its name."""
        return path.rpartition("/")[2] == CONFIG or is_checkpoint_name(path)

    def all_files(self) -> list[tuple[str, bytes]]:
        """Return path and content of the files of tokenizers beside which rows are aligned."""
        return [
            (f"{folder}/{name}" if folder else name, data)
            for folder, found in self._folders.items()
            for name, data in (found.files or {}).items()
        ]

    def find_file(self, path: str) -> bytes | None:
        """Return the content that a file of the tokenizer gets; None if it has none."""
        return (self._beside(path).files or {}).get(path.rpartition("/")[2])

    def is_chosen_whole(self, path: str) -> bool:
        """Return whether a file of the tokenizer is as chosen, whatever the sides changed in it."""
        name = path.rpartition("/")[2]
        return name in TOKENIZER_FILES and (self._choice != "union" or name not in _SETTINGS)

    def set_size(self, path: str, data: bytes) -> bytes:
        """Return the content of a config.json with the number of rows that the embedding gets."""
        found = self._beside(path)
        if found.alignment is None or path.rpartition("/")[2] != CONFIG:
            return data
        counts, rows = set(found.rows.values()), found.alignment.rows

        def change(match: re.Match[bytes]) -> bytes:
            return match[1] + (b"%d" % rows if int(match[2][:9]) in counts else match[2])

        return _VOCAB_SIZE.sub(change, data)

    def check_found(self) -> None:
        """Check that a tokenizer that was chosen was there to choose."""
        for path in {path for tree in self._trees.values() for path in tree}:
            if is_checkpoint_name(path) and any(self._beside(path).vocabularies.values()):
                return
        raise NotFoundError(
            "no checkpoint of the merge has a tokenizer beside it",
            hint="it needs tokenizer.json, tokenizer.model, vocab.json or vocab.txt",
        )

    def _versions(self, row: MergeRow[ModelTensor]) -> dict[str, ModelTensor]:
        named = zip(self._trees, (row.base, *row.sides), strict=True)
        return {name: one for name, one in named if one is not None}

    def _are_rows(self, found: _Folder, name: str, versions: Mapping[str, ModelTensor]) -> bool:
        return all(
            is_vocabulary(name, version, found.rows[side]) for side, version in versions.items()
        )

    def _beside(self, path: str) -> _Folder:
        folder = path.rpartition("/")[0]
        if folder not in self._folders:
            self._folders[folder] = self._read(folder)
        return self._folders[folder]

    def _read(self, folder: str) -> _Folder:
        files, vocabularies = self._read_tokenizers(folder)
        rows = {name: self._count_rows(tree, folder) for name, tree in self._trees.items()}
        found = _Folder(vocabularies, rows)
        known = [vocabulary for vocabulary in vocabularies.values() if vocabulary is not None]
        counts = {row for row in rows.values() if row is not None}
        is_same = all(one == known[0] for one in known) and len(counts) == 1
        if self._choice is None or not known or not counts or is_same:
            return found
        host = "base" if self._choice == "base" else "ours"
        choice = TokenizerChoice(self._choice)
        source = self._choice if self._choice in rows else host
        alignment = align_vocabularies(
            choice, vocabularies, rows, host, "base", least_rows=rows[source] or 0
        )
        alignment = _keep_padding(alignment, vocabularies, rows)
        return replace(found, alignment=alignment, files=merged_files(choice, alignment, files))

    def _read_tokenizers(self, folder: str) -> tuple[Files, dict[str, Vocabulary | None]]:
        """Return files and tokens by side; those that several sides have are read once."""
        paths = {name: f"{folder}/{name}" if folder else name for name in TOKENIZER_FILES}

        @cache
        def read(
            blobs: tuple[tuple[str, GitId], ...],
        ) -> tuple[Mapping[str, bytes], Vocabulary | None]:
            files = {
                name: read_small_file(self._context, blob, paths[name]) for name, blob in blobs
            }
            return files, self._read_tokens(files)

        found = {
            side: read(
                tuple((name, tree[path].blob) for name, path in paths.items() if path in tree)
            )
            for side, tree in self._trees.items()
        }
        files = {side: own for side, (own, _) in found.items()}
        return files, {side: tokens for side, (_, tokens) in found.items()}

    def _read_tokens(self, files: Mapping[str, bytes]) -> Vocabulary | None:
        try:
            return read_vocabulary(files)
        except FormatError:
            if self._choice is not None:
                raise
            return None  # what is not needed may be damaged

    def _count_rows(self, tree: Tree, folder: str) -> int | None:
        tensors: dict[str, ModelTensor] = {}
        for path, entry in tree.items():
            if path.rpartition("/")[0] == folder and is_checkpoint_name(path):
                manifest = find_manifest(self._context, entry.blob)
                if manifest is not None and manifest.segments:
                    model = read_tree_model(self._context, {path: entry}, path)
                    tensors |= {tensor.name: tensor for tensor in model.tensors}
        return find_row_count(tensors)


def _keep_padding(
    alignment: Alignment,
    vocabularies: Mapping[str, Vocabulary | None],
    rows: Mapping[str, int | None],
) -> Alignment:
    """Let rows that stand for no token, in the result and on a side, stay where they are."""
    free = np.ones(alignment.rows, bool)
    free[list(alignment.vocabulary.ids.values())] = False
    places = {}
    for name, known in alignment.places.items():
        own = free & (np.arange(alignment.rows) < (rows[name] or 0))
        tokens = [] if (one := vocabularies[name]) is None else list(one.ids.values())
        own[[row for row in tokens if row < alignment.rows]] = False
        places[name] = np.where(own, np.arange(alignment.rows), known)
    return replace(alignment, places=places)
