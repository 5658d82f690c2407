"""Time, order and randomness of a simulation, all from one seed.

The world is a heap of timers. Nothing happens between two of them, and a timer that fires may set others, so a run is
a pure function of its seed: timers of the same moment fire in the order in which they were set, and every random number
comes from the world's own generator. The trace records every event. The traces of two runs of one seed have the same
digest (invariant 14), and the report of a violation shows the last events.

An `Actor` is anything that the kernel can stop: a thread, a process, a server. A stopped actor keeps its timers; they
fire late, in their order, when the actor continues. A `Clock` shows the world's time as one machine sees it: with an
offset, at its own rate, and set forward or back now and then.

A `Task` runs a coroutine of the core. What it awaits yields a `Waiter`. A cancellation is thrown in while the task waits,
or after its reply has arrived and before the task continues.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final

from handfast.core.io import SILENT

__all__ = ["Actor", "NoProgress", "Clock", "Task", "Timer", "Waiter", "World"]

LATE: Final = 1e-7
"""Seconds by which timers are late: a real timer never fires early, so rounding must not make these fire early."""
DEAD: Final = 1 << 30
_push: Final = heapq.heappush
AT_ONCE: Final = 0.001
MOST_AT_ONCE: Final = 20_000
"""The most timers within AT_ONCE seconds. Computing takes hardly any simulated time, so a busy loop would never end."""


class NoProgress(AssertionError):
    """Simulated time no longer passes: something is in a busy loop."""


class Timer:
    """A call at a later time, unless it is cancelled."""

    __slots__ = ("actor", "args", "call")

    def __init__(self, actor: Actor | None, call: Callable[..., Any] | None, args: tuple[Any, ...]) -> None:
        self.actor = actor
        self.call = call
        self.args = args

    def cancel(self) -> None:
        self.call = None


class World:
    """The scheduler, the randomness and the trace."""

    def __init__(
        self,
        seed: int,
        *,
        keep: int = 400,
        tell: Callable[[float, str, tuple[Any, ...]], None] | None = None,
        with_digest: bool = True,
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.now = 0.0
        """Seconds since the beginning. No actor can read this clock."""
        self.task: Task | None = None
        """The task that is running."""
        self.tasks: dict[Task, None] = {}
        """All tasks that have not ended."""
        self.recent: deque[tuple[float, str, tuple[Any, ...]]] = deque(maxlen=keep)
        self.fired = 0
        self.happened: Counter[str] = Counter()
        """Faults that have struck: see faults.py."""
        self.cancelled_at: Counter[tuple[str, int]] = Counter()
        """File and line of the core's await at which a task was cancelled."""
        self._tell = tell
        self.heap: list[tuple[float, int, Timer]] = []
        self.serial = 0
        self._digest = hashlib.blake2b(digest_size=12) if with_digest else None
        """The digest of the whole trace. It takes a tenth of a simulation's time, so it is optional."""

    def at(self, when: float, call: Callable[..., Any], *args: Any) -> Timer:
        return self.set(when, Timer(None, call, args))

    def set(self, when: float, timer: Timer) -> Timer:
        self.serial += 1
        _push(self.heap, (when if when > self.now else self.now, self.serial, timer))
        return timer

    def run(self, until: float) -> None:
        """Fires all timers up to that time."""
        heap, pop = self.heap, heapq.heappop
        moment, at_once = self.now, 0
        while heap and heap[0][0] <= until:
            when, _, timer = pop(heap)
            call = timer.call
            if call is None:
                continue
            self.now = when
            if when > moment + AT_ONCE:
                moment, at_once = when, 0
            at_once += 1
            if at_once > MOST_AT_ONCE:
                raise NoProgress(f"{at_once} events at {when:.6f} s, the last of them {call!r}")
            actor = timer.actor
            if actor is not None and actor.stopped:
                actor.missed.append(timer)
                continue
            self.fired += 1
            call(*timer.args)
        self.now = until

    def note(self, kind: str, *words: Any) -> None:
        """Records an event."""
        self.recent.append((self.now, kind, words))
        if self._digest is not None:
            self._digest.update(repr((self.now, kind, words)).encode())
        if self._tell is not None:
            self._tell(self.now, kind, words)

    def close(self) -> None:
        """Ends all tasks, also those that other tasks start while they clean up."""
        self.heap.clear()
        while self.tasks:
            self.tasks.popitem()[0].close()

    def digest(self) -> str:
        return self._digest.hexdigest() if self._digest is not None else ""


