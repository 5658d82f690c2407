"""Notices steps of clocks: whenever a node tells its time, it is compared with this machine's.

Nodes tell their time with votes, renewals and handshakes. Between two readings the offset between a node's clock and this
machine's may move as far as their rates may differ. If it moves further, one of the two clocks has stepped. A vote that
was given meanwhile does not count. A reading bounds the offset by its round trip. A slow round trip gives wide bounds, so
the limit from earlier readings is kept while it is lower: steps that are too short to be noticed add up.

**A node's clock stepped forward** if it stepped alone. Its keys expired early, so the node has forgotten leases, and it
goes into quarantine.

**This machine's clock stood still** if most nodes stepped alike: by the same amount, at a time that all their readings
allow. A paused virtual machine does that. The deadlines of this client's holds are too late, so all of them are lost. The
nodes are well: a quarantine would stop every other client. The offsets of nodes that have not told their time since are
corrected. Otherwise these nodes would later look as if they had stepped alone.

If the clocks of most nodes really step alike at one time, this client takes it for a pause of its own. Exclusion is
promised only while fewer than a majority of nodes are suspect, so this case is outside the promise; tokens still protect
the data. With a single node the two cases look the same, and the node goes into quarantine.
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
        alike = _alike([each for each in group.nodes if each.step is not None], group.need)
        if alike:
            _stood_still(group, alike)
    return True


def clock_stepped(node: Node, sent: float, received: float, server_us: int, drift: float) -> bool:
    """Whether a node's clock stepped forward against this machine's, beyond drift and round trip. Sets `node.step`."""
    low, high = server_us / 1e6 - received, server_us / 1e6 - sent
    known = node.clock
    if known is None:
        node.clock = (low, high, high, received)
        return False
    known_low, known_high, known_limit, read_at = known
    moved = drift * (received - read_at) if received > read_at else 0.0
    limit = known_limit + moved
    stepped = low > limit + STEP_MARGIN
    if stepped:
        # Several short steps may have added up to exceed the limit. The amount is of those since the last reading.
        node.step = ClockStep(max(0.0, low - known_high - moved), high - known_low + moved, read_at, received)
        limit = high
    elif limit > high:
        limit = high
    node.clock = (low, high, limit, received)
    return stepped


def _alike(nodes: list[Node], need: int) -> list[Node]:
    """At least `need` nodes whose steps may be one event; empty if there are fewer."""
    steps = [node.step for node in nodes if node.step is not None]
    for amount in {step.least for step in steps}:
        for moment in {step.after for step in steps}:
            alike = [node for node in nodes if node.step is not None and node.step.may_be(amount, moment)]
            if len(alike) >= need:
                return alike
    return []


def _stood_still(group: NodeGroup, alike: list[Node]) -> None:
    """Correct the offsets and drop the suspicions: this machine's clock stood still."""
    steps = [node.step for node in alike if node.step is not None]
    least, most = max(step.least for step in steps), min(step.most for step in steps)
    noticed = min(step.before for step in steps)
    for node in group.nodes:
        if node in alike:
            node.step = None
            group.cleared(node.index)
        elif node.clock is not None and node.clock[3] < noticed:
            low, high, _, at = node.clock
            node.clock = (low + least, high + most, high + most, at)
    group.stood_still()


def known_times(group: NodeGroup, now: float) -> list[int]:
    """The present time of each node whose clock is known, in µs."""
    known = [node.clock for node in group.nodes if node.clock is not None]
    return [round((now + (low + limit) / 2) * 1e6) for low, _, limit, _ in known]
