// The shapes of a timeline as path strings: a few elements show thousands of holdings and are drawn quickly.

const CLOSE = 0.3; // pixels: shapes with smaller gaps are merged
const THIN = 1.2; // pixels: the minimum width of a holding
const MOST_ROWS = 6;
const box = (x, y, width, height) => `M${x.toFixed(1)} ${y.toFixed(1)}h${width.toFixed(1)}v${height.toFixed(1)}h${(-width).toFixed(1)}z`;

// If several orders of a worker hold at once (no lock, or several stripes), its lane is divided into rows.
export function inRows(holders, lanes) {
  const placed = [];
  const ends = new Map(lanes.map((name) => [name, []]));
  for (const holder of [...holders].sort((a, b) => a.from - b.from)) {
    const taken = ends.get(holder.worker);
    if (!taken) continue;
    let row = taken.findIndex((end) => end <= holder.from);
    if (row < 0) row = Math.min(taken.length, MOST_ROWS - 1);
    taken[row] = Math.max(taken[row] ?? 0, holder.to);
    placed.push({ holder, lane: lanes.indexOf(holder.worker), row });
  }
  return { placed, rows: lanes.map((name) => Math.max(1, ends.get(name).length)) };
}

// `place(lane, row)` is the top and the height of a row.
export function bars(placed, x, place) {
  const pen = new Pen(x, place);
  for (const { holder, lane, row } of placed) pen.draw(lane, row, holder.from, holder.to);
  return pen.path();
}

// The parts of holdings that overlap with another holding.
export function overlapBars(placed, overlaps, x, place) {
  const pen = new Pen(x, place);
  let first = 0; // both lists are sorted by time: later holders do not reach the spans before this one
  for (const { holder, lane, row } of placed) {
    while (first < overlaps.length && overlaps[first][1] < holder.from) first += 1;
    if (!holder.overlap) continue;
    for (let i = first; i < overlaps.length && overlaps[i][0] <= holder.to; i += 1) {
      pen.draw(lane, row, Math.max(overlaps[i][0], holder.from), Math.min(overlaps[i][1], holder.to));
    }
  }
  return pen.path();
}

class Pen {
  #parts = [];
  #last = new Map();

  constructor(x, place) {
    this.x = x;
    this.place = place;
  }

  draw(lane, row, from, to) {
    const start = this.x(from);
    const end = Math.max(this.x(to), start + THIN);
    const key = `${lane} ${row}`;
    const last = this.#last.get(key);
    if (last && start - last.end < CLOSE) last.end = Math.max(last.end, end);
    else {
      const part = { lane, row, start, end };
      this.#last.set(key, part);
      this.#parts.push(part);
    }
  }

  path() {
    return this.#parts.map(({ lane, row, start, end }) => {
      const { top, height } = this.place(lane, row);
      return box(start, top, end - start, height);
    }).join("");
  }
}

export function bands(overlaps, x, top, height) {
  const merged = [];
  for (const [from, to] of overlaps) {
    const start = x(from);
    const end = Math.max(x(to), start + THIN);
    const last = merged.at(-1);
    if (last && start - last.end < CLOSE) last.end = Math.max(last.end, end);
    else merged.push({ start, end });
  }
  return merged.map(({ start, end }) => box(start, top, end - start, height)).join("");
}

export function crosses(placed, x, place) {
  const size = 4;
  return placed.filter(({ holder }) => holder.end === "killed").map(({ holder, lane, row }) => {
    const { top, height } = place(lane, row);
    const [left, upper] = [x(holder.to) - size, top + height / 2 - size].map((each) => each.toFixed(1));
    return `M${left} ${upper}l${2 * size} ${2 * size}m0 ${-2 * size}l${-2 * size} ${2 * size}`;
  }).join("");
}

// A step line, and separately the steps up, which are stale writes.
export function steps(points, until, x, y) {
  if (!points.length) return { line: "", area: "", ups: "" };
  let line = `M${x(points[0][0]).toFixed(1)} ${y(points[0][1]).toFixed(1)}`;
  let ups = "";
  for (let i = 1; i < points.length; i += 1) {
    const at = x(points[i][0]).toFixed(1);
    const to = y(points[i][1]).toFixed(1);
    line += `H${at}V${to}`;
    if (points[i][1] > points[i - 1][1]) ups += `M${at} ${y(points[i - 1][1]).toFixed(1)}V${to}`;
  }
  line += `H${x(Math.max(until, points.at(-1)[0])).toFixed(1)}`;
  const floor = y(0).toFixed(1);
  return { line, area: `${line}V${floor}H${x(points[0][0]).toFixed(1)}z`, ups };
}

// Events that are too close to each other share a flag. Its label is the most notable event, such as a kill or a pause.
const NOTABLE = /kill|paus|SIG|restart|partition|cut off|promot|refus|learned|stops/i;
export const LETTER = 6; // about the width of a small letter, in pixels
const DIGIT = 7;

export function flags(marks, x) {
  const groups = [];
  marks.forEach((each, i) => {
    const at = x(each.t);
    const last = groups.at(-1);
    if (last && at - last.at < last.pill + 4) {
      last.number = `${last.from}–${i + 1}`;
      if (NOTABLE.test(each.text) || !NOTABLE.test(last.text)) last.text = each.text;
    } else groups.push({ at, from: i + 1, number: `${i + 1}`, text: each.text });
    groups.at(-1).pill = 8 + groups.at(-1).number.length * DIGIT;
  });
  return groups;
}

// Round numbers for about this number of ticks.
export function ticks(domain, wanted) {
  const rough = domain / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const list = [];
  for (let i = 0; i * step <= domain * 1.0001; i += 1) list.push(Number((i * step).toPrecision(6)));
  return list;
}

// The axis of a running scenario grows in a few steps instead of continuously.
export function roundedUp(time) {
  const sizes = [2, 3, 4, 6, 8, 10, 15, 20, 30, 45, 60, 90, 120];
  return sizes.find((size) => size >= time * 1.02) ?? time * 1.25;
}
