"""Make the README's pictures from real output: `python docs/make_pictures.py`.

Runs the demo in a scratch folder, then each command on a terminal of its own (a pty, so that
colours and widths are those a person sees), and writes what it printed as an SVG.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
COLUMNS = 96
PICTURES = {
    "diff": ["diff", "main~1", "main"],
    "log": ["log", "--oneline", "--graph", "--all"],
    "status": ["status"],
    "prune": ["prune", "--keep-last", "1", "--dry-run"],
    "du": ["du"],
}
RUN_PICTURES = {
    "rollback": ["log", "--oneline", "--graph", "--all"],
    "watch": ["watch", "--once"],
}


def run_on_terminal(folder: Path, words: list[str]) -> str:
    """Return what a command prints on a terminal, escape codes included."""
    master, slave = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "mvc", *words]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    chunks: list[bytes] = []
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # how Linux says that the other end was closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    process.wait()
    os.close(master)
    return b"".join(chunks).decode().replace("\r\n", "\n")


def draw(name: str, words: list[str], output: str) -> None:
    """Write one picture."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(f"$ mvc {' '.join(words)}\n{output.rstrip()}\n"))
        console.save_svg(str(IMAGES / f"{name}.svg"), title=f"mvc {words[0]}")


def main() -> None:
    """Run the demo once and draw every picture."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "models"
        subprocess.run(
            [sys.executable, str(ROOT / "examples" / "demo.py"), "--folder", str(folder)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        subprocess.run([sys.executable, "-m", "mvc", "switch", "main"], cwd=folder, check=True)
        (folder / "config.json").write_text('{"width": 256}\n')
        (folder / "notes.md").write_text("a note\n")
        for name, words in PICTURES.items():
            draw(name, words, run_on_terminal(folder, words))
        for name, words in RUN_PICTURES.items():
            draw(name, words, run_on_terminal(folder / "run", words))


if __name__ == "__main__":
    main()
