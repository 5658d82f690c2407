"""Every error text of the library, to be read from top to bottom.

Most texts are provoked here, without a server. The tests of other subjects provoke the texts about broken servers,
networks and processes; here these are only listed, each with the module that has it.
"""

from __future__ import annotations

import ast
import asyncio
import copy
import socket
import sqlite3
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import redis

import handfast
import handfast.aio
import handfast.fenced
from handfast import Contended, LeaseLost, NoQuorum, StaleToken
from handfast.core.config import Copies
from handfast.core.explain import not_acquired
from handfast.core.guard import LATE, STEPPED, UNREADY
from handfast.core.handshake import NO_RESP3
from handfast.core.io import CLOSED, SILENT, Fault
from handfast.core.nodes import NOT_CONNECTED, NodeGroup
from handfast.fenced.asgi import FencingMiddleware
from handfast.net.address import TLS_SILENT
from handfast.net.connection import NOT_CONFIRMED
from handfast.net.faults import from_reply, from_socket
from handfast.options import policy

SOURCE = Path(handfast.__file__).parent
URL = "unix:///no/such.sock"


def client(**options: Any) -> handfast.Client:
    """A client without a server."""
    return handfast.connect(URL, **options)


def lock(**options: Any) -> handfast.Lock:
    return client().lock("orders", **options)


def closed() -> handfast.Client:
    it = client()
    it.close()
    return it


def in_a_loop(call: Callable[[], Any]) -> Any:
    """Run it in an event loop, and await its result."""

    async def main() -> Any:
        result = call()
        return await result if asyncio.iscoroutine(result) else result

    return asyncio.run(main())


def connect(*servers: Any) -> handfast.Client:
    return handfast.connect(servers[0] if len(servers) == 1 else list(servers))


def quarantined(seconds: float) -> Any:
    """The answer of a guarded node that restarted and has no vote for so long."""
    group = NodeGroup(["redis://a"], policy({}), guard=True)
    node = group.nodes[0]
    node.fault, node.incarnation, node.opens_at = None, b"1", seconds
    return group.closed(node, 0.0)


def loop_of_another() -> Any:
    """An asyncio client of one loop, used in another."""

    async def enter(it: handfast.aio.Client) -> handfast.aio.Client:
        return await it.__aenter__()

    it = asyncio.run(enter(handfast.aio.connect(URL)))
    return asyncio.run(enter(it))


async def coroutine() -> None:
    """Something that an asyncio client may decorate."""


def function() -> None:
    """Something that a blocking client may decorate."""


# -- the four answers of an acquisition and a lease ------------------------------------------------------------------

ANSWERS: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: Contended("orders", holder="host:7::ab", remaining=1.25),
        "orders: held by host:7::ab, for another 1.2 s unless renewed",
    ),
    (
        lambda: Contended("orders", holder="job-42", remaining=None),
        "orders: held by job-42, on a key without a ttl; if that holder is gone, delete the key",
    ),
    (
        lambda: Contended("orders", holder=None, remaining=None),
        "orders: another caller was ahead, and may have released it by now; try again, or pass a longer wait=",
    ),
    (
        lambda: NoQuorum(
            "orders", granted=1, needed=2, total=3, nodes={"redis://a": "granted", "redis://b": "no answer"}
        ),
        "orders: 1 of 3 nodes granted, 2 needed (redis://a: granted; redis://b: no answer)",
    ),
    (
        lambda: NoQuorum("orders", granted=0, needed=1, total=1, nodes={"redis://a": "no answer in 1000 ms"}),
        "orders: 0 of 1 node granted, 1 needed (redis://a: no answer in 1000 ms)",
    ),
    (
        lambda: LeaseLost("orders", owner="host:7::ab", token=17, reason="the client was closed"),
        "orders: lease lost (the client was closed); owner host:7::ab, token 17",
    ),
    (lambda: StaleToken("invoice 7", token=3, seen=9), "invoice 7: token 3 is stale, 9 was seen; nothing was changed"),
]

# -- answers of nodes -------------------------------------------------------------------------------------------------

