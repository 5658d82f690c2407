"""The benchmark: handfast and its peers against floors measured in the same run.

The machines are shared and noisy, so an absolute figure says little. What counts is the *ratio* to a floor: a
raw-socket program that does only the unavoidable work, measured in the same run. The rounds of all candidates
alternate, and the best round of each counts.

    floors.py  afloors.py   the floors, blocking and asyncio
    commands.py             the bytes a floor sends: plain, or fenced by a script that counts tokens
    handfast_adapter.py     handfast through its documented usage
    peers.py                the other libraries through theirs
    candidate.py            what all of them look like from here
    measure.py              one round, the interleaving of rounds, the best of them
    cases.py                the table of what is measured; a new case is one class and one line there
    plan.py  outcome.py     how much is measured, what a case leaves behind
    servers.py  report.py   where it runs, what is printed

Cases in which many workers want one lock:

    handoff.py              the case of many processes: timed rounds, and the extra rounds of 8 processes
    workers.py  worker.py   the processes: the code that controls them, and the code that each of them runs
    handoff_floor.py        their floor: queue and hand-over on the server, announced by a push
    quorum_floor.py         the same on five nodes: tickets, inquire and yield
    waiting_candidates.py   handfast and the other libraries, as their users wait for a lock
    handoff_figures.py      from timestamps to hand-offs, latencies and fairness
    traffic.py              commands that clients sent, counted by the server
    cohort.py               the case of a thousand tasks in one process

Measurements that run on their own:

    hold.py                 `python -m bench.hold`: many leases held for a long time
    names.py                `python -m bench.names`: what many distinct names leave on a server
    topologies.py           `python -m bench.topologies`: what Sentinel and Cluster cost
"""
