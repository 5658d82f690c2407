"""`python -m handfast` is the `handfast` command."""

from __future__ import annotations

from handfast.cli import command

if __name__ == "__main__":
    command()