NODES: list[tuple[Callable[[], Any], str]] = [
    (lambda: SILENT, "no answer"),
    (lambda: CLOSED, "closed the connection"),
    (lambda: NOT_CONNECTED, "did not answer the connection in time"),
    (
        lambda: TLS_SILENT,
        "did not answer the TLS handshake in time; if its port has no TLS, use redis:// and not rediss://",
    ),
    (lambda: NO_RESP3, "speaks RESP2 only, so it cannot push to waiters"),
    (lambda: NOT_CONFIRMED, "did not confirm a subscription, so it cannot push to waiters"),
    (lambda: UNREADY, "forgot its data while connected, no vote until it is checked again"),
    (lambda: LATE, "answered so late that it may have lost votes since it was asked"),
    (
        lambda: STEPPED,
        "its clock stepped forward against ours, so it may have ended leases early; no vote until it is checked",
    ),
    (lambda: quarantined(25.0), "restarted or new, no vote for another 25.0 s"),
    (lambda: quarantined(0.0), "restarted, no vote until enough other nodes are up to restore its token counters"),
    (lambda: Copies(2, False, 50).missing(1), "1 of 2 replicas confirmed within 50 ms"),
    (lambda: Copies(0, True, 50).missing([0, 0]), "not on disk within 50 ms"),
    (lambda: from_socket(TimeoutError()), "did not answer the connection in time"),
    (lambda: from_socket(ConnectionRefusedError()), "refused the connection"),
    (lambda: from_socket(FileNotFoundError()), "no such socket"),
    (
        lambda: from_socket(socket.gaierror(-2, "Name or service not known")),
        "host name not found (Name or service not known)",
    ),
    (lambda: from_socket(OSError(113, "No route to host")), "no route to host"),
]

REPLIES: list[tuple[str, str]] = [
    ("LOADING Redis is loading the dataset in memory", "LOADING: is still loading its data"),
    ("BUSY Redis is busy running a script", "BUSY: is busy running a script"),
    ("READONLY You can't write against a read only replica.", "READONLY: is a read-only replica"),
    ("MASTERDOWN Link with MASTER is down", "MASTERDOWN: is a replica whose master is down"),
    ("OOM command not allowed when used memory > 'maxmemory'.", "OOM: is out of memory"),
    ("MISCONF Redis is configured to save RDB snapshots", "MISCONF: refuses writes because it cannot save to disk"),
    ("NOREPLICAS Not enough good replicas to write.", "NOREPLICAS: refuses writes because too few replicas are in sync"),
    ("NOSCRIPT No matching script.", "NOSCRIPT: forgot its scripts"),
    (
        "NOPERM this user has no permissions to run the 'evalsha' command",
        "NOPERM: this user may not do that (this user has no permissions to run the 'evalsha' command)",
    ),
    ("NOAUTH Authentication required.", "NOAUTH: wants a password"),
    ("WRONGPASS invalid username-password pair", "WRONGPASS: wrong user name or password"),
    (
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "WRONGTYPE: the key holds something that is not a lock",
    ),
    ("MOVED 866 127.0.0.1:7001", "MOVED: is a cluster node and the key lives elsewhere (866 127.0.0.1:7001)"),
    ("ASK 866 127.0.0.1:7001", "ASK: is a cluster node and the key is moving (866 127.0.0.1:7001)"),
    (
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "TRYAGAIN: its cluster is just moving the keys of this name",
    ),
    ("CLUSTERDOWN The cluster is down", "CLUSTERDOWN: its cluster is down"),
    (
        "CROSSSLOT Keys in request don't hash to the same slot",
        "CROSSSLOT: its cluster keeps these names in different slots",
    ),
    ("EXHAUSTED", "EXHAUSTED: its fence counter is used up"),
    ("ERR unknown command 'HELLO'", "ERR unknown command 'HELLO'; Redis 6.2 or Valkey is needed"),
    ("ERR max number of clients reached", "has reached its maximum number of clients"),
    ("ERR something else", "ERR something else"),
]
"""The reply of a server, and what the library says about it."""

# -- what to do about a fault, behind the answers of the nodes ---------------------------------------------------------

NEXT_STEPS: list[tuple[Fault | None, str]] = [
    (None, "check the server and the network to it"),
    (from_socket(TimeoutError()), "check the server and the network to it"),
    (from_socket(ConnectionRefusedError()), "check that the server runs, and its address in the URL"),
    (from_socket(FileNotFoundError()), "check that the server runs, and its address in the URL"),
    (from_socket(socket.gaierror(-2, "Name or service not known")), "check the host name in the URL"),
    (from_reply("NOAUTH"), "put user name and password into the URL, as in redis://user:password@host"),
    (from_reply("WRONGPASS"), "check user name and password in the URL"),
    (from_reply("NOPERM"), "give this user the rights that README lists under Known limits"),
    (from_reply("READONLY"), "name the master in the URL, or let Sentinel find it with redis+sentinel://"),
    (from_reply("MOVED"), "use redis+cluster:// in the URL"),
    (from_reply("OOM"), "free memory on the server, or raise its maxmemory"),
    (from_reply("WRONGTYPE"), "choose another name, or another prefix="),
    (from_reply("ERR DB index is out of range"), "choose another database in the URL"),
    (from_reply("ERR max number of clients reached"), "raise the server's maxclients, or use fewer connections"),
]

