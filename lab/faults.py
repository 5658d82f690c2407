"""The faults, as scripts: each holds orders up at exact points, so that its race happens every time and not by luck.

A script begins while the stock is complete and no buyer is there. It decides when the crowd starts (`run.start_crowd()`).
Viewers read the first line of its docstring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lab.run import Run, Victim

HALF: Final = 0.5
"""The share of the stock that is sold when an order that was held up continues."""


async def nothing(run: Run) -> None:
    """No fault, only the crowd."""
    run.start_crowd()


async def two_at_once(run: Run) -> None:
    """Two orders in two processes are held up at the same point: both have read the stock, neither has written."""
    first = await run.order(at="writing")
    second = await run.order(at="writing")
    run.note(f"{first} and {second} have both read the stock, and both are about to write")
    run.go(first)
    run.go(second)
    await run.answered(first)
    await run.answered(second)
    run.start_crowd()


async def killed_while_writing(run: Run) -> None:
    """The process whose order holds the lock is killed (SIGKILL) before it writes."""
    await _killed(run, "writing")


async def killed_before_expire(run: Run) -> None:
    """The process is killed (SIGKILL) after its SETNX and before its EXPIRE."""
    await _killed(run, "between SETNX and EXPIRE")


async def _killed(run: Run, point: str) -> None:
    victim = await run.order(at=point)
    run.kill(victim)
    run.start_crowd()
    await run.crowd_finished()
    left = await run.ask("PTTL", "redis_lock")
    run.note(f"{victim} is dead; its key has a PTTL of {left}: {'it never expires' if left == -1 else 'it expires'}")


async def late_release(run: Run) -> None:
    """A holder is held up just before its DEL, until its key has expired and another order has the lock."""
    slow = await run.order(at="releasing")
    other = await run.order(at="writing")  # it gets the lock when the key of the slow order has expired
    left = await run.ask("PTTL", "redis_lock")
    run.go(slow)
    await run.answered(slow)
    if await run.ask("EXISTS", "redis_lock") == 0:
        run.note(f"the DEL of {slow} removed the key of {other}, which had {left} ms left")
    await _overtaken(run, other)
    run.start_crowd()
    await run.sold(HALF)
    run.go(other)
    await run.answered(other)


async def slow_holder(run: Run) -> None:
    """An order is held up between read and write for longer than the ttl, as a slow payment would do."""
    slow = await run.order(at="writing")
    await _held_up(run, slow, run.scenario.ttl * 2.5)


async def paused_holder(run: Run) -> None:
    """The holder's process is paused (SIGSTOP) between its last check and its write, for longer than the ttl."""
    sleeper = await run.order(at="writing")
    run.pause(sleeper)
    await _overtaken(run, sleeper)
    run.start_crowd()
    await run.sold(HALF)
    run.resume(sleeper)
    await run.answered(sleeper)


async def failover(run: Run) -> None:
    """The replica is cut off; the master grants the lock and is killed; the replica is promoted."""
    pair = run.pair
    await run.do("the replica is cut off", pair.link.drop)
    holder = await run.order(at="writing")
    left = await run.ask("PTTL", "redis_lock", server=pair.master)
    await run.do("the master is killed, the replica promoted", pair.promote)
    run.environment.moved(pair.replica.url)
    missing = await run.ask("EXISTS", "redis_lock", server=pair.replica) == 0
    run.note(f"the key of {holder} had {left} ms left; the new master {'never saw it' if missing else 'has it'}")
    await _held_up(run, holder, run.scenario.ttl)


async def node_forgets(run: Run) -> None:
    """A holder has the votes of n1, n2 and n3, while n4 and n5 are cut off; then these return, and n3 restarts empty."""
    holder = await _three_votes(run)
    for node in ("n4", "n5"):
        await run.node(node, "heal")
    await run.node("n3", "restart_empty")
    await _held_up(run, holder, 3.0)


async def everything(run: Run) -> None:
    """All at once: two holders paused beyond the ttl, one holder killed, one node restarted empty, one node cut off."""
    sleeper = await _three_votes(run)
    run.pause(sleeper)
    await run.node("n5", "heal")
    await run.node("n3", "restart_empty")
    next_one = await run.order(at="writing")  # it gets the lock when the sleeper's lease is over, and reads the stock
    run.resume(sleeper)  # now two orders have read the same stock
    await run.answered(sleeper)
    # The sleeper has left its block. Whether or not its client sent a release, the next holder must keep its lock.
    run.note(f"{sleeper} released the lease that it had lost, while {next_one} held the lock")
    await _overtaken(run, next_one, within=0.5)
    run.go(next_one)
    await run.answered(next_one)
    doomed = await run.order(at="writing")
    run.kill(doomed)
    late = await run.order(at="writing")  # it gets the lock when the dead holder's lease is over
    run.pause(late)
    run.start_crowd()
    await run.sold(HALF)
    await run.node("n4", "heal")
    run.resume(late)
    await run.answered(late)


async def _three_votes(run: Run) -> Victim:
    for node in ("n4", "n5"):
        await run.node(node, "partition")
    return await run.order(at="writing")


async def _held_up(run: Run, holder: Victim, seconds: float) -> None:
    """Hold the order up while others try to get the lock. If one does, half of the stock is sold before it continues."""
    overtaken = await _overtaken(run, holder, seconds)
    run.start_crowd()
    if overtaken:
        await run.sold(HALF)
    elif second := await run.crowd_gets_in(within=0.5):
        run.note(f"{second} got the lock while {holder} held it")
    run.go(holder)
    await run.answered(holder)


async def _overtaken(run: Run, holder: Victim, within: float | None = None) -> bool:
    """True if another order gets the lock while the holder still has it; it tries for `within` seconds."""
    second = await run.order(at="writing") if within is None else await run.try_order(at="writing", within=within)
    if second is None:
        run.note(f"no other order got the lock in the {within:g} s for which {holder} was held up")
        return False
    run.note(f"{second} got the lock while {holder} held it")
    run.go(second)
    await run.answered(second)
    return True
