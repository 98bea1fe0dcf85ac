"""Code of the user's own functions and classes: its text, what it does, and what it reads from outside.

What code does is its syntax tree, so comments, blank lines, quotes and line breaks do not count, and
neither do docstrings, unless the code reads ``__doc__``. It is taken from the source file only if
that still compiles to the code that runs: a file may have been edited since it was imported. Without a
source (an interactive session, ``exec``) the bytecode counts, which is of one version of Python.

What code reads from outside are the dotted names that its bytecode loads as globals, and what it imports.

Texts and digests are the same in every process and version of Python. Syntax trees are spelled here and not by ``ast.dump``, whose text changes between versions of Python.
"""

from __future__ import annotations

import ast
import dis
import functools
import hashlib
import importlib.util
import linecache
import sys
import textwrap
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

from mvc_hooks.installed import OWN_PACKAGES, is_library_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_BETWEEN = ("PUSH_NULL", "PRECALL", "CACHE", "NOT_TAKEN")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DOCS = "__doc__"


@dataclass(frozen=True, slots=True)
class Code:
    """A function, a class or a file of the user's."""

    text: str  # its source as it is written, or a line that says that there is none
    digest: bytes  # of what it does
    # Dotted names that it loads from outside, each as a tuple, in order.
    reads: tuple[tuple[str, ...], ...] = ()
    imports: tuple[str, ...] = ()  # modules that it imports where it runs, in order
    first: int = 0  # its first line in its file; 0 without a source
    last: int = 0  # its last one
    file: str = ""  # where those are


def read_function(function: FunctionType) -> Code:
    """Return the code of a function, from its source if there is one."""
    code = function.__code__
    known = _find_tree(code, function.__globals__)
    whole = code if known is None else _with_assertions(code, known[1])
    reads = tuple(sorted(set(_list_reads(whole))))
    if known is None:
        return Code(_NO_SOURCE, digest_bytecode(code), reads)
    package = function.__globals__.get("__package__") or ""
    return _from_tree(known[0], known[1], reads, package)


def read_class(kind: type) -> Code | None:
    """Return the code of a class without that of its methods' globals; None without a source."""
    module = sys.modules.get(kind.__module__)
    codes = [method.__code__ for method in list_methods(kind)]
    file = getattr(module, "__file__", None) or next((code.co_filename for code in codes), None)
    source = _read_source(file, vars(module or {}))
    if source is None:
        return None
    named = [tree for name, tree in source.classes if name == kind.__qualname__]
    lines = {code.co_firstlineno for code in codes if code.co_filename == source.file}
    around = [
        tree
        for tree in named
        if any(tree.lineno <= line <= (tree.end_lineno or tree.lineno) for line in lines)
    ]
    return _from_tree((around or named)[-1], source, (), "") if named else None


def read_file(path: str, package: str) -> Code | None:
    """Return the code of a whole file."""
    source = _read_source(path, {})
    return None if source is None else _from_tree(source.tree, source, (), package)


def list_methods(kind: type) -> list[FunctionType]:
    """Return the functions that a class itself defines, those in properties and fields too."""
    values: list[object] = []
    for value in vars(kind).values():
        inner = getattr(value, "__func__", value)
        if isinstance(inner, property):
            values += [inner.fget, inner.fset, inner.fdel]
        else:
            values.append(getattr(inner, "func", inner))
    fields = vars(kind).get("__dataclass_fields__", {}).values()
    values += [field.default_factory for field in fields]
    return [value for value in values if isinstance(value, FunctionType)]


