"""Rules of a node's scripts that hold for every command sequence, and that hardly any simulated history tests."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from handfast.protocol import commands
from handfast.protocol.claims import decode_record
from handfast.protocol.commands import Identity
from handfast.protocol.keys import CLAIMS, FENCE, GENERATIONS, QUEUE, queue_keys
from handfast.protocol.resp import bulk, encode
from handfast.protocol.scripts import TEXT, load_scripts
from sim import lua
from sim.net import Net
from sim.node import Node
from sim.resp import commands_in
from sim.world import Clock, World

KEY = b"handfast:{a}"
KEYS = queue_keys(KEY)
MARKER, MARK = b"handfast:guard", b"handfast:mark"
RETENTION = 1000
LONGEST = b"60000"
RULES = commands.claim_rules(int(LONGEST), overtakes=False)


class Nobody:
    """An observer that checks nothing."""

    def complain(self, number: int, text: str) -> None:
        raise AssertionError(f"invariant {number}: {text}")

    def voted(self, *_: Any) -> None:
        pass

    handed_over = voted


class Script:
    """A node, and clients that send it commands. Each client listens to a channel of its own name."""

    def __init__(self, *listeners: str) -> None:
        self.world = World(0)
        self.node = Node(self.world, Net(self.world), 0, Clock(self.world, 1_800_000_000.0), Nobody())
        self.pushed: list[bytes] = []
        for listener in listeners:
            tcp: Any = listener
            self.node.channels[listener.encode()] = tcp
        self.node.push = lambda tcp, data: self.pushed.append(data)  # type: ignore[method-assign]
        self.send(load_scripts())

    def send(self, payload: bytes) -> Any:
        for words in commands_in(payload):
            reply = self.node._call(words)
        return reply

    def claim(self, who: Identity, ticket: int, ttl_ms: int = 10_000) -> Any:
        terms = commands.claim_terms(b"%d" % ttl_ms, 0, RETENTION)
        return self.send(commands.claim(KEYS, b"", who, terms, b"%d" % ticket, who.id, rules=RULES))

    def give_back(self, who: Identity, stamp: bytes) -> Any:
        return self.send(commands.yield_vote(KEYS, b"", who, int(stamp), bulk(b"%d" % RETENTION)))

    def release(self, who: Identity) -> Any:
        return self.send(commands.pass_on(KEYS, b"", who, b"0", bulk(b"%d" % RETENTION)))

    def endless(self) -> set[bytes]:
        """The keys without a ttl."""
        return {key for key in self.node.data if key not in self.node.ends}

    @property
    def holder(self) -> bytes | None:
        return self.node.shows(KEY)


def someone(name: str) -> Identity:
    return Identity(name.encode(), name.encode())


def test_a_repeated_yield_does_not_take_a_newer_vote() -> None:
    script, early, late = Script("early", "late"), someone("early"), someone("late")
    script.claim(late, 20)
    script.claim(early, 10)  # the node asks the later ticket for its vote
    old = script.claim(late, 20)[3]
    assert script.give_back(late, old)[0] == 0
    assert script.holder == b"early"
    script.release(early)
    assert script.holder == b"late"
    script.claim(early, 10)
    script.give_back(late, old)  # it comes a second time
    assert script.holder == b"late"


def test_a_waiter_that_yields_stays_in_the_queue() -> None:
    script, early, late = Script("early", "late"), someone("early"), someone("late")
    script.claim(late, 20)
    script.claim(early, 10)
    script.give_back(late, script.claim(late, 20)[3])
    assert script.holder == b"early"
    assert script.release(early) == 2
    assert script.holder == b"late"


def test_a_waiter_that_leaves_is_not_given_the_vote() -> None:
    script, holder, first, second = Script("first", "second"), someone("holder"), someone("first"), someone("second")
    script.claim(holder, 10)
    script.claim(first, 20)
    script.claim(second, 30)
    assert script.release(first) == 0
    assert script.release(holder) == 2
    assert script.holder == b"second"


@pytest.mark.parametrize("ttl_ms", [6_000, 2_000], ids=["usual ttl", "short ttl"])
def test_a_claim_that_has_ended_is_not_given_the_vote(ttl_ms: int) -> None:
    """Its waiter hangs: it still listens, but does not repeat its claim."""
    script, holder, hung, well = Script("hung", "well"), someone("holder"), someone("hung"), someone("well")
    script.claim(holder, 10)
    script.claim(hung, 20, ttl_ms)
    for _ in range(4):
        script.world.now += 5.0
        assert script.send(commands.extend([KEY], holder, b"10000", LONGEST)) == 1
    script.claim(well, 30, ttl_ms)
    assert script.release(holder) == 2
    assert script.holder == b"well"


def test_a_waiter_that_yields_its_share_stays_in_the_queue() -> None:
    """Another acquisition of its explicit owner keeps the vote."""
    script = Script("one", "two", "early")
    first, second = Identity.explicit(b"job", b"one"), Identity.explicit(b"job", b"two")
    script.claim(first, 20)
    stamp = script.claim(second, 30)[3]
    script.claim(someone("early"), 10)
    assert script.give_back(second, stamp)[:3] == [0, 10_000, b"job"]
    assert script.release(first) == 2
    assert script.holder == b"early"
    assert script.release(someone("early")) == 2
    assert script.holder == b"job"


def test_acquisitions_of_an_explicit_owner_each_yield_their_own_share() -> None:
    """Otherwise each of them would wait for the other, and a lower ticket would wait for both."""
    script = Script("one", "two", "early")
    shares = [Identity.explicit(b"job", b"one"), Identity.explicit(b"job", b"two")]
    stamps = [script.claim(who, ticket)[3] for who, ticket in zip(shares, (20, 30), strict=True)]
    script.claim(someone("early"), 10)
    inquiries = [b"inquire %b %b" % (who.id, stamp) for who, stamp in zip(shares, stamps, strict=True)]
    assert all(any(inquiry in push for push in script.pushed) for inquiry in inquiries), script.pushed
    for who, stamp in zip(shares, stamps, strict=True):
        script.give_back(who, stamp)
    assert script.holder == b"early"


def test_a_new_vote_of_an_explicit_owner_is_told_to_its_other_waiters() -> None:
    script = Script("one", "two", "other")
    script.claim(someone("other"), 10)
    script.claim(Identity.explicit(b"job", b"one"), 20)
    script.claim(Identity.explicit(b"job", b"two"), 30)
    assert script.release(someone("other")) == 2
    assert any(b"look two" in push for push in script.pushed), script.pushed


@pytest.mark.parametrize("fenced", [True, False])
def test_a_restored_vote_does_not_lower_the_token_of_an_explicit_owner(fenced: bool) -> None:
    script, who, again = Script(), Identity.explicit(b"job", b"one"), Identity.explicit(b"job", b"two")
    terms = commands.claim_terms(b"10000", 1, RETENTION)
    script.send(commands.claim(KEYS, b"", again, terms, proposal=b"200", rules=RULES))
    known = int(script.send(encode(b"GET", KEY + FENCE)))
    if fenced:  # the owner has released it, and only the counter remembers its token
        script.release(again)
    script.send(commands.restore_vote([KEY], (), who, 10_000, known - 50 if fenced else 0, RETENTION))
    assert int(script.node.table(KEY + GENERATIONS)[b"t"]) == known


def test_every_key_of_a_name_expires() -> None:
    """Otherwise a name that is not used again would take memory for ever, if its last holder or waiter has died."""
    script, first, second = Script("first", "second"), someone("first"), someone("second")
    script.claim(first, 0)
    script.claim(second, 0)
    script.release(first)
    assert script.holder == b"second"
    assert script.endless() == set()
    script = Script("one", "two", "early")
    stamps = [script.claim(Identity.explicit(b"job", name), 20)[3] for name in (b"one", b"two")]
    script.claim(someone("early"), 10)
    script.release(someone("early"))
    script.give_back(Identity.explicit(b"job", b"two"), stamps[1])
    assert script.endless() == set()


def test_next_waiter_of_another_owner_gets_push_to_look_earlier() -> None:
    """The first waiter behind the new holder has the same owner, so it holds the lock as well."""
    script = Script("one", "two", "holder", "other")
    script.claim(someone("holder"), 10, 20_000)
    for who, ticket, ttl_ms in (("one", 20, 1_000), ("two", 30, 1_000)):
        script.claim(Identity.explicit(b"job", who.encode()), ticket, ttl_ms)
    script.claim(someone("other"), 40, 20_000)
    script.release(someone("holder"))
    assert any(b"look other" in push for push in script.pushed), script.pushed


def test_generations_end_with_the_lock_and_ended_ones_are_forgotten() -> None:
    script = Script()
    long, short, last = (Identity.explicit(b"job", name) for name in (b"long", b"short", b"last"))
    script.claim(long, 0, 20_000)
    script.claim(short, 0, 1_000)
    script.release(long)
    assert script.node.ends[KEY + GENERATIONS] == script.node.ends[KEY]
    script.world.now = 0.9
    script.claim(long, 0, 20_000)
    script.claim(last, 0, 20_000)
    script.world.now = 1.1
    script.release(long)
    assert set(script.node.table(KEY + GENERATIONS)) == {b"t", b"last", b"*last"}


def test_an_ended_acquisition_of_an_explicit_owner_is_not_extended() -> None:
    script = Script()
    first, second = Identity.explicit(b"job", b"one"), Identity.explicit(b"job", b"two")
    script.claim(first, 0)
    script.claim(second, 0)
    script.release(first)
    assert script.holder == b"job"
    assert script.send(commands.extend([KEY], first, b"20000", LONGEST)) == 0
    assert script.send(commands.extend([KEY], second, b"20000", LONGEST)) == 1


def test_a_lock_of_an_explicit_owner_ends_with_its_last_acquisition() -> None:
    """When an acquisition ends, the lock lasts as long as the other acquisitions need, and no longer."""
    script = Script()
    short, long = Identity.explicit(b"job", b"short"), Identity.explicit(b"job", b"long")
    script.claim(short, 0, 1_000)
    script.claim(long, 0, 10_000)
    assert script.release(long) == 1
    assert script.holder == b"job"
    script.world.now = 1.1
    assert script.holder is None


@pytest.mark.parametrize(
    "late",
    [
        lambda who: commands.extend([KEY], who, b"1000", LONGEST),
        lambda who: commands.claim(KEYS, b"", who, commands.claim_terms(b"1000", 0, RETENTION), rules=RULES),
        lambda who: commands.acquire_all([KEY], (), who, b"1000", 0, b"0", RETENTION, int(LONGEST), False),
        lambda who: commands.restore_vote([KEY], (), who, 1000, 0, RETENTION),
    ],
    ids=["extend", "claim", "acquire_all", "restore_vote"],
)
def test_late_request_does_not_shorten_an_acquisition_of_an_explicit_owner(late: Callable[[Identity], bytes]) -> None:
    """It is on its way while the acquisition is extended. Later the lock ends with the last acquisition of the owner."""
    script = Script()
    outer, inner = Identity.explicit(b"job", b"outer"), Identity.explicit(b"job", b"inner")
    script.claim(outer, 0, 5_000)
    script.claim(inner, 0, 1_000)
    assert script.send(commands.extend([KEY], inner, b"20000", LONGEST)) == 1
    script.send(late(inner))
    assert script.release(outer) == 1
    script.world.now = 19.9
    assert script.holder == b"job"


def test_late_request_does_not_keep_an_acquisition_for_hours_after_a_clock_was_set_back() -> None:
    script = Script()
    outer, inner = Identity.explicit(b"job", b"outer"), Identity.explicit(b"job", b"inner")
    script.claim(outer, 0, 10_000)
    script.claim(inner, 0, 1_000)
    script.node.step(-3600.0)
    assert script.send(commands.extend([KEY], inner, b"1000", LONGEST)) == 1
    assert script.send(commands.extend([KEY], outer, b"1000", LONGEST)) == 1
    assert script.release(outer) == 1
    script.world.now = int(LONGEST) / 1000 + 0.1
    assert script.holder is None


def test_release_that_shortens_a_lock_tells_its_first_waiter() -> None:
    """The waiter knows the longer ttl of the acquisition that ends, and would look too late."""
    script, waiter = Script("waiter"), someone("waiter")
    short, long = Identity.explicit(b"job", b"short"), Identity.explicit(b"job", b"long")
    script.claim(short, 0, 1_000)
    script.claim(long, 0, 2_000)
    script.claim(waiter, 0)
    assert script.release(long) == 1
    assert any(b"look waiter" in push for push in script.pushed)


def test_an_extension_after_a_clock_was_set_back_leaves_other_acquisitions_their_time() -> None:
    script = Script()
    outer, inner = Identity.explicit(b"job", b"outer"), Identity.explicit(b"job", b"inner")
    script.claim(outer, 0, 10_000)
    script.claim(inner, 0, 1_000)
    script.node.step(-3600.0)
    assert script.send(commands.extend([KEY], inner, b"1000", LONGEST)) == 1
    script.world.now = 9.9
    assert script.holder == b"job"


def test_a_waiter_that_finds_its_own_vote_keeps_its_ticket() -> None:
    """On one node a ticket is the time of arrival. With a new one it would yield to later waiters."""
    script, holder, first, second = Script("holder", "first", "second"), *map(someone, ("holder", "first", "second"))
    for seconds, who in enumerate((holder, first, second), 1):
        script.world.now = seconds / 10
        script.claim(who, 0)
    script.release(holder)
    assert script.holder == b"first"
    script.world.now = 0.5
    *_, inquired = script.claim(first, 0)
    assert not inquired
    record = decode_record(script.node.table(KEY + CLAIMS)[b"*"])
    assert record is not None
    assert record.claim.ticket == 1_800_000_000_200_000


def test_next_waiter_gets_push_to_look_earlier() -> None:
    """The new holder may hang, and its ttl ends long before the ttl of the holder that the waiter knows."""
    script, holder, short, waiter = Script("holder", "short", "waiter"), *map(someone, ("holder", "short", "waiter"))
    script.claim(holder, 5, 30_000)
    script.claim(short, 10, 1_000)
    script.claim(waiter, 20)
    script.release(holder)
    assert script.holder == b"short"
    assert any(b"look waiter" in push for push in script.pushed)


def test_a_claim_that_overtakes_the_queue_leaves_it() -> None:
    """Otherwise the node would give it the lock once more when its ttl is over, and nobody would use that vote."""
    script, holder, first, barging = Script("first", "barging"), someone("holder"), someone("first"), someone("barging")

    def barge() -> Any:
        rules = commands.claim_rules(int(LONGEST), overtakes=True)
        terms = commands.claim_terms(b"10000", 1, RETENTION)
        return script.send(commands.claim(KEYS, b"", barging, terms, b"0", barging.id, rules=rules))

    script.claim(holder, 0)
    assert barge()[0] == 0
    script.claim(first, 0)
    script.send(encode(b"DEL", KEY))  # its ttl is over
    assert barge() > 0
    script.send(encode(b"DEL", KEY))
    script.claim(first, 0)
    assert script.holder == b"first"


def test_a_claim_without_a_token_leaves_no_vote() -> None:
    """If its reply is lost, it is repeated. It would find its own vote, and get the token of the last holder."""
    script, who = Script("who"), someone("who")
    script.send(encode(b"SET", KEY + FENCE, b"%d" % (2**53 - 1)))
    claim = commands.claim(KEYS, b"", who, commands.claim_terms(b"10000", 1, RETENTION), b"0", b"who")
    for _ in range(2):
        assert "EXHAUSTED" in str(script.send(claim))
        assert script.holder is None


def test_the_usual_case_of_a_release_is_no_other_case() -> None:
    """pass.lua hands a vote over without the functions that it has for all cases. Both ways must do the same."""
    usual = TEXT["pass"].decode()
    start = "if generation == '-' then\n  local floor"
    assert usual.count(start) == 1
    general = usual.replace(start, "if false then\n  local floor").encode()
    handovers = 0
    for seed in range(1000):
        histories = []
        for text in (None, general):
            lua.replace("pass", text)
            try:
                histories.append(history(seed))
            finally:
                lua.replace("pass", None)
        assert histories[0] == histories[1], seed
        handovers += sum(step[1] == 2 for step in histories[0])
    assert handovers > 2000


def history(seed: int) -> list[Any]:
    """What a node answers, pushes and keeps while clients claim and release at random."""
    rng = random.Random(seed)
    script = Script("a", "b", "c", "d", "one", "two")
    guard = b"".join(map(bulk, (MARKER, MARK))) if seed % 2 else b""
    marker = b"1 0123456789abcdef 1 30000 %d"
    if guard:
        script.send(encode(b"SET", MARKER, marker % 0))
    fenced, single, token, steps = rng.random() < 0.8, rng.random() < 0.3, 0, list[Any]()
    people = [*map(someone, "abcd"), Identity.explicit(b"job", b"one"), Identity.explicit(b"job", b"two")]
    people = people[: rng.choice((4, 4, 6))]
    for _ in range(rng.randrange(20, 60)):
        script.world.now += rng.choice((0.0, 0.000_001, 0.001, 0.01, 0.2, 0.2, 1.5, 9.0))
        node, who, was = script.node, rng.choice(people), len(script.pushed)
        now, queued, held = node.micros(), set(node.table(KEY + QUEUE)), script.holder
        holders = [each for each in people if each.owner == held]
        often, seldom = ("claim", "claim", "claim", "release", "release", "leave"), ("clock is set", "connection is lost")
        match rng.choice((*often, rng.choice(("rare", "rare", *seldom)))):
            case "claim":
                ttl = rng.choice((b"10000", b"10000", b"10000", b"1000"))
                terms = commands.claim_terms(ttl, rng.choice((0, 1, 1, 1, 4)) if fenced else 0, RETENTION)
                proposal = 0 if single else now + rng.choice((0, 0, 0, -50, 300, 3_000_000, -(10**10)))
                ticket = rng.choice((b"0",) if single else (b"%d" % (now - rng.randrange(1000)), b""))
                said = script.send(commands.claim(KEYS, guard, who, terms, ticket, who.id, b"%d" % proposal, RULES))
            case "rare":
                payloads = (
                    encode(b"DEL", KEY),
                    encode(b"DEL", KEY + FENCE),
                    encode(b"DEL", KEY) + commands.restore_vote([KEY], (), who, 10_000, token, RETENTION),
                    commands.extend([KEY], who, b"30000", LONGEST),
                    encode(b"SET", MARKER, marker % (now + 10_000)),
                )
                said = script.send(rng.choice(payloads))
            case "clock is set":
                said = node.step(rng.choice((0.3, -0.3)))
            case "connection is lost":
                said = node.channels.pop(who.id, None)
            case kind:  # release or leave
                who = rng.choice(holders) if holders and kind == "release" else who
                floor = rng.choice((0, token, token, token + 40, now + 20)) if fenced and not single else 0
                said = script.send(commands.pass_on(KEYS, guard, who, b"%d" % floor, bulk(b"%d" % RETENTION)))
                if who.id in queued and held == who.owner:  # the general case also tells the next waiter to look
                    script.pushed[was:] = [push for push in script.pushed[was:] if b"look " not in push]
        node.stepped()  # drops what has expired
        data = {key: dict(value) if isinstance(value, dict) else value for key, value in node.data.items()}
        ends = dict(node.ends)
        if (count := node.shows(KEY + FENCE)) is not None:
            token = int(count)
            # A counter may live longer than it must.
            assert ends.pop(KEY + FENCE) / 1000 >= token // 1_000_000 + RETENTION - 1
        steps.append((who.id, said, script.pushed[was:], data, ends))
    return steps
