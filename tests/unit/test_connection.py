"""One connection without I/O: bytes in, replies out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handfast.core.handshake import Rejected, Steps
from handfast.core.io import Fault
from handfast.net.connection import DISCARD, Connection, Subscription
from handfast.net.forwarded import ForwardedReply
from handfast.protocol.resp import encode
from handfast.protocol.scripts import SHA, load_scripts

NODE = 3


class Replies:
    """A collector that keeps its replies, and is decided by the first."""

    def __init__(self, width: int = 1, waiter: Any = None, until: float = 1.0, checked: bool = False) -> None:
        self.checked = checked
        self.until = until
        self.width = width
        self.decided = False
        self.over = False
        self.waiter = waiter
        self.got: list[Any] = []

    def add(self, node: int, reply: Any) -> bool:
        assert node == NODE
        self.got.append(reply)
        first, self.decided = not self.decided, True
        return first


class Waiting:
    """The part of a future that a connection uses."""

    def __init__(self, over: bool = False) -> None:
        self.calls = 0
        self.over = over

    def set_result(self, reply: Any) -> None:
        assert not self.over
        self.calls += 1
        self.over = True


def no_handshake() -> Steps:
    yield from ()


class Equal:
    """A check that passes if the server says `1` to both of its commands. Its confirmation is the reply `1`."""

    confirmation = b"CONFIRM "
    confirmed_for = 1.0
    emptied = Fault("UNREADY", "all data is gone")

    def question(self, node: int) -> tuple[bytes, int]:
        assert node == NODE
        return b"CHECK TWICE ", 2

    def refuted(self, node: int, reply: Any) -> Fault | None:
        assert node == NODE
        return None if reply == 1 else FAILED

    def fault(self, node: int, replies: list[Any], sent: float, received: float) -> Fault | None:
        assert node == NODE
        return None if replies == [1, 1] else FAILED


FAILED = Fault("UNREADY", "the check has failed")


def connect(steps: Steps | None = None) -> Connection:
    return Connection(NODE, steps if steps is not None else no_handshake(), lambda: 0.0, Equal())


def taken(of: Connection) -> bytes:
    """The bytes that a transport would send now."""
    data = b"".join(of.out)
    of.out.clear()
    return data


def ask(of: Connection, *words: bytes, width: int = 1) -> Replies:
    replies = Replies(width)
    of.request(encode(*words) * width, replies)
    return replies


# -- replies -----------------------------------------------------------------------------------------------------------


def test_replies_go_to_their_requests_in_order() -> None:
    it = connect()
    asked = [ask(it, b"GET", b"k%d" % i) for i in range(100)]
    assert taken(it) == b"".join(encode(b"GET", b"k%d" % i) for i in range(100))
    it.feed(b"".join(b":%d\r\n" % i for i in range(100)))
    assert [replies.got for replies in asked] == [[i] for i in range(100)]
    assert not it.pending


def test_request_can_be_made_in_the_middle_of_a_reply() -> None:
    it = connect()
    first = ask(it, b"A")
    it.feed(b"+on")
    second = ask(it, b"B")
    it.feed(b"e\r\n+two\r\n")
    assert (first.got, second.got) == ([b"one"], [b"two"])


def test_request_of_several_commands_gets_all_its_replies_at_once() -> None:
    it = connect()
    wide = ask(it, b"PING", width=3)
    narrow = ask(it, b"PING")
    it.feed(b":1\r\n$-1\r\n")
    assert wide.got == []
    it.feed(b"*2\r\n:2\r\n:3\r\n:4\r\n")
    assert (wide.got, narrow.got) == ([[1, None, [2, 3]]], [4])


def test_error_reply_is_a_fault_and_disturbs_no_other_request() -> None:
    it = connect()
    asked = [ask(it, b"X") for _ in range(3)]
    it.feed(b":1\r\n-OOM command not allowed\r\n:3\r\n")
    assert asked[0].got == [1]
    assert asked[2].got == [3]
    (fault,) = asked[1].got
    assert isinstance(fault, Fault)
    assert (fault.kind, fault.text) == ("OOM", "OOM: is out of memory")
    assert it.fault is None


def test_error_among_several_replies_is_fault_at_its_position() -> None:
    it = connect()
    wide = ask(it, b"X", width=3)
    it.feed(b":1\r\n-READONLY no\r\n:3\r\n")
    one, two, three = wide.got[0]
    assert (one, two.kind, three) == (1, "READONLY", 3)


def test_future_is_completed_once_and_only_while_awaited() -> None:
    it = connect()
    waiting, gone = Waiting(), Waiting(over=True)
    it.request(b"x", Replies(waiter=waiting))
    it.request(b"x", Replies(waiter=gone))
    it.feed(b":1\r\n:2\r\n")
    assert (waiting.calls, gone.calls) == (1, 0)


def test_discarded_replies_keep_order_of_others() -> None:
    it = connect()
    it.request(b"x", DISCARD)
    it.request(b"x", DISCARD)
    last = ask(it, b"X")
    it.feed(b":1\r\n-ERR no\r\n:4\r\n")
    assert last.got == [4]


def test_push_is_not_a_reply() -> None:
    it = connect()
    push = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"
    it.feed(push)
    first, wide = ask(it, b"A"), ask(it, b"B", width=2)
    it.feed(push + b":1\r\n" + push + b":2\r\n" + push + b":3\r\n" + push)
    assert (first.got, wide.got) == ([1], [[2, 3]])
    assert it.fault is None


# -- the end of a connection -------------------------------------------------------------------------------------------


def test_end_of_the_connection_is_the_reply_to_all_pending_requests() -> None:
    it = connect()
    answered = ask(it, b"A")
    wide = ask(it, b"B", width=2)
    waiter = Waiting()
    waits = Replies(waiter=waiter)
    it.request(b"x", waits)
    it.feed(b":1\r\n:2\r\n")
    fault = Fault("closed", "closed the connection")
    it.fail(fault)
    assert (answered.got, wide.got, waits.got) == ([1], [fault], [fault])
    assert waiter.calls == 1
    assert not it.ready
    assert taken(it) == b"", "nothing is sent on a connection that is over"


def test_first_fault_is_kept() -> None:
    it = connect()
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
def test_garbage_ends_the_connection(garbage: bytes) -> None:
    it = connect()
    asked = [ask(it, b"A"), ask(it, b"B", width=2)]
    it.feed(garbage)
    if it.fault is None and garbage.startswith(b"~"):
        return  # a parser that reads sets as lists accepts this one
    assert it.fault is not None
    assert it.fault.kind == "protocol"
    assert "does not speak Redis' protocol" in it.fault.text
    assert [replies.got for replies in asked] == [[it.fault], [it.fault]]


def test_reply_without_a_request_ends_the_connection() -> None:
    it = connect()
    asked = ask(it, b"A")
    it.feed(b":1\r\n:2\r\n")
    assert asked.got == [1]
    assert it.fault is not None
    assert "a reply that nobody asked for: 2" in it.fault.text


# -- scripts that the server forgot ------------------------------------------------------------------------------------

NOSCRIPT = b"-NOSCRIPT No matching script.\r\n"
CLAIM, PASS, EXTEND = SHA["claim"], SHA["pass"], SHA["extend"]
LOADED = b"$40\r\n%b\r\n" % CLAIM


def test_missing_script_is_loaded_and_the_request_sent_again() -> None:
    it = connect()
    replies = ask(it, b"EVALSHA", CLAIM)
    taken(it)
    it.feed(NOSCRIPT)
    assert replies.got == []
    assert taken(it) == load_scripts(["claim"]) + encode(b"EVALSHA", CLAIM)
    it.feed(LOADED + b":7\r\n")
    assert replies.got == [7]
    assert not it.pending


def test_requests_that_are_sent_again_keep_their_order() -> None:
    """So that a release still follows its acquire."""
    it = connect()
    acquire, release = ask(it, b"EVALSHA", CLAIM), ask(it, b"EVALSHA", PASS)
    taken(it)
    it.feed(NOSCRIPT + NOSCRIPT)
    sent = taken(it)
    assert sent.index(encode(b"EVALSHA", CLAIM)) < sent.index(encode(b"EVALSHA", PASS))
    it.feed(LOADED + b":1\r\n" + LOADED + b":2\r\n")
    assert (acquire.got, release.got) == ([1], [2])


def test_script_that_is_missing_again_is_a_fault() -> None:
    it = connect()
    replies = ask(it, b"EVALSHA", CLAIM)
    it.feed(NOSCRIPT + LOADED + NOSCRIPT)
    assert [fault.kind for fault in replies.got] == ["NOSCRIPT"]
    assert not it.pending


def test_request_of_several_commands_is_sent_again_as_a_whole() -> None:
    it = connect()
    replies = Replies(2)
    it.request(encode(b"EVALSHA", CLAIM) + encode(b"WAIT", b"1", b"40"), replies)
    taken(it)
    it.feed(NOSCRIPT + b":0\r\n")
    assert taken(it).endswith(encode(b"EVALSHA", CLAIM) + encode(b"WAIT", b"1", b"40"))
    it.feed(LOADED + b":7\r\n:1\r\n")
    assert replies.got == [[7, 1]]


def test_discarded_request_is_sent_again() -> None:
    it = connect()
    it.request(b"EVALSHA " + PASS, DISCARD)
    taken(it)
    it.feed(NOSCRIPT)
    assert taken(it).endswith(b"EVALSHA " + PASS)


def test_request_is_not_sent_again_after_its_end() -> None:
    """A renewal that gets NOSCRIPT after the end of its lease would keep the key for another ttl."""
    it = connect()
    over, goes_on = Replies(until=0.0), Replies(until=0.1)
    it.request(encode(b"EVALSHA", EXTEND), over)
    it.feed(NOSCRIPT)
    assert [fault.kind for fault in over.got] == ["NOSCRIPT"]
    assert b"LOAD" not in taken(it)
    it.request(encode(b"EVALSHA", EXTEND), goes_on)
    it.feed(NOSCRIPT)
    assert goes_on.got == []
    assert taken(it).endswith(load_scripts(["extend"]) + encode(b"EVALSHA", EXTEND))


def test_connection_that_ends_while_scripts_are_loaded_answers_all_requests() -> None:
    it = connect()
    replies = ask(it, b"EVALSHA", CLAIM)
    it.feed(NOSCRIPT)
    it.fail(Fault("closed", "closed the connection"))
    assert [fault.kind for fault in replies.got] == ["closed"]


def test_request_whose_caller_has_gone_is_not_sent_again() -> None:
    """Its release needs no script, so it has been carried out: sent again, the claim would leave a lock behind."""
    it = connect()
    undo = encode(b"DELIFEQ", b"key", b"owner")
    it.request(encode(b"EVALSHA", CLAIM), Replies(waiter=Waiting(over=True)))
    it.request(undo, DISCARD)
    taken(it)
    it.feed(NOSCRIPT + b":0\r\n")
    assert b"EVALSHA" not in taken(it)


def test_request_whose_broadcast_is_over_is_not_sent_again() -> None:
    it = connect()
    replies = ask(it, b"EVALSHA", CLAIM)
    replies.over = True
    taken(it)
    it.feed(NOSCRIPT)
    assert taken(it) == b""
    assert [fault.kind for fault in replies.got] == ["NOSCRIPT"]


def test_forwarded_request_is_sent_again_where_scripts_are_missing() -> None:
    home, it, replies = connect(), connect(), Replies()
    it.request(b"EVALSHA " + CLAIM, ForwardedReply(home, replies, asking=False))
    taken(it)
    it.feed(NOSCRIPT)
    assert taken(it) == load_scripts(["claim"]) + b"EVALSHA " + CLAIM
    it.feed(LOADED + b":7\r\n")
    assert replies.got == [7]


# -- checks ------------------------------------------------------------------------------------------------------------


def checked(it: Connection, width: int = 1) -> Replies:
    replies = Replies(width, checked=True)
    it.request(b"VOTE ", replies)
    return replies


@pytest.mark.parametrize(("said", "outcome"), [(b":1\r\n:1\r\n", [5, 6]), (b":1\r\n:0\r\n", [FAILED, FAILED])])
def test_replies_are_kept_back_until_the_check_of_their_write_has_ended(said: bytes, outcome: list[Any]) -> None:
    it = connect()
    first, between, second = checked(it), Replies(), checked(it)
    it.request(b"GET ", between)
    assert it.take() == b"VOTE VOTE GET CHECK TWICE "
    it.feed(b":5\r\n:6\r\n:7\r\n" + said[:4])
    assert (first.got, second.got, between.got) == ([], [], [7])
    it.feed(said[4:])
    assert [*first.got, *second.got] == outcome
    assert not it.pending


def test_a_write_without_votes_has_no_check() -> None:
    it = connect()
    ask(it, b"GET", b"k")
    assert b"CHECK" not in it.take()


@pytest.mark.parametrize("checked", [False, True])
def test_confirmation_precedes_request_if_the_last_one_is_old(checked: bool) -> None:
    clock = [0.0]
    it = Connection(NODE, no_handshake(), lambda: clock[0], Equal())
    sent = []
    for clock[0] in (0.9, 1.0, 1.9, 2.1, 3.0):
        sent.append(it.request_now(b"GET k ", Replies(checked=checked)))
    check = b"CHECK TWICE " * checked
    assert [each == b"CONFIRM GET k " + check for each in sent] == [False, True, False, True, False]
    assert [each == b"GET k " + check for each in sent] == [True, False, True, False, True]


@pytest.mark.parametrize("reply", [b":0\r\n", b"-ERR no such command\r\n"])
def test_connection_ends_when_its_server_is_not_the_same_any_more(reply: bytes) -> None:
    clock = [0.0]
    it = Connection(NODE, no_handshake(), lambda: clock[0], Equal())
    early, late = Replies(), Replies(checked=True)
    it.request(b"early ", early)
    clock[0] = 1.0
    it.request(b"late ", late)
    assert it.take() == b"early CONFIRM late CHECK TWICE "
    it.feed(b":7\r\n" + reply + b":7\r\n:1\r\n:1\r\n")
    assert early.got == [7]
    assert it.fault is not None
    assert late.got == [it.fault]


def test_connection_ends_when_its_server_has_deleted_all_data() -> None:
    it = connect()
    replies = checked(it)
    it.feed(b">2\r\n$10\r\ninvalidate\r\n_\r\n:7\r\n:1\r\n:1\r\n")
    assert replies.got == [Equal.emptied]
    assert it.fault is Equal.emptied


def test_an_error_needs_no_check_and_a_lost_connection_answers_for_it() -> None:
    it = connect()
    refused, lost = checked(it), checked(it, width=2)
    it.take()
    it.feed(b"-OOM command not allowed\r\n")
    assert [fault.kind for fault in refused.got] == ["OOM"]
    it.feed(b":1\r\n:1\r\n")
    assert lost.got == []
    it.fail(Fault("closed", "closed the connection"))
    assert [fault.kind for fault in lost.got] == ["closed"]


def test_a_vote_that_is_sent_again_is_checked_again() -> None:
    it = connect()
    replies = Replies(checked=True)
    it.request(b"VOTE " + CLAIM, replies)
    it.take()
    it.feed(NOSCRIPT)
    assert it.take() == load_scripts(["claim"]) + b"VOTE " + CLAIM + b"CHECK TWICE "
    it.feed(b":1\r\n:1\r\n" + LOADED + b":5\r\n")
    assert replies.got == []
    it.feed(b":1\r\n:1\r\n")
    assert replies.got == [5]


# -- pushes ------------------------------------------------------------------------------------------------------------

MESSAGE = b">3\r\n$7\r\nmessage\r\n$2\r\nch\r\n$5\r\nhello\r\n"


SUBSCRIBED = b">3\r\n$9\r\nsubscribe\r\n$2\r\nch\r\n:1\r\n"


def test_push_goes_to_the_listener_of_the_connection() -> None:
    it = connect()
    heard: list[Any] = []
    it.on_push = lambda node, push: heard.append((node, list(push)))
    it.feed(MESSAGE)
    assert heard == [(NODE, [b"message", b"ch", b"hello"])]


def subscribe(it: Connection) -> list[Any]:
    """Subscribe, and collect the result."""
    done: list[Any] = []
    subscription = Subscription(it, b"wake:", lambda node, fault: done.append(fault))
    it.request(subscription.payload, subscription)
    return done


def confirmation(it: Connection) -> bytes:
    """The server's push for the subscription that the connection has sent."""
    channel = taken(it).split(b"\r\n")[4]
    return b">3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:1\r\n" % (len(channel), channel)


