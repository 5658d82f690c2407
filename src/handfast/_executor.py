"""The executor of the watchdog's event loop: it runs calls that may block, such as the look-up of a host name.

At the end of the process Python starts no thread any more, but the leases must still be released. From that point on, the
watchdog's thread makes these calls itself.
"""

from __future__ import annotations

import concurrent.futures.thread  # asyncio would import it at the first host name: see net/address.py
from collections.abc import Callable
from typing import Any

__all__ = ["ExitSafeExecutor"]


class ExitSafeExecutor(concurrent.futures.ThreadPoolExecutor):
    """A pool of threads that still runs calls when Python starts no thread any more."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        try:
            return super().submit(call, *args, **kwargs)
        except RuntimeError:
            done: concurrent.futures.Future[Any] = concurrent.futures.Future()
            try:
                done.set_result(call(*args, **kwargs))
            except Exception as error:
                done.set_exception(error)
            return done
