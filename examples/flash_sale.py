"""A flash sale: many buyers, few pieces, and a database that refuses a buyer whose lease is over.

A lock with a time limit cannot stop a holder that was paused for too long and does not know it. The database can: each
transaction first checks the lease's fencing token, and a smaller token than the newest one raises StaleToken.
"""

from __future__ import annotations

import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import handfast
from handfast.fenced import SqlFence

PIECES, BUYERS = 10, 25
fence = SqlFence()


def create(path: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        fence.create(db)
        db.execute("CREATE TABLE stock (item INTEGER PRIMARY KEY, pieces INTEGER NOT NULL)")
        db.execute("INSERT INTO stock VALUES (7, ?)", (PIECES,))


def buy(client: handfast.Client, path: str) -> bool:
    """Buy a piece. Returns False if the item is sold out."""
    with client.lock("stock:7", wait=30.0) as lease, closing(sqlite3.connect(path)) as db, db:
        fence.check(db, lease)  # first in the transaction: what is read behind it stays true until the commit
        (pieces,) = db.execute("SELECT pieces FROM stock WHERE item = 7").fetchone()
        if not pieces:
            return False
        db.execute("UPDATE stock SET pieces = ? WHERE item = 7", (pieces - 1,))
        return True


def write_late(path: str, token: int) -> None:
    """What a buyer does that was paused with an old token in its hand."""
    with closing(sqlite3.connect(path)) as db, db:
        fence.check(db, "stock:7", token)
        db.execute("UPDATE stock SET pieces = 100 WHERE item = 7")


def main() -> None:
    path = sys.argv[1]
    create(path)
    with handfast.connect() as client:
        with client.lock("stock:7") as early:
            pass
        with ThreadPoolExecutor(BUYERS) as pool:
            sold = sum(pool.map(lambda _: buy(client, path), range(BUYERS)))
    print("sold", sold, "of", PIECES)
    assert early.token is not None
    try:
        write_late(path, early.token)
    except handfast.StaleToken:
        print("the late write was refused")


if __name__ == "__main__":
    main()
