"""``python -m thinwire``: the command line, also under torchrun."""

import sys

from thinwire.cli import main

if __name__ == "__main__":
    sys.exit(main())
