// The parts around the table: figures, the chart, nodes and the tape.

import { NOTHING, addressOf, byId, clock, count, duration, el, mark, say, svg, visible } from "./dom.js";

const LEVELS = ["ok", "warn", "bad"];
const SIGNS = { ok: "✓", warn: "!", bad: "✗" };
const OF_NODES = new Set(["node down", "node up", "quarantined", "votes again"]);

const times = (of) => (of?.n ? [of.p50, of.p95, of.p99].map((s) => duration(s * 1000)).join(" · ") : NOTHING);

export function drawFigures(board) {
  let waiting = 0;
  for (const lock of board.rows.values()) waiting += lock.waiters;
  say(byId("held"), count(board.rows.size));
  say(byId("waiting"), count(waiting));
  say(byId("wait"), times(board.stats.wait));
  say(byId("hold"), times(board.stats.hold));
  drawChart(board.points);
}

const WIDTH = 600;
const HEIGHT = 60;

function drawChart(points) {
  const last = points.at(-1);
  say(byId("rate"), last ? last[1].toFixed(last[1] < 10 ? 1 : 0) : NOTHING);
  const chart = byId("chart");
  chart.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  chart.setAttribute("preserveAspectRatio", "none");
  if (points.length < 2) return;
  const [from, to] = [points[0][0], last[0]];
  const most = Math.max(1, ...points.map((point) => point[1]));
  const x = (at) => ((at - from) / (to - from)) * WIDTH;
  const y = (rate) => HEIGHT - 2 - (rate / most) * (HEIGHT - 6);
  const line = points.map((point) => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`).join(" ");
  chart.replaceChildren(
    svg("polygon", { class: "area", points: `0,${HEIGHT} ${line} ${WIDTH},${HEIGHT}` }),
    svg("polyline", { class: "rate", points: line }),
  );
}

// -- nodes

let drawnNodes = "";

export function drawNodes(board) {
  const state = JSON.stringify([board.nodes, board.checks, board.faults]);
  if (state === drawnNodes) return;
  drawnNodes = state;
  const open = new Set([...byId("nodes").querySelectorAll("details[open]")].map((each) => each.dataset.node));
  const whole = board.checks.filter((check) => check.node === "");
  const cards = board.nodes.map((node) => card(node, board.checks.filter((check) => check.node === node), board.faults[node]));
  const others = board.checks.filter((check) => check.node !== "" && !board.nodes.includes(check.node));
  if (others.length) cards.push(card("Servers of the cluster", others));
  if (whole.length) cards.push(card("All together", whole));
  for (const each of cards) each.open = open.has(each.dataset.node);
  byId("nodes").replaceChildren(...cards);
}

function card(node, checks, fault) {
  const worst = fault ? "bad" : LEVELS[Math.max(0, ...checks.map((check) => LEVELS.indexOf(check.level)))];
  const bad = checks.filter((check) => check.level !== "ok");
  const state = fault ?? (bad.length ? bad.map((check) => check.found).join("; ") : checks.length ? summary(checks) : "not examined yet");
  return el(
    "details",
    { class: "node", "data-node": node, "data-level": worst },
    el("summary", {}, sign(worst), el("span", { class: "label" }, visible(node)), el("span", { class: "state" }, visible(state))),
    el("ul", {}, ...checks.map(finding)),
  );
}

function summary(checks) {
  const said = (name) => checks.find((check) => check.name === name)?.found;
  return [said("version"), said("latency"), said("quorum")].filter(Boolean).join(", ") || "fine";
}

const sign = (level) => el("span", { class: "sign", "data-level": level, role: "img", "aria-label": level }, SIGNS[level]);

function finding(check) {
  const advice = check.advice ? el("span", { class: "advice" }, visible(check.advice)) : null;
  return el("li", {}, sign(check.level), el("b", {}, check.name), " ", visible(check.found), advice);
}

// -- the tape

let drawnTape = null;

export function drawTape(board) {
  if (board.tape === drawnTape) return;
  drawnTape = board.tape;
  byId("tape").replaceChildren(...board.tape.toReversed().map(tapeLine));
}

function tapeLine(line) {
  const name = visible(line.name);
  const what = !line.name ? null : OF_NODES.has(line.kind) ? el("span", { class: "name" }, name) : el("a", { class: "name", href: addressOf(line.name) }, name);
  const element = el(
    "li",
    {},
    el("time", {}, clock(line.at)),
    el("span", { class: "kind" }, line.kind),
    el("span", { class: "what" }, what, line.text ? el("span", { class: "soft" }, visible(line.text)) : null),
  );
  mark(element, "kind", line.kind);
  return element;
}
