"""Policies for the delay before the next attempt. They can be combined.

A policy turns the number of the failed attempt (1, 2, …) and a random number in [0, 1) into a delay in seconds. The
caller passes the random number, so that a simulation can be repeated.

>>> steady(0.1)(1, 0.5)
0.1
>>> policy = exponential(0.01, factor=2).capped(0.05)
>>> [policy(attempt, 0.0) for attempt in (1, 2, 3, 4)]
[0.01, 0.02, 0.04, 0.05]
>>> steady(0.1).jittered(0.5)(1, 0.5)
0.1
>>> steady(0.01).then(steady(1.0), after=2)(3, 0.0)
1.0
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Backoff", "exponential", "steady"]


class Backoff:
    """A delay for each failed attempt. Combine it with `capped`, `jittered` and `then`."""

    __slots__ = ("delay",)

    def __init__(self, delay: Callable[[int, float], float]) -> None:
        self.delay = delay

    def __call__(self, attempt: int, random: float) -> float:
        return max(0.0, self.delay(attempt, random))

    def capped(self, most: float) -> Backoff:
        """Never longer than `most` seconds."""
        return Backoff(lambda attempt, random: min(most, self.delay(attempt, random)))

    def jittered(self, share: float) -> Backoff:
        """Spread evenly from (1 - share) to (1 + share) times the delay."""
        return Backoff(lambda attempt, random: self.delay(attempt, random) * (1 + share * (2 * random - 1)))

    def then(self, other: Backoff, *, after: int) -> Backoff:
        """This policy for the first `after` attempts, and `other` for later ones."""
        return Backoff(
            lambda attempt, random: (
                self.delay(attempt, random) if attempt <= after else other.delay(attempt - after, random)
            )
        )


def steady(seconds: float) -> Backoff:
    """The same delay each time."""
    return Backoff(lambda attempt, random: seconds)


def exponential(first: float, *, factor: float = 2.0) -> Backoff:
    """A delay of `first`, and of `factor` times the last one after each attempt. The exponent is bounded, so it never
    overflows."""
    return Backoff(lambda attempt, random: first * factor ** min(attempt - 1, 60))
