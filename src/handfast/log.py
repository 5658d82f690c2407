"""The library's log. The logging package is imported when there is something to say."""

from __future__ import annotations

__all__ = ["warning"]


def warning(text: str, *args: object) -> None:
    import logging

    logging.getLogger("handfast").warning(text, *args)
