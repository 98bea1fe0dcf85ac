"""Make the README's pictures from real output: `python docs/make_pictures.py`.

Runs the demo in a scratch folder, then each command in a pseudo terminal, so that colours and
widths are those a user sees, and draws what it printed as an SVG. Every word has its own position,
and a column is a little wider than the characters of common monospace fonts: the columns hold
whichever font a viewer has, and even if it ignores ``textLength``.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.segment import Segment

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
COLUMNS = 96
COLUMN, LINE, FONT, MARGIN, TITLE = 12.2, 24.4, 20, 14, 44
FAMILY = "ui-monospace, Menlo, Consolas, 'Liberation Mono', 'DejaVu Sans Mono', monospace"
BLOCKS = " ▁▂▃▄▅▆▇█"
VOCABULARY, CONTEXT, SAMPLES = 128, 64, 32  # of the demo's model; SAMPLES are enough for its tests
PICTURES = {
    "diff": ["diff", "main~1", "main"],
    "log": ["log", "--oneline", "--graph", "--all"],
    "status": ["status"],
    "prune": ["prune", "--keep-last", "1", "--dry-run"],
    "du": ["du"],
}
REPORT = ["diff", "main~1", "main"]
ENTRY, INPUTS = "train.py", "text.npy"
MODEL_PICTURES = {
    "stats": ["diff", "--stats", "main~1", "main"],
    "verify": [
        *("verify", "main~1", "main", "--layers", "module,system"),
        *("--entry", f"{ENTRY}:CharModel", "--inputs", INPUTS),
    ],
    "merge": ["merge", "other", "--preview"],
    "blame": ["blame", "--by", "module"],
}
BROWSER = "chromium"
SHARING = [
    ["commit", "-am", "wider"],
    ["push", "--no-progress"],
    ["clone", "--no-content", "store", "laptop"],
    ["-C", "laptop", "export", "HEAD", "--tensors", "*linear1*", "-o", "part.safetensors"],
    ["publish", "prod", "--no-progress"],
    ["follow", "store", "prod", "served", "--once", "--no-progress"],
]
RUN_PICTURES = {
    "rollback": ["log", "--oneline", "--graph", "--all"],
    "watch": ["watch", "--once"],
}


def run_on_terminal(folder: Path, words: list[str]) -> str:
    """Return what a command prints on a terminal, escape codes included."""
    master, slave = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color", "PAGER": "cat"}
    command = [sys.executable, "-m", "mvc", *words]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    chunks: list[bytes] = []
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # Linux reports EIO once the other end is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    process.wait()
    os.close(master)
    return b"".join(chunks).decode().replace("\r\n", "\n")


def draw(name: str, folder: Path, *commands: list[str]) -> None:
    """Write one picture of what commands print."""
    told = [f"$ mvc {' '.join(words)}\n{run_on_terminal(folder, words)}" for words in commands]
    text = Text.from_ansi("".join(told).rstrip().expandtabs(8))
    console = Console(width=COLUMNS, force_terminal=True)
    lines = text.wrap(console, COLUMNS)
    shapes = [
        shape
        for row, line in enumerate(lines)
        for shape in line_shapes(line.render(console), MARGIN + TITLE + row * LINE)
    ]
    width = COLUMNS * COLUMN + 2 * MARGIN
    height = TITLE + len(lines) * LINE + 2 * MARGIN
    theme = SVG_EXPORT_THEME
    title = f"mvc {commands[0][0]}" if len(commands) == 1 else name
    dots = [
        f'<circle cx="{26 + 22 * number}" cy="22" r="7" fill="{colour}"/>'
        for number, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}">',
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="{theme.background_color.hex}"/>',
        *dots,
        f'<g font-family="{FAMILY}" font-size="{FONT}" fill="{theme.foreground_color.hex}">',
        f'<text x="{width / 2:g}" y="28" text-anchor="middle" font-weight="bold">{title}</text>',
        *shapes,
        "</g></svg>",
    ]
    (IMAGES / f"{name}.svg").write_text("\n".join(parts) + "\n", encoding="utf-8")


def line_shapes(segments: Iterator[Segment], top: float) -> Iterator[str]:
    """Yield the words of one line, and the blocks of a curve as rectangles."""
    column = 0
    for text, style, _ in segments:
        look = attributes(style or Style.null())
        for match in re.finditer(r"[▁▂▃▄▅▆▇█]|[^\s▁▂▃▄▅▆▇█]+", text):
            word, x = match[0], MARGIN + (column + match.start()) * COLUMN
            if word in BLOCKS:
                height = BLOCKS.index(word) / 8 * LINE
                y = top + LINE - height
                yield f'<rect x="{x:.5g}" y="{y:.5g}" width="12.4" height="{height:.5g}"{look} shape-rendering="crispEdges"/>'
            else:
                place = f'x="{x:.5g}" y="{top + 18:.5g}" textLength="{len(word) * COLUMN:.5g}"'
                yield f"<text {place}{look}>{escape(word)}</text>"
        column += len(text)


def attributes(style: Style) -> str:
    """Return a style as SVG attributes."""
    colour = "" if style.color is None else style.color.get_truecolor(SVG_EXPORT_THEME).hex
    return (
        (f' fill="{colour}"' if colour else "")
        + (' font-weight="bold"' if style.bold else "")
        + (' opacity="0.65"' if style.dim else "")
    )


def draw_report(folder: Path) -> None:
    """Write the page of a comparison as a browser shows it."""
    page = folder.parent / "page.html"
    command = [sys.executable, "-m", "mvc", *REPORT, "--html", str(page)]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    browser = shutil.which(BROWSER)
    if browser is None:
        print(f"{BROWSER} is not installed: page.png stays as it is")
        return
    shot = [f"--screenshot={IMAGES / 'page.png'}", "--window-size=1280,1740", page.as_uri()]
    subprocess.run(
        [browser, "--headless", "--no-sandbox", "--hide-scrollbars", *shot],
        check=True,
        stderr=subprocess.DEVNULL,
    )


def prepare(folder: Path) -> None:
    """Make what the pictures about models need: inputs, a branch to merge, known drift."""
    text = bytes(byte for byte in (ROOT / "README.md").read_bytes() if byte < VOCABULARY)
    windows = np.frombuffer(text[: SAMPLES * CONTEXT], np.uint8).reshape(SAMPLES, CONTEXT)
    np.save(folder / INPUTS, windows.astype(np.int64))
    shutil.copy(ROOT / "examples" / "demo.py", folder / ENTRY)
    for words in (
        ["switch", "-c", "other", "main~1"],
        ["restore", "--staged", "--worktree", "--source", "wild", "model.safetensors"],
        ["commit", "-q", "-m", "fine-tuned at another rate"],
        ["switch", "main"],
        ["blame", "--stats"],
    ):
        subprocess.run(
            [sys.executable, "-m", "mvc", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL
        )


def main() -> None:
    """Run the demo once, unless its folder is given, and draw every picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, help="what examples/demo.py has made")
    given = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as scratch:
        folder = given or Path(scratch) / "models"
        if given is None:
            subprocess.run(
                [sys.executable, str(ROOT / "examples" / "demo.py"), "--folder", str(folder)],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        subprocess.run([sys.executable, "-m", "mvc", "switch", "main"], cwd=folder, check=True)
        (folder / "config.json").write_text('{"width": 256}\n')
        (folder / "notes.md").write_text("a note\n")
        for name, words in PICTURES.items():
            draw(name, folder, words)
        draw_report(folder)
        prepare(folder)
        for name, words in MODEL_PICTURES.items():
            draw(name, folder, words)
        for name, words in RUN_PICTURES.items():
            draw(name, folder / "run", words)
        draw("sharing", folder, *SHARING)


if __name__ == "__main__":
    main()
