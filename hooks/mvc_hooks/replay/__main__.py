"""``python -m mvc_hooks.replay``."""

from __future__ import annotations

import sys

from mvc_hooks.replay.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
