"""merge by a recipe: its models, wherever they are, into one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mvc.checkpoints.names import is_checkpoint_name
from mvc.errors import ConflictError, FormatError, NotFoundError, UsageError
from mvc.fs import DurableFile, find_stat, make_dirs
from mvc.merging.companions import (
    CONFIG,
    TOKENIZER_FILES,
    change_config,
    merged_files,
    parse_config,
    read_companions,
    read_vocabulary,
)
from mvc.merging.output import write_file
from mvc.merging.plan import MergePlan, plan_merge
from mvc.merging.recipe import DTYPES, Recipe, parse_recipe
from mvc.workspace.context import Context, threads_of
from mvc.workspace.models import Model, open_model

if TYPE_CHECKING:
    from mvc.formats.tokenizer import Vocabulary
    from mvc.workspace.worktree import StrPath

RECIPE_FILE = "mergekit_config.yml"
"""Where a folder keeps the recipe that made it; mergekit's name, so that its tools find it."""
_NOTHING_DOWNLOADED = "nothing is downloaded: name revisions, files or folders that are here"
MODEL_FILE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class RecipeResult:
    """The result of a recipe.

    Attributes:
        path: the file or folder that was written.
        method: name of the merge method.
        tensors: how many tensors it has.
        merged: how many of them were computed; all others are a model's own.
        size_bytes: length of the model's file.
        seed: of methods that draw random numbers.
        notes: what a person should know.
    """

    path: Path
    method: str
    tensors: int
    merged: int
    size_bytes: int
    seed: int
    notes: tuple[str, ...]


@contextmanager
def open_plan(
    context: Context | None, text: str, *, seed: int = 0, named: Mapping[str, str] | None = None
) -> Iterator[tuple[MergePlan, dict[str, dict[str, bytes]]]]:
    """Parse a recipe, open the models that it names, and plan the merge; no weight is read.

    Also returns, for every model, the small files beside it. ``named`` says what names of the recipe
    stood for when it was merged first.
    """
    recipe = parse_recipe(text)
    with ExitStack() as stack:
        models: dict[str, Model] = {}
        for name in recipe.models:
            try:
                models[name] = stack.enter_context(
                    open_model(context, (named or {}).get(name, name))
                )
            except NotFoundError as error:
                raise NotFoundError(
                    f"model of the recipe: {error.message}", hint=_NOTHING_DOWNLOADED
                ) from error
        files = {name: read_companions(context, model) for name, model in models.items()}
        vocabularies, notes = _read_vocabularies(recipe, files)
        plan = plan_merge(recipe, models, vocabularies, seed=seed, threads=threads_of(context))
        yield replace(plan, notes=(*notes, *plan.notes)), files


def _read_vocabularies(
    recipe: Recipe, files: Mapping[str, Mapping[str, bytes]]
) -> tuple[dict[str, Vocabulary | None], list[str]]:
    """Return the tokens of every model; a tokenizer that is not needed may be damaged."""
    vocabularies: dict[str, Vocabulary | None] = {}
    notes: list[str] = []
    for name, own in files.items():
        try:
            vocabularies[name] = read_vocabulary(own)
        except FormatError as error:
            if recipe.tokenizer is not None:
                raise
            vocabularies[name] = None
            notes.append(f"the tokenizer of {name} is not checked: {error.message}")
    return vocabularies, notes


def merge_recipe(
    context: Context | None, recipe: str, output: StrPath, *, seed: int = 0, force: bool = False
) -> RecipeResult:
    """Merge models by a mergekit recipe into a new file or folder; nothing is committed.

    Everything is checked before a weight is read. The same recipe, seed and models give the
    same bytes on any machine with the same versions.

    Args:
        recipe: the text of the recipe; its models are revisions, ``REV:PATH``, checkpoint files
            or folders.
        output: a safetensors file, or a folder, which also gets the base model's
            configuration and tokenizer, and the recipe.
        seed: of methods that draw random numbers.
        force: replace files that are there.

    Raises:
        FormatError: the recipe is not valid.
        NotFoundError: a method, model, layer or tensor that does not exist.
        UsageError: models or parameters that do not fit together.
        UnsupportedError: something that mvc leaves out, or elements that cannot be averaged.
        ConflictError: the output exists.
    """
    output = Path(output)
    is_folder = output.is_dir() or not is_checkpoint_name(output.name)
    target = output / MODEL_FILE if is_folder else output
    if target.suffix != ".safetensors":
        raise UsageError(
            f"{output} would hold a safetensors file, whatever its name says",
            hint=f"name it {output.with_suffix('.safetensors').name}, or a folder",
        )
    with open_plan(context, recipe, seed=seed) as (plan, files):
        beside = files_beside(plan, files) if is_folder else {}
        for path in [target, *(output / name for name in beside)]:
            if find_stat(path) is not None and not force:
                raise ConflictError(f"{path} already exists", hint="`force` replaces it")
        make_dirs(target.parent)
        size_bytes = write_file(
            [merged.tensor for merged in plan.tensors], target, threads_of(context)
        )
        for name, data in beside.items():
            with DurableFile(output) as file:
                file.write([data])
                file.publish(output / name)
    merged = sum(1 for tensor in plan.tensors if tensor.method is not None)
    return RecipeResult(
        output, plan.recipe.method, len(plan.tensors), merged, size_bytes, seed, plan.notes
    )


def files_beside(plan: MergePlan, files: Mapping[str, Mapping[str, bytes]]) -> dict[str, bytes]:
    """Return name → content of what belongs to the result beside its tensors."""
    beside = dict(files[plan.host])
    rows = None
    if plan.alignment is not None and plan.recipe.tokenizer is not None:
        rows = plan.alignment.rows
        beside = {name: data for name, data in beside.items() if name not in TOKENIZER_FILES}
        beside |= merged_files(plan.recipe.tokenizer, plan.alignment, files)
    if CONFIG in beside:
        names = {kind: name for name, kind in DTYPES.items()}
        dtype = None if plan.recipe.dtype is None else names[plan.recipe.dtype]
        changed = change_config(
            parse_config(beside[CONFIG], plan.host),
            dtype=dtype,
            layers=plan.layers,
            vocabulary=rows,
        )
        beside[CONFIG] = (json.dumps(changed, indent=2, ensure_ascii=False) + "\n").encode()
    return {**beside, RECIPE_FILE: plan.recipe.text.encode()}