def locate_module(name: str) -> tuple[str | None, bool]:
    """Return the file of a module, which is not imported for that, and whether it is a library's."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top in OWN_PACKAGES:
        return None, True
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):
        return None, True  # it fails where it is imported
    if spec is None or spec.origin is None:
        return None, spec is None
    return spec.origin, is_library_file(spec.origin) or not spec.has_location


# Sources.


@dataclass(frozen=True, slots=True)
class _Source:
    file: str
    lines: list[str]
    tree: ast.Module
    functions: dict[tuple[str, int], list[ast.AST]]
    classes: list[tuple[str, ast.ClassDef]]
    compiled: dict[tuple[str, int], list[CodeType]]


_NO_SOURCE = "(there is no source: the bytecode counts)\n"


def _read_source(file: str | None, scope: dict[str, object]) -> _Source | None:
    if file is None:
        return None
    lines = linecache.getlines(file, scope)
    return _parse(file, tuple(lines)) if lines else None


@functools.lru_cache(maxsize=64)
def _parse(file: str, lines: tuple[str, ...]) -> _Source | None:
    text = "".join(lines)
    try:
        tree = ast.parse(text)
        whole = compile(text, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return None
    functions: dict[tuple[str, int], list[ast.AST]] = {}
    classes: list[tuple[str, ast.ClassDef]] = []
    for name, definition in _walk_definitions(tree, ""):
        if isinstance(definition, ast.ClassDef):
            classes.append((name, definition))
        else:
            place = _own_name(definition), _first_line(definition)
            functions.setdefault(place, []).append(definition)
    compiled: dict[tuple[str, int], list[CodeType]] = {}
    for code in _walk_code(whole):
        compiled.setdefault((code.co_name, code.co_firstlineno), []).append(code)
    return _Source(file, list(lines), tree, functions, classes, compiled)


def _walk_definitions(tree: ast.AST, above: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield every function, lambda and class below a node with its qualified name."""
    for child in ast.iter_child_nodes(tree):
        inner = above
        if isinstance(child, (*_FUNCTIONS, ast.ClassDef)):
            name = f"{above}{_own_name(child)}"
            yield name, child
            inner = f"{name}." if isinstance(child, ast.ClassDef) else f"{name}.<locals>."
        yield from _walk_definitions(child, inner)


def _own_name(tree: ast.AST) -> str:
    return getattr(tree, "name", "<lambda>")


def _first_line(tree: ast.AST) -> int:
    return min(int(part.lineno) for part in [tree, *getattr(tree, "decorator_list", [])])


