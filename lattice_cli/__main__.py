"""`python -m lattice_cli`: the same as `lattice`.

Thread: any
"""

import sys

from lattice_cli.cli import main

if __name__ == "__main__":
    sys.exit(main())
