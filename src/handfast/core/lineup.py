"""From the end of a process' line to the lock: where all who could not have it at once wait, whatever kind it is."""

from __future__ import annotations

from typing import Any

from handfast.core import fair, waiting
from handfast.core.commands import Request
from handfast.core.effects import Lobby
from handfast.core.hold import Usher
from handfast.core.line import Lines, Place
from handfast.core.terms import Terms

__all__ = ["line_up"]


async def line_up(
    lobby: Lobby, lines: Lines, request: Request, terms: Terms, wait: float | None, since: float, keeper: Usher
) -> Any:
    """Stand in line until it is ours: what `keeper` makes of it. Raises NotAcquired when `wait` is over."""
    place = lines.join(request, terms, lobby.bell(), since, wait, lobby.who())
    outcome = "acquired"
    head = fair.acquire if request.settings.fair else waiting.at_the_head
    try:
        while not place.first:
            lines.began(place)
            await lobby.park(place.bell, place.until)
            waiting.stay(lines, place, lobby.now())
        return await lobby.visit(lambda io: head(io, lines, place, keeper))
    except BaseException as error:
        outcome = type(error).__name__
        raise
    finally:
        try:
            _leave(lines, place, keeper)
        except BaseException:
            # Once more if an interrupt has struck here: a place that nobody has any more would block the line.
            _leave(lines, place, keeper)
            raise
        lines.ended(place, lobby.now(), outcome)


def _leave(lines: Lines, place: Place, keeper: Usher) -> None:
    given = lines.leave(place)
    if given is not None:
        keeper._unfinished(given)