def _walk_code(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _walk_code(constant)


def _find_tree(code: CodeType, scope: dict[str, object]) -> tuple[ast.AST, _Source] | None:
    """Return the syntax tree of running code and its source, if the source is still that code's."""
    source = _read_source(code.co_filename, scope)
    if source is None:
        return None
    place = code.co_name, code.co_firstlineno
    is_same = any(_facts_of(known) == _facts_of(code) for known in source.compiled.get(place, ()))
    trees = source.functions.get(place, [])
    if len(trees) > 1:  # several lambdas on a line
        starts = [(line, column) for line, _, column, _ in code.co_positions() if line and column]
        first = min(starts, default=(0, 0))
        trees = [tree for tree in trees if _spans(tree, first)][-1:]  # the innermost comes last
    return (trees[0], source) if is_same and trees else None


def _with_assertions(code: CodeType, source: _Source) -> CodeType:
    """Return code as it is without ``python -O``, which leaves out what assertions read."""
    if not sys.flags.optimize:
        return code
    place = code.co_name, code.co_firstlineno
    text = "".join(source.lines)
    whole = compile(text, source.file, "exec", dont_inherit=True, optimize=0)
    complete = [
        inner for inner in _walk_code(whole) if (inner.co_name, inner.co_firstlineno) == place
    ]
    here = [_facts_of(running) for running in source.compiled[place]]
    return complete[here.index(_facts_of(code))] if len(complete) == len(here) else code


def _facts_of(code: CodeType) -> tuple[object, ...]:
    constants = code.co_consts
    plain = [ascii(value) for value in constants if not isinstance(value, (CodeType, frozenset))]
    inner = [_facts_of(value) for value in constants if isinstance(value, CodeType)]
    return code.co_code, code.co_names, code.co_varnames, plain, inner


def _spans(tree: ast.AST, place: tuple[int, int]) -> bool:
    body = getattr(tree, "body", None)
    if not isinstance(body, ast.expr):
        return True
    end = body.end_lineno or 0, body.end_col_offset or 0
    return (body.lineno, body.col_offset) <= place <= end


def _from_tree(
    tree: ast.AST, source: _Source, reads: tuple[tuple[str, ...], ...], package: str
) -> Code:
    first, last = 1, len(source.lines)
    if not isinstance(tree, ast.Module):
        first, last = _first_line(tree), tree.end_lineno or 0  # type: ignore[attr-defined]  # as above
    text = textwrap.dedent("".join(source.lines[first - 1 : last]))
    keeps_docs = _DOCS in text
    spelled = "".join(spell(tree, keeps_docs=keeps_docs))
    imports = tuple(sorted(set(_list_imports(tree, package))))
    return Code(text, digest_parts("source", spelled), reads, imports, first, last, source.file)


def _list_imports(tree: ast.AST, package: str) -> Iterator[str]:
    for part in ast.walk(tree):
        if isinstance(part, ast.Import):
            yield from (alias.name for alias in part.names)
        elif isinstance(part, ast.ImportFrom):
            above = package.split(".")[: -(part.level - 1) or None] if part.level else []
            name = ".".join([*above, *([part.module] if part.module else [])])
            yield name
            yield from (f"{name}.{alias.name}" for alias in part.names if alias.name != "*")


def _list_reads(code: CodeType) -> Iterator[tuple[str, ...]]:
    """Yield the dotted names that code loads from outside of it."""
    for inner in _walk_code(code):
        chain: list[str] = []
        for step in dis.get_instructions(inner):
            if step.opname in _LOADS:
                if chain:
                    yield tuple(chain)
                chain = [step.argval]
            elif chain and step.opname in _ATTRIBUTES:
                chain.append(step.argval)
            elif chain and step.opname not in _BETWEEN:
                yield tuple(chain)
                chain = []
        if chain:
            yield tuple(chain)


_UNSEEN = ("type_comment", "type_ignores", "kind", "ctx")
_DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
_NODE = "node"


def digest_parts(*parts: bytes | str) -> bytes:
    """Return the SHA-256 of parts, each with its length before it."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def spell(value: object, *, keeps_docs: bool) -> Iterator[str]:
    """Yield the text of a syntax tree, the same in every version of Python."""
    if isinstance(value, list):
        yield "["
        for item in value:
            yield from spell(item, keeps_docs=keeps_docs)
        yield "]"
    elif isinstance(value, ast.AST):
        yield f"({type(value).__name__}"
        for name in sorted(value._fields):
            item = _read_field(value, name, keeps_docs=keeps_docs)
            if item is not None and item != [] and name not in _UNSEEN:
                yield f" {name}="
                yield from spell(item, keeps_docs=keeps_docs)
        yield ")"
    else:
        yield f"{type(value).__name__}:{value!a},"


def _read_field(tree: ast.AST, name: str, *, keeps_docs: bool) -> object:
    item = getattr(tree, name, None)
    if name == "body" and isinstance(tree, _DOCUMENTED) and not keeps_docs:
        return tree.body[1:] if ast.get_docstring(tree, clean=False) is not None else tree.body
    if name == "values" and isinstance(tree, ast.JoinedStr):
        return list(_join_texts(tree.values))
    if name == "decorator_list":  # a node's own is not part of what it does
        called = [
            (decorator.func if isinstance(decorator, ast.Call) else decorator, decorator)
            for decorator in item or ()
        ]
        return [
            decorator
            for target, decorator in called
            if getattr(target, "id", getattr(target, "attr", None)) != _NODE
        ]
    return item


def _join_texts(values: Iterable[ast.expr]) -> Iterator[object]:
    """Yield the pieces of an f-string; versions of Python cut its texts otherwise."""
    text = ""
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            text += value.value
            continue
        if text:
            yield text
        text = ""
        yield value
    if text:
        yield text


def digest_bytecode(code: CodeType) -> bytes:
    """Return the digest of bytecode without names of files and numbers of lines."""
    items = [
        digest_bytecode(value) if isinstance(value, CodeType) else _digest_constant(value)
        for value in code.co_consts
    ]
    version = ".".join(map(str, sys.version_info[:2]))
    names = (*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)
    return digest_parts("bytecode", version, code.co_code, "\0".join(names), *items)


def _digest_constant(value: object) -> bytes:
    if isinstance(value, (frozenset, tuple)):
        items = [_digest_constant(item) for item in value]
        ordered = sorted(items) if isinstance(value, frozenset) else items
        return digest_parts(type(value).__name__, *ordered)
    return digest_parts(type(value).__name__, ascii(value))
