"""The library's log. It imports the logging package at the first message, to keep `import handfast` fast."""

from __future__ import annotations

import sys

__all__ = ["debug", "debugs", "exception", "info", "warning"]


def warning(text: str, *args: object) -> None:
    if sys.is_finalizing():
        return  # at this point Python can import nothing
    import logging

    logging.getLogger("handfast").warning(text, *args)


def info(text: str, *args: object) -> None:
    if sys.is_finalizing():
        return
    import logging

    logging.getLogger("handfast").info(text, *args)


def exception(text: str) -> None:
    """Log the exception that is being handled."""
    import logging

    logging.getLogger("handfast").exception(text)


def debugs() -> bool:
    """Whether debug messages are enabled. They are not in a program that has not imported logging."""
    logging = sys.modules.get("logging")
    return logging is not None and logging.getLogger("handfast").isEnabledFor(logging.DEBUG)


def debug(text: str, *args: object) -> None:
    import logging

    logging.getLogger("handfast").debug(text, *args)
