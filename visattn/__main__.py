"""Entry point of `python -m visattn`."""

import sys

from visattn.cli import main

if __name__ == "__main__":
    sys.exit(main())
