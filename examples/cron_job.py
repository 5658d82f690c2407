"""A cron job that runs once a day, although cron starts it on every host.

The lock keeps two hosts from running the job at the same time. It does not remember yesterday, so the job also records
each finished day in its database.

    0 3 * * *  HANDFAST_URL=redis://locks.internal python cron_job.py /srv/reports.db
"""

from __future__ import annotations

import datetime
import sqlite3
import sys
from contextlib import closing

import handfast


def write_report(db: sqlite3.Connection, day: str) -> bool:
    """Write the report of a day. Returns False if another host has written it."""
    db.execute("CREATE TABLE IF NOT EXISTS report (day TEXT PRIMARY KEY, text TEXT NOT NULL)")
    if db.execute("SELECT 1 FROM report WHERE day = ?", (day,)).fetchone():
        return False
    db.execute("INSERT INTO report VALUES (?, ?)", (day, f"all figures of {day}"))
    return True


def main() -> None:
    day = datetime.date.today().isoformat()
    with handfast.connect() as client:
        lease = client.lock("daily-report").try_acquire()
        if lease is None:
            print("another host is writing the report")
            return
        # The watchdog renews the lease for as long as the job takes.
        with lease, closing(sqlite3.connect(sys.argv[1])) as db, db:
            print("report written" if write_report(db, day) else "nothing to do: the report is there")
            lease.check(need=1.0)  # raises LeaseLost, and so rolls back, unless the lease is good for the commit


if __name__ == "__main__":
    main()
