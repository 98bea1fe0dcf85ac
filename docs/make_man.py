"""Writes the man pages from docs/cli.md: ``python docs/make_man.py FOLDER``; each wheel gets them.

hatchling runs this as a build hook, in an environment that has nothing else: so nothing is imported
of mvc, and docs/cli.md, which a test compares with the commands, is the source.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
_MARKUP = re.compile(r"([^`[]+|\[(?![^\]]+\]\())|`([^`]+)`|\[([^\]]+)\]\([^)]+\)")
_CELL = re.compile(r"(?<!\\)\|")


def man_pages(version: str) -> dict[str, str]:
    """Return file name → text of all pages: ``mvc.1``, and one for each command."""
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    introduction, _, reference = text.partition("<!--")
    sections = re.split(r"^### mvc ", reference, flags=re.MULTILINE)[1:]
    pages, summaries = {}, {}
    for section in sections:
        name, _, body = section.partition("\n")
        usage, description = re.match(r"\s*```\n(.*?)\n```\n(.*)", body, re.DOTALL).groups()  # type: ignore[union-attr]  # the test of the page holds that
        description = re.split(r"^## ", description, flags=re.MULTILINE)[0]
        summaries[name] = _summary(description)
        prose, table = re.split(r"^(?=\| option)", description, flags=re.MULTILINE)
        parts = [("SYNOPSIS", f"`{usage}`"), ("DESCRIPTION", prose), ("OPTIONS", table)]
        seen = ("SEE ALSO", "`mvc(1)`")
        pages[f"mvc-{name}.1"] = _page(f"mvc-{name}", summaries[name], [*parts, seen], version)
    opening, *rest = re.split(r"^## ", introduction.partition("\n")[2], flags=re.MULTILINE)
    commands = "| command |\n|---|\n" + "".join(
        f"| `mvc-{name}(1)` | {summary} |\n" for name, summary in summaries.items()
    )
    parts = [("SYNOPSIS", "`mvc [-C PATH] [--no-pager] COMMAND [ARGS]...`")]
    parts += [("DESCRIPTION", opening), ("COMMANDS", commands)]
    parts += [(title.upper(), body) for title, _, body in (one.partition("\n") for one in rest)]
    pages["mvc.1"] = _page("mvc", "git for model parameters", parts, version)
    return pages


def _summary(description: str) -> str:
    first = description.strip().split("\n\n")[0].replace("\n", " ")
    return first[0].lower() + first[1:].rstrip(".")


def _page(name: str, summary: str, parts: list[tuple[str, str]], version: str) -> str:
    lines = [f'.TH {_plain(name.upper())} 1 "" "mvc {version}" "mvc"', ".SH NAME"]
    lines.append(f"{_plain(name)} \\- {_inline(summary)}")
    for title, body in parts:
        lines += [f".SH {_plain(title)}", *_blocks(body)]
    return "\n".join(lines) + "\n"


def _blocks(text: str) -> Iterator[str]:
    """Yield the lines of paragraphs, tables and code."""
    for number, block in enumerate(text.strip().split("\n\n")):
        lines = block.splitlines()
        if block.startswith("|"):
            for row in lines[2:]:
                first, *rest = (cell.strip() for cell in _CELL.split(row)[1:-1])
                yield from (".TP", _inline(first), _inline(": ".join(filter(None, rest))))
            continue
        if number:
            yield ".PP"
        if block.startswith("```"):
            yield from (".RS 4", ".nf", *map(_plain, lines[1:-1]), ".fi", ".RE")
        else:
            yield _inline(" ".join(lines))


def _inline(text: str) -> str:
    """Return a line of text; what is code in Markdown is bold, and of links the text stays."""
    shown = [
        f"\\fB{_plain(bold)}\\fR" if bold else _plain(link or plain)
        for plain, bold, link in _MARKUP.findall(text)
    ]
    return "".join(shown)


def _plain(text: str) -> str:
    text = text.replace("\\|", "|").replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


class ManPages(BuildHookInterface):  # type: ignore[type-arg]  # of hatchling
    """Puts the pages into a wheel; pip installs them into ``share/man/man1``."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  hatchling's
        """Write the pages beside the build, and name them in it."""
        self.folder = tempfile.TemporaryDirectory()
        for name, text in man_pages(self.metadata.version).items():
            path = Path(self.folder.name, name)
            path.write_text(text, encoding="utf-8")
            build_data["shared_data"][str(path)] = f"share/man/man1/{name}"

    def finalize(self, *_: Any) -> None:
        """Remove what was written."""
        self.folder.cleanup()


if __name__ == "__main__":
    for name, text in man_pages("").items():
        Path(sys.argv[1], name).write_text(text, encoding="utf-8")
