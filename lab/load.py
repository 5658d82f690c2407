"""The crowd: many buyers at once. Each orders again and again, until the shop answers "sold out" or the time is over.

Every request has its own connection, as with `ab`, so that the balancer can choose a worker for each. `ab` itself can
be the crowd instead.
"""

from __future__ import annotations

import asyncio
import math
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from handfast.testing import reaper
from lab import LabError

__all__ = ["Tally", "ab", "ab_found", "crowd", "in_words"]

ANSWERS: Final = {200: "sold", 410: "sold_out", 503: "busy", 409: "refused"}
PAUSE: Final = 0.02
"""Seconds that a buyer waits after a failed request."""
PERCENTILES: Final = (50, 66, 75, 80, 90, 95, 98, 99, 100)


@dataclass
class Tally:
    """The answers that the buyers got. `began` and `ended` are seconds since the scenario began."""

    began: float = 0.0
    ended: float = 0.0
    answers: dict[str, int] = field(default_factory=lambda: dict.fromkeys([*ANSWERS.values(), "failed"], 0))
    times: list[float] = field(default_factory=list)
    """The duration in seconds of every request that the shop answered."""
    confirmed: set[str] = field(default_factory=set)
    text: str = ""
    """The output of `ab`, if it was the crowd."""

    def count(self, order: str, status: int | None, seconds: float) -> None:
        answer = ANSWERS.get(status or 0, "failed")
        self.answers[answer] += 1
        if answer == "failed":
            return
        self.times.append(seconds)
        if answer == "sold":
            self.confirmed.add(order)

    def percentile(self, percent: float) -> float:
        """The time within which this percentage of the requests got an answer; 0.0 if none did."""
        if not self.times:
            return 0.0
        ranked = sorted(self.times)
        return round(ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)], 4)

    def report(self) -> dict[str, Any]:
        seconds = max(self.ended - self.began, 0.001)
        requests = sum(self.answers.values())
        return {
            "requests": requests,
            **self.answers,
            "seconds": round(seconds, 3),
            "rate": round(requests / seconds, 1),
            "percentiles": {str(percent): self.percentile(percent) for percent in PERCENTILES},
            **({"ab": self.text} if self.text else {}),
        }


def in_words(load: dict[str, Any]) -> str:
    """The report of a tally in the format of `ab`, or the output of `ab` itself."""
    if "ab" in load:
        return str(load["ab"]).strip()
    answers = ", ".join(f"{load[name]} {name.replace('_', ' ')}" for name in ANSWERS.values())
    facts = {
        "Time taken": f"{load['seconds']:.3f} seconds",
        "Complete requests": load["requests"] - load["failed"],
        "Failed requests": load["failed"],
        "Requests per second": load["rate"],
        "Answers": answers,
    }
    lines = [f"{name + ':':<21} {value}" for name, value in facts.items()]
    shares = [f"{share + '%':>6} {seconds * 1000:6.0f}" for share, seconds in load["percentiles"].items()]
    return "\n".join([*lines, "Served within a certain time (ms):", *shares])


async def crowd(url: str, buyers: int, seconds: float, tally: Tally, timeout: float = 10.0) -> None:
    """POST to `url` until every buyer got the answer "sold out", or for so many seconds."""
    deadline = time.monotonic() + seconds
    connector = aiohttp.TCPConnector(force_close=True, limit=0)

    async def buyer(number: int) -> None:
        tries = 0
        while time.monotonic() < deadline:
            tries += 1
            answer = await _order(session, url, f"b{number}-{tries}", tally)
            if answer == 410:
                return
            if answer not in ANSWERS:
                await asyncio.sleep(PAUSE)

    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=timeout)) as session:
        await asyncio.gather(*[buyer(number) for number in range(1, buyers + 1)])


async def _order(session: aiohttp.ClientSession, url: str, order: str, tally: Tally) -> int | None:
    began = time.monotonic()
    try:
        async with session.post(url, params={"order": order}) as answer:
            await answer.read()
            status: int | None = answer.status
    except (aiohttp.ClientError, TimeoutError):
        status = None
    tally.count(order, status, time.monotonic() - began)
    return status


def ab_found() -> str | None:
    return shutil.which("ab")


async def ab(url: str, requests: int, buyers: int, seconds: float, tally: Tally) -> None:
    """The same crowd made by ApacheBench, which ends after so many requests or seconds."""
    requests = max(requests, buyers)  # ab refuses fewer requests than buyers
    process = _started(f"ab -r -q -m POST -t {math.ceil(seconds)} -n {requests} -c {buyers} {url}".split())
    assert process.stdout is not None
    reading = asyncio.get_running_loop().run_in_executor(None, _outcome, process)
    try:
        tally.text, status = await asyncio.shield(reading)
    finally:
        reaper.forget(process.pid)
        process.kill()
        process.wait()
        await asyncio.wait([reading])
        process.stdout.close()
    if status != 0:
        raise LabError(f"ab failed with status {status}: {_complaint(tally.text)}")
    read_ab(tally.text, tally)


def _started(command: list[str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    reaper.watch(process.pid, None)
    return process


def _outcome(process: subprocess.Popen[bytes]) -> tuple[str, int]:
    assert process.stdout is not None
    text = process.stdout.read().decode(errors="replace")
    return text, process.wait()


def _complaint(text: str) -> str:
    """The error message in the output of `ab`, which is between its banner and its usage."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no output"]
    return next((line for line in lines if re.search(r"\bab: |apr_", line)), lines[-1])


def read_ab(text: str, tally: Tally) -> None:
    """Read the counts and percentiles of an `ab` report into the tally. `ab` does not print single durations."""

    def number(label: str) -> int:
        found = re.search(rf"^{label}:\s+(\d+)", text, re.MULTILINE)
        return int(found[1]) if found else 0

    complete, others = number("Complete requests"), number("Non-2xx responses")
    errors = sum(int(each) for each in re.findall(r"(?:Connect|Receive|Exceptions): (\d+)", text))
    failed = min(errors, complete - others)  # ab counts these as complete too, and some of them twice
    # ab does not distinguish "sold out", "busy" and errors.
    tally.answers = {"sold": complete - others - failed, "not_2xx": others, "failed": failed}
    shares = {int(share): int(ms) / 1000 for share, ms in re.findall(r"^\s+(\d+)%\s+(\d+)", text, re.MULTILINE)}
    steps = sorted(shares)
    for before, share in zip([0, *steps], steps, strict=False):
        tally.times += [shares[share]] * (share - before)