# -- where the servers are -------------------------------------------------------------------------------------------

SERVERS: list[tuple[Callable[[], Any], str]] = [
    (lambda: connect(7), "connect() takes a URL or a list of URLs, not an object of type int"),
    (lambda: connect([]), "connect() was given an empty list of servers"),
    (
        lambda: connect(redis.Redis()),
        "connect() takes a URL or a list of URLs, not an object of type Redis; for a redis-py client call from_client()",
    ),
    (lambda: connect([7]), "a server is named by its URL, a string, not by an object of type int"),
    (
        lambda: connect("redis://a", "redis://a:6379"),
        "redis://a:6379 is listed twice: each server has one vote, so name it once",
    ),
    (
        lambda: connect("embedded://", "redis://a"),
        "embedded:// cannot be combined with other servers; use embedded://?nodes=5 for an embedded quorum",
    ),
    (
        lambda: handfast.from_client("redis://a"),
        "from_client() takes a redis.Redis or a RedisCluster (or a list of them), not an object of type str; for a URL "
        "call connect()",
    ),
    (
        lambda: handfast.from_client(redis.Sentinel([("a", 26379)]).slave_for("main")),
        "from_client() needs a master: this client reads from replicas (slave_for); use master_for",
    ),
]

URLS: list[tuple[str, str]] = [
    (
        "ftp://a",
        "ftp://a: unknown scheme 'ftp'; use redis://, rediss://, valkey://, valkeys://, unix://, embedded://, "
        "redis+sentinel:// or redis+cluster://",
    ),
    ("localhost:6379", "'localhost:6379' is not a URL; did you mean redis://localhost:6379?"),
    ("", "'' is not a URL; did you mean redis://localhost?"),
    ("user:b", "'…' is not a URL; did you mean redis://host:port?"),
    ("redis://a;password=b", "redis://…: options begin with '?', as in redis://host?db=1&client_name=me"),
    ("redis://a b", "redis://…: not a valid URL; look at the host, and at user name and password"),
    (
        "redis+sentinel://a b/main",
        "redis+sentinel://…: not a valid URL; look at the hosts, and at user name and password",
    ),
    ("redis://a:6379,b:6379", "redis://a:6379,b:6379: several servers are given as a list, with one URL for each"),
    ("redis://a redis://b", "redis://…: several servers are given as a list, with one URL for each"),
    ("redis://a:port", "redis://a:…: not a valid URL; look at the port, and at user name and password"),
    ("redis://a:0", "redis://a:0: no server listens on port 0; the usual port is 6379"),
    ("redis://a#b", "redis://…: '#', '/', '?' and '@' must be percent-encoded in user name and password"),
    ("redis://a/x", "redis://a/x: the database must be a number such as 0, not 'x'"),
    ("redis://a:6379/x", "redis://a:6379/…: the database must be a number such as 0"),
    ("redis://a/1?db=2", "redis://a/1: the database is given twice, in the path and as db=; leave one out"),
    ("redis://a?colour=red", "redis://a: unknown option 'colour'; known are client_name, db, password, username"),
    (
        "redis://a?password=b&c",
        "redis://a: unknown option (options are written word=value, and '&' must be percent-encoded in user name and "
        "password); known are client_name, db, password, username",
    ),
    ("redis://a?db=1&db=2", "redis://a: option 'db' is given twice; leave one out"),
    ("redis://a?client_name=my%20app", "client_name must be printable ASCII without spaces, not 'my app'"),
    ("unix://", "unix://: a path is missing, as in unix:///run/redis.sock"),
    ("rediss://a?ssl_cert_reqs=perhaps", "ssl_cert_reqs must be required, optional or none, not 'perhaps'"),
    ("rediss://a?ssl_check_hostname=perhaps", "ssl_check_hostname must be true or false, not 'perhaps'"),
    (
        "rediss+cluster://a?ssl_check_hostname=perhaps",
        "rediss+cluster://a: ssl_check_hostname must be true or false, not 'perhaps'",
    ),
    (
        "redis+sentinel://a:26379",
        "redis+sentinel://a:26379: the master's name is missing, as in redis+sentinel://host:26379/mymaster",
    ),
    (
        "redis+sentinel://a/main/1?db=2",
        "redis+sentinel://a/main/1: the database is given twice, in the path and as db=; leave one out",
    ),
    ("redis+sentinel://a,/main", "redis+sentinel://a,/main: a host is missing; members are written host:port,host:port"),
    (
        "redis+sentinel://a:x/main",
        "redis+sentinel://a:…: a port is a number from 1 to 65535; look at user name and password too",
    ),
    ("redis+sentinel://a,a/main", "redis+sentinel://a,a/main: a is listed twice; name it once"),
    (
        "redis+sentinel://[::1/main",
        "redis+sentinel://…: not a valid URL; look at the port, and at user name and password",
    ),
    ("redis+cluster://[::1]x", "redis+cluster://…: an IPv6 address is written [::1] or [::1]:6379"),
    ("redis+cluster://a/1", "redis+cluster://a/1: a cluster has only database 0, so leave the number out"),
    ("embedded://?colour=red", "embedded://: unknown option 'colour'; known is nodes"),
    ("embedded://:a@private", "embedded://private: an embedded server has no user and no password"),
    ("embedded://:[", "embedded://:…: not a valid URL"),
    ("embedded://?nodes=0", "embedded://: nodes must be a number from 1 to 99, not '0'"),
    ("embedded://elsewhere", "embedded://elsewhere: use embedded://, embedded:///some/folder or embedded://private"),
]
"""A URL, and what `connect` says about it."""

