"""The list of deliberate bugs: see mutants.py. Name; what it is; invariants that may notice it; changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from handfast.core import commands, fair, fencing, guard, mutex, quorum, renewal
from handfast.core.hold import Hold
from handfast.core.line import Lines
from handfast.net.connection import _Seal
from handfast.options import Policy
from sim import scripts
from sim.client import Client, Watchdog
from sim.node import Node

__all__ = ["BUGS", "Bug"]

Bug = tuple[str, str, tuple[int, ...], tuple[tuple[Callable[..., Any], str, str], ...]]

TIME: tuple[Bug, ...] = (
    (
        "deadline-from-reply",
        "validity counts from the reply to an acquisition, not from its send",
        (1, 5),
        (
            (
                mutex.acquire,
                "token is not None and io.now() < hold.deadline:",
                "token is not None:\n            hold.deadline = io.now() + terms.validity",
            ),
        ),
    ),
    (
        "no-second-look",
        "the deadline is not looked at again once a majority has granted",
        (1, 5, 6),
        ((mutex.acquire, "token is not None and io.now() < hold.deadline", "token is not None"),),
    ),
    (
        "renewal-from-reply",
        "a renewal counts from its reply",
        (1, 5),
        ((renewal._conclude, "sent + hold.settings.policy.validity(ttl)", "now + hold.settings.policy.validity(ttl)"),),
    ),
    (
        "renewal-past-deadline",
        "a renewal is still sent when the deadline has passed while connecting",
        (7,),
        (
            (Watchdog._renew, "if hold.state == HELD and now < hold.deadline]", "if hold.state == HELD]"),
            (mutex.extend, "hold.state != HELD or renewal.expire(hold, io.now())", "hold.state != HELD"),
        ),
    ),
    (
        "late-renewal-counts",
        "a renewal that is confirmed after the deadline keeps the lease alive",
        (1, 5, 6, 7),
        ((renewal._conclude, "if now >= hold.deadline:", "if now >= hold.deadline and not ballot.won:"),),
    ),
    (
        "drift-ignored",
        "validity is the whole ttl: clock rates are thought to be equal",
        (1, 5),
        ((Policy.validity, "return ttl - ttl * self.drift - DRIFT_MARGIN", "return ttl"),),
    ),
    (
        "sleeps-through-suspend",
        "the client's clock stands still while its machine is suspended",
        (1, 5),
        (
            (Client.stop, "self.actor.stop()", "self.actor.stop(); self.fell_asleep = self.world.now"),
            (
                Client.go_on,
                "self.actor.go_on()",
                "self.clock.step(-self.clock.rate * (self.world.now - self.fell_asleep)); self.actor.go_on()",
            ),
        ),
    ),
    (
        "handed-over-from-push",
        "a fair lock that was handed over is valid from the moment its new holder hears of it",
        (1, 5),
        (
            (fair.handed_over, "since = place.sent\n", "since = now\n"),
            (fair.handed_over, "since = place.sent + waited * place.request.settings.slowest", "since = now"),
        ),
    ),
    (
        "stale-push",
        "a hand-over that is older than the last answer is believed, and counts from the question",
        (1, 5),
        (
            (
                fair.handed_over,
                "since = place.sent + waited * place.request.settings.slowest\n        if waited < 0.0 or since > now:",
                "since = min(now, place.sent + max(0.0, waited * place.request.settings.slowest))\n        if False:",
            ),
            (fair.acquire, "place.message = ()  # the answer", "pass  # the answer"),
        ),
    ),
    (
        "loss-is-not-final",
        "a lost lease comes back to life when its last renewal is confirmed after all",
        (1, 5, 6, 7),
        (
            (renewal._conclude, "if now >= hold.deadline:", "if now >= hold.deadline and not ballot.won:"),
            (Hold.confirm, "if self.retrying:", 'self.state = "held"\n    if self.retrying:'),
        ),
    ),
    (
        "loss-untold",
        "the deadline passes and nobody is told; the watchdog tries again and again, without end",
        (0, 6),
        ((renewal.expire, "if now < hold.deadline:", "if now < hold.deadline or hold.retrying:"),),
    ),
)

VOTES: tuple[Bug, ...] = (
    (
        "majority-off-by-one",
        "half of the nodes are thought to be a majority",
        (1, 5, 9),
        ((quorum.majority, "nodes // 2 + 1", "max(1, nodes // 2)"),),
    ),
    (
        "no-rollback",
        "a failed attempt is not undone",
        (9, 11),
        ((mutex._undo, "return not any(releases) or io.post(releases)", "return True"),),
    ),
    (
        "rollback-only-where-granted",
        "a failed attempt is undone only on nodes that were heard to grant it",
        (9, 11),
        ((mutex._undo, "ours = answer is None or type(answer) is Fault or said_yes(answer)", "ours = said_yes(answer)"),),
    ),
    (
        "release-of-anybody's",
        "a release deletes whatever is there",
        (8,),
        (
            (scripts.release, "if at.get(key) == owner:", "if at.get(key) is not None:"),
            (Node._delifeq, "self.get(words[1]) != words[2]", "self.get(words[1]) is None"),
        ),
    ),
    (
        "extension-of-anybody's",
        "an extension does not look whose key it is",
        (5, 8),
        ((scripts.extend, "at.get(key) != owner for key in keys", "at.get(key) is None for key in keys"),),
    ),
    (
        "heal-over-another",
        "healing takes the key of another owner",
        (1, 5, 8),
        ((scripts.heal, "at.get(key) not in (None, owner)", "False"),),
    ),
    (
        "healed-not-followed",
        "the release of a healed lease does not follow the heal on its connection",
        (9,),
        ((mutex.release, "if hold.healed or not known:", "if not known:"),),
    ),
    (
        "one-owner-for-all",
        "all attempts of a client have the same owner",
        (1, 3, 5, 7, 8, 9),
        ((mutex.acquire, "settings.owner_start + io.nonce()", 'settings.owner_start + b"me"'),),
    ),
)

GUARD: tuple[Bug, ...] = (
    (
        "no-guard",
        "a node that has forgotten may vote at once",
        (1, 2, 3, 4, 5, 10),
        (
            (guard.quarantine, 'group.max_ttl_ms, b"-")', 'group.max_ttl_ms, b"0")'),
            (guard.period, "return group.policy.max_ttl * (1 + 2 * group.policy.drift) + MARGIN", "return 0.0"),
            (_Seal._broken, "if not self.marker or marker != self.marker:", "if False:"),
        ),
    ),
    (
        "flush-unnoticed",
        "the marker behind the votes is not compared: FLUSHALL on a live connection goes unseen",
        (1, 2, 3, 4, 5, 10),
        ((_Seal._broken, "if not self.marker or marker != self.marker:", "if False:"),),
    ),
    (
        "any-incarnation",
        "a marker of an earlier life is believed: a server that came back with old data votes",
        (1, 2, 3, 4, 5, 10),
        ((guard.adopt, " or marker.incarnation != node.incarnation", ""),),
    ),
    (
        "quarantine-too-short",
        "the quarantine is half as long as a lease may be",
        (1, 5, 10),
        ((guard.period, "group.policy.max_ttl * (1 + 2 * group.policy.drift) + MARGIN", "group.policy.max_ttl / 2"),),
    ),
    (
        "repair-before-Q",
        "the floor of a forgetful node's counters is taken at the beginning of its quarantine, not at the end",
        (2, 3, 4),
        (
            (
                guard.repair,
                "payloads[i] = quarantine(group, node, state.raw)",
                "payloads[i] = quarantine(group, node, state.raw)\n"
                "            io.actor.world.__dict__.setdefault('early', {})[i] = floor_for(group, i, states, group.n)",
            ),
            (
                guard.repair,
                "        floor = floor_for(group, i, states, len(ready))\n",
                "        floor = io.actor.world.__dict__.get('early', {}).pop(i, None)\n"
                "        if floor is None:\n"
                "            floor = floor_for(group, i, states, len(ready))\n",
            ),
        ),
    ),
    (
        "no-repair",
        "a node votes after its quarantine with whatever its counters are",
        (2, 3, 4),
        ((guard.floor_for, "others = [", "return 0\n    others = ["),),
    ),
    (
        "set-back-clock",
        "a key that lasts for hours because its server's clock was set back is left there",
        (9, 11),
        ((scripts._clamped, "if left > most:", "if False:"),),
    ),
)

TOKENS: tuple[Bug, ...] = (
    (
        "no-raise",
        "where the answers differ, the largest of the M smallest is taken, and the others are not raised to it",
        (2, 3, 4),
        (
            (fencing.agree, "return token if raised.won else None", "return token"),
            (fencing.agree, "await io.exchange(payloads, raised, patience)", "pass"),
        ),
    ),
    (
        "r-th-largest",
        "where the answers differ, the M-th largest is taken, which M nodes have reached: in order, but not unique",
        (2, 3, 4),
        ((fencing.agree, "token = chosen[-1][0]", "return granted[-group.need][0]\n    token = chosen[-1][0]"),),
    ),
    (
        "token-from-wall-clock",
        "a node gives the proposed token, whatever its counter says",
        (2, 3, 4, 12),
        ((scripts.acquire, "token = max(token, max(floor, at.count(key)) + step)", "pass"),),
    ),
    (
        "floor-unused",
        "a repaired node does not use the floor that it was given",
        (2, 3, 4),
        ((scripts.acquire, "max(floor, at.count(key)) + step", "at.count(key) + step"),),
    ),
    (
        "cohort-keeps-token",
        "what is passed on in a process keeps its token",
        (2, 3),
        ((Hold.successor, "heir.token += 1", "pass"),),
    ),
    (
        "cohort-reserves-nothing",
        "a cohort counts tokens on by itself that no server has reserved",
        (2, 3),
        ((commands._acquire, "step = 1 + request.settings.cohort", "step = 1"),),
    ),
)

WAITING: tuple[Bug, ...] = (
    (
        "dead-claims-live-for-ever",
        "a fair lock goes to a waiter whose claim has ended",
        (11,),
        ((scripts._hand_over, "if int(claim[:10]) < seconds:", "if False:"),),
    ),
    (
        "next-is-not-told",
        "the release of a fair lock leaves it free, and tells nobody",
        (11,),
        ((scripts.pass_, 'if _hand_over(at, keys, b"", owner, voice) is None:', "if True:"),),
    ),
    (
        "lost-wake-up",
        "the look at a lock that is held does not ask to be told of its end",
        (11,),
        ((commands.look, "return _TRACKED + read", "return _UNTRACKED + read"),),
    ),
    (
        "line-not-woken",
        "whoever leaves the head of a line does not wake the next",
        (11, 13),
        ((Lines.leave, "heir.bell.set()", "pass"),),
    ),
    (
        "queue-not-left",
        "who gives up waiting for a fair lock stays in its queue",
        (9, 11),
        ((fair.undo, "commands.pass_on(place.request, place.owner, place.claim)", "commands._UNTRACKED"),),
    ),
)

BUGS: tuple[Bug, ...] = TIME + VOTES + GUARD + TOKENS + WAITING
