"""Bugs in the wait queues: on the nodes, and inside a process."""

from __future__ import annotations

from handfast.core import attempt
from handfast.core.foreign import wait_for_change
from handfast.core.local_queue import Waiter, WaitQueues
from handfast.core.queue import ServerQueue, _ClaimReplies, wait_in_queue
from handfast.protocol import commands
from tests.sim.bugs.bug import Bug

__all__ = ["QUEUES"]

GIVES = "claim pass yield"
"""The scripts that give votes to waiters."""

QUEUES: tuple[Bug, ...] = (
    Bug(
        "no-inquire",
        "a higher ticket is not asked for its vote",
        (11, 17),
        (
            ("claim", "== '*' and tonumber(ticket) < tonumber(given) then", "== '*' and false then"),
            ("claim", "then inquired = 1 end", "then inquired = 0 end"),
        ),
    ),
    Bug(
        "uncounted-after-the-yield",
        "a vote that is given back counts until the node has answered",
        (1, 5),
        ((ServerQueue._inquired, "    vote.deadline = 0.0\n", ""),),
    ),
    Bug(
        "pass-to-the-newest",
        "a vote goes to the highest ticket",
        (11, 16),
        (
            (
                GIVES,
                "first = first or call('ZPOPMIN', KEYS[2])",
                "first = first or call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')\n"
                "  if first[1] then call('ZREM', KEYS[2], first[1]) end",
            ),
            (
                "pass",
                "first = call('ZPOPMIN', KEYS[2])\n    local heir",
                "first = call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')\n"
                "    call('ZREM', KEYS[2], first[1])\n    local heir",
            ),
        ),
    ),
    Bug(
        "claims-live-for-ever",
        "a vote goes to a waiter whose claim has ended",
        (11,),
        (
            (GIVES, "if owner and tonumber(ends) >= tonumber(time[1]) then", "if owner then"),
            ("pass", "and new_owner and tonumber(ends) >= tonumber(time[1])", "and new_owner"),
        ),
        "tests/sim/test_node_rules.py::test_a_claim_that_has_ended_is_not_given_the_vote",
    ),
    Bug(
        "deaf-waiter",
        "a vote goes to a waiter that nobody can reach",
        (11, 17),
        (
            (GIVES, "return type(heard) == 'number' and heard > 0", "return true"),
            ("pass", "if type(heard) == 'number' and heard > 0 then", "if usual then"),
        ),
    ),
    Bug(
        "stamps-ignored-by-the-waiter",
        "a grant that our own yield has overtaken is counted",
        (1, 5),
        ((ServerQueue._count, "if 0 < stamp <= vote.yielded:", "if False:"),),
        "tests/unit/test_queue_rules.py::test_vote_that_was_yielded_never_counts_and_is_yielded_again",
    ),
    Bug(
        "stamps-ignored-by-the-node",
        "a repeated yield takes a newer vote",
        (1, 5),
        (("yield", "whose == id and stamp == ARGV[3] then", "whose == id then"),),
        "tests/sim/test_node_rules.py::test_a_repeated_yield_does_not_take_a_newer_vote",
    ),
    Bug(
        "yielded-share-in-no-queue",
        "a waiter that yields its share of an explicit owner's vote leaves the queue",
        (11, 17),
        (("yield", "if free ~= nil then", "if free then"),),
        "tests/sim/test_node_rules.py::test_a_waiter_that_yields_its_share_stays_in_the_queue",
    ),
    Bug(
        "one-record-for-all-shares",
        "acquisitions of an explicit owner have one stamp together, so only the last of them can yield",
        (11, 17),
        (("claim yield", "string.match(record(generation),", "string.match(record('-'),"),),
        "tests/sim/test_node_rules.py::test_acquisitions_of_an_explicit_owner_each_yield_their_own_share",
    ),
    Bug(
        "joined-shares-yielded-at-once",
        "a waiter that joins a holder of its owner yields each share before the others can make a majority",
        (),
        ((ServerQueue._postpones, "if not self.shares or", "if True or"),),
        "tests/lock/test_explicit_owners.py::test_all_waiters_of_owner_get_the_lock_together",
    ),
    Bug(
        "hint-to-the-same-owner",
        "a waiter that holds the lock with its owner is told to look, instead of the next one",
        (11,),
        ((GIVES, "if ends and owner ~= new_owner then", "if ends then"),),
        "tests/sim/test_node_rules.py::test_next_waiter_of_another_owner_gets_push_to_look_earlier",
    ),
    Bug(
        "owner-not-told",
        "waiters of an explicit owner do not hear that the owner has got the vote",
        (11,),
        ((GIVES, "if generation ~= '-' then tell_owner(owner) end", ""),),
        "tests/sim/test_node_rules.py::test_a_new_vote_of_an_explicit_owner_is_told_to_its_other_waiters",
    ),
    Bug(
        "holder-yields",
        "a waiter that has a majority gives a vote back",
        (1, 5),
        ((ServerQueue._inquired, "if self._has_majority(now) or not vote.deadline", "if not vote.deadline"),),
        "tests/unit/test_queue_rules.py::test_holder_ignores_inquiries",
    ),
    Bug(
        "expired-grant-counts",
        "a vote counts though its deadline has passed",
        (1, 5, 6, 18),
        (
            (ServerQueue._count, "elif now >= deadline:", "elif False:"),
            (ServerQueue.counted, "if vote.deadline > now:", "if vote.deadline > 0.0:"),
            (ServerQueue.conclude, "if self.io.now() >= deadline or", "if"),
        ),
    ),
    Bug(
        "until-the-latest-deadline",
        "a lease lasts as long as the last of its votes",
        (1, 5),
        ((ServerQueue.conclude, "deadline = deadlines[-self.group.need]", "deadline = deadlines[-1]"),),
    ),
    Bug(
        "pass-keeps-the-claim",
        "an acquisition that ends stays in the queue",
        (9, 11, 17),
        (("pass", "if own or call('ZREM', KEYS[2], id) == 1 then", "if false then"),),
        "tests/sim/test_node_rules.py::test_a_waiter_that_leaves_is_not_given_the_vote",
    ),
    Bug(
        "yield-does-not-queue",
        "a waiter that gives its vote back is not in the queue any more",
        (11, 16, 17),
        (("yield", "call('ZADD', KEYS[2], ticket, id)", ""),),
        "tests/sim/test_node_rules.py::test_a_waiter_that_yields_stays_in_the_queue",
    ),
    Bug(
        "no-looking-again",
        "a waiter relies on pushes alone",
        (11, 13, 17),
        (
            (
                ServerQueue.next_look,
                "if vote.due < look:",
                "if False:",
            ),
        ),
    ),
    Bug(
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
        "tests/unit/test_queue_rules.py::test_ticket_is_sent_to_all_nodes_including_granting_ones",
    ),
    Bug(
        "arrives-again",
        "on one node a waiter that finds its own vote takes a new ticket",
        (16,),
        (
            ("claim", "if single then ticket = whose == id and given or '0' end", ""),
            ("claim", "if lowest[1] and not single and", "if lowest[1] and"),
        ),
        "tests/sim/test_node_rules.py::test_a_waiter_that_finds_its_own_vote_keeps_its_ticket",
    ),
    Bug(
        "next-is-not-told",
        "a release leaves the lock free, and tells nobody",
        (11,),
        (
            ("pass", "heir, _, _, token = give(last, not own and first)", ""),
            ("pass", "if call('EXISTS', KEYS[2]) == 0 then", "if true then"),
        ),
    ),
    Bug(
        "claim-sent-again",
        "a claim whose script was lost is sent again though its waiter has left",
        (9,),
        ((_ClaimReplies.end, "self.over = True", "pass"),),
        "tests/unit/test_queue_rules.py::test_claims_of_a_waiter_that_has_left_are_over",
    ),
    Bug(
        "another-connection's-fault",
        "a waiter takes a node for lost because another connection to it has failed",
        (11, 17),
        ((ServerQueue._may_claim, "or state.no_push", "or state.no_push or state.fault"),),
    ),
    Bug(
        "lost-wake-up",
        "the look at another program's key does not ask to be told of its end",
        (11,),
        ((commands.track, "(_TRACKED if tracked else _UNTRACKED) + read", "_UNTRACKED + read"),),
        "tests/unit/test_queue.py::test_deleted_shared_key_is_acquired_without_polling",
    ),
    Bug(
        "local-queue-not-woken",
        "a waiter that leaves the head of the local queue does not wake the next",
        (11, 13),
        ((WaitQueues.leave, "head.wakeup.set()", "pass"),),
    ),
    Bug(
        "sibling's-lease-given-up",
        "what a sibling has handed over is given up with the waiter's own claims",
        (18,),
        ((attempt.withdraw, "if hold is not None and hold.who is acquisition.who:", "if hold is not None:"),),
    ),
    Bug(
        "sibling-not-woken",
        "a waiter is not told that its sibling has handed over to it",
        (11,),
        ((WaitQueues.hand_over, "head.wakeup.set()", "pass"),),
    ),
    Bug(
        "local-hand-over-unfinished",
        "a hold that was handed over inside its process stays half released",
        (13,),
        ((WaitQueues.hand_over, "hold.finish_release()", "pass"),),
    ),
    Bug(
        "stale-hand-over-used",
        "a waiter takes what its sibling handed over though it is over by now",
        (5, 6, 18),
        ((Waiter.usable, "if self.given is not None and not self.given.held_at(now):", "if False:"),),
    ),
    Bug(
        "hand-over-unseen",
        "a waiter in the servers' queues does not look at what its sibling hands over",
        (11,),
        ((wait_in_queue, "if waiter.given is not None and", "if False and"),),
    ),
    Bug(
        "hand-over-unseen-in-an-outage",
        "a waiter for a shared key does not look at what its sibling hands over while too few nodes answer",
        (11,),
        (
            (
                wait_for_change,
                "given = waiter.usable(io.now())",
                "given = None if unreachable_since is not None else waiter.usable(io.now())",
            ),
        ),
        "tests/unit/test_queue.py::test_hold_from_a_sibling_ends_a_wait_in_an_outage",
    ),
    Bug(
        "early-inquiry-forgotten",
        "an inquiry that overtakes its grant is forgotten",
        (11, 16, 17),
        ((ServerQueue._inquired, "vote.inquired = stamp", "pass"),),
        "tests/unit/test_queue_rules.py::test_inquiry_that_overtakes_its_grant_is_remembered",
    ),
    Bug(
        "ticket-by-own-clock",
        "a ticket is the time of the client's clock",
        (11, 16, 17),
        ((ServerQueue._take_ticket, "sorted(times)[(len(times) - 1) // 2]", "self.io.wall()"),),
    ),
    Bug(
        "no-hint",
        "nobody is told to look when a holder with a shorter ttl comes",
        (11,),
        ((GIVES, "if ttl < 0 or ttl >= 5000 then return end", "do return end"),),
        "tests/sim/test_node_rules.py::test_next_waiter_gets_push_to_look_earlier",
    ),
    Bug(
        "shortened-untold",
        "nobody is told to look when a release of an inner acquisition shortens the lock",
        (11,),
        (("pass", "if shorter then hint(call('PTTL', KEYS[1]), true) end", ""),),
        "tests/sim/test_node_rules.py::test_release_that_shortens_a_lock_tells_its_first_waiter",
    ),
)