# -- options ---------------------------------------------------------------------------------------------------------

OPTIONS: list[tuple[Callable[[], Any], str]] = [
    (lambda: client(ttl="5"), "ttl must be seconds or a timedelta, not '5'"),
    (lambda: client(ttl=0), "ttl must be a positive number of seconds, not 0"),
    (lambda: client(wait=-1), "wait must be a non-negative number of seconds, not -1"),
    (
        lambda: client(ttl=31),
        "ttl of 31 s is longer than max_ttl of 30 s: a lease is renewed while it is held, so use a shorter ttl, "
        "or set the same max_ttl= on every client of this prefix",
    ),
    (lambda: client(ttl=0.001), "ttl of 0.001 s is too short: drift and a margin of 2 ms leave nothing of it"),
    (lambda: client(tries=0), "tries must be a whole number of at least 1, not 0"),
    (lambda: client(drift=0.5), "drift must be a share such as 0.01, at least 0 and less than 0.5, not 0.5"),
    (lambda: client(renew=1), "renew must be True or False, not 1"),
    (lambda: client(backoff=0.1), "backoff must be a handfast.backoff.Backoff, not 0.1"),
    (lambda: client(on_lost="ignore"), "on_lost must be 'cancel', 'event', 'interrupt' or a callable, not 'ignore'"),
    (lambda: client(prefix=7), "prefix must be a string, not 7"),
    (
        lambda: client(prefix="a{}"),
        "prefix must not contain {}, because a cluster would keep the keys of a name in different slots: 'a{}'",
    ),
    (lambda: client(token_memory=1e16), "token_memory must be at most 100 years, not 1e+16 s"),
    (lambda: client(label="a b"), "label must not contain a colon, a space or a line break: 'a b'"),
    (lambda: client(label="x" * 65), "label is 65 bytes long, 64 at most: 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'…"),
    (lambda: client(guard=1), "guard must be True or False, not 1"),
    (
        lambda: client(colour="red"),
        "unknown option 'colour'; known are backoff, cohort, drift, durable, fair, fence, label, max_hold, "
        "max_ttl, node_timeout, on_lost, prefix, renew, replicas, token_memory, tries, ttl, wait",
    ),
    (lambda: client(tttl=5), "unknown option 'tttl': did you mean ttl=?"),
    (
        lambda: client(auto_release_time=5),
        "unknown option 'auto_release_time': did you mean ttl=, the seconds that the lock lasts unless renewed?",
    ),
    (lambda: client(auto_renewal=True), "unknown option 'auto_renewal': did you mean renew=? It is on by default"),
    (
        lambda: client(retry_count=3),
        "unknown option 'retry_count': did you mean tries=? Without it a caller waits in a queue, for wait= seconds",
    ),
    (
        lambda: client(retry_times=3),
        "unknown option 'retry_times': did you mean tries=? Without it a caller waits in a queue, for wait= seconds",
    ),
    (
        lambda: client(sleep=0.1),
        "unknown option 'sleep': nothing sleeps between attempts here, because a release wakes the next waiter; "
        "leave it out",
    ),
    (
        lambda: client(timeout=5),
        "unknown option 'timeout': did you mean wait=, the seconds to wait for the lock? redis-py's timeout= "
        "is ttl= here",
    ),
    (
        lambda: client(blocking=False),
        "unknown option 'blocking': did you mean wait=0 (do not wait) or wait=None (wait without end)?",
    ),
    (
        lambda: client(blocking_timeout=5),
        "unknown option 'blocking_timeout': did you mean wait=, the seconds to wait for the lock?",
    ),
    (
        lambda: client(expire=5),
        "unknown option 'expire': did you mean ttl=, the seconds that the lock lasts unless renewed?",
    ),
    (
        lambda: client().lock("orders", guard=True),
        "unknown option 'guard': it is the same for all locks of a client, so set it on connect()",
    ),
    (lambda: client().lock(""), "name must not be empty"),
    (lambda: client().lock([]), "name must not be an empty list"),
    (lambda: client().lock(7), "name must be a string or a list of strings, not 7"),
    (lambda: client().lock("\ud800"), "name is not valid Unicode: '\\ud800'"),
    (lambda: client().lock("orders", owner=""), "owner must not be empty"),
    (
        lambda: client().lock("orders", owner=f"host:7::{'ab' * 16}"),
        f"owner='host:7::{'ab' * 16}' looks like the owner of a lease that was made without owner= "
        "(host:pid:label:32 hex digits), which shares its lock with no other lease: give both locks the same owner= of "
        "your own",
    ),
    (lambda: lock().acquire(5), "acquire() takes no positional arguments such as 5: did you mean wait=?"),
    (
        lambda: lock().acquire(timeout=5),
        "unknown option 'timeout': did you mean wait=, the seconds to wait for the lock? redis-py's timeout= "
        "is ttl= here",
    ),
    (lambda: lock().acquire(fair=True), "acquire() takes wait= and ttl=, not 'fair'; set it on lock()"),
    (lambda: lock().acquire(colour="red"), "acquire() takes wait= and ttl=, not 'colour'"),
    (
        lambda: client().rlock("orders", owner="job-42"),
        "a reentrant lock has its thread or task for an owner; use lock() with owner=",
    ),
    (
        lambda: handfast.connect([URL, "redis://b", "redis://c"]).lock("orders", prefix="other:"),
        "the restart guard covers the client's prefix only: set prefix= on connect(), or fence=False here",
    ),
    (
        lambda: handfast.connect([URL, "redis://b", "redis://c"]).lock("orders", max_ttl=60),
        "max_ttl of 60 s is more than the client's 30 s, for which a restarted node does not vote: set it on connect()",
    ),
    (
        lambda: connect("redis+cluster://a", "redis+cluster://b", "redis+cluster://c"),
        "the restart guard does not work on a cluster, whose names move between nodes: set guard=False; with "
        "replicas=k a grant survives a failover",
    ),
    (
        lambda: handfast.connect("redis+cluster://a", guard=True),
        "the restart guard does not work on a cluster, whose names move between nodes: set guard=False; with "
        "replicas=k a grant survives a failover",
    ),
    (
        lambda: handfast.connect("redis+cluster://a").lock(["orders", "invoices"]),
        "a cluster keeps 'invoices', 'orders' in different slots, and no command takes both at once: give the "
        "names a common hash tag, as in '{t}invoices' and '{t}orders'",
    ),
    (
        lambda: handfast.bootstrap(handfast.connect("redis+cluster://a")),
        "a cluster has no restart guard, so there is nothing to open",
    ),
    (
        lambda: handfast.aio.connect(URL, on_lost="interrupt"),
        "on_lost='interrupt' is for threads: asyncio cancels the body, with on_lost='cancel'",
    ),
]

