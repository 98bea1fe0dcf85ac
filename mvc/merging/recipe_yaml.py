"""The YAML of a recipe, without what YAML would take and a person not mean."""

from __future__ import annotations

import reprlib
from collections import Counter
from typing import Any

from mvc.errors import FormatError, UnsupportedError

MAX_RECIPE_CHARACTERS = 2**18
_MAX_DIGITS = 60
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MERGE_KEY = "tag:yaml.org,2002:merge"


def load_yaml(text: str) -> object:
    """Return the value of a text in YAML, all of whose numbers and keys are what they seem."""
    import yaml  # noqa: PLC0415  only recipes need it

    if len(text) > MAX_RECIPE_CHARACTERS:
        limit = f"{MAX_RECIPE_CHARACTERS:,} are the limit"
        raise FormatError(f"recipe has {len(text):,} characters; {limit}")
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        _check_nodes(root)
        found = None if root is None else loader.construct_document(root)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else "nested too deeply"
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" in line {mark.line + 1}"
        problem = getattr(error, "problem", None) or first
        if problem == "but found another document":
            raise FormatError(
                "file holds several recipes", hint="put each recipe into its own file"
            ) from None
        raise FormatError(f"recipe is not valid YAML{where}: {problem}") from None
    if found is None:
        raise FormatError("recipe is empty")
    return found


def _check_nodes(root: Any) -> None:
    """Check what YAML would take: of a key that is there twice the last, and numbers of any length."""
    nodes, seen = [root], set[int]()
    while nodes:
        node = nodes.pop()
        if id(node) in seen or node is None:
            continue
        seen.add(id(node))
        if node.id == "scalar":
            if node.tag in _NUMBERS and len(node.value) > _MAX_DIGITS:
                raise FormatError(f"recipe has a number of {len(node.value):,} digits")
            continue
        is_mapping = node.id == "mapping"
        nodes += [value for _, value in node.value] if is_mapping else node.value
        keys = [key for key, _ in node.value] if is_mapping else []
        if any(key.tag == _MERGE_KEY for key in keys):  # a few make a mapping of any size
            raise UnsupportedError("recipe has a merge key (<<)", hint="write the parameters out")
        names = Counter(key.value for key in keys if key.id == "scalar")
        for key, count in names.items():
            if count > 1 and key != "tokenizer_source":  # which an option adds to a recipe
                line = node.start_mark.line + 1
                raise FormatError(f"recipe gives {show(key)} twice in the entry of line {line}")


def show(found: object) -> str:
    """Return the beginning of a value in words; an alias may make one of any size."""
    return reprlib.repr(found)[:60]
