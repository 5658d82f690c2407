"""Bugs in the length of a lease, and in its renewal and release."""

from __future__ import annotations

from handfast import watchdog
from handfast.core import attempt, renew, several
from handfast.core.hold import Hold
from handfast.core.node_votes import handed_over_at
from handfast.core.queue import ServerQueue
from handfast.core.schedule import Schedule
from handfast.net.connection import Connection
from handfast.options import Policy
from sim.client import Client
from tests.sim.bugs.bug import Bug

__all__ = ["LEASES"]

LEASES: tuple[Bug, ...] = (
    Bug(
        "deadline-from-reply",
        "validity counts from the reply to an acquisition, not from its send",
        (1, 5),
        (
            (attempt._conclude, "deadline = sent + timing.validity", "deadline = io.now() + timing.validity"),
            (ServerQueue._granted, "sent + self.config.policy.validity", "now + self.config.policy.validity"),
        ),
    ),
    Bug(
        "no-second-look",
        "the deadline is not looked at again once a majority has granted",
        (1, 5, 6, 18),
        (
            (attempt._conclude, "token is None or io.now() >= deadline or", "token is None or"),
            (ServerQueue.conclude, "if self.io.now() >= deadline or", "if"),
        ),
    ),
    Bug(
        "renewal-from-reply",
        "a renewal counts from its reply",
        (1, 5),
        ((renew._conclude, "sent + hold.config.policy.validity(ttl)", "now + hold.config.policy.validity(ttl)"),),
    ),
    Bug(
        "renewal-past-deadline",
        "a renewal is still sent when the deadline has passed while connecting",
        (7,),
        (
            (watchdog.Watchdog._renew, "if hold.held_at(now)]", "if True]"),
            (renew.extend, "if hold.state != HELD or expire(hold, io.now()):", "if False:"),
        ),
    ),
    Bug(
        "late-renewal-counts",
        "a renewal that is confirmed after the deadline keeps the lease alive",
        (1, 5, 6, 7),
        ((renew._conclude, "if now >= hold.deadline:", "if now >= hold.deadline and not ballot.won:"),),
    ),
    Bug(
        "drift-ignored",
        "validity is the whole ttl: clock rates are thought to be equal",
        (1, 5),
        ((Policy.validity, "return ttl - ttl * self.drift - DRIFT_MARGIN", "return ttl"),),
    ),
    Bug(
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
    Bug(
        "handed-over-from-push",
        "a fair lock that was handed over is valid from the moment its new holder hears of it",
        (1, 5),
        (
            (
                handed_over_at,
                "since = sent + waited * config.slowest",
                "since = now",
            ),
        ),
    ),
    Bug(
        "stale-push",
        "a hand-over that is older than the last answer is believed, and counts from the question",
        (1, 5),
        (
            (
                handed_over_at,
                "since = sent + waited * config.slowest",
                "since = min(now, sent + max(0.0, waited * config.slowest))",
            ),
            (handed_over_at, "not server_us or waited < 0 or since > now:", "not server_us:"),
        ),
        "tests/unit/test_queue_rules.py::test_hand_over_with_impossible_time_is_claimed_again",
    ),
    Bug(
        "loss-is-not-final",
        "a lost lease comes back to life when its last renewal is confirmed after all",
        (1, 5, 6, 7),
        (
            (renew._conclude, "if now >= hold.deadline:", "if now >= hold.deadline and not ballot.won:"),
            (Hold.confirm, "if self.retrying:", 'self.state = "held"\n    if self.retrying:'),
        ),
    ),
    Bug(
        "loss-untold",
        "the deadline passes and nobody is told; the watchdog tries again and again, without end",
        (0, 6),
        ((renew.expire, "if now < hold.deadline:", "if now < hold.deadline or hold.retrying:"),),
    ),
    Bug(
        "drift-ignored-in-hand-over",
        "a hand-over counts from the server's own idea of how long it was waited for",
        (1, 5),
        (
            (
                handed_over_at,
                "since = sent + waited * config.slowest",
                "since = sent + waited",
            ),
        ),
        "tests/unit/test_queue_rules.py::test_handed_over_vote_counts_from_the_hand_over_less_the_drift",
    ),
    Bug(
        "shorter-extension-unnoticed",
        "an extension to a shorter ttl holds only when it is confirmed",
        (1, 5),
        ((Hold.promise, "self.deadline = min(self.deadline, deadline)", "pass"),),
        "tests/unit/test_cancel_points.py::test_interrupted_shorter_extend_shortens_the_promise_unless_it_was_never_sent",
    ),
    Bug(
        "older-renewal-counts",
        "a renewal that was sent before a shorter extension makes the lease longer again",
        (1, 5, 6),
        ((Hold.confirm, "if sent >= self.extended_at:", "if True:"),),
        "tests/unit/test_hold.py::test_longer_renewal_under_way_does_not_undo_a_shorter_extension",
    ),
    Bug(
        "no-deadline-while-renewing",
        "nobody looks at a lease while its renewal is under way",
        (6,),
        ((Schedule.sort_out, "self.reschedule(hold, hold.deadline)", "pass"),),
    ),
    Bug(
        "looked-at-late",
        "a lease with little of its ttl left is looked at as late as any other",
        (6,),
        (
            (
                Schedule.add,
                "if ttl < UNSCHEDULED_TTL or now > hold.renew_from + UNSCHEDULED_SHARE * ttl:",
                "if ttl < UNSCHEDULED_TTL:",
            ),
        ),
        "tests/unit/test_schedule.py::test_loss_is_noticed_at_the_deadline_however_little_of_the_ttl_is_left",
    ),
    Bug(
        "dropped-lease-kept",
        "the watchdog does not release what nobody can release any more",
        (9, 11, 13, 17),
        ((watchdog.Watchdog.finish, "self._to_finish.append(hold)", "pass"),),
    ),
    Bug(
        "joined-until-the-latest",
        "a lease of several names lasts as long as the last of its parts",
        (1, 5),
        (
            (
                several._join,
                "deadline = min(part.deadline for part in parts)",
                "deadline = max(p.deadline for p in parts)",
            ),
        ),
    ),
    Bug(
        "smallest-token-of-the-parts",
        "a lease of several names has the smallest token of its parts",
        (2, 3, 4),
        (
            (
                several._join,
                "token = max(part.token_floor for part in parts)",
                "token = min(p.token_floor for p in parts)",
            ),
        ),
    ),
    Bug(
        "healed-part-forgotten",
        "the release of several names does not follow a vote that was restored for one of them",
        (9,),
        ((several._join, "hold.healed = any(part.healed for part in parts)", "pass"),),
        "tests/waiting/test_forms.py::test_release_of_several_names_follows_a_restored_vote",
    ),
    Bug(
        "sent-again-after-its-end",
        "a renewal whose script was lost is sent again after the deadline",
        (7,),
        ((Connection._again, "collector.over or self.now() >= collector.until", "collector.over"),),
        "tests/unit/test_connection.py::test_request_is_not_sent_again_after_its_end",
    ),
)
