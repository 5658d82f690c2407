// The timeline of a scenario: which orders held the lock, one lane per worker; and below it the stock on the same time axis.

import { count, el, seconds, svg } from "./dom.js";
import * as paths from "./paths.js";

const LEFT = 40;
const RIGHT = 12;
const FLAGS = 22;
const LANE_GAP = 5;
const BETWEEN = 16;
const AXIS = 20;
const SMALL = 560; // pixels: a narrower timeline has lower lanes

export class Timeline {
  #run = null;
  #lanes = [];
  #width = 0;
  #cursor = null;
  #below = true; // the tip is placed away from the pointer

  constructor() {
    this.layers = {};
    const layer = (name, tag = "path") => (this.layers[name] = svg(tag, { class: name }));
    this.svg = svg("svg", { class: "timeline", role: "img", tabindex: 0 },
      layer("lanes", "g"), layer("band"), layer("grid", "g"), layer("bar"), layer("bar overlap"), layer("killed"),
      layer("area"), layer("zero"), layer("line"), layer("up"), layer("flags", "g"), layer("cursor"));
    // New data is drawn at once, five times a second. The curtain then slides off it, which costs little.
    this.curtain = el("div", { class: "curtain", hidden: true, style: `top:${FLAGS - 2}px;bottom:${AXIS - 1}px` });
    this.tip = el("div", { class: "tip", hidden: true, "aria-live": "polite" });
    this.marks = el("ol", { class: "marks", "aria-label": "Events", tabindex: 0 });
    this.element = el("div", { class: "picture" }, el("div", { class: "canvas" }, this.svg, this.curtain, this.tip), this.marks, keys());
    this.#listen();
  }

  // `run` is a score or the running scenario; `workers` is the minimum number of lanes.
  show(run, workers = 0) {
    this.#run = run;
    this.#lanes = lanesOf(run, workers);
    this.#draw();
    this.#listMarks();
  }

