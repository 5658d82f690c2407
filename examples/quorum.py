"""Independent servers: a majority grants the lock, and any minority of them may be down.

    export HANDFAST_URL="redis://a redis://b redis://c redis://d redis://e"
    python quorum.py open    # once, for new servers
    python quorum.py

A server that has lost its data does not vote for about half a minute, because it may have forgotten a lease. New servers
look the same. `bootstrap` opens them at once. Call it only while no lease can be outstanding; on servers that are in use
it changes nothing.
"""

from __future__ import annotations

import sys

import handfast


def main() -> None:
    with handfast.connect() as client:
        if sys.argv[1:] == ["open"]:
            for node, outcome in handfast.bootstrap(client).items():
                print(node, outcome)
            return
        try:
            with client.lock("orders:42", wait=2.0) as lease:
                print("held with", len(lease.votes), "votes")
        except handfast.NoQuorum as error:
            print("only", error.granted, "of", error.total, "nodes granted the lock")
            for node, answer in error.nodes.items():
                print(" ", node, answer)
            sys.exit(1)


if __name__ == "__main__":
    main()