# -- locked() --------------------------------------------------------------------------------------------------------

DECORATOR: list[tuple[Callable[[], Any], str]] = [
    (lambda: client().locked(""), "locked() takes a name such as 'report:{user_id}', not ''"),
    (lambda: client().locked(7), "locked() takes a name such as 'report:{user_id}', not 7"),
    (
        lambda: client().locked("report:{user}")(function),
        "locked('report:{user}'): function() -> 'None' has no parameter 'user'",
    ),
    (
        lambda: client().locked("report:{")(function),
        "locked('report:{'): Single '{' encountered in format string; a brace of the name itself is written twice",
    ),
    (
        lambda: client().locked("report")(coroutine),
        "coroutine would outlive the lock: locked() takes a plain function here; for async functions use handfast.aio",
    ),
    (
        lambda: handfast.aio.connect(URL).locked("report")(function),
        "function is not an async function: for plain functions use handfast.connect()",
    ),
    (lambda: client().locked("report", skip=1), "skip must be True or False, not 1"),
    (
        lambda: client().locked("report", skip_value=0),
        "skip_value= needs skip=True: without it a call that does not get the lock raises Contended",
    ),
]

# -- the wrong place, or too late ------------------------------------------------------------------------------------

PLACES: list[tuple[Callable[[], Any], str]] = [
    (lambda: closed().lock("orders"), "this client is closed; connect() makes a new one"),
    (
        lambda: handfast.aio.lock("orders"),
        "handfast.aio.lock() needs a running event loop, whose client it uses: call it in a coroutine",
    ),
    (lambda: loop_of_another(), "this client belongs to another event loop: call connect() in each event loop"),
    (
        lambda: in_a_loop(lambda: client().rlock("orders").acquire()),
        "orders: a blocking rlock() in an event loop would let every task of the thread in; use handfast.aio",
    ),
    (lambda: copy.copy(client()), "a client cannot be pickled or copied: call connect() in each process that needs one"),
    (
        lambda: copy.copy(lock()),
        "a lock cannot be pickled or copied: send its name, and call lock() on a client of the process that needs it",
    ),
    (
        lambda: lock().release(),
        "a lock has no attribute 'release': keep the lease that acquire() returns, and use its release",
    ),
    (lambda: lock().locked(), "a lock has no attribute 'locked': holder() tells who holds it"),
    (lambda: handfast.conect, "module 'handfast' has no attribute 'conect'"),
]

