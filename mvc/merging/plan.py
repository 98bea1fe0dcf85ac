"""A recipe and the models it names → every tensor of the result, before any weight is read.

The tensors are those of the base model, or else of the first: the *host*.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from mvc.errors import NotFoundError, UsageError
from mvc.merging.blend import Blend, can_blend, make_strategy
from mvc.merging.output import find_only, take
from mvc.merging.recipe import Recipe, RecipeSlice, RecipeSource, Setting, evaluate
from mvc.merging.tokenizer import (
    align_vocabularies,
    check_same,
    find_faults,
    find_row_count,
    is_vocabulary,
)
from mvc.numbers.merge_methods.table import get_method

if TYPE_CHECKING:
    from mvc.formats.tokenizer import Vocabulary
    from mvc.ids import GitId
    from mvc.merging.tokenizer import Alignment
    from mvc.numbers.merge_methods.method import Value
    from mvc.workspace.models import Model
    from mvc.workspace.tensors import ModelTensor

    Tensors: TypeAlias = Mapping[str, ModelTensor]

_MODEL_FILES = (re.compile(r"model[^/]*\.safetensors$"), re.compile(r"pytorch_model[^/]*\.bin$"))


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor of the result."""

    name: str  # its name there
    tensor: ModelTensor  # where it is read: in a model, or merged as it is read
    # (model, name there) of what it is made of; the base first
    sources: tuple[tuple[str, str], ...]
    method: str | None = None  # how; None if it is taken as it is
    # its parameters, common ones first, then of each input
    parameters: tuple[Mapping[str, Value], ...] = ()


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The planned result of a recipe."""

    recipe: Recipe
    seed: int  # of methods that draw random numbers
    host: str  # the model that names the tensors, and whose other files the result has
    tensors: tuple[PlannedTensor, ...]  # all tensors of the result, in order
    # which layer of its first source every layer was, or None if the recipe does not count them again
    layers: tuple[int, ...] | None
    alignment: Alignment | None  # whose tokens its embedding has, if the recipe says so
    notes: tuple[str, ...]  # what a person should know
    # model → the commit that it was read from, or None for plain files
    commits: Mapping[str, GitId | None] = field(default_factory=dict)
    places: tuple[str, ...] = ()  # files of the host, if that is a commit

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(planned.tensor.size_bytes for planned in self.tensors)

    @property
    def read_bytes(self) -> int:
        """Bytes of the tensors that have to be merged."""
        return sum(planned.tensor.size_bytes for planned in self.tensors if planned.method)


def plan_merge(
    recipe: Recipe,
    models: Mapping[str, Model],
    vocabularies: Mapping[str, Vocabulary | None],
    *,
    seed: int = 0,
    threads: int = 1,
) -> MergePlan:
    """Check a recipe against its models and plan every tensor.

    ``vocabularies`` are the tokens of each model, or None where they are not known; ``threads`` look at a whole
    tensor where a method has to.

    Raises:
        NotFoundError: a tensor or layer that a model lacks.
        UsageError: shapes, dtypes, parameters or numbers of models that do not fit.
        UnsupportedError: elements that cannot be averaged.
    """
    tensors = {name: model_tensors(model) for name, model in models.items()}
    plan = _Planner(recipe, tensors, vocabularies, seed, threads).plan()
    commits = {name: model.commit for name, model in models.items()}
    places = dict.fromkeys(tensor.path for tensor in tensors[plan.host].values())
    return replace(
        plan, commits=commits, places=tuple(places) if commits[plan.host] is not None else ()
    )


def model_tensors(model: Model) -> Tensors:
    """Return the tensors of a model by name, without those of optimizers beside it."""
    tensors: Sequence[ModelTensor] = model.tensors
    for pattern in _MODEL_FILES:
        chosen = [tensor for tensor in tensors if pattern.match(tensor.path.rpartition("/")[2])]
        if chosen:
            tensors = chosen
            break
    found: dict[str, ModelTensor] = {}
    for tensor in tensors:
        if tensor.name in found:
            raise UsageError(
                f"{model.label} has tensor {tensor.name!r} in {found[tensor.name].path} and {tensor.path}",
                hint="name the file, as in REV:PATH",
            )
        found[tensor.name] = tensor
    if not found:
        raise NotFoundError(f"{model.label} has no tensors")
    return found


class _Planner:
    def __init__(
        self,
        recipe: Recipe,
        models: Mapping[str, Tensors],
        vocabularies: Mapping[str, Vocabulary | None],
        seed: int,
        threads: int,
    ) -> None:
        self._recipe = recipe
        self._models = models
        self._method = get_method(recipe.method)
        self._seed, self._threads = seed, threads
        self._host = recipe.base or recipe.slices[0].sources[0].model
        self._layers = count_layers(models[self._host])
        self._notes: dict[str, None] = dict.fromkeys(recipe.ignored)
        self._vocabularies = vocabularies
        self._row_counts = {name: find_row_count(model) for name, model in models.items()}
        self._notes |= dict.fromkeys(find_faults(vocabularies, self._row_counts))
        self._alignment: Alignment | None = None
        if recipe.tokenizer is not None:
            self._alignment = align_vocabularies(
                recipe.tokenizer, vocabularies, self._row_counts, self._host, recipe.base
            )

    def plan(self) -> MergePlan:
        """Plan all tensors."""
        recipe, layers = self._recipe, None
        if recipe.is_sliced:
            tensors = list(self._plan_slices())
            layers = tuple(
                number for part in recipe.slices for number in _layers_of(part.sources[0])
            )
        else:
            tensors = [self._plan_tensor(recipe.slices[0], one) for one in self._models[self._host]]
            self._note_left_out(recipe.slices[0])
        notes = tuple(self._notes)
        return MergePlan(
            recipe, self._seed, self._host, tuple(tensors), layers, self._alignment, notes
        )

    def _note_left_out(self, only: RecipeSlice) -> None:
        host = self._models[self._host]
        for source in only.sources:
            more = [name for name in self._models[source.model] if name not in host]
            if more:
                others = f" and {len(more) - 1:,} more" if len(more) > 1 else ""
                self._notes[f"{source.model} has {more[0]}{others}, which {self._host} lacks"] = (
                    None
                )

    def _plan_slices(self) -> Iterator[PlannedTensor]:
        deepest = max(self._layers.values(), default=0)
        stack, *others = [one for one, count in self._layers.items() if count == deepest] or [""]
        if not deepest:
            raise UsageError(f"no names of {self._host} count layers from 0: it cannot be sliced")
        if (
            others
        ):  # as encoder and decoder: which one is meant, and what the other needs, is not said
            raise UsageError(
                f"{self._host} counts {deepest} layers in {stack!r} and in {others[0]!r}: it cannot be sliced"
            )
        slices = self._recipe.slices
        for name in self._models[self._host]:
            if split_layer(name)[0] != stack:
                yield self._plan_tensor(slices[0] if is_embedding(name) else slices[-1], name)
        number = 0
        for part in slices:
            first, numbers = part.sources[0], _layers_of(part.sources[0])
            for offset in range(len(numbers)):
                depth = scale_depth(offset, len(numbers))
                for rest in self._find_rests(first.model, stack, numbers[offset]):
                    names = {
                        source.model: f"{stack}{_layers_of(source)[offset]}{rest}"
                        for source in part.sources
                    }
                    yield self._plan_tensor(part, f"{stack}{number}{rest}", names, depth)
                number += 1

    def _find_rests(self, model: str, stack: str, number: int) -> list[str]:
        """Return what follows the number in the names of one layer."""
        rests = [
            rest
            for head, own, rest in map(split_layer, self._models[model])
            if (head, own) == (stack, number)
        ]
        if not rests:
            raise NotFoundError(f"{model} has no layer {number} ({stack}{number})")
        return rests

    def _plan_tensor(
        self,
        place: RecipeSlice,
        name: str,
        names: Mapping[str, str] | None = None,
        depth: float | None = None,
    ) -> PlannedTensor:
        """Plan one tensor, called ``names`` in the models that call it otherwise."""
        if depth is None:
            depth = find_depth(name, self._layers)
        base, sources = self._split_base(place)
        models = [*([] if base is None else [base]), *(source.model for source in sources)]
        made_of = {model: (names or {}).get(model, name) for model in models}
        found = self._align(name, {model: self._find(model, own) for model, own in made_of.items()})
        tensors = list(found.values())
        planned = PlannedTensor(name, tensors[0], tuple(made_of.items()))
        if not can_blend(tensors[0].view.dtype):
            return replace(planned, tensor=take(find_only(name, tensors), name))
        levels = [place.parameters, self._recipe.parameters]
        common = _evaluate(levels, name, depth)
        each = [
            _evaluate([source.parameters, *levels], made_of[source.model], depth)
            for source in sources
        ]
        inputs = [found[source.model] for source in sources]
        return self._blend(planned, None if base is None else found[base], inputs, common, each)

    def _split_base(self, place: RecipeSlice) -> tuple[str | None, list[RecipeSource]]:
        """Return the base model that the method knows, or None, and the other sources."""
        base = None if self._method.base == "none" else place.base
        models = {source.model for source in place.sources}
        if place.base != base and place.base not in models:
            raise UsageError(
                f"{self._method.name} does not use a base model, and {place.base!r} is not among the models",
                hint="list it among the models, or leave it out",
            )
        if base is not None and self._recipe.is_sliced and base not in models:
            raise UsageError(f"base model {base!r} is not among the sources of its slice")
        return base, [source for source in place.sources if source.model != base]

    def _align(self, name: str, found: Mapping[str, ModelTensor]) -> Mapping[str, ModelTensor]:
        """Give all models the same tokens, if this is an embedding or a head."""
        if not all(is_vocabulary(name, one, self._row_counts[key]) for key, one in found.items()):
            return found
        if self._alignment is not None:
            return {model: self._alignment.align(model, found) for model in found}
        check_same(self._vocabularies, found)
        return found

    def _blend(
        self,
        planned: PlannedTensor,
        base: ModelTensor | None,
        inputs: Sequence[ModelTensor],
        common: Mapping[str, Value],
        each: Sequence[Mapping[str, Value]],
    ) -> PlannedTensor:
        """Plan what the method computes; parameters are those of all, and of each input."""
        shared = {
            parameter.name for parameter in self._method.parameters if not parameter.per_input
        }
        strategy = make_strategy(
            self._method.name,
            {key: value for key, value in common.items() if key in shared},
            [{key: value for key, value in one.items() if key not in shared} for one in each],
            has_base=base is not None,
            seed=self._seed,
            is_recipe=True,
        )
        blend = Blend(
            strategy, planned.name, inputs, base, dtype=self._recipe.dtype, threads=self._threads
        )
        equal = blend.find_equal()
        if equal is not None:
            return replace(planned, tensor=take(equal, planned.name))
        parameters = (strategy.common, *strategy.each)
        return replace(
            planned, tensor=blend.as_tensor(""), method=self._method.name, parameters=parameters
        )

    def _find(self, model: str, name: str) -> ModelTensor:
        found = self._models[model].get(name)
        if found is None and name.endswith("lm_head.weight"):  # tied to the embedding, not stored
            tied = [
                one
                for key, one in self._models[model].items()
                if key.endswith("embed_tokens.weight")
            ]
            found = tied[0] if len(tied) == 1 else None
        if found is None:
            raise NotFoundError(
                f"{model} has no tensor {name!r}",
                hint=f"the result has the tensors of {self._host}; models of one recipe need the same",
            )
        return found


def _evaluate(
    levels: Sequence[Mapping[str, Setting]], tensor: str, depth: float
) -> dict[str, Value]:
    """Return the parameters of a tensor; the first level with a value for it wins."""
    found: dict[str, Value] = {}
    for level in levels:
        for name, setting in level.items():
            value = None if name in found else evaluate(setting, tensor, depth)
            if value is not None:
                found[name] = value
    return found


def _layers_of(source: RecipeSource) -> range:
    assert source.layers is not None
    return source.layers


_LAYER = re.compile(r"^(?P<stack>(?:[^.]*\.)*?)(?P<number>0|[1-9][0-9]{0,4})(?P<rest>\..*)$")
_EMBEDDING = re.compile(r"(^|[._])(embed|embeddings?|embed_\w+|w[tp]e|word_embeddings?)([._]|$)")


def is_embedding(name: str) -> bool:
    """Return whether a tensor comes before the layers, by its name."""
    return _EMBEDDING.search(name) is not None


def split_layer(name: str) -> tuple[str, int, str]:
    """Return what precedes the number of a layer in a name, the number, and what follows it."""
    match = _LAYER.match(name)
    return ("", -1, "") if match is None else (match["stack"], int(match["number"]), match["rest"])


def count_layers(names: Iterable[str]) -> dict[str, int]:
    """Return what precedes the numbers of layers in names → how many layers there are."""
    numbers: dict[str, set[int]] = {}
    for stack, number, _ in map(split_layer, names):
        if number >= 0:
            numbers.setdefault(stack, set()).add(number)
    return {
        stack: len(number) for stack, number in numbers.items() if number == set(range(len(number)))
    }


def find_depth(name: str, counts: Mapping[str, int]) -> float:
    """Return where a tensor is between the first layer, 0, and the last, 1."""
    stack, number, _ = split_layer(name)
    # As in mergekit, what is in no layer counts as the first, and a single layer as the last.
    return scale_depth(number, counts[stack]) if counts.get(stack) else 0.0


def scale_depth(number: int, count: int) -> float:
    """Return where a layer is between the first, 0, and the last, 1."""
    return number / (count - 1) if count > 1 else 1.0
