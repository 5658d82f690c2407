"""The library's log. The logging package is imported when there is something to say."""

from __future__ import annotations

import sys

__all__ = ["debug", "debugs", "exception", "info", "warning"]


def warning(text: str, *args: object) -> None:
    if sys.is_finalizing():
        return  # nothing can be imported any more, and nobody would read it
    import logging

    logging.getLogger("handfast").warning(text, *args)


def info(text: str, *args: object) -> None:
    if sys.is_finalizing():
        return
    import logging

    logging.getLogger("handfast").info(text, *args)


def exception(text: str) -> None:
    """With the exception that is being handled."""
    import logging

    logging.getLogger("handfast").exception(text)


def debugs() -> bool:
    """Somebody wants to know everything; nobody does who has not even imported logging."""
    logging = sys.modules.get("logging")
    return logging is not None and logging.getLogger("handfast").isEnabledFor(logging.DEBUG)


def debug(text: str, *args: object) -> None:
    import logging

    logging.getLogger("handfast").debug(text, *args)
