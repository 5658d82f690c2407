"""The simulated server is no other than the real ones: the same commands get the same replies and pushes, and leave the
same data behind. Where time comes in (TTLs, TIME, tokens made of it), the same but for the moments between the two.

Hypothesis makes up the commands: all transitions with all forms of their arguments, strangers that know nothing of locks,
FLUSHALL, lost scripts, time that passes and clocks that are set back. What it finds it makes as small as it can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from handfast.core import commands, guard
from handfast.core.commands import Request
from handfast.core.group import DELETES, Group
from handfast.core.handshake import load_scripts
from handfast.core.resp import encode
from handfast.core.terms import Settings
from handfast.options import policy
from handfast.testing import Server
from sim.node import commands_in
from tests.sim.pair import CHANNEL, Pair, Unlucky

Step = Callable[["Play"], None]
NAMES = ("a", "b")
OWNERS = (b"one", b"two", b"three")
TTLS = (300.0, 600.0, 800.0)
OLDER = 137
"""Seconds: a few times this never come near to what a few of the ttls add up to."""


class Play:
    """One example: what is asked next may depend on what was answered before."""

    def __init__(self, server: Server) -> None:
        self.pair = Pair(server, KEYS)
        self.claims: dict[tuple[str, bytes], bytes] = {}
        """By name and owner: as last answered."""
        (said,) = self.pair.real.ask(encode(b"DELIFEQ", b"no such key", b"-"))
        self.compares = said == 0
        """The server compares and deletes by a command of its own."""

    def send(self, payload: bytes) -> list[Any]:
        return self.pair.both(payload)


class Say(NamedTuple):
    """A step that says something, whatever was said before."""

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


def target(names: tuple[str, ...], ttl: float, *, nodes: int = 3, **options: Any) -> Request:
    chosen = policy({"ttl": ttl, "max_ttl": 900.0, **options})
    group = Group([f"n{i}" for i in range(nodes)], chosen, guard=nodes > 1)
    return Request(Settings(group, chosen, b""), names[0] if len(names) == 1 else names, b"presented")


MARKED = target(NAMES, 300.0)
KEYS = [key for name in NAMES for key in (MARKED.settings.key(name) + end for end in (b"", b":f", b":q"))]
KEYS += [MARKED.group.mark_key, MARKED.group.marker_key]

targets = st.builds(
    target,
    st.sampled_from([("a",), ("b",), ("a", "b")]),
    st.sampled_from(TTLS),
    nodes=st.sampled_from([1, 3]),
    cohort=st.sampled_from([0, 3]),
    fence=st.booleans(),
)
owners = st.sampled_from(OWNERS)
tokens = st.integers(1, 90)


@st.composite
def acquire(draw: st.DrawFn) -> Step:
    wanted, owner, tail = draw(targets), draw(owners), b"%d" % draw(st.integers(0, 50))
    proposal = b"%d" % draw(st.integers(0, 90)) if wanted.settings.fence else b""
    if draw(st.booleans()) and not proposal and wanted.key:  # the published protocol
        form = wanted.settings.terms.set_form % (len(wanted.key), wanted.key, len(owner), owner)
        return say(form)
    group = wanted.group
    payload = commands._acquire(wanted, owner, wanted.settings.terms, proposal, group._tail(tail))
    return say(payload)


class Release(NamedTuple):
    """By the server's own command, where it has one and that is wanted."""

    wanted: Request
    owner: bytes
    token: int
    compares: bool

    def __call__(self, play: Play) -> None:
        for node in self.wanted.group.nodes:
            node.delete = DELETES["delifeq" if play.compares and self.compares else ""]
        payloads = commands.release(self.wanted, self.owner, self.token if self.wanted.settings.fence else 0)
        play.send(payloads if isinstance(payloads, bytes) else payloads[0])


release = st.builds(Release, targets, owners, st.one_of(st.just(0), tokens), st.booleans())


@st.composite
def on_what_is_held(draw: st.DrawFn) -> Step:
    wanted, owner, token = draw(targets), draw(owners), draw(tokens)
    ms = draw(st.sampled_from([200_000, 500_000, 850_000]))
    made = draw(st.sampled_from(["extend", "raise", "heal"]))
    if made == "extend":
        payload = commands.extend(wanted, owner, b"%d" % ms)
    elif made == "raise" and wanted.settings.fence:
        payload = commands.raise_to(wanted, owner, token)
    else:
        payload = commands.heal(wanted, owner, ms, token)
    return say(payload)


