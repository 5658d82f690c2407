"""From the end of a process' line to the lock: where all who could not have it at once wait, whatever kind it is."""

from __future__ import annotations

from typing import Any

from handfast.core import fair, waiting
from handfast.core.commands import Request
from handfast.core.effects import Lobby
from handfast.core.hold import Hold, Usher
from handfast.core.line import Lines
from handfast.core.terms import Terms

__all__ = ["line_up"]


async def line_up(
    lobby: Lobby, lines: Lines, request: Request, terms: Terms, wait: float | None, since: float | None, keeper: Usher
) -> Any:
    """Stand in line until it is ours: what `keeper` makes of it. Raises NotAcquired when `wait` is over, which counts
    since then, or now."""
    if since is None:
        since = lobby.now()
    place = lines.join(request, terms, lobby.bell(), since, wait, lobby.who())
    outcome = "acquired"
    try:
        # Not a loop first: in CPython 3.11 an interrupt on the way back to the very beginning of a `try` is outside it.
        head = fair.acquire if request.settings.fair else waiting.at_the_head
        while place.line.head is not place:
            if lines.telling:
                lines.began(place)
            await lobby.park(place.bell, place.until)
            place.headed = lobby.now()
            waiting.stay(lines, place, place.headed)
        if request.settings.cohort:
            # The usual way of a cohort's lock, for which no connection is needed.
            now = place.headed
            if place.given is None:
                await waiting.rely_on_sibling(lobby, lines, place)
                now = lobby.now()
            passed = place.usable(now)
            if passed is not None:
                return waiting.take(place, passed, keeper)
        return await lobby.visit(head, lines, place, keeper)
    except BaseException as error:
        outcome = type(error).__name__
        raise
    finally:
        given: Hold | None = None
        try:
            given = lines.leave(place)
        except BaseException:
            # Once more if an interrupt has struck here: a place that nobody has any more would block the line.
            given = lines.leave(place)
            raise
        finally:
            if given is not None:
                keeper._unfinished(given)
        if place.told:
            lines.tell(place, lobby.now() - since, outcome)
