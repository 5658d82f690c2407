"""One connection without I/O: bytes in, answers out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handfast import lua
from handfast.core.effects import Fault
from handfast.core.group import Group
from handfast.core.handshake import Rejected, Steps, load_scripts
from handfast.core.resp import encode
from handfast.net.connection import DISCARD, Connection
from handfast.net.forwarded import ForwardedReply
from handfast.options import policy

NODE = 3


class Asked:
    """A poll that keeps what it is given; decided by the first answer unless told otherwise."""

    def __init__(
        self, width: int = 1, waiter: Any = None, sent: bytes = b"", guarded: bool = False, until: float = 1.0
    ) -> None:
        self.until = until
        self.width = width
        self.guarded = guarded
        self.sent = sent
        self.decided = False
        self.over = False
        self.waiter = waiter
        self.got: list[Any] = []

    def add(self, node: int, reply: Any) -> bool:
        assert node == NODE
        self.got.append(reply)
        first, self.decided = not self.decided, True
        return first


class ReplyFuture:
    """A future, as far as a connection knows them."""

    wakes = True

    def __init__(self, done: bool = False) -> None:
        self.set = 0
        self.over = done
        self.reply: Any = None

    def wake(self) -> None:
        assert self.over
        self.set += 1

    def set_result(self, reply: Any) -> None:
        assert not self.over
        self.reply, self.over = reply, True
        self.wake()


def no_handshake() -> Steps:
    yield from ()


def group(*, guard: bool = False) -> Group:
    return Group([f"node {i}" for i in range(NODE + 1)], policy({}), guard=guard)


def connection(steps: Steps | None = None, of: Group | None = None) -> Connection:
    it = Connection(NODE, of or group(), steps if steps is not None else no_handshake(), ReplyFuture, lambda: 0.0)
    it._sealed_at = 0.0  # just used: its seals ask for no promotions
    return it


def taken(of: Connection) -> bytes:
    """What a transport would send now."""
    data = b"".join(of.out)
    of.out.clear()
    return data


def asks(of: Connection, *words: bytes, width: int = 1, guarded: bool = False) -> Asked:
    poll = Asked(width, sent=encode(*words) * width, guarded=guarded)
    of.request(poll.sent, poll)
    return poll


# -- answers -----------------------------------------------------------------------------------------------------------


def test_answers_go_to_those_who_asked_in_the_order_of_asking() -> None:
    it = connection()
    polls = [asks(it, b"GET", b"k%d" % i) for i in range(100)]
    assert taken(it) == b"".join(encode(b"GET", b"k%d" % i) for i in range(100))
    it.feed(b"".join(b":%d\r\n" % i for i in range(100)))
    assert [poll.got for poll in polls] == [[i] for i in range(100)]
    assert not it.pending


def test_a_request_may_be_made_while_earlier_ones_wait() -> None:
    it = connection()
    first = asks(it, b"A")
    it.feed(b"+on")
    second = asks(it, b"B")
    it.feed(b"e\r\n+two\r\n")
    assert (first.got, second.got) == ([b"one"], [b"two"])


def test_a_wide_request_gets_all_its_replies_at_once_and_only_when_complete() -> None:
    it = connection()
    wide = asks(it, b"PING", width=3)
    narrow = asks(it, b"PING")
    it.feed(b":1\r\n$-1\r\n")
    assert wide.got == []
    it.feed(b"*2\r\n:2\r\n:3\r\n:4\r\n")
    assert (wide.got, narrow.got) == ([[1, None, [2, 3]]], [4])


def test_an_error_is_a_fault_and_does_not_disturb_its_neighbours() -> None:
    it = connection()
    polls = [asks(it, b"X") for _ in range(3)]
    it.feed(b":1\r\n-OOM command not allowed\r\n:3\r\n")
    assert polls[0].got == [1]
    assert polls[2].got == [3]
    (fault,) = polls[1].got
    assert isinstance(fault, Fault)
    assert (fault.kind, fault.text) == ("OOM", "OOM: is out of memory")
    assert it.fault is None


def test_an_error_in_a_wide_answer_is_a_fault_in_its_place() -> None:
    it = connection()
    wide = asks(it, b"X", width=3)
    it.feed(b":1\r\n-READONLY no\r\n:3\r\n")
    one, two, three = wide.got[0]
    assert (one, two.kind, three) == (1, "READONLY", 3)


def test_whoever_waits_is_told_once_and_only_if_still_waiting() -> None:
    it = connection()
    waiting, gone = ReplyFuture(), ReplyFuture(done=True)
    it.request(b"x", Asked(waiter=waiting))
    it.request(b"x", Asked(waiter=gone))
    it.feed(b":1\r\n:2\r\n")
    assert (waiting.set, gone.set) == (1, 0)


def test_answers_that_nobody_waits_for_are_dropped_in_their_place() -> None:
    it = connection()
    it.request(b"x", DISCARD)
    it.request(b"x", DISCARD)
    last = asks(it, b"X")
    it.feed(b":1\r\n-ERR no\r\n:4\r\n")
    assert last.got == [4]


def test_a_single_question_is_answered_with_the_reply_itself() -> None:
    it = connection()
    asked, gone = ReplyFuture(), ReplyFuture(done=True)
    for waiter in (asked, gone, asked2 := ReplyFuture()):
        it.request(b"x", waiter)
    it.feed(b":1\r\n:2\r\n-OOM no\r\n")
    assert asked.reply == 1
    assert gone.set == 0
    assert asked2.reply.kind == "OOM"
    it.request(b"x", last := ReplyFuture())
    it.fail(fault := Fault("closed", "closed the connection"))
    assert last.reply is fault


def test_pushed_messages_are_nobody_s_answer() -> None:
    it = connection()
    push = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"
    it.feed(push)
    first, wide = asks(it, b"A"), asks(it, b"B", width=2)
    it.feed(push + b":1\r\n" + push + b":2\r\n" + push + b":3\r\n" + push)
    assert (first.got, wide.got) == ([1], [[2, 3]])
    assert it.fault is None


# -- the end of a connection -------------------------------------------------------------------------------------------


def test_the_end_is_the_answer_to_all_who_wait() -> None:
    it = connection()
    answered = asks(it, b"A")
    wide = asks(it, b"B", width=2)
    waiter = ReplyFuture()
    waits = Asked(waiter=waiter)
    it.request(b"x", waits)
    it.feed(b":1\r\n:2\r\n")
    fault = Fault("closed", "closed the connection")
    it.fail(fault)
    assert (answered.got, wide.got, waits.got) == ([1], [fault], [fault])
    assert waiter.set == 1
    assert not it.ready
    assert taken(it) == b"", "nothing is sent on a connection that is over"


def test_the_first_cause_is_the_one_that_is_told() -> None:
    it = connection()
    first = Fault("timeout", "no answer for 1.0 s")
    it.fail(first)
    it.fail(Fault("closed", "closed the connection"))
    assert it.fault is first


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n", id="another protocol"),
        pytest.param(b"\x00\xff\x13\x37", id="noise"),
        pytest.param(b":12a\r\n", id="no number"),
        pytest.param(b"%1\r\n%0\r\n:1\r\n", id="a map as a key"),
        pytest.param(b"%1\r\n*0\r\n:1\r\n", id="an array as a key"),
        pytest.param(b"~1\r\n*0\r\n", id="an array in a set"),
    ],
)
def test_garbage_ends_the_connection_and_is_told_to_all_who_wait(garbage: bytes) -> None:
    it = connection()
    polls = [asks(it, b"A"), asks(it, b"B", width=2)]
    it.feed(garbage)
    if it.fault is None and garbage.startswith(b"~"):
        return  # a parser that reads sets as lists has no quarrel with this one
    assert it.fault is not None
    assert it.fault.kind == "protocol"
    assert "does not speak Redis' protocol" in it.fault.text
    assert [poll.got for poll in polls] == [[it.fault], [it.fault]]


def test_an_answer_that_nobody_asked_for_ends_the_connection() -> None:
    it = connection()
    asked = asks(it, b"A")
    it.feed(b":1\r\n:2\r\n")
    assert asked.got == [1]
    assert it.fault is not None
    assert "a reply that nobody asked for: 2" in it.fault.text


# -- scripts that the server forgot ------------------------------------------------------------------------------------

NOSCRIPT = b"-NOSCRIPT No matching script.\r\n"
LOADED = b"".join(b"$40\r\n%b\r\n" % lua.SHA[name] for name in lua.NAMES)


def test_a_forgotten_script_is_loaded_and_the_request_sent_once_more() -> None:
    it = connection()
    poll = asks(it, b"EVALSHA", b"acquire")
    taken(it)
    it.feed(NOSCRIPT)
    assert poll.got == []
    assert taken(it) == load_scripts() + encode(b"EVALSHA", b"acquire")
    it.feed(LOADED + b":7\r\n")
    assert poll.got == [7]
    assert not it.pending


def test_what_was_sent_again_keeps_its_order() -> None:
    """So that a release still follows its acquire."""
    it = connection()
    acquire, release = asks(it, b"EVALSHA", b"acquire"), asks(it, b"EVALSHA", b"release")
    taken(it)
    it.feed(NOSCRIPT + NOSCRIPT)
    sent = taken(it)
    assert sent.index(encode(b"EVALSHA", b"acquire")) < sent.index(encode(b"EVALSHA", b"release"))
    it.feed(LOADED + b":1\r\n" + LOADED + b":2\r\n")
    assert (acquire.got, release.got) == ([1], [2])


def test_a_script_that_is_forgotten_again_is_an_answer() -> None:
    it = connection()
    poll = asks(it, b"EVALSHA", b"acquire")
    it.feed(NOSCRIPT + LOADED + NOSCRIPT)
    assert [fault.kind for fault in poll.got] == ["NOSCRIPT"]
    assert not it.pending


def test_a_wide_request_is_sent_again_as_a_whole() -> None:
    it = connection()
    poll = Asked(2, sent=encode(b"EVALSHA", b"acquire") + encode(b"WAIT", b"1", b"40"))
    it.request(poll.sent, poll)
    taken(it)
    it.feed(NOSCRIPT + b":0\r\n")
    assert taken(it).endswith(encode(b"EVALSHA", b"acquire") + encode(b"WAIT", b"1", b"40"))
    it.feed(LOADED + b":7\r\n:1\r\n")
    assert poll.got == [[7, 1]]


def test_a_question_is_sent_again_too_and_once() -> None:
    it = connection()
    waiter = ReplyFuture()
    it.request(b"EVALSHA x", waiter)
    taken(it)
    it.feed(NOSCRIPT)
    assert taken(it) == load_scripts() + b"EVALSHA x"
    it.feed(LOADED + NOSCRIPT)
    assert waiter.reply.kind == "NOSCRIPT"
    assert taken(it) == b""


def test_an_undoing_that_nobody_waits_for_is_sent_again() -> None:
    it = connection()
    it.request(b"EVALSHA release", DISCARD)
    taken(it)
    it.feed(NOSCRIPT)
    assert taken(it).endswith(b"EVALSHA release")


@pytest.mark.parametrize("kind", ["ballot", "question"])
def test_a_request_whose_asker_has_gone_is_not_sent_again(kind: str) -> None:
    """Its undoing needs no script and so has been carried out: sent again, the lock would stay behind."""
    it = connection()
    gone = ReplyFuture(done=True)
    acquire, undo = encode(b"EVALSHA", b"acquire"), encode(b"DELIFEQ", b"key", b"owner")
    it.request(acquire, Asked(waiter=gone, sent=acquire) if kind == "ballot" else gone)
    it.request(undo, DISCARD)
    taken(it)
    it.feed(NOSCRIPT + b":0\r\n")
    assert b"EVALSHA" not in taken(it)


@pytest.mark.parametrize("kind", ["ballot", "question"])
def test_what_was_sent_on_to_another_node_that_forgot_its_scripts_is_sent_again_there(kind: str) -> None:
    home, it, waiter, poll = connection(), connection(), ReplyFuture(), Asked()
    it.request(b"EVALSHA x", ForwardedReply(home, waiter if kind == "question" else poll, 1, asking=False))
    taken(it)
    it.feed(NOSCRIPT)
    assert taken(it) == load_scripts() + b"EVALSHA x"
    it.feed(LOADED + b":7\r\n")
    assert ([waiter.reply] if kind == "question" else poll.got) == [7]


def test_what_is_over_is_not_sent_again() -> None:
    """A renewal that meets NOSCRIPT when its lease has ended would keep the key for another ttl."""
    it = connection()
    over, goes_on = Asked(until=0.0), Asked(until=0.1)
    it.request(encode(b"EVALSHA", b"extend"), over)
    it.feed(NOSCRIPT)
    assert [fault.kind for fault in over.got] == ["NOSCRIPT"]
    assert load_scripts() not in taken(it)
    it.request(encode(b"EVALSHA", b"extend"), goes_on)
    it.feed(NOSCRIPT)
    assert goes_on.got == []
    assert taken(it).endswith(load_scripts() + encode(b"EVALSHA", b"extend"))


def test_a_connection_that_ends_while_scripts_are_loaded_answers_all_the_same() -> None:
    it = connection()
    poll = asks(it, b"EVALSHA", b"acquire")
    it.feed(NOSCRIPT)
    it.fail(Fault("closed", "closed the connection"))
    assert [fault.kind for fault in poll.got] == ["closed"]


# -- votes of a guarded node -------------------------------------------------------------------------------------------

MARKER = b"1 run:repl 17 30000 0"
SEAL = encode(b"GET", b"handfast:guard") + encode(b"TIME")
TIME = b"*2\r\n$1\r\n5\r\n$1\r\n0\r\n"


def guarded_channel() -> tuple[Connection, Group]:
    its = group(guard=True)
    its.set_marker(its.nodes[NODE], MARKER)
    return connection(of=its), its


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def test_a_vote_counts_only_behind_the_marker() -> None:
    it, _ = guarded_channel()
    vote, wide = asks(it, b"A", guarded=True), asks(it, b"B", width=2, guarded=True)
    assert it.seal() == SEAL
    other = asks(it, b"C")
    it.feed(b":1\r\n:2\r\n:3\r\n")
    assert (vote.got, wide.got) == ([], [])
    it.feed(bulk(MARKER) + TIME + b":4\r\n")
    assert (vote.got, wide.got, other.got) == ([1], [[2, 3]], [4])


@pytest.mark.parametrize(
    ("shown", "kind"),
    [(bulk(b"1 another:run 17 30000 0"), "UNREADY"), (b"$-1\r\n", "UNREADY"), (b"-LOADING data\r\n", "LOADING")],
    ids=["another", "none", "an error"],
)
def test_votes_without_the_marker_are_faults_and_the_node_votes_no_more(shown: bytes, kind: str) -> None:
    it, its = guarded_channel()
    votes = [asks(it, b"A", guarded=True) for _ in range(3)]
    it.seal()
    it.feed(b":1\r\n:1\r\n:1\r\n" + shown + TIME)
    assert [poll.got[0].kind for poll in votes] == [kind] * 3
    assert its.nodes[NODE].marker == b""
    assert its.closed(its.nodes[NODE], 0.0) is not None
    assert it.fault is None, "the connection is as good as before"


def test_each_write_has_its_own_seal() -> None:
    it, _ = guarded_channel()
    first = asks(it, b"A", guarded=True)
    it.seal()
    second = asks(it, b"B", guarded=True)
    it.seal()
    it.feed(b":1\r\n" + bulk(MARKER) + TIME + b":2\r\n")
    assert (first.got, second.got) == ([1], [])
    it.feed(b"$-1\r\n" + TIME)
    assert second.got[0].kind == "UNREADY"


def test_votes_kept_back_are_told_of_the_end_of_the_connection() -> None:
    it, _ = guarded_channel()
    vote = asks(it, b"A", guarded=True)
    it.seal()
    it.feed(b":1\r\n")
    fault = Fault("closed", "closed the connection")
    it.fail(fault)
    assert vote.got == [fault]


def test_a_vote_that_is_sent_again_is_sealed_again() -> None:
    it, its = guarded_channel()
    its.nodes[NODE].incarnation = b":0"
    vote = asks(it, b"EVALSHA", b"acquire", guarded=True)
    it.seal()
    taken(it)
    it.feed(NOSCRIPT + bulk(MARKER) + TIME)
    assert taken(it) == load_scripts() + encode(b"EVALSHA", b"acquire") + SEAL + encode(b"INFO", b"replication")
    it.feed(LOADED + b":1\r\n")
    assert vote.got == []
    it.feed(bulk(MARKER) + TIME + bulk(b"role:master"))
    assert vote.got == [1]


def test_votes_of_a_node_whose_clock_stepped_forward_do_not_count() -> None:
    it, its = guarded_channel()
    for seconds, counts in ((b"5", True), (b"5", True), (b"9", False)):
        vote = asks(it, b"A", guarded=True)
        it.seal()
        it.feed(b":1\r\n" + bulk(MARKER) + b"*2\r\n$1\r\n" + seconds + b"\r\n$1\r\n0\r\n")
        assert (vote.got == [1]) is counts
    assert vote.got[0].kind == "clock"
    assert its.nodes[NODE].marker == b""
    assert its.suspects == {NODE}


# -- the handshake -----------------------------------------------------------------------------------------------------


def two_steps(log: list[Any]) -> Steps:
    log.append((yield encode(b"HELLO", b"3"), 1))
    log.append((yield encode(b"A") + encode(b"B"), 2))


def test_nothing_is_ready_before_the_handshake_has_ended() -> None:
    log: list[Any] = []
    it = connection(two_steps(log))
    assert taken(it) == encode(b"HELLO", b"3")
    assert not it.ready
    it.feed(b"%1\r\n$6\r\nserver\r\n$6\r\nvalkey\r\n")
    assert taken(it) == encode(b"A") + encode(b"B")
    assert not it.ready
    it.feed(b":1\r\n-ERR unknown command 'B'\r\n")
    assert it.ready
    assert log[0] == [{b"server": b"valkey"}]
    assert log[1][0] == 1
    assert log[1][1].lasting
    poll = asks(it, b"GET", b"k")
    it.feed(b":5\r\n")
    assert poll.got == [5]


def test_a_node_that_will_not_do_is_rejected_with_its_reason() -> None:
    why = Fault("replica", "is a replica")

    def refuses() -> Steps:
        yield encode(b"HELLO", b"3"), 1
        raise Rejected(why)

    it = connection(refuses())
    it.feed(b"+OK\r\n")
    assert it.fault is why
    assert not it.ready


def test_an_error_in_the_handshake_reaches_it_as_a_fault() -> None:
    log: list[Any] = []
    it = connection(two_steps(log))
    it.feed(b"-NOAUTH HELLO must be called with the client already authenticated\r\n")
    assert log[0][0].kind == "NOAUTH"


def test_a_connection_that_ends_inside_the_handshake_is_at_fault_and_asks_nothing_more() -> None:
    log: list[Any] = []
    it = connection(two_steps(log))
    taken(it)
    why = Fault("closed", "closed the connection")
    it.fail(why)
    assert it.fault is why
    assert log == []
    assert taken(it) == b""


# -- any split of the stream -------------------------------------------------------------------------------------------

leaf = st.one_of(
    st.integers(-(2**53), 2**53).map(lambda n: b":%d\r\n" % n),
    st.binary(max_size=40).map(lambda data: b"$%d\r\n%b\r\n" % (len(data), data)),
    st.sampled_from([b"$-1\r\n", b"_\r\n", b"+OK\r\n", b"#t\r\n", b",1.5\r\n", b"-OOM no\r\n", b"-ERR what\r\n"]),
)
reply = st.recursive(
    leaf,
    lambda inner: st.lists(inner, max_size=4).map(lambda parts: b"*%d\r\n" % len(parts) + b"".join(parts)),
    max_leaves=8,
)
push = st.just(b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n")


def seen(value: Any) -> Any:
    """Comparable, with faults by their text."""
    if isinstance(value, Fault):
        return ("fault", value.kind, value.text)
    if isinstance(value, list):
        return [seen(each) for each in value]
    return repr(value) if isinstance(value, Exception) else value


def answers(pieces: Iterator[bytes], widths: list[int]) -> tuple[list[Any], Any, bytes]:
    it = connection()
    polls = [asks(it, b"X%d" % i, width=width) for i, width in enumerate(widths)]
    taken(it)
    for piece in pieces:
        it.feed(piece)
        if it.fault is not None:
            break
    return [seen(poll.got) for poll in polls], seen(it.fault), taken(it)


@given(
    replies=st.lists(st.tuples(reply, st.lists(push, max_size=2)), max_size=12),
    widths=st.lists(st.integers(1, 3), min_size=1, max_size=6),
    cuts=st.lists(st.integers(0, 2000), max_size=30),
    forgets=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_any_split_of_the_stream_gives_the_same_answers(
    replies: list[tuple[bytes, list[bytes]]], widths: list[int], cuts: list[int], forgets: bool
) -> None:
    stream = b"".join(each + b"".join(pushes) for each, pushes in replies)
    if forgets:
        stream = NOSCRIPT + stream
    whole = answers(iter([stream]), widths)
    places = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(places)]
    assert answers(iter(pieces), widths) == whole
    assert answers((stream[i : i + 1] for i in range(len(stream))), widths) == whole
