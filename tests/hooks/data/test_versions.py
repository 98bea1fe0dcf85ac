"""A version is the same in every process, and changes with what a node depends on, and with nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_HELPERS = """
import re
WORD = re.compile(r"\\w+")

def words(text):
    return WORD.findall(text)

def unrelated(text):
    return text
"""
_PROGRAM = '''
import enum
import json
import typing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
import helpers
from mvc_data.nodes import Records, file, node

STOP = {"a", "the", "of", "and", "to"}
LIMIT = 16

def make_filter(least):
    return lambda text: len(text) >= least and least > 0

keep = node(make_filter(3), name="keep")

@node(lang="en")
def clean(text, lang, *, sep=" "):
    """Say what it does."""
    kept = [one for one in helpers.words(text) if one not in STOP]
    return f"{lang}: {sep.join(kept)!r:>{LIMIT}}" f"{1}" "x"

class Tokenizer:
    def __init__(self, vocab, seed):
        self.vocab, self.seed = vocab, seed

    def __call__(self, text):
        return [self.vocab.get(one, 0) for one in text.split()][:LIMIT]

tokenize = node(Tokenizer({"x": 1, "y": 2}, seed=3), clean, name="tokenize")

class Kind(enum.Enum):
    SHORT = LIMIT

class Pair(typing.NamedTuple):
    left: int = LIMIT

class Shape(typing.Protocol):
    def area(self): ...

@dataclass(slots=True)
class Square(Shape):
    side: int = LIMIT
    sides: list = field(default_factory=lambda: [LIMIT])

    def area(self):
        assert Kind.SHORT, "no kind"
        return self.side * Pair().left

shapes = node(Square(), name="shapes")
words = node(partial(str.split, sep=","), name="split")
table = node(len, name="table", version="1")
vocab = node(lambda text, path=file(Path(__file__).parent / "vocab.json"): path, name="vocab")

@node
def collate(batch):
    return [tokenize(one) for one in batch if keep(one)]

found = Records()
for one in (collate, words, table, vocab, shapes):
    found.visit(one)
print(json.dumps({name: one.version for name, one in found.found.items()}))
'''


def run(
    folder,
    *,
    python=sys.executable,
    options=(),
    seed="0",
    cwd=None,
    program=_PROGRAM,
    helpers=_HELPERS,
):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prepare.py").write_text(program)
    (folder / "helpers.py").write_text(helpers)
    if not (folder / "vocab.json").exists():
        (folder / "vocab.json").write_text('["a"]')
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "hooks", folder)))
    done = subprocess.run(
        [python, *options, str(folder / "prepare.py")],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths},
        cwd=cwd or folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    return run(tmp_path_factory.mktemp("first"))


def test_another_process_of_another_place_finds_the_same(versions, tmp_path):
    assert run(tmp_path / "elsewhere/deep", seed="77", cwd="/") == versions
    assert len(set(versions.values())) == len(versions)


def test_python_without_assertions_finds_the_same(versions, tmp_path):
    assert run(tmp_path, options=["-OO"]) == versions


@pytest.mark.parametrize("python", ["3.12", "3.13"])
def test_another_python_finds_the_same(versions, tmp_path, python):
    found = sorted(Path.home().glob(f".pyenv/versions/{python}.*/bin/python"))
    if not found:
        pytest.skip(f"there is no Python {python}")
    assert run(tmp_path, python=str(found[0]), seed="5") == versions


_AFTER_CLEAN = {"clean", "tokenize", "collate"}
_CHANGES = {
    "a body": ("if one not in STOP]", "if one in STOP]", _AFTER_CLEAN),
    "a parameter": ('lang="en"', 'lang="de"', _AFTER_CLEAN),
    "a default": ('sep=" "', 'sep="_"', _AFTER_CLEAN),
    "a set": ('"of", ', "", _AFTER_CLEAN),
    "a constant of two": ("LIMIT = 16", "LIMIT = 17", _AFTER_CLEAN | {"shapes"}),
    "a closure": ("make_filter(3)", "make_filter(4)", {"keep", "collate"}),
    "a lambda": ("least > 0", "least > 1", {"keep", "collate"}),
    "a seed": ("seed=3", "seed=4", {"tokenize", "collate"}),
    "a value in a dict": ('"y": 2', '"y": 3', {"tokenize", "collate"}),
    "a method": ("get(one, 0)", "get(one, 1)", {"tokenize", "collate"}),
    "a partial": ('sep=","', 'sep=";"', {"split"}),
    "a version by hand": ('version="1"', 'version="2"', {"table"}),
    "the last node": ("if keep(one)]", "if not keep(one)]", {"collate"}),
    "a comment": ("LIMIT = 16", "# of tokens\nLIMIT = 16", set()),
    "a docstring": ("Say what it does.", "Other words.", set()),
    "line breaks": ("[tokenize(one) for", "[\n        tokenize(one)\n        for", set()),
    "quotes": ('"en"', "'en'", set()),
    "the order of a set": ('"a", "the"', '"the", "a"', set()),
    "the order of a dict": ('{"x": 1, "y": 2}', '{"y": 2, "x": 1}', set()),
}


@pytest.mark.parametrize("change", _CHANGES)
def test_a_change_reaches_the_node_and_those_after_it(versions, tmp_path, change):
    old, new, expected = _CHANGES[change]
    assert old in _PROGRAM
    found = run(tmp_path, program=_PROGRAM.replace(old, new))
    assert {name for name, version in found.items() if version != versions[name]} == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("findall(text)", "findall(text.lower())", _AFTER_CLEAN),
        (r"\w+", r"\w*", _AFTER_CLEAN),
        ("def unrelated(text):\n    return text", "def unrelated(text):\n    return 3", set()),
    ],
)
def test_a_module_of_the_users_counts_as_far_as_it_is_used(versions, tmp_path, old, new, expected):
    assert old in _HELPERS
    found = run(tmp_path, helpers=_HELPERS.replace(old, new))
    assert {name for name, version in found.items() if version != versions[name]} == expected


def test_a_file_counts_by_its_content(versions, tmp_path):
    (tmp_path / "vocab.json").write_text('["b"]')
    found = run(tmp_path)
    assert {name for name, version in found.items() if version != versions[name]} == {"vocab"}
