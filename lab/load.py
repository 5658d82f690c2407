"""The crowd: so many buyers at once, each buying again and again until the shop says "sold out" or the time is over.

A connection for every request, as `ab` does it, so that the balancer deals them out. `ab` itself can do it instead.
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
"""Seconds before a buyer whose request failed tries again."""
PERCENTILES: Final = (50, 66, 75, 80, 90, 95, 98, 99, 100)


@dataclass
class Tally:
    """What the buyers saw. `began` and `ended` are seconds since the scenario began."""

    began: float = 0.0
    ended: float = 0.0
    answers: dict[str, int] = field(default_factory=lambda: dict.fromkeys([*ANSWERS.values(), "failed"], 0))
    times: list[float] = field(default_factory=list)
    """Seconds, of every request that the shop answered."""
    confirmed: set[str] = field(default_factory=set)
    text: str = ""
    """What `ab` printed."""

    def count(self, order: str, status: int | None, seconds: float) -> None:
        answer = ANSWERS.get(status or 0, "failed")
        self.answers[answer] += 1
        if answer == "failed":
            return
        self.times.append(seconds)
        if answer == "sold":
            self.confirmed.add(order)

    def percentile(self, percent: float) -> float:
        """The time within which so many per cent of the requests were answered; 0.0 if none was."""
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
    """A tally's report, in the manner of `ab`; its own where it was the crowd."""
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


async def crowd(url: str, buyers: int, seconds: float, tally: Tally, patience: float = 10.0) -> None:
    """POST to `url` until all buyers were told "sold out", or for so many seconds."""
    deadline = time.monotonic() + seconds
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    timeout = aiohttp.ClientTimeout(total=patience)

    async def buyer(number: int) -> None:
        tries = 0
        while time.monotonic() < deadline:
            tries += 1
            answer = await _order(session, url, f"b{number}-{tries}", tally)
            if answer == 410:
                return
            if answer not in ANSWERS:
                await asyncio.sleep(PAUSE)

    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
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
    """The same crowd by ApacheBench, which stops after so many requests, or seconds."""
    requests = max(requests, buyers)  # fewer it refuses
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
    """What it said of itself or of a socket, in between its name and its usage."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it said nothing"]
    return next((line for line in lines if re.search(r"\bab: |apr_", line)), lines[-1])


def read_ab(text: str, tally: Tally) -> None:
    """From its report: counts, and the percentiles as if they were all requests."""

    def number(label: str) -> int:
        found = re.search(rf"^{label}:\s+(\d+)", text, re.MULTILINE)
        return int(found[1]) if found else 0

    complete, others = number("Complete requests"), number("Non-2xx responses")
    errors = sum(int(each) for each in re.findall(r"(?:Connect|Receive|Exceptions): (\d+)", text))
    failed = min(errors, complete - others)  # which it calls complete too, and may count twice
    # It does not tell "sold out" from "busy" or from an error.
    tally.answers = {"sold": complete - others - failed, "not_2xx": others, "failed": failed}
    shares = {int(share): int(ms) / 1000 for share, ms in re.findall(r"^\s+(\d+)%\s+(\d+)", text, re.MULTILINE)}
    steps = sorted(shares)
    for before, share in zip([0, *steps], steps, strict=False):
        tally.times += [shares[share]] * (share - before)
