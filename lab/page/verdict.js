// The verdict of a scenario as a word, a sign and a colour; and whether it is the expected one.

import { count, el, setAttr, setText } from "./dom.js";

const SIGNS = { safe: "✓", oversold: "✕", stuck: "‖" };

export function verdict() {
  const chip = el("span", { class: "chip" });
  const remark = el("span", { class: "remark" });
  return { element: el("span", { class: "verdict" }, chip, remark), chip, remark };
}

// `score` is the scenario's score, or that of a later run that was not the scenario as it is written.
export function showVerdict(parts, scenario, lab, score = lab.score(scenario.name)) {
  const running = lab.live?.scenario === scenario.name;
  const verdict = running ? "running" : score?.verdict ?? "none";
  const shown = running ? lab.live : score;
  const apart = Boolean(shown) && !lab.isJudged(shown);
  setAttr(parts.chip, "data-verdict", verdict);
  if (running) setText(parts.chip, "running");
  else setText(parts.chip, score ? `${SIGNS[verdict] ?? "?"} ${verdict}` : "not run");
  if (apart) setText(parts.remark, whyApart(shown));
  else setText(parts.remark, running || !score ? `expected: ${scenario.expect}` : judged(scenario, score));
  setAttr(parts.remark, "data-broken", !running && score && !apart && unexpected(scenario, score));
}

// Why the scenario's expected verdict does not apply to this run.
function whyApart(run) {
  return [run.free && "free sale", run.injected && "with your faults", run.stopped && "stopped"].filter(Boolean).join(", ");
}

function judged(scenario, score) {
  // Only overselling breaks a promise, as in the lab's exit status.
  if (unexpected(scenario, score)) return scenario.must_be_safe && score.oversold > 0 ? "broken promise" : `expected: ${scenario.expect}`;
  return score.verdict === "safe" && scenario.must_be_safe ? "as promised" : "as expected";
}

const unexpected = (scenario, score) => !(score.as_expected ?? score.verdict === scenario.expect);

// One sentence about all scenarios that have run.
export function summary(lab) {
  const { state } = lab;
  const scenarios = (state.rungs ?? []).flatMap((rung) => rung.scenarios ?? []);
  const ran = scenarios.filter((scenario) => lab.score(scenario.name));
  if (!ran.length) return "No scenario has run yet.";
  const scores = ran.map((scenario) => [scenario, lab.score(scenario.name)]);
  const surprises = scores.filter(([scenario, score]) => unexpected(scenario, score)).length;
  const safe = scores.filter(([, score]) => score.verdict === "safe").length;
  const pieces = scores.reduce((sum, [, score]) => sum + (score.oversold ?? 0), 0);
  const failed = ran.length - safe;
  return `${count(ran.length)} of ${count(scenarios.length)} scenarios have run: ${count(safe)} safe, ${count(failed)} failed, ` +
    `${count(pieces)} pieces oversold. ` + (surprises ? `${count(surprises)} not as expected.` : "All as expected.");
}
