"""`lattice`, and `python -m lattice_cli`: loads the command tree, and takes a Ctrl-C in the meantime for what it is.

Thread: any
"""

import sys


def main() -> int:
    """The exit status. Nothing is imported before: that takes a tenth of a second, in which a key may be pressed."""
    try:
        from lattice_cli.cli import main as run
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