# -- fences ----------------------------------------------------------------------------------------------------------

FENCES: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: handfast.fenced.SqlFence("a b"),
        "table must be name or schema.name in ASCII letters, digits and _, not 'a b'",
    ),
    (
        lambda: handfast.fenced.SqlFence().check("conn", "orders", 7),
        "a connection or session of sqlite3, psycopg 3 or SQLAlchemy 2 is needed, not an object of type builtins.str",
    ),
    (
        lambda: handfast.fenced.SqlFence().check("conn", "orders"),
        "orders: a name is checked together with a token: check(conn, name, token)",
    ),
    (
        lambda: handfast.fenced.SqlFence().check("conn", 7),
        "check takes a lease, or a name and a token; not the token 7 alone",
    ),
    (
        lambda: handfast.fenced.SqlFence().check("conn", "orders", 0),
        "a token is a whole number from 1 to 2**53 - 1, not 0",
    ),
    (lambda: handfast.fenced.SqlFence().check("conn", 1.5), "a fence takes a lease or its token, not 1.5"),
    (
        lambda: handfast.fenced.SqlFence().check(sqlite3.connect(":memory:", isolation_level=None), "orders", 7),
        "the connection is in autocommit mode: begin a transaction, then check and write in it",
    ),
    (
        lambda: handfast.fenced.RedisFence(redis.Redis(), prefix=""),
        "prefix must be a string without braces, and not empty: ''",
    ),
    (
        lambda: handfast.fenced.RedisFence(7),
        "RedisFence takes a client of redis-py or valkey-py, and no pipeline, not an object of type int",
    ),
    (
        lambda: handfast.fenced.RedisFence(redis.Redis()).run("return 1", [], [], 7),
        "keys must be a list of at least one key, not []",
    ),
    (
        lambda: handfast.fenced.RedisFence(redis.Redis()).run("#!lua", ["a"], [], 7),
        "a script that is run behind a check has no #! line of its own",
    ),
    (lambda: handfast.fenced.RedisFence(redis.Redis()).set(7, "x", 7), "a key is a string or bytes, not 7"),
    (lambda: FencingMiddleware(None, store=7), "store must have check(resource, token) or be such a function, not 7"),
    (lambda: FencingMiddleware(None, store=print, methods="POST"), "methods must be a list of methods, not 'POST'"),
]

# -- texts that need a server, a network or a process that fails -----------------------------------------------------