@pytest.mark.parametrize(
    "time", [b"*2\r\n$1\r\n1\r\n$1\r\n2\r\n", b"-NOPERM no right to TIME\r\n"], ids=["time", "no right"]
)
def test_subscription_is_confirmed_by_the_push_of_the_server(time: bytes) -> None:
    """Any reply to the command behind it shows that the push must have come."""
    it = connect()
    done = subscribe(it)
    after = ask(it, b"GET", b"k")
    it.feed(confirmation(it))
    assert (done, it.channel) == ([], b"")
    it.feed(time + b":5\r\n")
    assert done == [None]
    assert it.channel.startswith(b"wake:")
    assert after.got == [5]
    assert not it.pending


@pytest.mark.parametrize("pushed", [b"", SUBSCRIBED], ids=["no push", "another channel"])
def test_subscription_without_the_push_of_the_server_is_not_confirmed(pushed: bytes) -> None:
    """Some proxies reply to TIME and swallow pushes. A waiter on such a connection would never be woken."""
    it = connect()
    done, after = subscribe(it), ask(it, b"GET", b"k")
    it.feed(pushed + b"*2\r\n$1\r\n1\r\n$1\r\n2\r\n:5\r\n")
    assert [fault.kind for fault in done] == ["push"]
    assert it.channel == b""
    assert after.got == [5]
    assert not it.pending


