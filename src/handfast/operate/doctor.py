"""Whether the servers of a deployment can be trusted with locks: findings as data, for people, monitors and pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from handfast.core.guard import FORGOT, Marker
from handfast.core.io import Fault
from handfast.operate.node_checks import CLOCK_OFF, Check, Facts, Level, gather, server_checks
from handfast.operate.servers import Deployment, Node

__all__ = ["Check", "Level", "examine", "worst"]

LEVELS: Final[tuple[Level, ...]] = ("ok", "warn", "bad")
_ADVICE: Final = {
    "refused": "start the server, or look at host and port in the URL",
    "dns": "look at the host name in the URL",
    "timeout": "look at the network and the firewall; is the server paused or overloaded?",
    "tls": "look at the certificates and at rediss:// in the URL",
    "NOAUTH": "put user name and password into the URL: redis://user:password@host",
    "WRONGPASS": "look at user name and password in the URL",
    "NOPERM": "look at the rights of this user: ACL LIST",
    "LOADING": "wait until it has loaded its data",
    "maxclients": "raise maxclients, or close connections",
    "protocol": "is that a Redis or Valkey server? Look at the port in the URL",
    "config": "look at the URL",
}


def worst(checks: Sequence[Check]) -> Level:
    """The worst level of all."""
    return LEVELS[max((LEVELS.index(check.level) for check in checks), default=0)]


def examine(deployment: Deployment, *, probe: bool = True) -> Iterator[Check]:
    """All findings, about each server and about the deployment.

    `probe=False` writes nothing to the servers, so it cannot tell what the user may not do.
    """
    deployment.connect()
    all_facts: dict[str, list[Facts]] = {}
    for node in deployment.nodes:
        yield from _sentinels(node)
        found: list[Facts] = []
        yield from _node(deployment, node, found, probe=probe)
        if found:
            all_facts[node.label] = found
    yield from _whole(deployment, all_facts)


def _node(deployment: Deployment, node: Node, found: list[Facts], *, probe: bool) -> Iterator[Check]:
    moves = node.clustered or node.address.resolver is not None
    links = node.links()
    try:
        for link in links:
            facts = gather(deployment, node, link, probe=probe)
            found.append(facts)
            where = (
                "" if link.address.label == facts.label and not moves else f", {link.address.host}:{link.address.port}"
            )
            yield Check(facts.label, "reachable", "ok", f"answers{where}")
            yield from server_checks(facts, deployment.settings, nodes=len(deployment.nodes), moves=moves)
            yield from _topology(node, facts)
            if not node.clustered:
                yield from _guard(deployment, facts)
    except OSError as error:
        node.drop(error)
    if node.fault is not None:
        yield _unreachable(node, node.fault)


def _unreachable(node: Node, fault: Fault) -> Check:
    advice = _ADVICE.get(fault.kind, "look at the server and its log")
    return Check(node.label, "reachable", "bad", fault.text, advice)


def _sentinels(node: Node) -> Iterator[Check]:
    """Whether the sentinels agree on the master."""
    resolver = node.address.resolver
    opinions = getattr(resolver, "opinions", None)
    if opinions is None:
        return
    said = opinions()
    places = {place for place in said.values() if isinstance(place, tuple)}
    silent = [f"{host}:{port} {text}" for (host, port), text in said.items() if isinstance(text, str)]
    known = len(said) - len(silent)
    found = f"{known} of {len(said)} name a master"
    if known <= len(said) // 2:
        yield Check(node.label, "sentinels", "bad", f"{found}; {'; '.join(silent)}", "a majority of them must answer")
    elif len(places) > 1:
        yield Check(node.label, "sentinels", "warn", f"{found}, but not the same", "a failover is under way: wait")
    elif silent:
        yield Check(node.label, "sentinels", "warn", f"{found}; {'; '.join(silent)}", "bring the others back")
    else:
        yield Check(node.label, "sentinels", "ok", found)


def _topology(node: Node, facts: Facts) -> Iterator[Check]:
    enabled = facts.info.get("cluster_enabled") == "1"
    if enabled and not node.clustered:
        yield Check(facts.label, "cluster", "bad", "is a node of a cluster", "use redis+cluster:// in the URL")
    elif node.clustered:
        missing = sum(1 for place in node.address.cluster.host_ports if place is None)
        if missing:
            advice = "bring the masters of these slots back, or assign the slots"
            yield Check(facts.label, "cluster", "bad", f"{missing} of 16384 slots are not served", advice)
        else:
            yield Check(facts.label, "cluster", "ok", f"all slots are served, by {len(node.links())} masters")


def _guard(deployment: Deployment, facts: Facts) -> Iterator[Check]:
    """The state of a server's restart guard."""
    marker = Marker.parse(facts.marker)
    guarded = len(deployment.nodes) > 1
    label, limit = facts.label, round(deployment.settings.max_ttl * 1000)
    if marker is None:
        if guarded:
            advice = "if the servers are new: handfast bootstrap; otherwise the first client starts its quarantine"
            yield Check(label, "guard", "warn", "has no vote: it is new, or has forgotten", advice)
        else:
            yield Check(label, "guard", "ok", "none, as usual for one node")
        return
    left = (marker.ready_at - facts.now_us) / 1e6
    if marker.incarnation != facts.incarnation:
        yield Check(
            label, "guard", "warn", "has restarted since it last voted", "nothing: a client starts its quarantine"
        )
    elif not marker.votes and left > 0:
        why = "has forgotten" if marker.floor == FORGOT else "has restarted"
        yield Check(label, "guard", "warn", f"in quarantine for another {left:.0f} s: it {why}", "wait")
    elif not marker.votes:
        yield Check(label, "guard", "warn", "its quarantine is over", "nothing: the next client lets it vote again")
    elif marker.max_ttl_ms != limit:
        found = f"votes; its clients have max_ttl={marker.max_ttl_ms / 1000:g}, the default is {limit / 1000:g}"
        yield Check(label, "guard", "ok", found)
    else:
        yield Check(label, "guard", "ok", "votes")


