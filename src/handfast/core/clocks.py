"""Steps of clocks: a node's time is compared with ours whenever the node tells it.

Time is told with votes, renewals and handshakes. Between two readings the offset of a node's clock to ours may move as
far as their rates may differ. If it moves further, one of the two clocks has stepped. A vote that was given meanwhile
does not count.

**A node's clock stepped forward** if it stepped alone: its keys ended early, so it has forgotten leases, and it goes
into quarantine.

**Our own clock stood still** if most nodes stepped alike: by the same amount, at a time that all their readings allow.
A virtual machine that is paused does that. The deadlines of our holds are too late then, so all of them are lost. The
nodes are well: to put them in quarantine would stop every other client. The offsets of the nodes that have not told
their time since are corrected, or they would look as if they had stepped alone later.

If most nodes really step alike at one time, this client takes it for a pause of its own. Fewer than a majority of
nodes may be suspect at once for exclusion to hold, so that is outside the promise; tokens still protect the data. With
a single node the two cases cannot be told apart, and the node goes into quarantine.
"""

from __future__ import annotations

from typing import Final

from handfast.core.nodes import ClockStep, Node, NodeGroup

__all__ = ["clock_stepped", "known_times", "read_clock"]

STEP_MARGIN: Final = 0.02
"""Seconds by which a clock may be set right without being called stepped; less than the drift of a ttl of 2 s."""


def read_clock(group: NodeGroup, index: int, sent: float, received: float, server_us: int) -> bool:
    """A node has told its time. True if a clock has stepped: what the node said with it does not count as a vote."""
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
    """Notice a forward step of a node's clock against ours, beyond drift and the round trip; `node.step` tells it."""
    low, high = server_us / 1e6 - received, server_us / 1e6 - sent
    known = node.clock
    if known is None:
        node.clock = (low, high, received)
        return False
    # Between two readings the offset may move as far as the rates may differ. A slow round trip tells little: what was
    # known before may still be known better.
    moved = drift * max(0.0, received - known[2])
    most = known[1] + moved
    stepped = low > most + STEP_MARGIN
    if stepped:
        node.step = ClockStep(low - most, high - known[0] + moved, known[2], received)
    node.clock = (low, high if stepped else min(high, most), received)
    return stepped


def _alike(nodes: list[Node], need: int) -> list[Node]:
    """As many nodes whose steps may be one and the same event; empty if fewer than `need` are."""
    steps = [node.step for node in nodes if node.step is not None]
    for amount in {step.least for step in steps}:
        for moment in {step.after for step in steps}:
            alike = [node for node in nodes if node.step is not None and node.step.may_be(amount, moment)]
            if len(alike) >= need:
                return alike
    return []


def _stood_still(group: NodeGroup, alike: list[Node]) -> None:
    """Our own clock is what stepped."""
    steps = [node.step for node in alike if node.step is not None]
    least, most = max(step.least for step in steps), min(step.most for step in steps)
    noticed = min(step.before for step in steps)
    for node in group.nodes:
        if node in alike:
            node.step = None
            group.cleared(node.index)
        elif node.clock is not None and node.clock[2] < noticed:
            low, high, at = node.clock
            node.clock = (low + least, high + most, at)
    group.stood_still()


def known_times(group: NodeGroup, now: float) -> list[int]:
    """The time of each node whose clock is known, in µs, by what it last told."""
    return [round((now + sum(node.clock[:2]) / 2) * 1e6) for node in group.nodes if node.clock is not None]
