"""The faults, as scripts: who is stopped where, until what has happened. None of them hopes for luck.

Each begins before the doors open, when the stock is complete, and decides when the crowd comes in (`run.open_doors()`).
The first line of each says what it does, also to the viewer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lab.run import Run, Victim

HALF: Final = 0.5
"""Of the stock sold: when those who were held up go on."""


async def nothing(run: Run) -> None:
    """No fault: only a crowd."""
    run.open_doors()


async def two_at_once(run: Run) -> None:
    """Two orders are held up at the same place, in two processes: each has read the stock, neither has written."""
    first = await run.order(at="writing")
    second = await run.order(at="writing")
    run.note(f"{first} and {second} have both read the stock, and are both about to write")
    run.go(first)
    run.go(second)
    await run.answered(first)
    await run.answered(second)
    run.open_doors()


async def killed_while_writing(run: Run) -> None:
    """The process whose order holds the lock is killed (SIGKILL) before it writes."""
    await _killed(run, "writing")


async def killed_before_expire(run: Run) -> None:
    """The process is killed (SIGKILL) after its SETNX and before its EXPIRE."""
    await _killed(run, "between SETNX and EXPIRE")


async def _killed(run: Run, point: str) -> None:
    victim = await run.order(at=point)
    run.kill(victim)
    run.open_doors()
    await run.crowd_gone()
    left = await run.ask("PTTL", "redis_lock")
    run.note(
        f"the key of {victim}, which is dead, has a PTTL of {left}: {'it stays for ever' if left == -1 else 'it ends'}"
    )


async def late_release(run: Run) -> None:
    """A holder is held up just before its DEL until its key has expired and another order has the lock."""
    slow = await run.order(at="releasing")
    other = await run.order(at="writing")  # it gets the lock when the key of the slow one has expired
    left = await run.ask("PTTL", "redis_lock")
    run.go(slow)
    await run.answered(slow)
    if await run.ask("EXISTS", "redis_lock") == 0:
        run.note(f"the DEL of {slow} removed the key of {other}, which had {left} ms left")
    await _overtaken(run, other)
    run.open_doors()
    await run.sold(HALF)
    run.go(other)
    await run.answered(other)


async def slow_holder(run: Run) -> None:
    """An order is held up between read and write for longer than the ttl, as by a slow payment."""
    slow = await run.order(at="writing")
    await _held_up(run, slow, run.scenario.ttl * 2.5)


async def paused_holder(run: Run) -> None:
    """The process of the holder is stopped (SIGSTOP) between its last check and its write, for longer than the ttl."""
    sleeper = await run.order(at="writing")
    run.pause(sleeper)
    await _overtaken(run, sleeper)
    run.open_doors()
    await run.sold(HALF)
    run.resume(sleeper)
    await run.answered(sleeper)


async def failover(run: Run) -> None:
    """The replica hears nothing for a moment; the master grants the lock and is killed; the replica is promoted."""
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
    """A holder has the votes of n1, n2, n3, as n4 and n5 are cut off; these come back, and n3 crashes and forgets."""
    holder = await _three_votes(run)
    for node in ("n4", "n5"):
        await run.node(node, "heal")
    await run.node("n3", "restart_empty")
    await _held_up(run, holder, 3.0)


async def everything(run: Run) -> None:
    """All at once: holders paused beyond the ttl, who write and release late; one killed; a node empty, one cut off."""
    sleeper = await _three_votes(run)
    run.pause(sleeper)
    await run.node("n5", "heal")
    await run.node("n3", "restart_empty")
    next_one = await run.order(at="writing")  # it gets the lock when the sleeper's lease is over, and reads the stock
    run.resume(sleeper)  # so now there are two who have read the same
    await run.answered(sleeper)
    # Its block is over: whether its client still sent a release or knew better, the next one must not suffer from it.
    run.note(f"{sleeper} let go of the lease that it had lost, while {next_one} held the lock")
    await _overtaken(run, next_one, within=0.5)
    run.go(next_one)
    await run.answered(next_one)
    doomed = await run.order(at="writing")
    run.kill(doomed)
    late = await run.order(at="writing")  # when the lease of the dead one is over
    run.pause(late)
    run.open_doors()
    await run.sold(HALF)
    await run.node("n4", "heal")
    run.resume(late)
    await run.answered(late)


async def _three_votes(run: Run) -> Victim:
    for node in ("n4", "n5"):
        await run.node(node, "partition")
    return await run.order(at="writing")


async def _held_up(run: Run, holder: Victim, seconds: float) -> None:
    """Does anybody get the lock beside the holder? If so the sale goes on to its half before the holder does."""
    overtaken = await _overtaken(run, holder, seconds)
    run.open_doors()
    if overtaken:
        await run.sold(HALF)
    elif second := await run.crowd_gets_in(within=0.5):
        run.note(f"{second} got the lock while {holder} held it")
    run.go(holder)
    await run.answered(holder)


async def _overtaken(run: Run, holder: Victim, within: float | None = None) -> bool:
    """Another order tries to sell beside the holder, for so long or until it can; whether it could."""
    second = await run.order(at="writing") if within is None else await run.try_order(at="writing", within=within)
    if second is None:
        run.note(f"nobody else got the lock in the {within:g} s for which {holder} was held up")
        return False
    run.note(f"{second} got the lock while {holder} held it")
    run.go(second)
    await run.answered(second)
    return True
