"""Notices steps of clocks: whenever a node tells its time, it is compared with this machine's.

Nodes tell their time with votes, renewals and handshakes. Between two readings the offset between a node's clock and this
machine's may move as far as their rates may differ. If it moves further, one of the two clocks has stepped. A vote that
was given meanwhile does not count. A reading bounds the offset by its round trip. A slow round trip gives wide bounds, so
the limit from earlier readings is kept while it is lower: steps that are too short to be noticed add up.

**A node's clock stepped forward** if it stepped alone. Its keys expired early, so the node has forgotten leases. It is
suspect, and this client puts it in quarantine.

**This machine's clock stood still** if most nodes stepped alike: by the same amount, at a time that all their readings
allow. A paused virtual machine does that. The deadlines of this client's holds are too late, so all of them are lost. The
nodes are well, and a quarantine would stop every other client. So the suspicions are dropped, and the limits of the other
nodes are raised: otherwise these nodes would later look as if they had stepped alone.

Several short pauses do not look alike. A near node notices a pause that a slow round trip hides, and each node may notice
another sum of them. Two rules keep a client with such a clock from stopping the others:

1. **A majority of suspects is this machine's clock as well**, whatever the amounts, if each of them stepped within
   max_ttl. A suspect counts from its step to the end of its quarantine. Exclusion is promised only while fewer than a
   majority of nodes are suspect (A5), so the other explanation is outside the promise; tokens still protect the data. The
   limit on the time matters: of two nodes that this client has not asked for hours, one may have stepped hours ago and
   be well, and the other just now. In this case the holds are lost, and the suspicions stay.
2. **A client puts a suspect in quarantine only if a majority of nodes that vote is left.** Otherwise it tells nobody, and
   does not count the votes of the suspect until Q has passed since its step. So only this client waits: it neither stops
   others nor trusts a node that may have forgotten a lease. Another client that has talked to the node before notices a
   real step by itself.

With a single node the two cases look the same. Rule 2 would leave the node to clients that connect after the step and
cannot notice it, so the node goes into quarantine.
"""

from __future__ import annotations

from typing import Final

from handfast.core.nodes import ClockStep, Node, NodeGroup

__all__ = ["clock_stepped", "known_times", "read_clock"]

STEP_MARGIN: Final = 0.02
"""Seconds by which a clock may be corrected without counting as stepped; less than the drift of a ttl of 2 s."""


def read_clock(group: NodeGroup, index: int, sent: float, received: float, server_us: int) -> bool:
    """Compare a time that a node has told. True if a clock has stepped: the node's answer does not count as a vote."""
    node = group.nodes[index]
    if not clock_stepped(node, sent, received, server_us, group.policy.drift):
        return False
    group.suspect(index)
    if group.n > 1:
        _attribute(group, node, received)
    return True


def _attribute(group: NodeGroup, node: Node, now: float) -> None:
    """Decide whether it was this machine's clock, after a step of `node` against it."""
    alike = _alike([each for each in group.nodes if each.step is not None], group.need)
    if alike:
        _trust_again(group, alike, _common([each.step for each in alike if each.step is not None]))
    elif group.suspected(now) < group.need:
        return
    else:
        suspects = [group.nodes[index] for index in group.suspects]
        if node.step is not None and all(each.step and each.step.is_within(group.policy.max_ttl) for each in suspects):
            _trust_again(group, suspects, node.step)
    group.stood_still()


def clock_stepped(node: Node, sent: float, received: float, server_us: int, drift: float) -> bool:
    """Whether a node's clock stepped forward against this machine's, beyond drift and round trip. Sets `node.step`."""
    server = server_us / 1e6
    low, high = server - received, server - sent
    known = node.clock
    if known is None:
        node.clock = (low, high, high, received, received)
        return False
    known_low, known_high, limit, read_at, since = known
    moved = drift * (received - read_at) if received > read_at else 0.0
    limit += moved
    if low > limit + STEP_MARGIN:
        # Several short steps may have added up to exceed the limit. The amount is of those since the last reading.
        least, most = max(0.0, low - known_high - moved), high - known_low + moved
        node.step = ClockStep(least, most, read_at, received, since)
        node.clock = (low, high, high, received, received)
        return True
    if limit > high:
        limit, since = high, received
    node.clock = (low, high, limit, received, since)
    return False


def _alike(nodes: list[Node], need: int) -> list[Node]:
    """At least `need` nodes whose steps may be one event; empty if there are fewer."""
    steps = [node.step for node in nodes if node.step is not None]
    for amount in {step.least for step in steps}:
        for moment in {step.after for step in steps}:
            alike = [node for node in nodes if node.step is not None and node.step.may_be(amount, moment)]
            if len(alike) >= need:
                return alike
    return []


def _common(steps: list[ClockStep]) -> ClockStep:
    """The bounds of the one event that steps have in common."""
    least, most, after, before, since = zip(*steps, strict=True)
    return ClockStep(max(least), min(most), max(after), min(before), max(since))


def _trust_again(group: NodeGroup, suspects: list[Node], standstill: ClockStep) -> None:
    """Drop the suspicions, because this machine's clock stood still, and correct the offsets of the other nodes."""
    for node in group.nodes:
        if node in suspects:
            node.step = None
            group.cleared(node.index)
        if node.clock is not None and node.clock[3] < standstill.before:
            low, high, _, at, _ = node.clock
            if at <= standstill.after:  # later, it may have been read after the standstill
                low += standstill.least
            high += standstill.most
            node.clock = (low, high, high, at, at)


def known_times(group: NodeGroup, now: float) -> list[int]:
    """The present time of each node whose clock is known, in µs."""
    known = [node.clock for node in group.nodes if node.clock is not None]
    return [round((now + (low + limit) / 2) * 1e6) for low, _, limit, _, _ in known]
