"""Helpers of `locked()`: they make a lock's name from the arguments of a call, and read the options for skipped calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from handfast.errors import ConfigError
from handfast.option_types import LockOptions

__all__ = ["check_template", "skipping", "template_key"]


def check_template(template: object) -> None:
    """Raise if this is no name, for example because `@locked` was written without parentheses."""
    if not isinstance(template, str) or not template:
        raise ConfigError(f"locked() takes a name such as 'report:{{user_id}}', not {template!r}")


def template_key(function: Callable[..., Any], template: str) -> Callable[..., str]:
    """Return a function that makes a lock's name from a call's arguments. A bad template raises here, at decoration."""
    import inspect

    signature = inspect.signature(function)
    for word in _fields(template):
        if word not in signature.parameters:
            raise ConfigError(
                f"locked({template!r}): {function.__qualname__}{signature} has no parameter {word or 'without a name'!r}"
            )

    def key(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return template.format(**bound.arguments)

    return key


def _fields(template: str) -> list[str]:
    """The parameters that a template names, including those inside format specifications."""
    import string

    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"locked({template!r}): {error}; a brace of the name itself is written twice") from None
    words: list[str] = []
    for _, field, spec, _ in parts:
        if field is not None:
            words.append(field.split(".")[0].split("[")[0])
            words += _fields(spec or "")
    return words


def skipping(skip: object, value: object, options: LockOptions) -> tuple[object, LockOptions]:
    """The result of a skipped call, and the options of the lock. A call that may be skipped does not wait by default."""
    if not isinstance(skip, bool):
        raise ConfigError(f"skip must be True or False, not {skip!r}")
    if not skip and value is not ...:
        raise ConfigError("skip_value= needs skip=True: without it a call that does not get the lock raises Contended")
    return None if value is ... else value, {"wait": 0, **options} if skip else options
