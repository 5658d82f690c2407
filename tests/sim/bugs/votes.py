"""Bugs in votes, in the restart guard and in tokens."""

from __future__ import annotations

from handfast import watchdog
from handfast.core import attempt, foreign, guard, release, tokens, votes
from handfast.core.config import LockConfig, Timing
from handfast.core.hold import Hold
from handfast.core.local_queue import Acquisition
from handfast.core.nodes import ClockStep, NodeGroup
from handfast.core.queue import ServerQueue
from handfast.net.connection import Connection
from tests.sim.bugs.bug import Bug

__all__ = ["GUARD", "TOKENS", "VOTES"]

GIVES = "claim pass yield"
"""The scripts that give votes to waiters."""
RELEASES = "pass yield"

VOTES: tuple[Bug, ...] = (
    Bug(
        "majority-off-by-one",
        "half of the nodes are thought to be a majority",
        (1, 5, 9),
        ((votes.majority, "nodes // 2 + 1", "max(1, nodes // 2)"),),
    ),
    Bug(
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
    Bug(
        "rollback-only-where-granted",
        "a failed attempt is undone only on nodes that were heard to grant it",
        (9, 11),
        (
            (attempt._forget_refusals, "if ballot.noes and not queued:", "if not queued:"),
            (attempt._forget_refusals, "if type(answer) is Refused:", "if not is_grant(answer):"),
        ),
    ),
    Bug(
        "release-of-anybody's",
        "a release deletes whatever is there",
        (8,),
        (
            (
                "pass",
                "if call('GET', KEYS[1]) == owner then free, shorter",
                "if call('GET', KEYS[1]) then free, shorter",
            ),
            (
                "pass",
                "  if call('GET', KEYS[1]) ~= owner then return 0 end",
                "  if not call('GET', KEYS[1]) then return 0 end",
            ),
            ("pass", "elseif call('GET', KEYS[1]) == owner then", "elseif call('GET', KEYS[1]) then"),
            ("delete_owned", "if redis.call('GET', KEYS[1]) == ARGV[1] then", "if true then"),
        ),
    ),
    Bug(
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
    Bug(
        "heal-over-another",
        "healing takes the key of another owner",
        (1, 5, 8),
        (("restore_vote", "if holder and holder ~= owner then return 0 end", ""),),
    ),
    Bug(
        "healed-not-followed",
        "the release of a healed lease does not follow the heal on its connection",
        (9,),
        ((release._conclude, "hold.healed or failed or not (ballot.won or gone)", "failed or not (ballot.won or gone)"),),
    ),
    Bug(
        "one-owner-for-all",
        "all attempts of a client have the same owner",
        (1, 3, 5, 7, 8, 9),
        ((Acquisition.identify, "config.owner_start + nonce()", 'config.owner_start + b"0" * 32'),),
    ),
    Bug(
        "identity-reused",
        "an acquisition that begins again does so under the same identity",
        (1, 5, 9, 11, 17),
        ((attempt.withdraw, "acquisition.who = None", "pass"),),
    ),
    Bug(
        "late-arrival-ignored",
        "the watchdog releases once what may arrive after its release",
        (9,),
        ((watchdog.Watchdog._release, "if hold.may_arrive_late:", "if False:"),),
        "tests/sim/test_sim.py::test_claim_that_arrives_behind_the_watchdogs_release_is_released_once_more",
    ),
    Bug(
        "one-generation-for-all",
        "the release of one acquisition of an explicit owner ends the others",
        (1, 5, 8),
        ((RELEASES, "if last > now_ms then", "if false then"),),
    ),
    Bug(
        "extension-of-an-ended-generation",
        "an extension does not look which acquisition of an explicit owner it is for",
        (1, 5, 7),
        (
            (
                "extend",
                "if generation ~= '-' and call('HEXISTS', KEYS[n + i], generation) == 0 then return 0 end",
                "",
            ),
        ),
        "tests/sim/test_node_rules.py::test_an_ended_acquisition_of_an_explicit_owner_is_not_extended",
    ),
    Bug(
        "late-request-shortens",
        "a request that comes late shortens an acquisition of an explicit owner",
        (5,),
        (
            (
                "claim extend acquire_all restore_vote",
                "math.max(now_ms + ttl, math.min(noted, now_ms + longest))",
                "now_ms + ttl",
            ),
        ),
        "tests/sim/test_node_rules.py::test_late_request_does_not_shorten_an_acquisition_of_an_explicit_owner",
    ),
    Bug(
        "restored-token-falls",
        "a restored vote brings the token of the acquisition, though its explicit owner had a larger one",
        (2,),
        (("restore_vote", "string.format('%.0f', shared)", "ARGV[5]"),),
        "tests/sim/test_node_rules.py::test_a_restored_vote_does_not_lower_the_token_of_an_explicit_owner",
    ),
    Bug(
        "published-keeps-votes",
        "a waiter for a key that other programs share keeps the votes that were not enough",
        (9, 11),
        ((foreign.wait_for_change, "start_over(io, queues, acquisition)", "pass"),),
    ),
)

GUARD: tuple[Bug, ...] = (
    Bug(
        "no-guard",
        "a node that has forgotten may vote at once",
        (1, 2, 3, 4, 5, 10),
        (
            (guard.quarantine, "group.max_ttl_ms, memory(seen))", 'group.max_ttl_ms, b"0")'),
            (guard.period, "return group.policy.max_ttl * (1 + 2 * group.policy.drift) + MARGIN", "return 0.0"),
            (guard.check_vote, "if not proof or proof != node.marker:", "if False:"),
        ),
    ),
    Bug(
        "flush-unnoticed",
        "the marker behind the votes is not compared: FLUSHALL on a live connection goes unseen",
        (1, 2, 3, 4, 5, 10),
        ((guard.check_vote, "if not proof or proof != node.marker:", "if False:"),),
    ),
    Bug(
        "promotion-unnoticed",
        "a connection never asks again whether its server was demoted and promoted",
        (1, 2, 3, 4, 5, 10),
        ((Connection.confirm, "self.check is not None and", "False and self.check is not None and"),),
        "tests/unit/test_connection.py::test_confirmation_precedes_request_if_the_last_one_is_old",
    ),
    Bug(
        "hand-over-after-promotion",
        "a hand-over counts however long ago its server was asked whether it was promoted",
        (1, 2, 3, 4, 5, 10),
        ((guard.is_recent, "return not group.guard or now - sent < period(group) / 2", "return True"),),
        "tests/unit/test_queue_rules.py::test_hand_over_of_a_guarded_node_counts_for_a_recent_claim_only",
    ),
    Bug(
        "late-vote",
        "a vote counts however late it comes: its node may have been demoted and promoted again since it was asked",
        (1, 2, 3, 4, 5, 10),
        ((guard.check_vote, "return None if is_recent(group, sent, received) else LATE", "return None"),),
        "tests/unit/test_guard_rules.py::test_vote_that_comes_late_is_a_fault",
    ),
    Bug(
        "any-incarnation",
        "a marker of an earlier life is believed: a server that came back with old data votes",
        (1, 2, 3, 4, 5, 10),
        ((guard.adopt, " or marker.incarnation != node.incarnation", ""),),
    ),
    Bug(
        "quarantine-too-short",
        "the quarantine is half as long as a lease may be",
        (1, 5, 10),
        ((guard.period, "group.policy.max_ttl * (1 + 2 * group.policy.drift) + MARGIN", "group.policy.max_ttl / 2"),),
    ),
    Bug(
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
    Bug(
        "no-repair",
        "a node votes after its quarantine with whatever its counters are",
        (2, 3, 4),
        ((guard.floor_for, "known = max(", "return 0\n    known = max("),),
    ),
    Bug(
        "set-back-clock",
        "a key that lasts for hours because its server's clock was set back is left there",
        (9, 11, 17),
        (
            ("claim", "if left > longest then\n      left", "if false then\n      left"),
            ("acquire_all", "if left > tonumber(ARGV[8]) then", "if false then"),
        ),
    ),
    Bug(
        "forgetful-vote-stays-counted",
        "a vote counts on though its node says that it has forgotten",
        (1, 5, 10),
        ((ServerQueue._failed, "vote.deadline = 0.0", "pass"),),
        "tests/unit/test_queue_rules.py::test_vote_of_a_node_that_has_forgotten_does_not_count_any_more",
    ),
    Bug(
        "unproven-hand-over",
        "a hand-over counts whatever the node shows with it",
        (1, 2, 3, 4, 5, 10),
        (
            (
                ServerQueue._handed_over,
                "fault = guard.check_vote(self.group, node, push.proof, push.server_us, vote.sent, now)",
                "fault = None",
            ),
        ),
        "tests/unit/test_queue_rules.py::test_hand_over_of_a_guarded_node_counts_with_its_proof_only",
    ),
    Bug(
        "quarantine-by-the-server's-clock",
        "a quarantine is over when the node's clock says so",
        (1, 5, 10),
        ((guard._is_over, "server_us >= marker.ready_at and now >= node.opens_at", "server_us >= marker.ready_at"),),
        "tests/unit/test_guard_rules.py::test_quarantine_is_over_by_both_clocks",
    ),
    Bug(
        "quarantine-leaves-no-majority",
        "a client puts a suspect in quarantine though too few other nodes may vote",
        (11,),
        ((NodeGroup.may_quarantine, "self.n == 1 or", "True or"),),
    ),
    Bug(
        "old-step-is-our-own",
        "a client that was idle takes steps of several nodes, at times that it does not know, for its own standstill",
        (1, 5),
        ((ClockStep.is_within, "self.before - self.since <= seconds", "True"),),
        "tests/unit/test_clock_steps.py::test_nodes_that_were_not_read_for_longer_than_max_ttl_stay_suspect",
    ),
)

TOKENS: tuple[Bug, ...] = (
    Bug(
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
        "tests/unit/test_tokens.py::test_tokens_are_ordered_and_unique_under_any_interleaving",
    ),
    Bug(
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
    Bug(
        "token-from-wall-clock",
        "a node gives the proposed token, whatever its counter says",
        (2, 3, 4, 12),
        (
            (GIVES, "if token < least then token, text = least, nil end", ""),
            ("pass", "usual = count and number >= least + step and", "usual = count and"),
        ),
    ),
    Bug(
        "floor-unused",
        "a repaired node does not use the floor that it was given",
        (2, 3, 4),
        (
            (GIVES, "math.max(last, floor_in(marker))", "last"),
            ("pass", "least = math.max(least, tonumber(string.match(marker, ' (%d+)$') or '0'))", ""),
        ),
    ),
    Bug(
        "cohort-keeps-token",
        "what is passed on in a process keeps its token",
        (2, 3),
        ((Hold.successor, "hold.token += 1", "pass"),),
    ),
    Bug(
        "cohort-reserves-nothing",
        "a cohort counts tokens on by itself that no server has reserved",
        (2, 3),
        (
            (Timing.__init__, "1 + policy.cohort if policy.fence else 0", "1 if policy.fence else 0"),
            (LockConfig.__init__, "1 + policy.cohort if policy.fence else 0", "1 if policy.fence else 0"),
        ),
    ),
    Bug(
        "old-proposal",
        "a proposal that is older than an expired counter is believed",
        (2, 3, 4),
        ((GIVES, "if token == 0 or token <= now - (retention - 1) * 1000000 then", "if token == 0 then"),),
    ),
    Bug(
        "lost-raise-counts",
        "a node counts as raised though it has not said so",
        (2, 3, 4),
        (
            (
                tokens.agree,
                "at_token |= {node for node in behind if raised.votes >> node & 1}",
                "at_token |= set(behind)",
            ),
        ),
        "tests/unit/test_tokens.py::test_node_that_could_not_be_raised_does_not_have_the_token",
    ),
    Bug(
        "repair-from-too-few",
        "the floor of a forgetful node is taken from any one node that remembers",
        (2, 3, 4),
        ((guard.floor_for, "if remember > group.n - group.need else None", "if remember else None"),),
        "tests/unit/test_token_floor.py::test_floor_is_never_below_token_while_minority_forgets",
    ),
)
