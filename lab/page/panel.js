// The top of the page: what runs now, with its picture, and the buttons that interfere with it.

import { action, whyNot } from "./actions.js";
import { count, el, mark, rate, say, seconds } from "./dom.js";
import { Timeline } from "./timeline.js";
import { summary } from "./verdict.js";

const STATES = { up: "up", paused: "paused", dead: "dead", stopped: "stopped", partitioned: "cut off" };
const HINT = "Run a rung; or open one and start a free sale, which has no fault but those of your own buttons.";

export class Panel {
  #scenario = null; // the scenario that runs, or ran last while this page looked on
  #nodesKey = "";
  #cards = [];

  constructor(host) {
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
    this.controls = el("div", { class: "controls" }, this.#holderButtons(), this.workers, this.nodes);
    host.append(
      el("div", { class: "panel-line" }, el("div", {}, this.kicker, this.title, this.subtitle), this.numbers),
      this.show, this.controls, this.why);
  }

  #holderButtons() {
    const holder = (label, what, possible) => action(label, "api/holder", { do: what }, possible);
    return el("div", { class: "actions", role: "group", "aria-label": "The process that holds the lock" },
      holder("Kill holder", "kill", (lab) => lab.live),
      holder("Pause holder", "pause", (lab) => lab.live),
      holder("Resume", "resume", (lab) => lab.state.workers?.some((worker) => worker.state === "paused")));
  }

  update(lab) {
    const { state } = lab;
    this.#scenario = lab.live?.scenario ?? this.#scenario;
    const [rung, scenario] = found(state, this.#scenario);
    const waiting = state.queue?.length ? `, ${count(state.queue.length)} to come` : "";
    say(this.kicker, lab.live ? `Running${waiting}` : scenario ? "Ran last" : "Ready");
    say(this.title, scenario ? `${rung.number} · ${rung.title}` : "The scoreboard");
    const run = lab.picture(this.#scenario);
    const told = run?.free ? "a free sale: no fault but yours" : `${scenario?.title ?? ""}${run?.struck ? ", and your own faults" : ""}`;
    say(this.subtitle, scenario && (lab.live || !state.finished) ? told : summary(lab));
    this.show.hidden = !scenario;
    this.numbers.hidden = !scenario;
    this.controls.hidden = !state.interactive;
    say(this.why, whyNot(lab) || (scenario ? "" : HINT));
    this.why.hidden = !this.why.textContent;
    this.#showWorkers(state.workers ?? []);
    this.#showNodes(state.nodes ?? []);
    this.updateLive(lab);
  }

  updateLive(lab) {
    const run = lab.picture(this.#scenario);
    if (!run) return;
    mark(this.show, "data-running", Boolean(lab.live));
    this.progress.value = lab.live ? lab.live.progress ?? 0 : 1;
    say(this.figures.sold, count(run.sold));
    say(this.figures.left, count(run.left));
    say(this.figures.oversold, count(run.oversold));
    mark(this.figures.oversold, "data-bad", run.oversold > 0);
    say(this.figures.rate, rate(run.rate));
    say(this.figures.time, seconds(lab.live ? run.t : run.seconds));
    this.timeline.show(run, lab.state.settings?.workers);
  }

  #showWorkers(workers) {
    this.workers.replaceChildren(...workers.map((worker) =>
      el("li", { "data-state": worker.state, title: worker.pid ? `process ${worker.pid}` : null },
        el("b", {}, worker.name), ` ${STATES[worker.state] ?? worker.state}`)));
  }

  // The buttons stay the same elements as long as the nodes are: one that is being pressed must not vanish.
  #showNodes(nodes) {
    const key = nodes.map((node) => node.name).join();
    if (key !== this.#nodesKey) {
      this.#nodesKey = key;
      this.#cards = nodes.map((node) => new NodeCard(node.name));
      this.nodes.replaceChildren(...this.#cards.map((card) => card.element));
    }
    nodes.forEach((node, i) => this.#cards[i].update(node.state));
  }
}

// Two of the three buttons have two sides: what they do depends on the node's state.
class NodeCard {
  #state = "up";

  constructor(name) {
    const button = (label, what, possible = () => true) =>
      action(label, "api/node", () => ({ node: name, do: what() }), possible, { "aria-label": `${label} ${name}` });
    this.name = name;
    this.word = el("span", {});
    this.power = button("Stop", () => (this.#state === "stopped" ? "start" : "stop"));
    this.network = button("Cut off", () => (this.#state === "partitioned" ? "heal" : "partition"), () => this.#state !== "stopped");
    this.element = el("li", { "data-node": name }, el("b", {}, name), this.word,
      this.power, this.network, button("Restart empty", () => "restart_empty"));
  }

  update(state) {
    this.#state = state;
    mark(this.element, "data-state", state);
    say(this.word, STATES[state] ?? state);
    this.#label(this.power, state === "stopped" ? "Start" : "Stop");
    this.#label(this.network, state === "partitioned" ? "Heal" : "Cut off");
  }

  #label(button, label) {
    say(button, label);
    mark(button, "aria-label", `${label} ${this.name}`);
  }
}

function found(state, name) {
  for (const rung of state.rungs ?? []) {
    const scenario = rung.scenarios?.find((each) => each.name === name);
    if (scenario) return [rung, scenario];
  }
  return [null, null];
}
