"""Between a grant and the caller: what keeps a thread's lease at hand, since Ctrl-C may come at any moment."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from handfast.core.commands import Request
from handfast.core.hold import Hold
from handfast.core.terms import Terms
from handfast.lease import LeaseView

if TYPE_CHECKING:
    from handfast.sync import Client

__all__ = ["Catch"]


class Catch:
    """The client as keeper of one acquisition: it keeps the lease at hand from the moment it exists."""

    __slots__ = ("client", "lease")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.lease: Any = None

    def _granted(self, hold: Hold) -> LeaseView:
        self.lease = lease = self.client._granted(hold)
        return lease

    def _ending(self, hold: Hold) -> None:
        self.client._ending(hold)

    def _unfinished(self, hold: Hold) -> None:
        self.client._unfinished(hold)

    def _letting_go(self, hold: Hold, now: float) -> None:
        self.client._letting_go(hold, now)

    def _let_go(self, hold: Hold, others: bool) -> None:
        self.client._let_go(hold, others)

    def _line_up(self, request: Request, terms: Terms, wait: float | None, since: float) -> Awaitable[None]:
        return self.client._line_up(request, terms, wait, since)
