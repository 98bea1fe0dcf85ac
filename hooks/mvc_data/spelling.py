"""Code and values as text or digests that are the same in every process and version of Python.

Syntax trees are spelled here and not by ``ast.dump``, whose text changes between versions of Python.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from types import CodeType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_UNSEEN = ("type_comment", "type_ignores", "kind", "ctx")
_DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
_MARK = "node"  # a node's decorator is not part of what it does


def digest_parts(*parts: bytes | str) -> bytes:
    """Return the SHA-256 of parts, each with its length before it."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "little") + data)
    return found.digest()


def spell(value: object, *, keeps_docs: bool) -> Iterator[str]:
    """Yield the text of a syntax tree, the same in every version of Python."""
    if isinstance(value, list):
        yield "["
        for one in value:
            yield from spell(one, keeps_docs=keeps_docs)
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
        return item[1:] if _is_text(item) else item  # type: ignore[index]  # it is a list
    if name == "values" and isinstance(tree, ast.JoinedStr):
        return list(_join_texts(tree.values))
    if name == "decorator_list":
        return [one for one in item or () if not _is_mark(one)]
    return item


def _is_text(body: object) -> bool:
    first = body[0] if isinstance(body, list) and body else None
    value = first.value if isinstance(first, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _join_texts(values: Iterable[ast.expr]) -> Iterator[object]:
    """Yield the pieces of an f-string; versions of Python cut its texts otherwise."""
    text = ""
    for one in values:
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            text += one.value
            continue
        if text:
            yield text
        text = ""
        yield one
    if text:
        yield text


def _is_mark(tree: ast.AST) -> bool:
    called = tree.func if isinstance(tree, ast.Call) else tree
    return getattr(called, "id", getattr(called, "attr", None)) == _MARK


def digest_bytecode(code: CodeType) -> bytes:
    """Return the digest of bytecode without names of files and numbers of lines."""
    items = [
        digest_bytecode(one) if isinstance(one, CodeType) else _digest_constant(one)
        for one in code.co_consts
    ]
    version = ".".join(map(str, sys.version_info[:2]))
    names = (*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)
    return digest_parts("bytecode", version, code.co_code, "\0".join(names), *items)


def _digest_constant(value: object) -> bytes:
    if isinstance(value, (frozenset, tuple)):
        items = [_digest_constant(one) for one in value]
        ordered = sorted(items) if isinstance(value, frozenset) else items
        return digest_parts(type(value).__name__, *ordered)
    return digest_parts(type(value).__name__, ascii(value))
