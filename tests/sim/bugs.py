"""The list of deliberate bugs: see mutants.py. Name; what it is; invariants that may notice it; changes.

A change is a function, or the names of scripts; a piece of its text that occurs once; and what stands there instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from handfast import watchdog
from handfast.core import attempt, guard, release, renew, tokens, votes
from handfast.core.config import LockConfig, Timing
from handfast.core.hold import Hold
from handfast.core.local_queue import Acquisition, WaitQueues
from handfast.core.queue import ServerQueue
from handfast.options import Policy
from handfast.protocol import commands
from sim.client import Client

__all__ = ["BUGS", "Bug", "Change"]

Change = tuple[Callable[..., Any] | str, str, str]
Bug = tuple[str, str, tuple[int, ...], tuple[Change, ...]]

GIVES = "claim pass yield"
"""The scripts that give votes to waiters."""

TIME: tuple[Bug, ...] = (
    (
        "deadline-from-reply",
        "validity counts from the reply to an acquisition, not from its send",
        (1, 5),
        (
            (attempt._conclude, "deadline = sent + timing.validity", "deadline = io.now() + timing.validity"),
            (ServerQueue.on_reply, "answer.token, sent + validity)", "answer.token, now + validity)"),
        ),
    ),
    (
        "no-second-look",
        "the deadline is not looked at again once a majority has granted",
        (1, 5, 6, 18),
        (
            (attempt._conclude, "token is None or io.now() >= deadline or", "token is None or"),
            (ServerQueue.hold_if_won, "if self.io.now() >= deadline:", "if False:"),
        ),
    ),
    (
        "renewal-from-reply",
        "a renewal counts from its reply",
        (1, 5),
        ((renew._conclude, "sent + hold.config.policy.validity(ttl)", "now + hold.config.policy.validity(ttl)"),),
    ),
    (
        "renewal-past-deadline",
        "a renewal is still sent when the deadline has passed while connecting",
        (7,),
        (
            (watchdog.Watchdog._renew, "if hold.held_at(now)]", 'if hold.state == "held"]'),
            (renew.extend, "hold.state != HELD or expire(hold, io.now())", "hold.state != HELD"),
        ),
    ),
    (
        "late-renewal-counts",
        "a renewal that is confirmed after the deadline keeps the lease alive",
        (1, 5, 6, 7),
        ((renew._conclude, "if now >= hold.deadline:", "if now >= hold.deadline and not ballot.won:"),),
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
            (
                ServerQueue._handed_over,
                "since = vote.sent + waited * self.config.slowest",
                "since = now",
            ),
        ),
    ),
    (
        "stale-push",
        "a hand-over that is older than the last answer is believed, and counts from the question",
        (1, 5),
        (
            (
                ServerQueue._handed_over,
                "since = vote.sent + waited * self.config.slowest",
                "since = min(now, vote.sent + max(0.0, waited * self.config.slowest))",
            ),
            (ServerQueue._handed_over, "not vote.server_us or waited < 0 or since > now:", "not vote.server_us:"),
        ),
    ),
    (
        "loss-is-not-final",
        "a lost lease comes back to life when its last renewal is confirmed after all",
        (1, 5, 6, 7),
        (
            (renew._conclude, "if now >= hold.deadline:", "if now >= hold.deadline and not ballot.won:"),
            (Hold.confirm, "if self.retrying:", 'self.state = "held"\n    if self.retrying:'),
        ),
    ),
    (
        "loss-untold",
        "the deadline passes and nobody is told; the watchdog tries again and again, without end",
        (0, 6),
        ((renew.expire, "if now < hold.deadline:", "if now < hold.deadline or hold.retrying:"),),
    ),
)

VOTES: tuple[Bug, ...] = (
    (
        "majority-off-by-one",
        "half of the nodes are thought to be a majority",
        (1, 5, 9),
        ((votes.majority, "nodes // 2 + 1", "max(1, nodes // 2)"),),
    ),
    (
        "no-rollback",
        "a failed attempt is not undone",
        (9, 11, 17),
        (
            (
                attempt.withdraw,
                "if not take_back(io, acquisition.request, acquisition.who, acquisition.touched):",
                "if False:",
            ),
        ),
    ),
    (
        "rollback-only-where-granted",
        "a failed attempt is undone only on nodes that were heard to grant it",
        (9, 11),
        (
            (
                attempt._forget_refusals,
                "if type(answer) is Refused and not queued:",
                "if type(answer) is not Granted and not queued:",
            ),
        ),
    ),
    (
        "release-of-anybody's",
        "a release deletes whatever is there",
        (8,),
        (
            (
                "pass",
                "if call('GET', KEYS[1]) ~= owner then return 0 end\nlocal free",
                "if not call('GET', KEYS[1]) then return 0 end\nlocal free",
            ),
            (
                "pass",
                "  if call('GET', KEYS[1]) ~= owner then return 0 end",
                "  if not call('GET', KEYS[1]) then return 0 end",
            ),
            ("delete_owned", "if redis.call('GET', KEYS[1]) == ARGV[1] then", "if true then"),
        ),
    ),
    (
        "extension-of-anybody's",
        "an extension does not look whose key it is",
        (5, 8),
        (
            (
                "extend",
                "if call('GET', KEYS[i]) ~= owner then return 0 end",
                "if not call('GET', KEYS[i]) then return 0 end",
            ),
        ),
    ),
    (
        "heal-over-another",
        "healing takes the key of another owner",
        (1, 5, 8),
        (("restore_vote", "if holder and holder ~= owner then return 0 end", ""),),
    ),
    (
        "healed-not-followed",
        "the release of a healed lease does not follow the heal on its connection",
        (9,),
        ((release._conclude, "hold.healed or failed or not (ballot.won or gone)", "failed or not (ballot.won or gone)"),),
    ),
    (
        "one-owner-for-all",
        "all attempts of a client have the same owner",
        (1, 3, 5, 7, 8, 9),
        ((Acquisition.identify, "config.owner_start + nonce()", 'config.owner_start + b"0" * 32'),),
    ),
)

GUARD: tuple[Bug, ...] = (
    (
        "no-guard",
        "a node that has forgotten may vote at once",
        (1, 2, 3, 4, 5, 10),
        (
            (guard.quarantine, "group.max_ttl_ms, memory(seen))", 'group.max_ttl_ms, b"0")'),
            (guard.period, "return group.policy.max_ttl * (1 + 2 * group.policy.drift) + MARGIN", "return 0.0"),
            (guard.check_vote, "if proof is None or not node.marker or proof != (promotion, node.marker):", "if False:"),
        ),
    ),
    (
        "flush-unnoticed",
        "the marker behind the votes is not compared: FLUSHALL on a live connection goes unseen",
        (1, 2, 3, 4, 5, 10),
        ((guard.check_vote, "if proof is None or not node.marker or proof != (promotion, node.marker):", "if False:"),),
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
                "            io.actor.world.__dict__.setdefault('early', {})[i] = floor_for(group, states, group.n)",
            ),
            (
                guard.repair,
                "    if floor is not None:\n",
                "    early = [io.actor.world.__dict__.get('early', {}).pop(i, None) for i in ready]\n"
                "    floor = next((each for each in early if each is not None), floor)\n"
                "    if floor is not None:\n",
            ),
        ),
    ),
    (
        "no-repair",
        "a node votes after its quarantine with whatever its counters are",
        (2, 3, 4),
        ((guard.floor_for, "known = max(", "return 0\n    known = max("),),
    ),
    (
        "set-back-clock",
        "a key that lasts for hours because its server's clock was set back is left there",
        (9, 11, 17),
        (("claim acquire_all", "if left > tonumber(ARGV[9]) then", "if false then"),),
    ),
)

TOKENS: tuple[Bug, ...] = (
    (
        "no-raise",
        "where the answers differ, the largest of the M smallest is taken, and the others are not raised to it",
        (2, 3, 4),
        (
            (
                tokens.agree,
                "return (token if len(at_token) >= group.need else None), at_token",
                "return token, set(counters)",
            ),
            (tokens.agree, "await io.broadcast(payloads, raised, timeout)", "pass"),
        ),
    ),
    (
        "r-th-largest",
        "where the answers differ, the M-th largest is taken, which M nodes have reached: in order, but not unique",
        (2, 3, 4),
        (
            (
                tokens.agree,
                "token = chosen[-1][0]",
                "return sorted(counters.values())[-group.need], set(counters)\n    token = chosen[-1][0]",
            ),
        ),
    ),
    (
        "token-from-wall-clock",
        "a node gives the proposed token, whatever its counter says",
        (2, 3, 4, 12),
        ((GIVES, "if token < least then token = least end", ""),),
    ),
    (
        "floor-unused",
        "a repaired node does not use the floor that it was given",
        (2, 3, 4),
        ((GIVES, "local least = math.max(count, floor) + step", "local least = count + step"),),
    ),
    (
        "cohort-keeps-token",
        "what is passed on in a process keeps its token",
        (2, 3),
        ((Hold.successor, "hold.token += 1", "pass"),),
    ),
    (
        "cohort-reserves-nothing",
        "a cohort counts tokens on by itself that no server has reserved",
        (2, 3),
        (
            (Timing.__init__, "1 + policy.cohort if policy.fence else 0", "1 if policy.fence else 0"),
            (LockConfig.__init__, "1 + policy.cohort if policy.fence else 0", "1 if policy.fence else 0"),
        ),
    ),
    (
        "old-proposal",
        "a proposal that is older than an expired counter is believed",
        (2, 3, 4),
        ((GIVES, "if token == 0 or (count == 0 and token <= now - retention * 1000000) then", "if token == 0 then"),),
    ),
)

QUEUE: tuple[Bug, ...] = (
    (
        "no-inquire",
        "a higher ticket is not asked for its vote",
        (11, 17),
        (
            ("claim", "if stamp and queues and tonumber(ticket) < tonumber(given) then", "if false then"),
            ("claim", "then inquired = 1 end", "then inquired = 0 end"),
        ),
    ),
    (
        "uncounted-after-the-yield",
        "a vote that is given back counts until the node has answered",
        (1, 5),
        ((ServerQueue._inquired, "    vote.deadline = 0.0\n", ""),),
    ),
    (
        "pass-to-the-newest",
        "a vote goes to the highest ticket",
        (11, 16),
        (
            (
                GIVES,
                "local function give(floor)\n  local first = call('ZPOPMIN', KEYS[2])",
                "local function give(floor)\n  local first = call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')\n"
                "  if first[1] then call('ZREM', KEYS[2], first[1]) end",
            ),
        ),
    ),
    (
        "claims-live-for-ever",
        "a vote goes to a waiter whose claim has ended",
        (11,),
        ((GIVES, "if owner and tonumber(ends) >= tonumber(time[1]) then", "if owner then"),),
    ),
    (
        "deaf-waiter",
        "a vote goes to a waiter that nobody can reach",
        (11, 17),
        ((GIVES, "return type(heard) == 'number' and heard > 0", "return true"),),
    ),
    (
        "stamps-ignored-by-the-waiter",
        "a grant that our own yield has overtaken is counted",
        (1, 5),
        ((ServerQueue._count, "if 0 < stamp <= vote.yielded:", "if False:"),),
    ),
    (
        "stamps-ignored-by-the-node",
        "a repeated yield takes a newer vote",
        (1, 5),
        (("yield", "whose == id and stamp == ARGV[4] and", "whose == id and"),),
    ),
    (
        "holder-yields",
        "a waiter that has a majority gives a vote back",
        (1, 5),
        ((ServerQueue._inquired, "if self._has_majority() or not vote.deadline", "if not vote.deadline"),),
    ),
    (
        "expired-grant-counts",
        "a vote counts though its deadline has passed",
        (1, 5, 6, 18),
        (
            (ServerQueue._count, "elif now >= deadline:", "elif False:"),
            (ServerQueue.hold_if_won, "if vote.deadline > now]", "if vote.deadline > 0.0]"),
            (ServerQueue.hold_if_won, "if self.io.now() >= deadline:", "if False:"),
        ),
    ),
    (
        "until-the-latest-deadline",
        "a lease lasts as long as the last of its votes",
        (1, 5),
        ((ServerQueue.hold_if_won, "deadline = deadlines[self.group.need - 1]", "deadline = deadlines[0]"),),
    ),
    (
        "pass-keeps-the-claim",
        "an acquisition that ends stays in the queue",
        (9, 11),
        (("pass", "if call('ZREM', KEYS[2], id) == 1 then", "if false then"),),
    ),
    (
        "yield-does-not-queue",
        "a waiter that gives its vote back is not in the queue any more",
        (11, 16, 17),
        (("yield", "call('ZADD', KEYS[2], ticket, id)", ""),),
    ),
    (
        "no-looking-again",
        "a waiter relies on pushes alone",
        (11, 13, 17),
        (
            (
                ServerQueue.next_look,
                "return self.acquisition.earlier(min(vote.due for vote in self.votes))",
                "return self.acquisition.earlier(NEVER)",
            ),
        ),
    ),
    (
        "ticket-only-where-refused",
        "nodes that have granted the first attempt are not told the ticket",
        (11, 17),
        (
            (
                ServerQueue.seed,
                "self.votes[node].answer = answer",
                "self.votes[node].answer = answer\n            if type(answer) is Granted:\n"
                "                self.votes[node].due = NEVER",
            ),
        ),
    ),
    (
        "arrives-again",
        "on one node a waiter that finds its own vote takes a new ticket",
        (16,),
        (("claim", "if ARGV[10] == '0' then ticket = whose == id and given or '0' end", ""),),
    ),
    (
        "next-is-not-told",
        "a release leaves the lock free, and tells nobody",
        (11,),
        (("pass", "if give(floor) then return 2 end", ""),),
    ),
    (
        "claim-sent-again",
        "a claim whose script was lost is sent again though its waiter has left",
        (9,),
        ((ServerQueue.end, "replies.over = True", "pass"),),
    ),
    (
        "another-connection's-fault",
        "a waiter takes a node for lost because another connection to it has failed",
        (11, 17),
        ((ServerQueue._due_payload, "or state.no_push", "or state.no_push or state.fault"),),
    ),
    (
        "lost-wake-up",
        "the look at another program's key does not ask to be told of its end",
        (11,),
        ((commands.track, "(_TRACKED if tracked else _UNTRACKED) + read", "_UNTRACKED + read"),),
    ),
    (
        "local-queue-not-woken",
        "a waiter that leaves the head of the local queue does not wake the next",
        (11, 13),
        ((WaitQueues.leave, "head.wakeup.set()", "pass"),),
    ),
    (
        "sibling's-lease-given-up",
        "what a sibling has handed over is given up with the waiter's own claims",
        (18,),
        ((attempt.withdraw, "if hold is not None and hold.who is acquisition.who:", "if hold is not None:"),),
    ),
)

BUGS: tuple[Bug, ...] = TIME + VOTES + GUARD + TOKENS + QUEUE
