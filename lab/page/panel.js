// The top of the page: the scenario that runs, its timeline, and the buttons that inject faults.

import { action, whyNot } from "./actions.js";
import { count, el, rate, seconds, setAttr, setText } from "./dom.js";
import { Timeline } from "./timeline.js";
import { summary } from "./verdict.js";

const STATES = { up: "up", paused: "paused", dead: "dead", down: "down", partitioned: "cut off" };
const HINT = "Run a rung. Or open one and start a free sale, in which you inject all faults yourself.";
const NARROW = matchMedia("(max-width: 1000px)");

export class Panel {
  #scenario = null; // the scenario that runs, or the last one that ran while this page was open
  #finished = null; // the last one that has a score
  #running = false;
  #nodesKey = "";
  #cards = [];

  // `events` is the place of the event list on a narrow screen, where the panel has no room for it.
  constructor(host, events) {
    this.host = host;
    this.events = events;
    this.kicker = el("p", { class: "kicker" });
    this.title = el("h2", { id: "panel-title" }, "…");
    this.subtitle = el("p", { class: "subtitle" });
    this.progress = el("progress", { max: 1, value: 0, "aria-label": "Progress of the running scenario" });
    this.figures = {};
    const figure = (name, label) => el("div", { class: name }, el("dt", {}, label), (this.figures[name] = el("dd", {}, "–")));
    this.numbers = el("dl", { class: "figures" },
      figure("sold", "sold"), figure("left", "left"), figure("oversold", "oversold"), figure("rate", "orders"), figure("time", "time"));
    this.timeline = new Timeline();
    this.show = el("div", { hidden: true }, this.progress, this.timeline.element);
    this.workers = el("ul", { class: "workers", "aria-label": "Worker processes" });
    this.nodes = el("ul", { class: "nodes", "aria-label": "Redis nodes" });
    this.why = el("p", { class: "note" });
    this.controls = el("div", { class: "controls" }, this.#buttons(), this.workers, this.nodes);
    host.append(
      el("div", { class: "panel-line" }, el("div", {}, this.kicker, this.title, this.subtitle), this.numbers),
      this.show, this.controls, this.why);
    this.#placeEvents();
    NARROW.addEventListener("change", () => this.#placeEvents());
    for (const use of ["wheel", "touchmove", "keydown", "pointerdown"]) {
      addEventListener(use, (event) => host.contains(event.target) || this.#unpin(), { passive: true });
    }
  }

  #buttons() {
    const holder = (label, what, possible) => action(label, "api/holder", { do: what }, possible);
    const stop = { class: "stop", title: "End the sale now and keep its score so far. Scenarios that are still to come do not run." };
    return el("div", { class: "actions", role: "group", "aria-label": "The running sale" },
      holder("Kill holder", "kill", (lab) => lab.live),
      holder("Pause holder", "pause", (lab) => lab.live),
      holder("Resume", "resume", (lab) => lab.state.workers?.some((worker) => worker.state === "paused")),
      action("Stop the run", "api/stop", {}, (lab) => lab.live || lab.state.queue?.length, stop));
  }

  #placeEvents() {
    (NARROW.matches ? this.events : this.timeline.element).append(this.timeline.marks);
    this.events.hidden = !NARROW.matches || this.show.hidden;
  }

  // A running sale keeps the panel in view. The result stays there too, until the viewer uses the rest of the page.
  #unpin() {
    if (!this.#running) setAttr(this.host, "data-pinned", null);
  }

  update(lab) {
    const { state } = lab;
    this.#choose(lab);
    const [rung, scenario] = found(state, this.#scenario);
    const run = lab.picture(this.#scenario);
    setText(this.kicker, kicker(lab, run));
    setText(this.title, scenario ? `${rung.number} · ${rung.title}` : "The scoreboard");
    setText(this.subtitle, scenario && (lab.live || !state.finished) ? subtitle(scenario, run) : summary(lab));
    this.show.hidden = !scenario;
    this.numbers.hidden = !scenario;
    this.controls.hidden = !state.interactive;
    setText(this.why, whyNot(lab) || (scenario ? "" : HINT));
    this.why.hidden = !this.why.textContent;
    this.#showWorkers(state.workers ?? []);
    this.#showNodes(state.nodes ?? []);
    this.#placeEvents();
    this.updateLive(lab);
  }

  #choose(lab) {
    this.#running = Boolean(lab.live);
    if (lab.live) {
      this.#scenario = lab.live.scenario;
      setAttr(this.host, "data-pinned", true);
      return;
    }
    // A sale that was stopped before it began has no picture: the one before it is shown again.
    if (!lab.picture(this.#scenario)) this.#scenario = this.#finished;
    this.#finished = this.#scenario;
  }

  updateLive(lab) {
    const run = lab.picture(this.#scenario);
    if (!run) return;
    setAttr(this.show, "data-running", Boolean(lab.live));
    this.progress.value = lab.live ? lab.live.progress ?? 0 : 1;
    setText(this.figures.sold, count(run.sold));
    setText(this.figures.left, count(run.left));
    setText(this.figures.oversold, count(run.oversold));
    setAttr(this.figures.oversold, "data-bad", run.oversold > 0);
    setText(this.figures.rate, rate(run.rate));
    setText(this.figures.time, seconds(lab.live ? run.t : run.seconds));
    this.timeline.show(run, lab.state.settings?.workers);
  }

  #showWorkers(workers) {
    this.workers.replaceChildren(...workers.map((worker) =>
      el("li", { "data-state": worker.state, title: worker.pid ? `process ${worker.pid}` : null },
        el("b", {}, worker.name), ` ${STATES[worker.state] ?? worker.state}`)));
  }

  // The buttons are replaced only if the nodes are: a button must not vanish while it is pressed.
  #showNodes(nodes) {
    const key = nodes.map((node) => node.name).join();
    if (key !== this.#nodesKey) {
      this.#nodesKey = key;
      this.#cards = nodes.map((node) => new NodeCard(node.name, (card) => this.#pick(card)));
      this.nodes.replaceChildren(...this.#cards.map((card) => card.element));
      if (this.#cards.length) this.#pick(this.#cards[0]);
    }
    nodes.forEach((node, i) => this.#cards[i].update(node.state));
  }

  #pick(picked) {
    for (const card of this.#cards) card.setPicked(card === picked);
  }
}

// The buttons of one node. Two of them change with its state. A narrow screen shows the buttons of the picked node only.
class NodeCard {
  #state = "up";

  constructor(name, picked) {
    const button = (label, what, possible = () => true) =>
      action(label, "api/node", () => ({ node: name, do: what() }), possible, { "aria-label": `${label} ${name}` });
    this.name = name;
    this.word = el("span", {});
    this.shortWord = el("span", {});
    this.pick = el("button", { type: "button", class: "pick", click: () => picked(this) }, el("b", {}, name), this.shortWord);
    this.power = button("Kill", () => (this.#state === "down" ? "start" : "kill"));
    this.network = button("Cut off", () => (this.#state === "partitioned" ? "heal" : "partition"), () => this.#state !== "down");
    this.element = el("li", { "data-node": name }, this.pick, el("p", { class: "name" }, el("b", {}, name), this.word),
      el("div", { class: "actions" }, this.power, this.network, button("Restart empty", () => "restart_empty")));
  }

  setPicked(picked) {
    setAttr(this.element, "data-picked", picked);
    this.pick.setAttribute("aria-pressed", String(picked));
  }

  update(state) {
    this.#state = state;
    setAttr(this.element, "data-state", state);
    for (const word of [this.word, this.shortWord]) setText(word, STATES[state] ?? state);
    this.#label(this.power, state === "down" ? "Start" : "Kill");
    this.#label(this.network, state === "partitioned" ? "Reconnect" : "Cut off");
  }

  #label(button, label) {
    setText(button, label);
    setAttr(button, "aria-label", `${label} ${this.name}`);
  }
}

function kicker(lab, run) {
  if (lab.live?.stopped) return "Stopping";
  if (lab.live) return lab.state.queue?.length ? `Running, ${count(lab.state.queue.length)} to come` : "Running";
  return run?.stopped ? "Stopped" : run ? "Last run" : "Ready";
}

function subtitle(scenario, run) {
  if (run?.free) return "a free sale: you inject the faults";
  return `${scenario.title ?? ""}${run?.injected ? ", with faults that you injected" : ""}`;
}

function found(state, name) {
  for (const rung of state.rungs ?? []) {
    const scenario = rung.scenarios?.find((each) => each.name === name);
    if (scenario) return [rung, scenario];
  }
  return [null, null];
}
