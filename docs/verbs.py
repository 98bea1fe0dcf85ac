"""Shows the verbs of Repo as what they are: methods, documented at their operations.

For griffe, which reads the sources for the documentation site and does not run them.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_VERB = re.compile(r"verb\(lambda: ([\w.]+)\)")


class Verbs(griffe.Extension):
    """Puts the function of an operation in the place of each ``verb``."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Look at every class once the package is read."""
        if pkg.path != "mvc":
            return
        for module in ("repo", "repo.namespaces", "repo.run_store"):
            for kind in pkg[module].classes.values():
                for name, member in list(kind.members.items()):
                    verb = member.is_attribute and _VERB.fullmatch(str(member.value))
                    if verb:
                        kind.set_member(name, _as_method(name, member, pkg[verb[1]]))


def _as_method(name: str, place: griffe.Attribute, operation: griffe.Function) -> griffe.Function:
    itself = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    method = griffe.Function(
        name,
        parameters=griffe.Parameters(itself, *list(operation.parameters)[1:]),
        returns=operation.returns,
        docstring=operation.docstring,
        lineno=place.lineno,
        endlineno=place.endlineno,
    )
    method.labels |= operation.labels & {"async"}
    return method
