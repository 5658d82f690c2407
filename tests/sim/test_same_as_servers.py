"""The simulated server behaves like the real ones: the same commands and scripts get the same replies and pushes, and
leave the same data behind. Times (TTLs, TIME, tokens and stamps made of it) may differ by the moments between the two.

Hypothesis generates the commands: all transitions with all forms of their arguments, commands of other programs,
FLUSHALL, lost scripts, time that passes and clocks that are set back. It shrinks each difference that it finds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from handfast.core import guard
from handfast.operate.breaking import break_terms
from handfast.protocol import commands, keys
from handfast.protocol.commands import Identity
from handfast.protocol.resp import bulk, encode
from handfast.protocol.scripts import BREAK, SHA, TEXT, load_scripts
from handfast.testing import Server
from sim.resp import commands_in
from tests.sim.pair import CHANNEL, Pair, Unlucky

Step = Callable[["Play"], None]
LOCKS = (b"handfast:{a}", b"handfast:{b}")
GUARD = (keys.guard_key("handfast:"), keys.mark_key("handfast:"))
KEYS = [lock + end for lock in LOCKS for end in (b"", keys.FENCE, keys.QUEUE, keys.CLAIMS, keys.GENERATIONS)] + [*GUARD]
LONGEST = 900_000
TRIES = 4
"""How often an example is tried whose answers may differ because a moment has ended; not by chance so often in a row."""
OLDER = 137
"""Seconds: a few times this never come near to what a few of the ttls add up to."""


class Play:
    """One example."""

    def __init__(self, server: Server) -> None:
        self.pair = Pair(server, KEYS)
        (said,) = self.pair.real.ask(encode(b"DELIFEQ", b"no such key", b"-"))
        self.pair.simulated.node.compares = said == 0

    def send(self, payload: bytes, simulated: bytes | None = None) -> list[Any]:
        return self.pair.both(payload, simulated)

    def stamps(self, lock: bytes) -> tuple[int, int]:
        """The stamp of the last vote: on the real server, and on the simulated one."""
        (record,) = self.pair.real.ask(encode(b"HGET", lock + keys.CLAIMS, b"*"))
        found = record, self.pair.simulated.node.table(lock + keys.CLAIMS).get(b"*")
        real, simulated = (text.partition(b" ")[0] if isinstance(text, bytes) else b"" for text in found)
        return int(real or 7), int(simulated or 7)

    def tokens(self, lock: bytes) -> tuple[bytes, bytes]:
        """The last token, on both, as an operator sees it."""
        real = self.pair.real.ask(encode(b"HGET", lock + keys.GENERATIONS, b"t") + encode(b"GET", lock + keys.FENCE))
        node = self.pair.simulated.node
        return _first(real), _first([node.table(lock + keys.GENERATIONS).get(b"t"), node.shows(lock + keys.FENCE)])


def _first(replies: list[Any]) -> bytes:
    return next((reply for reply in replies if isinstance(reply, bytes)), b"")


class Say(NamedTuple):
    """A step that sends commands that do not depend on earlier replies."""

    words: list[list[bytes]]

    def __call__(self, play: Play) -> None:
        play.send(b"".join(encode(*words) for words in self.words))


class Age(NamedTuple):
    """A step in which time passes."""

    seconds: int

    def __call__(self, play: Play) -> None:
        play.pair.age(self.seconds)


def say(payload: bytes) -> Say:
    return Say(commands_in(payload))


locks = st.sampled_from(LOCKS)
several = st.sampled_from([LOCKS[:1], LOCKS[1:], LOCKS])
acquisitions = st.sampled_from(
    [Identity(b"h:1::one", b"h:1::one"), Identity(b"h:1::two", b"h:1::two"), Identity(b"h:1::three", b"h:1::three")]
    + [Identity.explicit(b"job 42", generation) for generation in (b"g1", b"g2")]
    + [Identity.explicit(b"other job", b"g3")]
)
ttls = st.sampled_from([b"300000", b"600000", b"800000"])
steps_wanted = st.sampled_from([0, 1, 4])
retentions = st.sampled_from([600, 604_800])
small = st.integers(0, 90)
guards = st.sampled_from([(), GUARD])


def joined(guard_keys: tuple[bytes, ...]) -> bytes:
    return b"".join(map(bulk, guard_keys))


@st.composite
def claim(draw: st.DrawFn) -> Step:
    terms = commands.claim_terms(draw(ttls), draw(steps_wanted), draw(retentions))
    longest = draw(st.sampled_from([LONGEST, commands.UNLIMITED, commands.UNLIMITED]))
    rules = commands.claim_rules(longest, overtakes=draw(st.sampled_from([False, False, True])))
    ticket = draw(st.sampled_from([b"", b"0", b"0", b"100", b"200", b"300"]))
    channel = draw(st.sampled_from([CHANNEL, CHANNEL, CHANNEL + b"-gone"])) if ticket else b""
    proposal = b"%d" % draw(st.one_of(st.just(0), small))
    return say(
        commands.claim(
            keys.queue_keys(draw(locks)), joined(draw(guards)), draw(acquisitions), terms, ticket, channel, proposal,
            rules,
        )
    )  # fmt: skip


@st.composite
def passes(draw: st.DrawFn) -> Step:
    retention = bulk(b"%d" % draw(retentions))
    return say(
        commands.pass_on(
            keys.queue_keys(draw(locks)), joined(draw(guards)), draw(acquisitions), b"%d" % draw(small), retention
        )
    )


class Yield(NamedTuple):
    """Yield the last vote, or one that does not exist."""

    lock: bytes
    guard_keys: tuple[bytes, ...]
    who: Identity
    real: bool
    retention: int

    def __call__(self, play: Play) -> None:
        stamps = play.stamps(self.lock) if self.real else (7, 7)
        retention = bulk(b"%d" % self.retention)
        play.send(
            *(
                commands.yield_vote(keys.queue_keys(self.lock), joined(self.guard_keys), self.who, stamp, retention)
                for stamp in stamps
            )
        )


class Break(NamedTuple):
    """An operator breaks the lock, with its present state or an earlier one."""

    lock: bytes
    guard_keys: tuple[bytes, ...]
    who: Identity
    as_seen: bool
    retention: int

    def __call__(self, play: Play) -> None:
        seen = play.tokens(self.lock) if self.as_seen else (b"7", b"7")
        play.send(*(self._payload(token) for token in seen))

    def _payload(self, token: bytes) -> bytes:
        names, *args = break_terms(self.lock, self.guard_keys, self.who.owner, token, self.retention)
        load = encode(b"SCRIPT", b"LOAD", TEXT[BREAK])
        return load + encode(b"EVALSHA", SHA[BREAK], b"%d" % len(names), *names, *args)


breaks = st.builds(Break, locks, guards, acquisitions, st.sampled_from([True, True, True, False]), retentions)
yields = st.builds(Yield, locks, guards, acquisitions, st.sampled_from([True, True, False]), retentions)


@st.composite
def acquire_all(draw: st.DrawFn) -> Step:
    return say(
        commands.acquire_all(
            draw(several), draw(guards), draw(acquisitions), draw(ttls), draw(steps_wanted), b"%d" % draw(small),
            draw(retentions), LONGEST, draw(st.booleans()),
        )
    )  # fmt: skip


@st.composite
def on_what_is_held(draw: st.DrawFn) -> Step:
    names, who, token, retention = draw(several), draw(acquisitions), draw(small), draw(retentions)
    token = draw(st.sampled_from([token, 1_900_000_000_000_000]))
    mark = draw(st.sampled_from([(), GUARD[1:]]))
    made = draw(st.sampled_from(["extend", "raise", "restore"]))
    if made == "extend":
        ms = draw(st.sampled_from([b"200000", b"500000", b"850000"]))
        return say(commands.extend(names, who, ms, b"%d" % LONGEST))
    if made == "raise":
        return say(commands.raise_token(names, mark, who, token, retention))
    return say(commands.restore_vote(names, mark, who, draw(st.sampled_from([200_000, 850_000])), token, retention))


@st.composite
def published(draw: st.DrawFn) -> Step:
    """The commands of other programs on a shared key."""
    lock, owner = draw(locks), draw(acquisitions).owner
    if draw(st.booleans()):
        return say(commands.set_nx(lock, owner, draw(ttls)))
    return say(commands.delete_owned(draw(st.sampled_from(["", "delifeq"])), lock, owner))


@st.composite
def marker(draw: st.DrawFn) -> Step:
    # Not `@`, which stands for the time: another test compares it.
    ready, floor = st.sampled_from([b"7", b"8"]), st.sampled_from([b"-", b"0", b"1", b"300"])
    made = [guard.text(b"life", draw(ready), LONGEST, draw(floor)) for _ in "12"]
    return say(commands.set_marker(GUARD[0], draw(st.sampled_from([b"", made[0]])), made[1], 0))


@st.composite
def look(draw: st.DrawFn) -> Step:
    return say(commands.track(draw(several), tracked=True) + commands.queue(draw(locks)))


@st.composite
def stranger(draw: st.DrawFn) -> Step:
    key = draw(st.sampled_from(KEYS[:10]))
    words = draw(
        st.sampled_from(
            [
                (b"SET", key, b"something"),
                (b"SET", key, b"41", b"PX", b"500000"),
                (b"SET", key, b"h:1::one"),
                (b"DEL", key),
                (b"FLUSHALL",),
                (b"SCRIPT", b"FLUSH"),
            ]
        )
    )
    return say(encode(*words))


@st.composite
def time_passes(draw: st.DrawFn) -> Step:
    return Age(draw(st.sampled_from([OLDER, 3 * OLDER, -4 * OLDER])))


steps = st.one_of(
    claim(), claim(), claim(), passes(), passes(), yields, yields, breaks, acquire_all(), on_what_is_held(),
    on_what_is_held(), published(), marker(), look(), stranger(), time_passes(), st.just(say(load_scripts())),
)  # fmt: skip


@given(st.lists(steps, min_size=1, max_size=25))
@settings(
    max_examples=200, derandomize=True, deadline=None, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
@pytest.mark.timeout(240)
def test_the_simulated_server_answers_as_the_real_ones_do(server: Server, play: list[Step]) -> None:
    unlucky: Unlucky | None = None
    for _ in range(TRIES):
        example = Play(server)
        try:
            for step in play:
                step(example)
            return
        except Unlucky as error:
            unlucky = error
        finally:
            example.pair.real.close()
    assert unlucky is not None
    assert not unlucky.difference, unlucky.difference
    reject()


def test_a_quarantine_begins_at_the_same_time_everywhere(server: Server) -> None:
    play = Play(server)
    text = guard.text(b"life", b"@", LONGEST, b"-")
    (written,) = play.send(commands.set_marker(GUARD[0], b"", text, 5_000_000))
    ready, now = int(written.split(b" ")[2]), play.pair.real.ask(encode(b"TIME"))[0]
    assert 0 <= int(now[0]) * 1_000_000 + int(now[1]) + 5_000_000 - ready < 2_000_000
    play.pair.real.close()
