"""The benchmark: handfast and its peers against floors measured in the same run.

The machines are shared and noisy, so an absolute figure says little. What counts is the *ratio* to a floor: a
raw-socket program that does only the unavoidable work, measured in the same run, its rounds interleaved with
everybody else's, best round of each.

    floors.py  afloors.py   the floors, blocking and asyncio
    commands.py             the bytes a floor sends: plain, or fenced with the library's own acquire script
    ours.py  peers.py       handfast and the other libraries, each through its documented usage
    contestant.py           what all of them look like from here
    measure.py              one round, the interleaving of rounds, the best of them
    cases.py                the table of what is measured; a new case is one class and one line there
    servers.py  report.py   where it runs, what is printed
    hold.py                 `python -m bench.hold`: many leases held for a long time
"""
