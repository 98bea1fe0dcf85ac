"""mergekit's recipes: YAML that says which models are merged how, with models of our own.

A model is a revision, ``REV:PATH``, a checkpoint file or a folder; nothing is downloaded. Parameters
may differ by tensor (filters) and by layer (gradients), as in mergekit; see its ``merge_methods.md``
for what each means. Unknown keys are errors here, for a mistyped one would change the result.
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from mvc.errors import FormatError, UnsupportedError
from mvc.merging.recipe_yaml import load_yaml, show
from mvc.numbers.merge_methods.table import METHODS, get_method

if TYPE_CHECKING:
    from mvc.numbers.merge_methods.method import Value

_MAX_ITEMS = 100_000  # of all lists together: YAML may name one list many times
MAX_LAYERS = 10_000
_MAX_NAME = 4096

DTYPES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"}
_NO_MODULES = "mvc has no table of architectures; merge the checkpoint of each module on its own"
_UNSUPPORTED = {
    "modules": _NO_MODULES,
    "residual_weight": "mergekit reads it and ignores it",
    "chat_template": "set it in tokenizer_config.json of the result",
    "lora": "merge the adapter into its model first",
}
_KEYS = (
    "merge_method", "base_model", "models", "slices", "parameters", "dtype", "out_dtype",
    "tokenizer_source", "tokenizer", "name",
)  # fmt: skip

Gradient: TypeAlias = "tuple[Value, ...]"


@dataclass(frozen=True, slots=True)
class FilteredValue:
    """A value for the tensors whose names contain a text; None or ``*`` is every tensor."""

    filter: str | None
    value: Value | Gradient


Setting: TypeAlias = "tuple[FilteredValue, ...]"
Settings: TypeAlias = "Mapping[str, Setting]"


@dataclass(frozen=True, slots=True)
class RecipeSource:
    """One model of a slice, and which of its layers; None for all."""

    model: str
    layers: range | None
    parameters: Settings


@dataclass(frozen=True, slots=True)
class RecipeSlice:
    """Layers that are merged from some models."""

    sources: tuple[RecipeSource, ...]
    base: str | None
    parameters: Settings


@dataclass(frozen=True, slots=True)
class TokenizerChoice:
    """Whose vocabulary the result has: ``union``, ``base`` or a model's; rows in multiples."""

    source: str
    pad_to_multiple_of: int = 1


@dataclass(frozen=True, slots=True)
class Recipe:
    """A well-formed recipe; the models it names are not opened yet."""

    method: str  # name of the merge method
    # what is merged; one without layers if the recipe lists ``models``
    slices: tuple[RecipeSlice, ...]
    base: str | None
    parameters: Settings  # those of the whole merge
    dtype: str | None = None  # of the result, or None for that of the base, or of the first model
    # whose tokens the result has, or None to leave embeddings as they are
    tokenizer: TokenizerChoice | None = None
    text: str = ""
    # what is said of parameters that do not count where they stand
    ignored: tuple[str, ...] = field(default=())

    @property
    def models(self) -> list[str]:
        """What the recipe names, each once: the base first."""
        named = [source.model for part in self.slices for source in part.sources]
        bases = [self.base, *(part.base for part in self.slices)]
        chosen = None if self.tokenizer is None else self.tokenizer.source
        tokens = [None if chosen in {"union", "base"} else chosen]
        return [one for one in dict.fromkeys([*bases, *named, *tokens]) if one is not None]

    @property
    def is_sliced(self) -> bool:
        """Whether layers are chosen and numbered again."""
        return self.slices[0].sources[0].layers is not None


def evaluate(setting: Setting, tensor: str, depth: float) -> Value | None:
    """Return a parameter's value for one tensor, or None if no condition fits its name.

    ``depth`` is 0 at the first layer and 1 at the last; a gradient is read there.
    """
    for one in setting:
        if one.filter in {None, "*"} or str(one.filter) in tensor:
            return _at(one.value, depth) if isinstance(one.value, tuple) else one.value
    return None


def _at(gradient: Gradient, depth: float) -> Value:
    place = depth * (len(gradient) - 1)
    low = int(place)
    if isinstance(gradient[0], bool):
        return gradient[low]
    high = min(len(gradient) - 1, low + 1)
    return (1 - (place - low)) * gradient[low] + (place - low) * gradient[high]


def parse_recipe(text: str) -> Recipe:
    """Parse a recipe.

    Raises:
        FormatError: not YAML, too large, a key that is not known, or a value of the wrong form.
        NotFoundError: a merge method that is not known.
        UnsupportedError: something of mergekit's that mvc leaves out; the message says why.
    """
    return _Parser(text).parse()