# -- the deployment ----------------------------------------------------------------------------------------------------


def _whole(deployment: Deployment, all_facts: dict[str, list[Facts]]) -> Iterator[Check]:
    nodes, need = len(deployment.nodes), deployment.need
    if nodes == 1:
        return
    reached = len(all_facts)
    found = f"{reached} of {nodes} nodes answer, {need} are needed"
    if reached < need:
        yield Check("", "quorum", "bad", found, "no lock can be acquired: bring the others back")
    elif reached < nodes:
        spare = reached - need
        yield Check("", "quorum", "warn", f"{found}; {spare} more may fail", "bring the others back")
    elif nodes % 2 == 0:
        advice = f"{nodes - 1} nodes survive as many failures, and {nodes + 1} survive one more"
        yield Check("", "quorum", "warn", found, advice)
    else:
        yield Check("", "quorum", "ok", f"{found}; {nodes - need} may fail")
    yield from _votes(deployment, all_facts)
    yield from _distinct(all_facts)
    yield from _same_clock(all_facts)


def _votes(deployment: Deployment, all_facts: dict[str, list[Facts]]) -> Iterator[Check]:
    """Whether a majority of a guarded quorum may vote, with the same max_ttl."""
    facts = [each for found in all_facts.values() for each in found]
    if any(node.clustered for node in deployment.nodes):
        return
    markers = {each.label: Marker.parse(each.marker) for each in facts}
    voting = [
        each for each in facts if (m := markers[each.label]) and m.votes and m.incarnation == each.incarnation
    ]  # fmt: skip
    limits = {marker.max_ttl_ms for marker in markers.values() if marker is not None}
    if len(limits) > 1:
        shown = " and ".join(f"{limit / 1000:g}" for limit in sorted(limits))
        yield Check(
            "", "max_ttl", "bad", f"clients with max_ttl={shown}", "give all clients of a namespace the same max_ttl="
        )
    found = f"{len(voting)} of {len(deployment.nodes)} nodes may vote, {deployment.need} are needed"
    if len(voting) >= deployment.need:
        yield Check("", "votes", "ok", found)
        return
    new = not any(markers.values()) and len(facts) == len(deployment.nodes)
    advice = (
        "handfast bootstrap, if these servers are new and nobody has used them" if new else "wait for the quarantines"
    )
    yield Check("", "votes", "bad", found, advice)


def _distinct(all_facts: dict[str, list[Facts]]) -> Iterator[Check]:
    by_run: dict[str, list[str]] = {}
    for label, found in all_facts.items():
        for facts in found:
            if run_id := facts.info.get("run_id"):
                by_run.setdefault(run_id, []).append(label)
    twice = [labels for labels in by_run.values() if len(labels) > 1]
    if twice:
        found_text = "; ".join(" and ".join(labels) for labels in twice) + " are one server"
        yield Check("", "distinct", "bad", found_text, "each vote needs a server of its own: look at the URLs")
    else:
        yield Check("", "distinct", "ok", f"{len(by_run)} different servers")


def _same_clock(all_facts: dict[str, list[Facts]]) -> Iterator[Check]:
    offsets = [facts.offset for found in all_facts.values() for facts in found]
    if len(offsets) < 2:
        return
    apart = max(offsets) - min(offsets)
    found = f"{apart * 1000:.0f} ms between the nodes"
    if apart > CLOCK_OFF:
        yield Check("", "clocks", "warn", found, "set the clocks of all servers by NTP")
    else:
        yield Check("", "clocks", "ok", found)