ELSEWHERE: list[tuple[str, str]] = [
    ("_client.py", "this client was closed while it waited for the lock"),
    ("_client.py", " already holds "),  # this thread already holds orders; use rlock()
    ("_client.py", "the embedded servers could not be opened: "),
    ("_interrupt.py", "on_lost='interrupt' needs CPython: use a callback, or look at lease.lost"),
    (
        "_lease.py",
        "a lease cannot be pickled or copied: send lease.token with the work, or take the lock where the work is done",
    ),
    ("aio.py", "'async with' on a lock needs to run in a task"),
    ("core/explain.py", "if these servers are new and nobody has used them, "),
    ("core/explain.py", " opens them at once"),
    ("core/explain.py", "granted, but too late for the lease's validity, or with no agreement on a token"),
    ("__init__.py", "handfast needs a Unix system, such as Linux or macOS: it uses poll(), unix sockets and fork()"),
    ("core/guard.py", "this client has no restart guard, so there is nothing to open: name all members of the quorum"),
    ("core/queue.py", "its copies are not confirmed"),
    ("discovery/cluster.py", "no node of the cluster serves any slot"),
    ("discovery/cluster.py", "is a server without cluster mode: use redis:// and not redis+cluster://"),
    ("discovery/cluster.py", "the cluster's slot map could not be read: "),
    ("core/guard.py", "is a replica, not a master, so it cannot vote: name its master"),
    ("core/handshake.py", "refuses client tracking, so its pushes do not show whether it has lost its data"),
    ("core/handshake.py", "is the same server as "),
    ("core/handshake.py", ": each server has one vote, so name it once"),
    ("core/queue.py", "is being connected"),
    ("core/queue.py", "not asked, because too few nodes answer"),
    ("core/explain.py", "had not answered yet"),
    ("core/nodes.py", "its clock stepped forward against ours, no vote for now"),
    ("discovery/cluster.py", "no node of the cluster serves slot "),
    (
        "discovery/endpoints.py",
        "$HANDFAST_URL has a word that is not a URL; a space in a user name or password is written %20",
    ),
    ("discovery/sentinel.py", "did not answer ("),
    ("discovery/sentinel.py", "; check sentinel_username and sentinel_password in the URL"),
    ("discovery/login.py", "a reply of more than "),
    ("discovery/sentinel_question.py", " is no address"),
    ("discovery/sentinel_question.py", "does not know it"),
    ("discovery/sentinel_question.py", "does not answer as a sentinel does ("),
    ("net/connection.py", "does not speak Redis' protocol ("),
    ("net/connection.py", "did not confirm a subscription, so it cannot push to waiters"),
    ("net/connection.py", "sent a reply that nobody asked for: "),
    ("net/faults.py", "TLS certificate refused: "),
    ("net/faults.py", "TLS failed: "),
    ("net/faults.py", "; if its port has no TLS, use redis:// and not rediss://"),
    ("net/link.py", "no answer for "),
    ("net/threads.py", "an operation of the blocking driver suspended"),
    # Why a lease was lost.
    ("watchdog.py", "the client was closed"),
    ("watchdog.py", "held by the parent process: a fork inherits no lease"),
    ("core/renew.py", "no majority confirmed a renewal in time: "),
    ("core/renew.py", "the deadline passed"),
    ("core/renew.py", "max_hold was reached"),
    ("core/renew.py", "the ttl ended and it was not renewed"),
    ("core/renew.py", "its key is gone: deleted, evicted, or the server restarted without it"),
    ("core/renew.py", "now held by "),
    ("core/renew.py", "it still holds the key"),
    ("core/renew.py", "its owner has the key, but not for this lease any more"),
    ("core/renew.py", "it does not hold the key for this lease any more"),
    ("core/renew.py", "a majority of the nodes no longer holds it: "),
    ("core/release.py", "it had ended before it was released"),
    ("core/release.py", "its deadline had passed when it was released"),
    # Embedded servers.
    ("embedded/deployment.py", " is not a folder (a link to one will not do): embedded:// cannot use it"),
    ("embedded/deployment.py", "): use another folder"),
    ("embedded/deployment.py", " is open to other users: chmod 700 "),
    ("embedded/deployment.py", " is too long a path: a unix socket in it has "),
    ("embedded/deployment.py", ": use the same nodes= everywhere, or another folder (embedded:///some/folder?nodes="),
    ("embedded/deployment.py", "the embedded servers did not start: "),
    ("embedded/deployment.py", " is held by another process for "),
    ("embedded/deployment.py", " does not bring its servers up"),
    ("embedded/deployment.py", "this private server was closed"),
    ("embedded/deployment.py", "this private server belongs to process "),
    ("embedded/process.py", "the server was not started"),
    ("embedded/process.py", " cannot be started: "),
    ("embedded/process.py", " ended at once:"),
    ("embedded/process.py", " did not answer within "),
    ("embedded/resp.py", "not RESP: "),
    ("embedded/resp.py", "the server closed the connection"),
    ("embedded/resp.py", "the server closed the connection inside a reply"),
    ("embedded/supervisor.py", "another supervisor of "),
    ("embedded/supervisor.py", "the starter is gone"),
    # Fences.
    ("fenced/asgi.py", "the store of FencingMiddleware must be async: RedisFence needs an asyncio client here"),
    ("fenced/claims.py", "check takes a lease, or a name and a token; not a lease and a token"),
    ("fenced/claims.py", ": a lease with fence=False has no token to check"),
    ("fenced/connections.py", "SqlFence knows SQLite and PostgreSQL, not "),
    # The dashboard: tests/dashboard.
    ("cli/declare.py", "--url is empty: is a variable not set? For a server on this machine write embedded://"),
    ("cli/durations.py", "is longer than ten years"),
    ("cli/dashboard.py", " is not a port from 0 to 65535"),
    ("cli/dashboard.py", ": pip install 'handfast[dashboard]'"),
    ("observe/prometheus.py", ": pip install 'handfast[prometheus]'"),
    ("observe/opentelemetry.py", ": pip install 'handfast[otel]'"),
    ("cli/dashboard.py", "; choose another --host or --port"),
    # The command line, provoked in tests/cli and tests/operate.
    ("cli/bootstrap.py", "one server is no quorum and needs no bootstrap: give --url once for each server"),
    ("cli/breaks.py", ": nobody holds it; there is nothing to break"),
    ("cli/breaks.py", "there is no terminal to ask at: pass --yes if you are sure"),
    ("cli/commands.py", "options come behind the command, not before it:"),
    ("cli/commands.py", "there is no command"),
    ("cli/declare.py", "a command is missing behind --; see: handfast"),
    ("cli/declare.py", "is not a whole number"),
    ("cli/declare.py", "put -- before the command to run; see: handfast"),
    ("cli/declare.py", "the pause between two looks must not be 0: the servers have other work"),
    ("cli/durations.py", "is not a duration: write 500ms, 60s, 5m, 1h or plain seconds"),
    ("cli/exec.py", ": not executable; chmod +x it, or name its interpreter"),
    ("cli/serve_quorum.py", "is not a number of servers from 1 to 99"),
    ("cli/top.py", "top needs rich: pip install 'handfast[cli]'; or use handfast ls, or top --json"),
    ("operate/servers.py", "another server has taken its place; looking for it"),
    ("operate/servers.py", "did not answer in time"),
    ("operate/servers.py", "no node of the cluster serves a part of the names"),
]


