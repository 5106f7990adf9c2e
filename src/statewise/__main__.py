"""`python -m statewise`."""

import sys

from statewise.cli import main

if __name__ == "__main__":
    sys.exit(main())
