"""``python -m mvc`` is ``mvc``."""

from mvc.cli.main import main

if __name__ == "__main__":
    main()