# -- the tests ---------------------------------------------------------------------------------------------------------

PROVOKED = [
    *ANSWERS,
    *NODES,
    *((partial(from_reply, reply), text) for reply, text in REPLIES),
    *SERVERS,
    *((partial(connect, url), text) for url, text in URLS),
    *OPTIONS,
    *DECORATOR,
    *PLACES,
    *FENCES,
]


def said(provoke: Callable[[], Any]) -> str:
    """The text of the error that is raised or returned, or of a node's fault."""
    try:
        result = provoke()
    except Exception as error:
        result = error
    return result.text if isinstance(result, Fault) else str(result)


@cache
def constants(path: Path) -> list[str]:
    """All strings of a module. Of a string with variable parts, the constant parts."""
    return [
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


@pytest.mark.parametrize(("provoke", "text"), [pytest.param(*each, id=each[1][:60]) for each in PROVOKED])
def test_error_says_exactly_this(provoke: Callable[[], Any], text: str) -> None:
    assert said(provoke) == text


@pytest.mark.parametrize(("module", "text"), ELSEWHERE)
def test_text_is_still_in_its_module(module: str, text: str) -> None:
    assert any(text in constant for constant in constants(SOURCE / module))


@pytest.mark.parametrize(("fault", "step"), NEXT_STEPS)
def test_outage_names_the_next_step_once(fault: Fault | None, step: str) -> None:
    with handfast.connect([URL, "redis://b", "redis://c"]) as three:
        text = str(not_acquired(three.lock("orders"), [fault] * 3, 0.05))
    assert text.endswith(f"); {step}")
    assert text.count(step) == 1


def texts_of_errors() -> Iterator[tuple[str, str]]:
    """For every error that the library raises: where, and the longest constant piece of its text."""
    for path in sorted(SOURCE.rglob("*.py")):
        if "testing" in path.relative_to(SOURCE).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            inner = [each for arg in arguments(node) for each in ast.walk(arg)]
            pieces = [each.value for each in inner if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            if pieces and len(longest := max(pieces, key=len).strip()) > 8:
                yield f"{path.relative_to(SOURCE)}:{node.lineno}", longest


def arguments(node: ast.AST) -> list[ast.expr]:
    """The errors that are raised, and the texts of errors and faults and the reasons of losses."""
    if isinstance(node, ast.Raise):
        return [node.exc] if node.exc is not None else []
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", "") or getattr(node.func, "attr", "")
        if name.endswith("Error") or name in {"LeaseLost", "Fault", "mark_lost", "revoke", "forget"}:
            return [*node.args, *(keyword.value for keyword in node.keywords)]
    return []


def test_no_error_text_is_missing_here() -> None:
    page = "\n".join(constants(Path(__file__)))
    missing = {where: text for where, text in texts_of_errors() if text not in page}
    assert not missing
