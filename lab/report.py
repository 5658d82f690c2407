"""The report: one HTML file that includes its timelines and needs no other file."""

from __future__ import annotations

from html import escape
from typing import Any, Final

from lab.ledger import Score
from lab.load import in_words
from lab.rungs import scenarios_of

__all__ = ["html"]

WIDTH: Final = 900
LANE: Final = 22
MARGIN: Final = 40
STOCK_HEIGHT: Final = 120

PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>The handfast lab: the flash sale</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1d2733; }}
table {{ border-collapse: collapse; width: 100%; }} th, td {{ text-align: left; padding: .25rem .6rem; }}
td.n, th.n {{ text-align: right; font-variant-numeric: tabular-nums; }} tr {{ border-bottom: 1px solid #d8dee6; }}
.ours {{ font-size: .8rem; background: #e3edf8; color: #1f5aa6; border-radius: .3rem; padding: 0 .35rem; }}
.key {{ display: inline-block; width: .9rem; height: .6rem; border-radius: 2px; }}
.oversold, .broken {{ color: #c0262d; font-weight: 600; }} .stuck {{ color: #a15c00; font-weight: 600; }}
.safe {{ color: #1b7a3d; }} p.story {{ white-space: pre-line; }}
section {{ margin-top: 3rem; }} svg {{ width: 100%; height: auto; background: #f6f8fa; }}
.scroll {{ overflow-x: auto; }} pre {{ background: #f6f8fa; padding: .6rem; overflow-x: auto; }}
text {{ font: 11px system-ui, sans-serif; fill: #5a6675; }} li {{ margin: .2rem 0; }}
</style></head><body>
<h1>The flash sale</h1>
{introduction}
<h2>Results</h2>
{table}
{sections}
</body></html>
"""


INTRODUCTION: Final = """<p>A shop sells {stock} pieces from {workers} worker processes. Up to {buyers} buyers order at
the same time. An order reads the stock, works, and writes the new stock. Without a lock, two orders can read the same
stock, and the shop sells a piece twice. Each scenario guards the sale with one lock and injects the fault that this lock
does not survive. Everything is real: processes, Redis or Valkey servers, the database, the signals.</p>
<ul>
<li><b>Verdict</b>: <span class="safe">safe</span> means that the shop sold no piece twice.
<span class="oversold">oversold</span> means that the shop promised more pieces than it had.
<span class="stuck">stuck</span> means that the shop stopped selling while it had stock.</li>
<li><b>Lost</b> orders are not in the database, although the shop confirmed them or their process was killed while it held
the lock. <b>Stuck</b> is the longest time without a sale. <b>p50</b> and <b>p99</b> are the times within which 50 and 99
per cent of the requests got an answer.</li>
<li><b>Timelines</b>: one lane per worker. <span class="key" style="background:#2f6fb3"></span> An order holds the lock.
<span class="key" style="background:#c0262d"></span> Two or more orders hold it at once. A dashed line is an event; point
at it to read it. Where the stock line goes up, a late write put sold pieces back.</li>
<li><b>o1 (w1)</b> is the order o1, which the worker process w1 serves. The lab itself sends o1, o2 and so on, to hold
them up. b3-2 is the second order of buyer 3.</li>
<li><span class="ours">handfast</span> marks the locks that use handfast. The others are written by hand.</li>
</ul>
<p>Settings: {settings}.</p>"""


def html(scores: list[Score], settings: dict[str, Any]) -> str:
    shown = {escape(str(name)): escape(str(value)) for name, value in settings.items()}
    named = ", ".join(f"{name} {value}" for name, value in shown.items())
    numbers = {name: shown.get(name, "some") for name in ("stock", "workers", "buyers")}
    introduction = INTRODUCTION.format(**numbers, settings=named)
    sections = "\n".join(_section(score) for score in scores)
    return PAGE.format(introduction=introduction, table=_table(scores), sections=sections)


def _table(scores: list[Score]) -> str:
    columns = ("sold", "oversold", "lost", "stuck s", "orders/s", "p50 ms", "p99 ms")
    numbers = "".join(f'<th class="n">{column}</th>' for column in columns)
    head = f"<tr><th>verdict</th><th>expected</th><th>scenario</th>{numbers}</tr>"
    return f'<div class="scroll"><table>{head}{"".join(_row(score) for score in scores)}</table></div>'


def _row(score: Score) -> str:
    numbers = (score.sold, score.oversold, score.lost, f"{score.stuck:.2f}", f"{score.rate:.0f}")
    times = (f"{score.p50 * 1000:.0f}", f"{score.p99 * 1000:.0f}")
    cells = "".join(f'<td class="n">{value}</td>' for value in (*numbers, *times))
    kind, text = ("broken", "oversold: broken promise") if score.broken else (score.verdict, score.verdict)
    judged = f'<td class="{kind}">{text}</td><td>{score.expect}</td>'
    name = f'<a href="#{score.scenario}">{score.scenario}</a>{_ours(score)}'
    return f"<tr>{judged}<td>{name}</td>{cells}</tr>"


def _ours(score: Score) -> str:
    rung, _ = scenarios_of(score.scenario)[0]
    return ' <span class="ours">handfast</span>' if rung.handfast else ""


def _section(score: Score) -> str:
    rung, scenario = scenarios_of(score.scenario)[0]
    notes = "".join(f"<li>{escape(text)}</li>" for text in score.evidence)
    marks = "".join(f"<li>{mark['t']:.2f} s: {escape(mark['text'])}</li>" for mark in score.marks)
    return (
        f'<section id="{score.scenario}"><h2>{escape(rung.title)}: {escape(scenario.title)}{_ours(score)}</h2>'
        f'<p class="story">{escape(rung.story())}</p><p><b>Fault:</b> {escape(scenario.fault_text)}.</p>'
        f'<p><b>Verdict:</b> <span class="{score.verdict}">{score.verdict}</span>. <b>Expected:</b> {score.expect}.</p>'
        f'<ul>{notes}</ul><h3>Which orders held the lock</h3>{_timeline(score)}<ul class="marks">{marks}</ul>'
        f"<h3>Stock</h3>{_stock(score)}<h3>The crowd</h3><pre>{escape(in_words(score.load))}</pre></section>"
    )


def _x(score: Score, t: float) -> float:
    return MARGIN + (WIDTH - 2 * MARGIN) * t / max(score.seconds, 0.001)


def _timeline(score: Score) -> str:
    """A lane for each worker. Spans in which two orders held the lock at once are red in all lanes."""
    workers = sorted({holder["worker"] for holder in score.holders})
    height = LANE * max(1, len(workers)) + 24
    parts = []
    for since, until in score.overlaps:
        width = max(_x(score, until) - _x(score, since), 1)
        parts.append(
            f'<rect x="{_x(score, since):.1f}" y="0" width="{width:.1f}" height="{height - 24}" fill="#f9d5d6"/>'
        )
    for holder in score.holders:
        y = LANE * workers.index(holder["worker"]) + 4
        left = _x(score, holder["from"])
        width = max(_x(score, holder["to"]) - left, 1)
        colour = "#c0262d" if holder["overlap"] else "#2f6fb3"
        title = f"{holder['order']}, {holder['from']:.3f} to {holder['to']:.3f} s, {holder['end']}"
        box = f'x="{left:.1f}" y="{y}" width="{width:.1f}" height="{LANE - 8}"'
        parts.append(f'<rect {box} fill="{colour}" fill-opacity=".75"><title>{escape(title)}</title></rect>')
    for number, worker in enumerate(workers):
        parts.append(f'<text x="4" y="{LANE * number + 16}">{worker}</text>')
    return _svg(height, parts + _axis(score, height))


def _axis(score: Score, height: int) -> list[str]:
    parts = [
        f'<text x="{_x(score, second):.1f}" y="{height - 4}">{second} s</text>'
        for second in range(int(score.seconds) + 1)
    ]
    for mark in score.marks:
        at = f"{_x(score, mark['t']):.1f}"
        line = f'<line x1="{at}" x2="{at}" y1="0" y2="{height - 20}" stroke="#5a6675" stroke-dasharray="2 3"/>'
        parts.append(f"<g>{line}<title>{mark['t']:.2f} s: {escape(mark['text'])}</title></g>")
    return parts


def _stock(score: Score) -> str:
    """The stock after each write. A step up is a late write that put sold pieces back."""
    scale = (STOCK_HEIGHT - 30) / max([1, *(left for _, left in score.stock_line)])
    points: list[str] = []
    before = score.stock_line[0][1]
    for at, left in [*score.stock_line, (score.seconds, score.stock_line[-1][1])]:
        points += [f"{_x(score, at):.1f},{STOCK_HEIGHT - 20 - level * scale:.1f}" for level in (before, left)]
        before = left
    line = f'<polyline points="{" ".join(points)}" fill="none" stroke="#2f6fb3" stroke-width="2"/>'
    label = (
        f'<text x="4" y="{STOCK_HEIGHT - 20 - score.stock_line[0][1] * scale + 4:.1f}">{score.stock_line[0][1]}</text>'
    )
    return _svg(STOCK_HEIGHT, [line, label, *_axis(score, STOCK_HEIGHT)])


def _svg(height: int, parts: list[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'
