// How a scenario ended, in a word, a sign and a colour; and whether that is what the story said.

import { count, el, mark, say } from "./dom.js";

const SIGNS = { safe: "✓", oversold: "✕", stuck: "‖" };

export function verdict() {
  const chip = el("span", { class: "chip" });
  const remark = el("span", { class: "remark" });
  return { element: el("span", { class: "verdict" }, chip, remark), chip, remark };
}

// The score is that of the scenario, or of a later run that was not the scenario as it is written.
export function showVerdict(parts, scenario, lab, score = lab.score(scenario.name)) {
  const running = lab.live?.scenario === scenario.name;
  const found = running ? "running" : score?.verdict ?? "none";
  const shown = running ? lab.live : score;
  const free = lab.isFree(shown);
  mark(parts.chip, "data-verdict", found);
  if (running) say(parts.chip, "running");
  else say(parts.chip, score ? `${SIGNS[found] ?? "?"} ${found}` : "not run");
  if (free) say(parts.remark, shown.free ? "free sale" : "with faults of yours");
  else say(parts.remark, running || !score ? `expected: ${scenario.expect}` : judged(scenario, score));
  mark(parts.remark, "data-broken", !running && score && !free && broken(scenario, score));
}

function judged(scenario, score) {
  // As the lab's exit status has it: to sell nothing is no broken promise.
  if (broken(scenario, score)) return scenario.must_be_safe && score.oversold > 0 ? "a promise is broken" : `expected: ${scenario.expect}`;
  return score.verdict === "safe" && scenario.must_be_safe ? "as promised" : "as expected";
}

const broken = (scenario, score) => !(score.as_expected ?? score.verdict === scenario.expect);

// One sentence for all that was played.
export function summary(lab) {
  const { state } = lab;
  const scenarios = (state.rungs ?? []).flatMap((rung) => rung.scenarios ?? []);
  const played = scenarios.filter((scenario) => lab.score(scenario.name));
  if (!played.length) return "Nothing has been played yet.";
  const scores = played.map((scenario) => [scenario, lab.score(scenario.name)]);
  const surprises = scores.filter(([scenario, score]) => broken(scenario, score)).length;
  const safe = scores.filter(([, score]) => score.verdict === "safe").length;
  const pieces = scores.reduce((sum, [, score]) => sum + (score.oversold ?? 0), 0);
  const failed = played.length - safe;
  return `${count(played.length)} of ${count(scenarios.length)} scenarios played: ${count(safe)} safe, ${count(failed)} failed, ` +
    `${count(pieces)} pieces oversold. ` + (surprises ? `${count(surprises)} not as expected.` : "All as expected.");
}
