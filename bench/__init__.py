"""The benchmark: handfast and its peers against floors measured in the same run.

The machines are shared and noisy, so an absolute figure says little. What counts is the *ratio* to a floor: a
raw-socket program that does only the unavoidable work, measured in the same run, its rounds interleaved with
everybody else's, best round of each.

    floors.py  afloors.py   the floors, blocking and asyncio
    commands.py             the bytes a floor sends: plain, or fenced by a script that counts tokens
    handfast_adapter.py     handfast through its documented usage
    peers.py                the other libraries through theirs
    candidate.py            what all of them look like from here
    measure.py              one round, the interleaving of rounds, the best of them
    cases.py                the table of what is measured; a new case is one class and one line there
    plan.py  outcome.py     how much is measured, what a case leaves behind
    servers.py  report.py   where it runs, what is printed

Several who want one lock:

    handoff.py              the case of many processes: its races, and what else is asked of 8 processes
    workers.py  worker.py   the processes: the code that commands them, and what one of them does
    handoff_floor.py        their floor: queue and hand-over on the server, told by a push
    quorum_floor.py         the same on five nodes: tickets, inquire and yield
    waiting_candidates.py   handfast and the other libraries, as their users wait for a lock
    handoff_figures.py      from timestamps to hand-offs, latencies and fairness
    traffic.py              commands that clients sent, counted by the server
    cohort.py               the case of a thousand tasks in one process

By itself:

    hold.py                 `python -m bench.hold`: many leases held for a long time
    names.py                what many distinct names leave on a server
    topologies.py           `python -m bench.topologies`: what Sentinel and Cluster cost
"""
