"""Draws docs/architecture.svg, the figure of docs/architecture.md. Run it after a change: python docs/architecture.py

A test compares the file with what this program draws, and the modules that are named here with those that exist.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 1040, 824
LINE, PAD = 17, 12
FONT = "font-family='DejaVu Sans, Verdana, sans-serif'"
MONO = "font-family='DejaVu Sans Mono, Menlo, monospace'"
FACADE, CORE, NET, BYTES, SERVER, SIM = "#e3eefb", "#fdf3dc", "#e5f4e6", "#f2e9f8", "#eceff1", "#f7f7f7"


class Box(NamedTuple):
    """A box with a title and, line by line, the modules of `folder` and what they are for."""

    x: int
    y: int
    width: int
    height: int
    fill: str
    title: str
    folder: str = ""
    """In src/handfast, or in the repository; empty where the lines name no modules."""
    lines: tuple[tuple[str, str], ...] = ()
    """Modules, separated by spaces, and what they do."""
    dashed: bool = False
    column: int = 110
    """How far to the right the words of a line begin."""


class Arrow(NamedTuple):
    """From one point to another, with words beside it."""

    x1: int
    y1: int
    x2: int
    y2: int
    text: str = ""
    both: bool = False


BOXES = (
    Box(20, 20, 330, 62, FACADE, "sync.py", ".", (("sync", "blocking calls"),), column=60),
    Box(370, 20, 330, 62, FACADE, "aio.py", ".", (("aio", "the same for asyncio"),), column=60),
    Box(720, 20, 300, 156, FACADE, "watchdog.py", ".", (
        ("watchdog", "one thread for each process"),
        ("", "renews, repeats releases,"),
        ("", "restores votes, repairs nodes;"),
        ("", "its own loop and connections"),
    ), column=80),
    Box(20, 104, 680, 72, FACADE, "shared by both facades", ".", (
        ("_client", "a Hold becomes a Lease; a failed acquisition is taken back"),
        ("_lease _reports", "leases and blocks; events and log lines"),
    ), column=130),
    Box(20, 210, 680, 268, CORE, "core/   WHAT: algorithms without I/O, clock or randomness", "core", (
        ("acquire", "the way in: start reading here"),
        ("attempt single", "one attempt, and a hold if a majority grants it; the usual way on one node"),
        ("local_queue", "waiting in this process, in order of arrival; the cohort"),
        ("queue node_votes", "waiting in the nodes' queues: claim, inquire, yield; which votes count"),
        ("several foreign", "several names at once; keys of other programs"),
        ("hold", "the state machine of one acquisition"),
        ("release", "the way out: every release there is"),
        ("renew schedule", "renewal of many holds, and when it is due"),
        ("votes tokens", "counting votes, agreeing on a token"),
        ("guard clocks handshake", "which nodes may vote, and what a connection says first"),
        ("nodes config", "what is known of the nodes; settings and timing"),
        ("explain inspect eviction", "errors with reasons; holder(), waiters(); warnings"),
        ("io", "IO and Access: what a driver provides"),
    ), column=190),
    Box(720, 210, 300, 268, BYTES, "protocol/   WHICH BYTES", "protocol", (
        ("commands", "one encoder per transition"),
        ("claims", "the codec of votes,"),
        ("", "claims and pushes"),
        ("keys", "every key name"),
        ("resp", "commands as bytes"),
        ("", ""),
        ("scripts", "Lua, run by the nodes:"),
        ("", "claim, pass, yield, extend,"),
        ("", "acquire_all, restore_vote,"),
        ("", "raise_token, set_marker,"),
        ("", "delete_owned"),
    ), column=90),
    Box(20, 518, 400, 170, NET, "net/   HOW BYTES TRAVEL", "net", (
        ("threads threads_connections", "IO on blocking sockets"),
        ("aio aio_connections", "IO on an asyncio loop"),
        ("cluster_threads cluster_aio", "both for a cluster"),
        ("connection link", "pipelining; retries"),
        ("push_router wakeup", "pushes; wake-ups"),
        ("spinning timeouts", "waiting for replies"),
        ("clock address", "time; sockets and TLS"),
    ), column=200),
    Box(440, 518, 260, 170, NET, "discovery/   WHERE NODES ARE", "discovery", (
        ("urls endpoints", "addresses"),
        ("sentinel cluster", "nodes that move"),
        ("", ""),
        ("", "embedded/"),
        ("", "servers on demand"),
    ), column=130),
    Box(720, 518, 300, 170, SIM, "sim/   the simulator, not shipped", "/sim", (
        ("io", "IO in virtual time"),
        ("lua", "runs the production scripts"),
        ("client", "runs the production client"),
        ("", "and watchdog"),
        ("world net node", "clocks, links, servers"),
        ("observer", "the invariants"),
    ), dashed=True),
    Box(20, 728, 400, 76, SERVER, "node 1: Redis or Valkey", "", (
        ("", "K owner,  K:q queue,  K:c claims,"),
        ("", "K:f fence counter,  K:g generations"),
    )),
    Box(440, 728, 580, 76, SERVER, "node 2 … node N, independent of each other", "", (
        ("", "Each has its own vote, its own queue and its own counter."),
        ("", "A majority of unexpired votes is the lock."),
    )),
)  # fmt: skip

ARROWS = (
    Arrow(185, 82, 185, 104),
    Arrow(535, 82, 535, 104),
    Arrow(360, 176, 360, 210, "acquire, release, extend"),
    Arrow(720, 140, 700, 140, both=True),
    Arrow(740, 176, 660, 210, "renew, repeat, repair"),
    Arrow(700, 330, 720, 330),
    Arrow(180, 478, 180, 518, "core.io.IO"),
    Arrow(660, 478, 760, 518, "core.io.IO"),
    Arrow(440, 600, 420, 600),
    Arrow(180, 688, 180, 728, "requests; replies and pushes", both=True),
    Arrow(400, 688, 470, 728, both=True),
)


def _text(x: int, y: int, words: str, style: str, size: int = 12) -> str:
    return f"<text x='{x}' y='{y}' font-size='{size}' {style}>{escape(words)}</text>"


def _box(box: Box) -> list[str]:
    dash = " stroke-dasharray='5 4'" if box.dashed else ""
    x, y = box.x + PAD, box.y + PAD + 10
    shape = f"<rect x='{box.x}' y='{box.y}' width='{box.width}' height='{box.height}' rx='6'"
    drawn = [
        f"{shape} fill='{box.fill}' stroke='#607080'{dash}/>",
        _text(x, y, box.title, f"{FONT} font-weight='bold'", 13),
    ]
    for row, (modules, words) in enumerate(box.lines):
        line = y + 22 + row * LINE
        if modules:
            drawn.append(_text(x, line, " ".join(modules.split()), MONO, 11))
        if words:
            drawn.append(_text(x + box.column if box.folder else x, line, words, f"{FONT} fill='#333'", 11))
    return drawn


def _arrow(arrow: Arrow) -> list[str]:
    start = " marker-start='url(#tip)'" if arrow.both else ""
    ends = f"x1='{arrow.x1}' y1='{arrow.y1}' x2='{arrow.x2}' y2='{arrow.y2}'"
    drawn = [f"<line {ends} stroke='#405060' stroke-width='1.5' marker-end='url(#tip)'{start}/>"]
    if arrow.text:
        x, y = (arrow.x1 + arrow.x2) // 2 + (10 if arrow.x1 == arrow.x2 else 24), (arrow.y1 + arrow.y2) // 2 + 4
        drawn.append(_text(x, y, arrow.text, f"{FONT} font-style='italic' fill='#405060'", 11))
    return drawn


def drawing() -> str:
    """The figure as SVG."""
    tip = "<path d='M0 0 L8 4 L0 8 z' fill='#405060'/>"
    marker = "viewBox='0 0 8 8' refX='8' refY='4' markerWidth='8' markerHeight='8' orient='auto-start-reverse'"
    body = [line for box in BOXES for line in _box(box)] + [line for arrow in ARROWS for line in _arrow(arrow)]
    return "\n".join([
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' height='{HEIGHT}'>",
        "<title>The layers of handfast</title>",
        f"<defs><marker id='tip' {marker}>{tip}</marker></defs>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='white'/>",
        *body,
        "</svg>",
        "",
    ])  # fmt: skip


def modules() -> list[str]:
    """The paths of all modules and folders that the figure names, from the repository."""
    named: list[str] = []
    for box in BOXES:
        folder = box.folder.removeprefix("/") if box.folder.startswith("/") else f"src/handfast/{box.folder}"
        named += [f"{folder}/{module}" for words, _ in box.lines if box.folder for module in words.split()]
    return named


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(drawing())