class _Parser:
    """Checks a recipe from the top down and names the place of each error."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._items = 0
        self._ignored: dict[str, None] = {}
        self._method = ""

    def parse(self) -> Recipe:
        top = self._mapping(load_yaml(self._text), "recipe")
        self._check_keys(top, _KEYS, "recipe")
        method = top.get("merge_method")
        if not isinstance(method, str):
            raise FormatError("recipe has no merge_method", hint=f"there are {', '.join(METHODS)}")
        self._method = get_method(method).name
        base = (
            None if top.get("base_model") is None else self._model(top["base_model"], "base_model")
        )
        return Recipe(
            self._method,
            self._slices(top, base),
            base,
            self._settings(top, "recipe"),
            self._dtype(top),
            self._tokenizer(top),
            self._text,
            tuple(self._ignored),
        )

    def _slices(self, top: Mapping[str, object], base: str | None) -> tuple[RecipeSlice, ...]:
        if (top.get("models") is None) is (top.get("slices") is None):
            raise FormatError("recipe needs either models or slices")
        if top.get("models") is not None:
            named = self._each(top["models"], "models")
            sources = tuple(self._source(*model, with_layers=False) for model in named)
            [(model, count)] = Counter(source.model for source in sources).most_common(1)
            if count > 1:
                raise FormatError(f"models names {model!r} twice")
            return (RecipeSlice(sources, base, {}),)
        slices = tuple(self._slice(*part, base) for part in self._each(top["slices"], "slices"))
        if sum(len(part.sources[0].layers or ()) for part in slices) > MAX_LAYERS:
            raise FormatError(f"slices have more than {MAX_LAYERS:,} layers")
        return slices

    def _slice(self, found: object, place: str, base: str | None) -> RecipeSlice:
        given = self._mapping(found, place)
        self._check_keys(given, ("sources", "base_model", "parameters"), place)
        named = self._each(given.get("sources"), f"{place}.sources")
        sources = tuple(self._source(*source, with_layers=True) for source in named)
        if len({len(source.layers) for source in sources if source.layers}) > 1:
            raise FormatError(f"sources of {place} have different numbers of layers")
        own = given.get("base_model")
        own_base = base if own is None else self._model(own, f"{place}.base_model")
        return RecipeSlice(sources, own_base, self._settings(given, place))

    def _source(self, found: object, place: str, *, with_layers: bool) -> RecipeSource:
        given = self._mapping(found, place)
        keys = ("model", "layer_range", "parameters") if with_layers else ("model", "parameters")
        self._check_keys(given, keys, place)
        if given.get("model") is None:
            raise FormatError(f"{place} names no model")
        layers = None
        if with_layers:
            match given.get("layer_range"):
                case [int(start), int(end)] if (
                    0 <= start < end <= MAX_LAYERS and start is not False
                ):
                    layers = range(start, end)
                case other:
                    raise FormatError(
                        f"layer_range of {place} must be [first, end], not {show(other)}"
                    )
        settings = self._settings(given, place)
        for parameter in get_method(self._method).parameters:
            if parameter.name in settings and not (
                parameter.per_input or parameter.name == "int8_mask"
            ):
                what = f"`{parameter.name}` of {self._method} takes one value for all models"
                self._ignored[f"{what}: that of {place} is ignored, as in mergekit"] = None
        return RecipeSource(self._model(given["model"], place), layers, settings)

    def _model(self, found: object, place: str) -> str:
        if isinstance(found, dict):
            found = found.get("path", found.get("model"))
        if not isinstance(found, str) or not 0 < len(found) <= _MAX_NAME:
            raise FormatError(f"{place} must be a revision or a file, not {show(found)}")
        if "+" in found:
            raise UnsupportedError(
                f"{place} puts an adapter on a model: {found!r:.100}", hint=_UNSUPPORTED["lora"]
            )
        return found

    def _settings(self, given: Mapping[str, object], place: str) -> Settings:
        found = given.get("parameters")
        if found is None:
            return {}
        known = {parameter.name for parameter in get_method(self._method).parameters}
        everywhere = {
            parameter.name for method in METHODS.values() for parameter in method.parameters
        }
        settings: dict[str, Setting] = {}
        for name, value in self._mapping(found, f"parameters of {place}").items():
            if name not in everywhere:
                raise FormatError(
                    f"parameters of {place} have an unknown name: {show(name)}",
                    hint=_suggest(name, sorted(known)),
                )
            if name in known:
                settings[name] = self._setting(value, f"{name!r} of {place}")
            else:
                what = f"{self._method} has no parameter {name!r}"
                self._ignored[f"{what}: ignored, as in mergekit"] = None
        return settings

    def _setting(self, found: object, place: str) -> Setting:
        if isinstance(found, dict):
            found = [found]
        if isinstance(found, list) and found and all(isinstance(one, dict) for one in found):
            self._count(found)
            return tuple(self._condition(one, place) for one in found)
        return (FilteredValue(None, self._value(found, place)),)

    def _condition(self, given: Mapping[str, object], place: str) -> FilteredValue:
        self._check_keys(given, ("filter", "value"), place)
        chosen = given.get("filter")
        if chosen is not None and not isinstance(chosen, str):
            raise FormatError(f"filter for {place} must be text, not {show(chosen)}")
        if "value" not in given:
            raise FormatError(f"a condition for {place} has no value")
        return FilteredValue(chosen, self._value(given["value"], place))

    def _value(self, found: object, place: str) -> Value | Gradient:
        if isinstance(found, list) and found:
            self._count(found)
            gradient = tuple(_scalar(one, place) for one in found)
            if len({isinstance(value, bool) for value in gradient}) == 1:
                return gradient
        return _scalar(found, place)

    def _dtype(self, top: Mapping[str, object]) -> str | None:
        for key in ("out_dtype", "dtype"):
            name = top.get(key)
            if name is not None and not (isinstance(name, str) and name in DTYPES):
                raise FormatError(
                    f"{key} {show(name)} is not a supported dtype ({', '.join(DTYPES)})"
                )
        name = top.get("out_dtype") or top.get("dtype")
        return None if name is None else DTYPES[str(name)]

    def _tokenizer(self, top: Mapping[str, object]) -> TokenizerChoice | None:
        source, found = top.get("tokenizer_source"), top.get("tokenizer")
        if source is not None and found is not None:
            raise FormatError("recipe has both tokenizer_source and tokenizer")
        if source is not None:
            return TokenizerChoice(self._model(source, "tokenizer_source"))
        if found is None:
            return None
        given = self._mapping(found, "tokenizer")
        if given.get("tokens"):
            raise UnsupportedError(
                "tokenizer.tokens is not supported: every token has one rule here",
                hint="what only some models have is taken from those",
            )
        self._check_keys(given, ("source", "pad_to_multiple_of", "tokens"), "tokenizer")
        multiple = given.get("pad_to_multiple_of") or 1
        if type(multiple) is not int or not 1 <= multiple <= _MAX_ITEMS:
            raise FormatError(f"pad_to_multiple_of must be a whole number, not {show(multiple)}")
        return TokenizerChoice(self._model(given.get("source", "union"), "tokenizer"), multiple)

    def _mapping(self, found: object, place: str) -> dict[str, object]:
        if not isinstance(found, dict):
            raise FormatError(f"{place} must map names to values, not {show(found)}")
        self._count(found)
        return found

    def _each(self, found: object, place: str) -> list[tuple[object, str]]:
        """Return the items of a list, each with the name of its place."""
        if not isinstance(found, list) or not found:
            raise FormatError(f"{place} must be a non-empty list")
        self._count(found)
        return [(item, f"{place}[{number}]") for number, item in enumerate(found)]

    def _count(self, found: Iterable[object]) -> None:
        self._items += sum(1 for _ in found)
        if self._items > _MAX_ITEMS:
            raise FormatError(f"recipe has more than {_MAX_ITEMS:,} values")

    def _check_keys(self, given: Mapping[str, object], known: Sequence[str], place: str) -> None:
        for key in given:
            if key in known:
                continue
            if key in _UNSUPPORTED:
                raise UnsupportedError(
                    f"{place} has {key!r}, which mvc does not support", hint=_UNSUPPORTED[key]
                )
            raise FormatError(
                f"{place} has an unknown key: {show(key)}", hint=_suggest(str(key), known)
            )


def _scalar(found: object, place: str) -> Value:
    """Return a number or a switch; YAML takes 1e-5 for a text."""
    if isinstance(found, str):
        with suppress(ValueError):
            found = float(found)
    if isinstance(found, bool | int) or (isinstance(found, float) and math.isfinite(found)):
        return found
    raise FormatError(f"{place} must be a number, true or false, not {show(found)}")


def _suggest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known) or 'none'}"