class Actor:
    """A thread, process or server that can be stopped; its timers wait for it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.stopped = 0
        """How many faults stop it at present."""
        self.went_on = 0.0
        """When it last continued."""
        self.missed: deque[Timer] = deque()

    def at(self, when: float, call: Callable[..., Any], *args: Any) -> Timer:
        # A copy of `World.set`, without the call, because most timers are set here.
        world, timer = self.world, Timer(self, call, args)
        world.serial += 1
        _push(world.heap, (when if when > world.now else world.now, world.serial, timer))
        return timer

    def soon(self, call: Callable[..., Any], *args: Any) -> Timer:
        return self.world.set(self.world.now, Timer(self, call, args))

    def stop(self) -> None:
        self.stopped += 1

    def go_on(self) -> None:
        self.stopped -= 1
        if not self.stopped:
            self.went_on = self.world.now
            while self.missed:
                self.world.set(self.world.now, self.missed.popleft())

    def die(self) -> None:
        """The actor never continues."""
        self.stopped += DEAD

    @property
    def dead(self) -> bool:
        return self.stopped >= DEAD


class Clock:
    """The world's time as one machine sees it."""

    def __init__(self, world: World, offset: float = 0.0, rate: float = 1.0) -> None:
        self._world = world
        self.offset = offset
        self.was_set_back = False
        self.rate = rate

    def now(self) -> float:
        return self.offset + self.rate * self._world.now  # Store._is_over has a copy

    def when(self, local: float) -> float:
        """The world's time at which this clock will show `local`, if it is not set before."""
        return (local - self.offset) / self.rate + LATE

    def step(self, seconds: float) -> None:
        self.offset += seconds
        self.was_set_back |= seconds < 0


class Waiter:
    """What a task waits on: the decision of a request, or a wake-up."""

    __slots__ = ("over", "reply", "task")

    def __init__(self) -> None:
        self.over = False
        self.reply: Any = None
        self.task: Task | None = None

    def set_result(self, reply: Any) -> None:
        self.reply = reply
        self.over = True
        self.wake()

    def wake(self) -> None:
        if self.task is not None:
            self.task.go_on()

    def enough(self) -> None:
        """The timeout has passed."""
        if not self.over:
            self.set_result(SILENT)


class Task:
    """A coroutine that runs in turns of its actor."""

    def __init__(
        self,
        actor: Actor,
        work: Coroutine[Any, Any, Any],
        name: str,
        done: Callable[[Task], None] | None = None,
    ) -> None:
        self.name = name
        self.over = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._actor = actor
        self._work = work
        self._done = done
        self._callbacks: list[Callable[[Task], Any]] = []
        self._waiter: Waiter | None = None
        self._cancelled = False
        self._waits = 0
        """How many waits it has begun."""
        self.cancel_while = 0
        self.cancel_after = 0
        """The wait at which it is cancelled, if any: while it waits, or when its reply has arrived."""
        actor.world.tasks[self] = None
        actor.soon(self._turn)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def go_on(self) -> None:
        self._actor.soon(self._turn)

    def cancel(self) -> None:
        """As in asyncio: the task's next turn raises, whatever result it would have had."""
        if self.over or self._cancelled:
            return
        self._cancelled = True
        if self._waiter is not None and not self._waiter.over:
            self._actor.world.happened["32 while"] += 1
            self._waiter.over = True
            self.go_on()
        else:
            self._actor.world.happened["32 after"] += 1

    def close(self) -> None:
        """The world ends: the coroutine cleans up."""
        self.over = True
        for _ in range(20):
            try:
                self._work.close()
            except RuntimeError:
                continue  # it awaits something during its cleanup
            except BaseException:
                return
            else:
                return

    def _turn(self) -> None:
        world = self._actor.world
        self._waiter = None
        before, world.task = world.task, self
        if self._waits and self._waits == self.cancel_after:
            self._cancelled = True
            world.happened["32 after"] += 1
        try:
            if self._cancelled:
                self._cancelled = False
                self._note_await()
                waiter = self._work.throw(asyncio.CancelledError())
            else:
                waiter = self._work.send(None)
        except StopIteration as end:
            self._end(end.value, None)
        except NoProgress:
            raise
        except BaseException as error:
            self._end(None, error)
        else:
            self._waiter = waiter
            waiter.task = self
            self._waits += 1
            if self._waits == self.cancel_while:
                self._actor.soon(self.cancel)
        finally:
            world.task = before

    def _note_await(self) -> None:
        """Records the line of the core at which it is cancelled."""
        at: tuple[str, int] | None = None
        work: Any = self._work
        while work is not None:
            frame = getattr(work, "cr_frame", None)
            if frame is not None and "/core/" in frame.f_code.co_filename:
                at = frame.f_code.co_filename.rpartition("/")[2], frame.f_lineno
            work = getattr(work, "cr_await", None)
        if at is not None:
            self._actor.world.cancelled_at[at] += 1

    def _end(self, result: Any, error: BaseException | None) -> None:
        self.over = True
        del self._actor.world.tasks[self]
        self.result, self.error = result, error
        if self._done is not None:
            self._done(self)
        for call in self._callbacks:
            call(self)

    def add_done_callback(self, call: Callable[[Task], Any]) -> None:
        self._callbacks.append(call)
