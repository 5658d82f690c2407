"""`python -m handfast.lab` is `handfast lab`."""

import sys

if __name__ == "__main__":
    from handfast.cli import main

    sys.exit(main(["lab", *sys.argv[1:]]))