  get #holders() {
    return this.#run.open ? [...this.#run.holders, ...this.#run.open] : this.#run.holders ?? [];
  }

  get #until() {
    return this.#run.open ? this.#run.t : this.#run.seconds ?? 0;
  }

  // -- drawing

  #draw() {
    const run = this.#run;
    this.#width = this.svg.parentElement.clientWidth;
    if (!run || !this.#width) return;
    const small = this.#width < SMALL;
    this.lane = small ? 15 : 24;
    this.stock = small ? 56 : 84;
    const inner = this.#width - LEFT - RIGHT;
    this.domain = run.open ? paths.roundedUp(run.t ?? 0) : Math.max(run.seconds ?? 0, 0.001);
    this.x = (time) => LEFT + (Math.min(Math.max(time, 0), this.domain) / this.domain) * inner;
    const lanesEnd = this.lanesEnd = FLAGS + this.#lanes.length * (this.lane + LANE_GAP);
    const stockTop = lanesEnd + BETWEEN;
    const height = stockTop + this.stock + AXIS;
    this.svg.setAttribute("viewBox", `0 0 ${this.#width} ${height}`);
    this.svg.setAttribute("height", height);
    this.#frameOf(lanesEnd, stockTop);
    this.#drawStock(stockTop);
    this.#drawHolders(lanesEnd);
    this.#drawFlags(stockTop + this.stock);
    this.#drawCurtain();
    this.svg.setAttribute("aria-label", this.#inWords());
    if (this.#cursor !== null) this.#pointAt(this.#cursor);
  }

  #frameOf(lanesEnd, stockTop) {
    const key = [this.#width, this.domain, this.#lanes, this.#run.stock].join();
    if (key === this.frameKey) return;
    this.frameKey = key;
    const y = this.#stockScale(stockTop);
    this.layers.lanes.replaceChildren(...this.#lanes.flatMap((name, i) => {
      const top = FLAGS + i * (this.lane + LANE_GAP);
      return [
        svg("rect", { x: LEFT, y: top, width: this.#width - LEFT - RIGHT, height: this.lane, rx: 3 }),
        svg("text", { x: LEFT - 8, y: top + this.lane / 2 + 4, "text-anchor": "end" }, name),
      ];
    }));
    const times = paths.ticks(this.domain, (this.#width - LEFT) / 80);
    this.layers.grid.replaceChildren(
      ...times.flatMap((time) => [
        svg("path", { d: `M${this.x(time).toFixed(1)} ${FLAGS}V${lanesEnd - LANE_GAP}m0 ${BETWEEN + LANE_GAP}v${this.stock}` }),
        svg("text", { x: this.x(time), y: stockTop + this.stock + 15, "text-anchor": "middle" }, time === 0 ? "0 s" : `${time}`),
      ]),
      svg("text", { x: LEFT - 8, y: y(this.#most) + 4, "text-anchor": "end" }, count(this.#most)),
      svg("text", { x: LEFT - 8, y: y(0) + 4, "text-anchor": "end" }, "0"),
      svg("text", { x: LEFT, y: stockTop - 4, class: "caption" }, "stock"),
    );
    this.layers.zero.setAttribute("d", `M${LEFT} ${y(0)}H${this.#width - RIGHT}`);
  }

  #drawHolders(lanesEnd) {
    const overlaps = this.#run.overlaps ?? [];
    const { placed, rows } = paths.inRows(this.#holders, this.#lanes);
    const place = (lane, row) => {
      const height = (this.lane - (rows[lane] - 1)) / rows[lane];
      return { top: FLAGS + lane * (this.lane + LANE_GAP) + row * (height + 1), height };
    };
    this.layers.band.setAttribute("d", paths.bands(overlaps, this.x, FLAGS - 2, lanesEnd - FLAGS));
    this.layers.bar.setAttribute("d", paths.bars(placed, this.x, place));
    this.layers["bar overlap"].setAttribute("d", paths.overlapBars(placed, overlaps, this.x, place));
    this.layers.killed.setAttribute("d", paths.crosses(placed, this.x, place));
  }

  get #most() {
    return Math.max(1, this.#run.stock ?? 0);
  }

  #stockScale(top) {
    return (pieces) => top + this.stock - (Math.max(0, pieces) / this.#most) * (this.stock - 6);
  }

  #drawStock(top) {
    const points = [...(this.#run.stock_line ?? [])].sort((a, b) => a[0] - b[0]);
    const y = this.#stockScale(top);
    const shapes = paths.steps(points, this.#until, this.x, (pieces) => Math.max(top, y(pieces)));
    for (const name of ["line", "area"]) this.layers[name].setAttribute("d", shapes[name]);
    this.layers.up.setAttribute("d", shapes.ups);
  }

  #drawFlags(bottom) {
    const groups = paths.flags(this.#run.marks ?? [], this.x);
    this.layers.flags.replaceChildren(...groups.flatMap((group, i) => {
      const { number, pill } = group;
      const left = Math.min(group.at - 7, this.#width - pill);
      const room = (groups[i + 1]?.at ?? this.#width) - 7 - (left + pill + 10);
      const label = fitted(group.text, room);
      return [
        svg("path", { d: upright(group.at, FLAGS - 6, bottom) }),
        svg("rect", { x: left, y: 1, width: pill, height: 15, rx: 7.5 }),
        svg("text", { class: "number", x: left + pill / 2, y: 12.5, "text-anchor": "middle" }, number),
        label ? svg("text", { x: left + pill + 4, y: 12.5 }, label) : null,
      ].filter(Boolean);
    }));
  }

  #listMarks() {
    const marks = this.#run?.marks ?? [];
    const key = `${this.#run?.scenario} ${marks.length} ${Boolean(this.#run?.open)}`;
    if (key === this.marksKey) return;
    this.marksKey = key;
    const atEnd = this.marks.scrollTop + this.marks.clientHeight >= this.marks.scrollHeight - 8;
    this.marks.replaceChildren(...marks.map((each) => el("li", {}, el("span", { class: "when" }, seconds(each.t)), ` ${each.text}`)));
    if (!this.#run?.open) this.marks.scrollTop = 0;
    else if (atEnd) this.marks.scrollTop = this.marks.scrollHeight;
  }

  #drawCurtain() {
    const { style } = this.curtain;
    const key = `${this.#run.scenario} ${this.#width} ${this.domain}`;
    this.curtain.hidden = !this.#run.open;
    style.transition = key === this.curtainKey ? "" : "none"; // a new scale: jump instead of sliding
    style.transform = `translateX(${this.x(this.#until).toFixed(1)}px)`;
    this.curtainKey = key;
  }

  // -- the pointer

  #listen() {
    const point = (event) => {
      if (!this.domain) return;
      const { left, top } = this.svg.getBoundingClientRect();
      const share = (event.clientX - left - LEFT) / (this.#width - LEFT - RIGHT);
      this.#below = event.clientY - top < this.lanesEnd;
      this.#pointAt(Math.min(1, Math.max(0, share)) * this.domain);
    };
    this.svg.addEventListener("pointermove", point);
    this.svg.addEventListener("pointerdown", point);
    this.svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.#pointAt(null));
    this.svg.addEventListener("blur", () => this.#pointAt(null));
    this.svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") this.#pointAt(null);
      if (!step || !this.domain) return;
      event.preventDefault();
      this.#below = true;
      this.#pointAt(this.#neighbour(step));
    });
    const canvas = this.svg.parentElement;
    new ResizeObserver(() => this.#width !== canvas.clientWidth && this.#draw()).observe(canvas);
  }

  #neighbour(step) {
    const moments = [...this.#holders.map((holder) => holder.from), ...(this.#run.marks ?? []).map((each) => each.t)].sort((a, b) => a - b);
    const now = this.#cursor ?? (step > 0 ? -1 : this.domain + 1);
    const next = step > 0 ? moments.find((time) => time > now) : moments.findLast((time) => time < now);
    return next ?? this.#cursor;
  }

  #pointAt(time) {
    this.#cursor = time;
    this.tip.hidden = time === null || !this.domain;
    if (this.tip.hidden) return this.layers.cursor.setAttribute("d", "");
    const at = this.x(time);
    this.layers.cursor.setAttribute("d", upright(at, FLAGS, this.svg.viewBox.baseVal.height - AXIS));
    const lines = this.#around(time);
    this.tip.replaceChildren(...lines.map((line, i) => el(i ? "p" : "strong", {}, line)));
    const room = this.#width - this.tip.offsetWidth - 4;
    const wanted = at > this.#width / 2 ? at - this.tip.offsetWidth - 10 : at + 10;
    this.tip.style.top = `${this.#below ? this.lanesEnd + 2 : FLAGS}px`;
    this.tip.style.left = `${Math.max(4, Math.min(room, wanted))}px`;
  }

  #around(time) {
    const near = (this.domain / this.#width) * 4;
    const there = this.#holders.filter((holder) => holder.from - near <= time && time <= holder.to + near);
    const exact = there.filter((holder) => holder.from <= time && time <= holder.to);
    const shown = exact.length ? exact : there;
    const stock = (this.#run.stock_line ?? []).findLast((point) => point[0] <= time);
    return [
      `${time.toFixed(time < 10 ? 3 : 2)} s · stock ${count(stock?.[1])}`,
      ...shown.slice(0, 5).map(inShort),
      ...(shown.length > 5 ? [`and ${shown.length - 5} more`] : []),
      ...(shown.length ? [] : ["no order holds the lock"]),
      ...(this.#run.marks ?? []).filter((each) => Math.abs(each.t - time) <= near * 1.5).slice(0, 4).map((each) => `▾ ${each.text}`),
    ];
  }

  #inWords() {
    const overlaps = this.#run.overlaps ?? [];
    const shared = overlaps.reduce((sum, [from, to]) => sum + to - from, 0);
    const twice = overlaps.length ? `two or more orders held the lock at once for ${seconds(shared)} in all` : "never two at once";
    return `Timeline of ${seconds(this.#until)}: ${count(this.#holders.length)} holdings by ${this.#lanes.length} workers, ${twice}. The arrow keys move from one to the next.`;
  }
}

function keys() {
  const key = (name, text) => el("span", { class: `key ${name}` }, text);
  return el("p", { class: "keys" }, key("one", "an order holds the lock"), key("two", "two or more at once"),
    key("dead", "killed"), key("stale", "stock goes up: a stale write"), el("span", { class: "orders" }, "o1 (w1): order o1, served by worker process w1"));
}

const upright = (at, from, to) => `M${at.toFixed(1)} ${from}V${to}`;

function inShort(holder) {
  const stripe = holder.stripe ? `, stripe ${holder.stripe}` : "";
  const end = { open: "still holds", killed: "killed", released: "" }[holder.end] ?? holder.end;
  const length = seconds(holder.to - holder.from);
  return `${holder.worker}: ${holder.order}${stripe}, ${length}${end ? `, ${end}` : ""}${holder.overlap ? ", overlaps" : ""}`;
}

function lanesOf(run, workers) {
  const names = new Set(Array.from({ length: workers }, (_, i) => `w${i + 1}`));
  for (const holder of [...(run?.holders ?? []), ...(run?.open ?? [])]) names.add(holder.worker);
  return [...names].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
}

function fitted(text, room) {
  const letters = Math.floor(room / paths.LETTER);
  const short = text.replace(/ \(SIG\w+\)/, "");
  if (short.length <= letters) return short;
  return letters < 8 ? "" : `${short.slice(0, letters - 1).trimEnd()}…`;
}
