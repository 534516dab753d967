"""`python -m visattn` does what the command `visattn` does."""

import sys

from visattn.cli import main

if __name__ == "__main__":
    sys.exit(main())
