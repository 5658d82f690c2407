"""`python -m handfast` is the `handfast` command."""

from __future__ import annotations

import sys

from handfast.cli import main

if __name__ == "__main__":
    sys.exit(main())
