// The details of a rung: its story, its code, and for each scenario the fault, the timeline and the facts.

import { action } from "./actions.js";
import { count, el, paragraphs, prose, seconds, setAttr, setText } from "./dom.js";
import { Timeline } from "./timeline.js";
import { showVerdict, verdict } from "./verdict.js";

const SERVERS = { none: "no Redis", one: "one Redis server", replicated: "a master and its replica", quorum: "five Redis nodes" };

export class Details {
  constructor(rung) {
    this.scenarios = (rung.scenarios ?? []).map((scenario) => new ScenarioDetails(scenario));
    const where = SERVERS[rung.servers];
    this.element = el("div", { class: "details" },
      el("div", { class: "story" }, ...paragraphs(rung.story), where ? el("p", { class: "note" }, `It runs on ${where}.`) : null),
      ...this.scenarios.map((scenario) => scenario.element),
      el("section", { class: "source" }, el("h4", {}, "The code of this rung"),
        el("pre", { tabindex: 0, "aria-label": `Source code of ${rung.title}` }, el("code", {}, ...coloured(withoutStory(rung.source ?? ""))))));
  }

  update(lab) {
    for (const scenario of this.scenarios) scenario.update(lab);
  }
}

class ScenarioDetails {
  constructor(scenario) {
    this.scenario = scenario;
    this.parts = verdict();
    this.timeline = new Timeline();
    this.empty = el("p", { class: "note" }, "No timeline yet: this scenario has not run.");
    this.evidence = el("ul", { class: "evidence" });
    this.seen = el("div", { hidden: true }, el("h4", {}, "What the lab saw"), this.evidence);
    this.load = el("p", { class: "note" });
    const free = "A sale of 30 s without the scenario's fault: you inject the faults";
    this.element = el("section", { class: "scenario-details", "data-scenario": scenario.name },
      el("div", { class: "section-line" }, el("h3", {}, scenario.title ?? scenario.name), this.parts.element,
        el("span", { class: "actions" },
          action("Run this scenario", "api/run", { scenario: scenario.name }, (lab) => !lab.live),
          action("Free sale", "api/run", { scenario: scenario.name, free: true }, (lab) => !lab.live, { title: free }))),
      scenario.fault ? el("p", {}, el("strong", {}, "The fault. "), ...prose(sentence(scenario.fault))) : "",
      this.empty, this.timeline.element, this.seen, this.load);
  }

  update(lab) {
    const running = lab.live?.scenario === this.scenario.name;
    const run = lab.picture(this.scenario.name);
    const score = running ? null : run;
    showVerdict(this.parts, this.scenario, lab, score);
    this.empty.hidden = Boolean(run);
    this.timeline.element.hidden = !run;
    const key = running ? null : score && [score.seconds, score.sold, score.oversold, score.holders?.length].join();
    if (run && (running || key !== this.key)) this.timeline.show(run, lab.state.settings?.workers);
    if (key === this.key && key !== null) return;
    this.key = key;
    const evidence = running ? [] : score?.evidence ?? [];
    this.seen.hidden = !evidence.length;
    this.evidence.replaceChildren(...evidence.map((text) => el("li", {}, sentence(text))));
    setText(this.load, running || !score ? "" : loadInWords(score));
    setAttr(this.load, "hidden", !this.load.textContent);
  }
}

function loadInWords(score) {
  const load = score.load ?? {};
  const parts = [
    ["requests", load.requests], ["sold", load.sold], ["busy", load.busy],
    ["sold out", load.sold_out], ["other answers (not 2xx)", load.not_2xx], ["failed", load.failed], ["writes refused", score.refused],
  ].filter(([, value]) => value !== undefined).map(([name, value]) => `${count(value)} ${name}`);
  const slow = Object.entries(load.percentiles ?? {}).filter(([share]) => ["50", "90", "99", "100"].includes(share));
  const times = slow.map(([share, value]) => `${share} % within ${seconds(value)}`).join(", ");
  return [`The scenario took ${seconds(score.seconds)}`, parts.join(", "), times].filter(Boolean).join(" · ");
}

function sentence(text) {
  const trimmed = String(text).trim();
  return /[.!?…]$/.test(trimmed) ? trimmed : `${trimmed}.`;
}

// The file begins with the story, which the page shows above the code.
const withoutStory = (source) => source.replace(/^"""[\s\S]*?"""\s*/, "");

const TOKENS = new RegExp([
  /(?<text>"""[\s\S]*?"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')/,
  /(?<comment>#.*)/,
  /(?<word>\b(?:and|as|async|await|class|def|elif|else|except|False|finally|for|from|if|import|in|is|lambda|None|not|or|raise|return|True|try|while|with|yield)\b)/,
  /(?<name>(?<=\b(?:def|class) )\w+)/,
].map((part) => part.source).join("|"), "g");

// Python source with simple syntax colours.
function coloured(source) {
  const parts = [];
  let end = 0;
  for (const found of source.matchAll(TOKENS)) {
    const kind = Object.entries(found.groups).find(([, value]) => value !== undefined)[0];
    parts.push(source.slice(end, found.index), el("span", { class: `py-${kind}` }, found[0]));
    end = found.index + found[0].length;
  }
  return [...parts, source.slice(end)];
}
