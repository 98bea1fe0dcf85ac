"""Show which paths are ignored, and by which rule."""

from __future__ import annotations

import sys

from mvc.cli.errors import NEGATIVE
from mvc.cli.options import JSON
from mvc.cli.output import Output, Shown, pick, printable
from mvc.cli.parameters import CommandUsageError, Exit, arguments, flag
from mvc.cli.session import open_repo, to_paths


def check_ignore(
    paths: list[str] = arguments("[PATH]..."),
    verbose: bool = flag("-v, --verbose", "Also print the rule: FILE:LINE:PATTERN."),
    stdin: bool = flag("--stdin", "Read the paths from stdin, one a line."),
    shown: Shown = JSON,
) -> None:
    """Print those PATHs that .mvcignore keeps from being added.

    They need not exist; one that ends with / is a folder. What is tracked is not ignored. The exit
    code is 1 if none of them is ignored.
    """
    names = sys.stdin.read().splitlines() if stdin else paths or []
    if stdin == bool(paths):
        raise CommandUsageError("name paths, or pass --stdin")
    rules = open_repo().check_ignore(to_paths(names))
    found = [(name, rule) for name, rule in zip(names, rules, strict=True) if rule is not None]
    fields = [{"path": name, **pick(rule, "source line pattern")} for name, rule in found]
    wheres = [f"{rule.source}:{rule.line}:{rule.pattern}" for _, rule in found]
    lines = [
        (printable(where) + "\t" if verbose else "") + printable(name)
        for where, (name, _) in zip(wheres, found, strict=True)
    ]
    shown.answer(fields, Output.lines, lines)
    if not found:
        raise Exit(NEGATIVE)
