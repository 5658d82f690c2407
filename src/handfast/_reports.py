"""The reports of a client: log lines for people, events for programs.

Any thread may report anything. A log line reports a change, not a state: a node that fails is one line, however many
connections and callers notice it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from handfast import log
from handfast._lease import loss_of
from handfast.core.hold import HELD, LOST, Hold
from handfast.core.io import Fault
from handfast.core.nodes import Node
from handfast.errors import LeaseLost
from handfast.events import Event, Kind
from handfast.net import clock

__all__ = ["OnLostCalls", "Reports", "call_on_lost"]

T = TypeVar("T")

CONFIRMED = "confirmed"


class Reports:
    """The reports of one client. It is the Observer of its nodes and holds."""

    def __init__(self, call_on_lost: Callable[[Callable[[LeaseLost], object], LeaseLost], None]) -> None:
        self._call_on_lost = weakref.WeakMethod(call_on_lost)
        """Calls an on_lost= callback, in the right thread. The reference is weak, because the watchdog keeps this object
        and would keep the client alive. A client that is gone has no leases, so no loss is missed."""
        self.listeners: tuple[Callable[[Event], object], ...] = ()
        """Mostly empty. Events are made only if it is not."""
        self.forked()

    def forked(self) -> None:
        """Start anew in the child after a fork: a thread of the parent may hold the lock."""
        self._lock = threading.Lock()
        self._down: dict[str, float] = {}
        """The time since which each node is down, by address."""
        self._run_ids: dict[str, str] = {}
        """The last known run_id of each node, by address."""
        self._quarantined: set[int] = set()
        self._voted: set[int] = set()
        """Nodes that were allowed to vote before."""
        self._failing: dict[Hold, None] = {}
        """Holds whose last renewal was not confirmed."""

    def listen(self, listener: Callable[[Event], object]) -> Callable[[], None]:
        self.listeners += (listener,)

        def end() -> None:
            self.listeners = tuple(each for each in self.listeners if each is not listener)

        return end

    def tell(self, event: Event) -> None:
        for listener in self.listeners:
            _call(listener, event, "a listener failed at an event")

    def of_hold(
        self, kind: Kind, hold: Hold, seconds: float, outcome: str = "", *, who: str = "", node: str = ""
    ) -> None:
        if self.listeners:
            self.tell(Event(kind, hold.name, who, seconds, outcome, node, hold.token or None))

    # -- holds

    def ended(self, hold: Hold, who: str) -> None:
        """Report a release, or a loss that the holder found at the release."""
        reason = hold.why_ended
        kind: Kind = "lost" if reason else "released"
        self.of_hold(kind, hold, clock.now() - hold.granted_at, reason, who=who)

    def abandoned(self, hold: Hold) -> None:
        """See Observer."""
        self.of_hold("released", hold, clock.now() - hold.granted_at)

    def not_acquired(self, name: str, who: str, seconds: float, error: BaseException) -> None:
        """An acquisition has ended without the lock."""
        self.tell(Event("not_acquired", name, who, seconds, type(error).__name__))

    def ended_early(self, hold: Hold) -> None:
        """See Observer."""
        if hold.state == LOST:
            log.warning("%s: lease lost (%s)", hold.name, hold.reason)
        self.of_hold("lost", hold, clock.now() - hold.granted_at, hold.reason)
        on_lost = hold.config.policy.on_lost
        if callable(on_lost):
            call = self._call_on_lost()
            if call is not None:
                call(on_lost, loss_of(hold, hold.reason))

    def renewal_ended(self, holds: Sequence[Hold], seconds: float) -> None:
        """See Observer."""
        failing = [hold for hold in holds if hold.retrying and hold.state == HELD]
        if failing:
            self._renewals_failed([hold for hold in failing if hold not in self._failing], seconds)
        if self.listeners:
            for hold in holds:
                if not hold.retrying and hold.state == HELD:
                    self.of_hold("renewed", hold, seconds)
        if self._failing and not failing:
            self._renewals_recovered()

    def _renewals_failed(self, holds: list[Hold], seconds: float) -> None:
        for hold in list(self._failing):
            if hold.state != HELD:
                self._failing.pop(hold, None)  # it ended while its renewals failed
        first = not self._failing
        for hold in holds:
            self._failing[hold] = None
            nodes, said = _unconfirmed(hold)
            self.of_hold("renewal_failed", hold, seconds, said, node=nodes)
        if first and holds:
            log.warning(
                "renewal of %s failed, trying again until the lease ends (%s)", _names(holds), _unconfirmed(holds[0])[1]
            )

    def _renewals_recovered(self) -> None:
        known = list(self._failing)
        recovered = [hold for hold in known if hold.state == HELD and not hold.retrying]
        for hold in known:
            if hold.state != HELD or not hold.retrying:
                self._failing.pop(hold, None)
        if recovered and not self._failing:
            log.info("renewal of %s recovered (%s)", _names(recovered), _unconfirmed(recovered[0])[0])

    # -- nodes

    def node_down(self, address: str, fault: Fault) -> None:
        """See Observer."""
        with self._lock:
            if address in self._down:
                return
            self._down[address] = clock.now()
        log.warning("%s is down: %s", address, fault.text)
        if self.listeners:
            self.tell(Event("node_down", outcome=fault.text, node=address))

    def down(self) -> set[str]:
        """The nodes that are down, as far as is known."""
        with self._lock:
            return set(self._down)

    def node_up(self, address: str, run_id: str, moved_to: str) -> None:
        """See Observer."""
        with self._lock:
            since = self._down.pop(address, None)
            before = self._run_ids.get(address, "")
            if run_id:
                self._run_ids[address] = run_id
        if since is not None:
            seconds = clock.now() - since
            log.info("%s is %s after %.1f s", address, f"replaced by {moved_to}" if moved_to else "back", seconds)
        elif before and run_id and run_id != before:
            # The node went down and came back while no request was under way.
            seconds = 0.0
            text = f"replaced by {moved_to}" if moved_to else "back: it has restarted, or another server has replaced it"
            log.info("%s is %s", address, text)
            if self.listeners:
                self.tell(Event("node_down", outcome="restarted or replaced", node=address))
        else:
            return
        if self.listeners:
            self.tell(Event("node_up", seconds=seconds, node=address))

    def vote_changed(self, node: Node) -> None:
        """See Observer."""
        left = node.opens_at - clock.now()
        with self._lock:
            known = node.index in self._quarantined
            voted = node.index in self._voted
            if node.marker:
                self._voted.add(node.index)
                self._quarantined.discard(node.index)
            elif left > 0:
                self._quarantined.add(node.index)
        if node.marker and known:
            log.info("%s votes again", node.label)
            if self.listeners:
                self.tell(Event("readmitted", node=node.label))
        elif not node.marker and left > 0 and not known:
            # New servers need no warning: their clients get NoQuorum, or open them.
            say = log.warning if voted else log.info
            say("%s is in quarantine: it restarted, lost its data or is new; no vote for %.1f s", node.label, left)
            if self.listeners:
                self.tell(Event("quarantined", seconds=left, node=node.label))


def _call(listener: Callable[[T], object], told: T, failed: str) -> None:
    """Call a listener of the program, and log what it raises: SystemExit must not end the watchdog's thread.

    In the main thread an exception that is no Exception goes on, because Ctrl-C or the handler of a signal may have
    raised it. Python runs these handlers in no other thread.
    """
    try:
        listener(told)
    except BaseException as error:
        if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
            raise
        log.exception(failed)


def call_on_lost(callback: Callable[[LeaseLost], object], error: LeaseLost) -> None:
    _call(callback, error, f"the on_lost= callback failed at: {error}")


class OnLostCalls:
    """Makes the on_lost= calls of a threaded client, one after another, in a thread that ends after the last one.

    Mostly the watchdog's thread notices a loss. It must not wait for a callback, or other leases would be lost.
    """

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        self._lock = threading.Lock()
        self._due: deque[tuple[Callable[[LeaseLost], object], LeaseLost]] = deque()
        self._running = False

    def add(self, callback: Callable[[LeaseLost], object], error: LeaseLost) -> None:
        with self._lock:
            self._due.append((callback, error))
            if self._running:
                return
            self._running = True
        try:
            threading.Thread(target=self._run, name="handfast-on-lost", daemon=True).start()
        except RuntimeError:
            self._run()  # at its end the process starts no threads any more

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._due:
                    self._running = False
                    return
                callback, error = self._due.popleft()
            call_on_lost(callback, error)


def _names(holds: Sequence[Hold]) -> str:
    return holds[0].name + (f" and {len(holds) - 1} more" if len(holds) > 1 else "")


def _unconfirmed(hold: Hold) -> tuple[str, str]:
    """The nodes that did not confirm the hold's last renewal, and their answers."""
    said: dict[str, Any] = {node: text for node, text in hold.renewal_replies.items() if text != CONFIRMED}
    return ", ".join(said), "; ".join(f"{node}: {text}" for node, text in said.items())
