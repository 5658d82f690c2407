// The scoreboard: a row per scenario. The details of a rung open below its rows.

import { action } from "./actions.js";
import { count, el, rate, seconds, setAttr, setText, twoTimes } from "./dom.js";
import { Details } from "./rung.js";
import { showVerdict, verdict } from "./verdict.js";

const COLUMNS = ["", "Lock", "Sold", "Oversold", "Lost", "Stuck", "Orders", "p50 / p99", "Verdict", ""];

export class Ladder {
  #rungs = [];
  #key = "";

  constructor(host) {
    this.host = host;
  }

  // Built once, and again only if another lab with other rungs answers.
  build(state) {
    const key = JSON.stringify((state.rungs ?? []).map((rung) => [rung.name, rung.title, rung.story, rung.source, rung.scenarios]));
    if (key === this.#key) return;
    this.#key = key;
    this.#rungs = (state.rungs ?? []).map((rung) => new Rows(rung));
    const heads = COLUMNS.map((title, i) => el("th", { scope: "col", role: "columnheader", class: `c${i}` }, title));
    const table = el("table", { class: "ladder", role: "table", "aria-label": "Scores of all rungs" },
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...heads)), ...this.#rungs.map((rows) => rows.element));
    this.host.replaceChildren(table);
    const asked = decodeURIComponent(location.hash.slice(1));
    this.#rungs.find((rows) => rows.rung.name === asked)?.toggle(true);
  }

  update(lab) {
    const fastest = Math.max(1, ...Object.values(lab.state.scores ?? {}).map((score) => score.rate ?? 0));
    for (const rows of this.#rungs) rows.update(lab, fastest);
  }

  // Updates only the rung that runs.
  updateLive(lab) {
    this.#rungs.find((rows) => rows.scenarios.some(({ scenario }) => scenario.name === lab.live?.scenario))?.update(lab, 0);
  }
}

class Rows {
  constructor(rung) {
    this.rung = rung;
    this.scenarios = (rung.scenarios ?? []).map((scenario, i) => this.#row(scenario, i === 0));
    this.details = new Details(rung);
    this.drawer = el("tr", { class: "drawer", role: "row", id: `rung-${rung.name}`, hidden: true },
      el("td", { colspan: COLUMNS.length, role: "cell" }, this.details.element));
    this.element = el("tbody", { class: "rung", role: "rowgroup", "data-rung": rung.name }, ...this.scenarios.map(({ row }) => row), this.drawer);
  }

  #row(scenario, first) {
    const parts = verdict();
    const cells = {};
    const cell = (name, label, ...children) =>
      (cells[name] = el("td", { class: name, role: "cell", "data-label": label }, ...children));
    const progress = el("progress", { max: 1, value: 0, hidden: true, "aria-label": "Progress of this scenario" });
    const bar = el("i", { class: "share", "aria-hidden": "true" });
    const figure = el("span", {});
    const row = el("tr", { role: "row", "data-scenario": scenario.name, class: first ? "first" : "" },
      cell("number", null, el("span", { "aria-hidden": "true" }, first ? String(this.rung.number ?? "") : "")),
      cell("lock", null, first ? this.#opener() : null, el("span", { class: "scenario" }, scenario.title ?? scenario.name), progress),
      cell("sold", "sold"), cell("oversold", "oversold"), cell("lost", "lost"), cell("stuck", "stuck"),
      cell("rate", "orders", figure, bar), cell("latency", "p50 / p99"), cell("outcome", null, parts.element),
      cell("run", null, first ? this.#runner() : null));
    row.addEventListener("click", (event) => {
      if (!event.target.closest("button") && !getSelection()?.toString()) this.toggle();
    });
    return { scenario, row, cells, parts, progress, bar, figure };
  }

  #opener() {
    this.button = el("button", { type: "button", class: "opener", "aria-expanded": "false", "aria-controls": `rung-${this.rung.name}`,
      click: () => this.toggle() }, this.rung.title ?? this.rung.name);
    return this.button;
  }

  #runner() {
    const name = `Run rung ${this.rung.number}: ${this.rung.title}`;
    return action("▶", "api/run", { rung: this.rung.name }, (lab) => !lab.live, { class: "play", "aria-label": name, title: name });
  }

  toggle(open = this.drawer.hidden) {
    this.drawer.hidden = !open;
    setAttr(this.element, "data-open", open);
    this.button?.setAttribute("aria-expanded", String(open));
    if (open) history.replaceState(null, "", `#${encodeURIComponent(this.rung.name)}`);
    if (open && this.lab) this.details.update(this.lab);
  }

  update(lab, fastest) {
    this.lab = lab;
    for (const each of this.scenarios) this.#score(each, lab, fastest);
    const verdicts = this.scenarios.map(({ scenario }) => lab.score(scenario.name)?.verdict ?? "none");
    setAttr(this.element, "data-outcome", ["oversold", "stuck", "none", "safe"].find((each) => verdicts.includes(each)));
    if (!this.drawer.hidden) this.details.update(lab);
  }

  #score({ scenario, row, cells, parts, progress, bar, figure }, lab, fastest) {
    const running = lab.live?.scenario === scenario.name;
    const score = running ? lab.live : lab.score(scenario.name);
    setAttr(row, "aria-current", running ? "true" : null);
    setAttr(row, "data-empty", !score);
    setAttr(row, "data-queued", lab.state.queue?.includes(scenario.name));
    progress.hidden = !running;
    if (running) progress.value = lab.live.progress ?? 0;
    setText(cells.sold, count(score?.sold));
    setText(cells.oversold, count(score?.oversold));
    setAttr(cells.oversold, "data-bad", score?.oversold > 0);
    setText(cells.lost, count(score?.lost));
    setAttr(cells.lost, "data-some", score?.lost > 0);
    setText(cells.stuck, seconds(score?.stuck));
    setAttr(cells.stuck, "data-warn", score?.verdict === "stuck");
    setText(figure, rate(score?.rate));
    if (fastest) bar.style.setProperty("--share", running ? 0 : (score?.rate ?? 0) / fastest);
    setText(cells.latency, twoTimes(score?.p50, score?.p99));
    showVerdict(parts, scenario, lab);
  }
}