def test_refused_subscription_leaves_the_connection_usable() -> None:
    it = connect()
    done, after = subscribe(it), ask(it, b"GET", b"k")
    it.feed(b"-NOPERM No permissions to access a channel\r\n+PONG\r\n:5\r\n")
    assert [fault.kind for fault in done] == ["NOPERM"]
    assert it.channel == b""
    assert after.got == [5]
    assert not it.pending


def test_subscription_on_a_connection_that_ends_is_answered_with_the_fault() -> None:
    it = connect()
    done = subscribe(it)
    it.fail(Fault("closed", "closed the connection"))
    assert [fault.kind for fault in done] == ["closed"]


# -- the handshake -----------------------------------------------------------------------------------------------------


def two_steps(log: list[Any]) -> Steps:
    log.append((yield encode(b"HELLO", b"3"), 1))
    log.append((yield encode(b"A") + encode(b"B"), 2))


def test_connection_is_ready_when_the_handshake_has_ended() -> None:
    log: list[Any] = []
    it = connect(two_steps(log))
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
    replies = ask(it, b"GET", b"k")
    it.feed(b":5\r\n")
    assert replies.got == [5]


def test_rejected_node_keeps_its_reason() -> None:
    why = Fault("replica", "is a replica")

    def refuses() -> Steps:
        yield encode(b"HELLO", b"3"), 1
        raise Rejected(why)

    it = connect(refuses())
    it.feed(b"+OK\r\n")
    assert it.fault is why
    assert not it.ready


def test_error_reply_reaches_the_handshake_as_a_fault() -> None:
    log: list[Any] = []
    it = connect(two_steps(log))
    it.feed(b"-NOAUTH HELLO must be called with the client already authenticated\r\n")
    assert log[0][0].kind == "NOAUTH"


def test_connection_that_ends_during_handshake_sends_nothing_more() -> None:
    log: list[Any] = []
    it = connect(two_steps(log))
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
    it = connect()
    asked = [ask(it, b"EVALSHA", CLAIM, b"%d" % i, width=width) for i, width in enumerate(widths)]
    taken(it)
    for piece in pieces:
        it.feed(piece)
        if it.fault is not None:
            break
    return [seen(replies.got) for replies in asked], seen(it.fault), taken(it)


@given(
    replies=st.lists(st.tuples(reply, st.lists(push, max_size=2)), max_size=12),
    widths=st.lists(st.integers(1, 3), min_size=1, max_size=6),
    cuts=st.lists(st.integers(0, 2000), max_size=30),
    forgets=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_any_split_of_the_stream_gives_the_same_replies(
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
