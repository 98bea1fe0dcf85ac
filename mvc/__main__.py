"""``python -m mvc`` is ``mvc``."""

import sys

from mvc.cli.main import run

if __name__ == "__main__":
    sys.exit(run())