@st.composite
def mark(draw: st.DrawFn) -> Step:
    # Not `@`, which stands for the time: that is compared by its own test.
    ready, floor = st.sampled_from([b"7", b"8"]), st.sampled_from([b"0", b"1"])
    made = [guard.text(b"life", draw(ready), 900_000, draw(floor)) for _ in "12"]
    seen = draw(st.sampled_from([b"", made[0]]))
    payload = commands.script("mark", (MARKED.group.marker_key,), seen, made[1], b"0")
    return say(payload)


class Claim(NamedTuple):
    """Ask for a fair lock, or leave it and its queue."""

    wanted: Request
    owner: bytes
    channel: bytes
    before: bytes | None
    """Instead of its claim as it was last answered."""
    leaves: bool

    def __call__(self, play: Play) -> None:
        wanted, owner = self.wanted, self.owner
        before = play.claims.get((wanted.name, owner), b"") if self.before is None else self.before
        if self.leaves:
            play.send(commands.pass_on(wanted, owner, before, self.channel))
            return
        (answer,) = play.send(commands.claim(wanted, owner, wanted.settings.terms, self.channel, before))
        if isinstance(answer, int):
            play.claims[wanted.name, owner] = commands.claimed(wanted, owner, wanted.settings.terms, self.channel, answer)
        else:
            play.claims[wanted.name, owner] = answer[5] if len(answer) > 5 else b""


claim = st.builds(
    Claim,
    st.builds(
        target, st.sampled_from([("a",), ("b",)]), st.sampled_from(TTLS), nodes=st.just(1), fair=st.just(True),
        cohort=st.sampled_from([0, 3]), fence=st.booleans(),
    ),
    owners,
    st.sampled_from([CHANNEL, CHANNEL, CHANNEL + b"-gone", b""]),
    st.sampled_from([None, None, b"?", b"!", b"!"]),
    st.booleans(),
)  # fmt: skip


@st.composite
def look(draw: st.DrawFn) -> Step:
    wanted = draw(targets)
    payloads = commands.look(wanted)
    return say(payloads)


@st.composite
def stranger(draw: st.DrawFn) -> Step:
    key = draw(st.sampled_from(KEYS[:6]))
    words = draw(
        st.sampled_from(
            [
                (b"SET", key, b"something"),
                (b"SET", key, b"41", b"PX", b"500000"),
                (b"SET", key, b"one"),
                (b"DEL", key),
                (b"RPUSH", key, b"1234567890 is no claim, but as long as one, or even longer"),
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
    acquire(), acquire(), release, on_what_is_held(), on_what_is_held(), mark(), claim, claim, claim, look(),
    stranger(), time_passes(), st.just(say(load_scripts())),
)  # fmt: skip


@given(st.lists(steps, min_size=1, max_size=20))
@settings(
    max_examples=200, derandomize=True, deadline=None, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
@pytest.mark.timeout(120)
def test_the_model_answers_as_the_servers_do(server: Server, play: list[Step]) -> None:
    example = Play(server)
    try:
        for step in play:
            step(example)
    except Unlucky:
        reject()
    finally:
        example.pair.real.close()


def test_who_waits_briefly_stands_at_the_end_of_the_queue(server: Server) -> None:
    """And again there, however often the same one asks that way: it says that it is not in the queue."""
    wanted = target(("a",), 300.0, nodes=1, fair=True)
    for _ in range(5):
        play = Play(server)
        try:
            for owner, before in ((b"one", b""), (b"two", b"!"), (b"three", b""), (b"four", b"!"), (b"two", b"!")):
                Claim(wanted, owner, CHANNEL, before, leaves=False)(play)
            queue = play.pair.real.ask(encode(b"LRANGE", wanted.key + b":q", b"0", b"-1"))[0]
            assert [commands.owner_in(each) for each in queue] == [b"two", b"three", b"four", b"two"]
            return
        except Unlucky:
            continue
        finally:
            play.pair.real.close()


def test_a_quarantine_begins_at_the_same_time_everywhere(server: Server) -> None:
    play = Play(server)
    marker = guard.text(b"life", b"@", 900_000, b"-")
    (written,) = play.send(commands.script("mark", (MARKED.group.marker_key,), b"", marker, b"5000000"))
    ready, now = int(written.split(b" ")[2]), play.pair.real.ask(encode(b"TIME"))[0]
    assert 0 <= int(now[0]) * 1_000_000 + int(now[1]) + 5_000_000 - ready < 2_000_000
    play.pair.real.close()
