"""`python -m burnish`, the same as the `burnish` command."""

import sys

from burnish.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
