// How an act ended, in a word, a sign and a colour; and whether that is what the story said.

import { count, el, mark, say } from "./dom.js";

const SIGNS = { safe: "✓", oversold: "✕", stuck: "‖" };

export function verdict() {
  const chip = el("span", { class: "chip" });
  const remark = el("span", { class: "remark" });
  return { element: el("span", { class: "verdict" }, chip, remark), chip, remark };
}

// The score is that of the act, or of a later run that was not the act as it is written.
export function showVerdict(parts, act, lab, score = lab.score(act.name)) {
  const running = lab.live?.act === act.name;
  const found = running ? "running" : score?.verdict ?? "none";
  const shown = running ? lab.live : score;
  const free = lab.isFree(shown);
  mark(parts.chip, "data-verdict", found);
  if (running) say(parts.chip, "running");
  else say(parts.chip, score ? `${SIGNS[found] ?? "?"} ${found}` : "not run");
  if (free) say(parts.remark, shown.free ? "free sale" : "with faults of yours");
  else say(parts.remark, running || !score ? `expected: ${act.expect}` : judged(act, score));
  mark(parts.remark, "data-broken", !running && score && !free && broken(act, score));
}

function judged(act, score) {
  // As the lab's exit status has it: to sell nothing is no broken promise.
  if (broken(act, score)) return act.must_be_safe && score.oversold > 0 ? "a promise is broken" : `expected: ${act.expect}`;
  return score.verdict === "safe" && act.must_be_safe ? "as promised" : "as expected";
}

const broken = (act, score) => !(score.as_expected ?? score.verdict === act.expect);

// One sentence for all that was played.
export function summary(lab) {
  const { state } = lab;
  const acts = (state.rungs ?? []).flatMap((rung) => rung.acts ?? []);
  const played = acts.filter((act) => lab.score(act.name));
  if (!played.length) return "Nothing has been played yet.";
  const scores = played.map((act) => [act, lab.score(act.name)]);
  const surprises = scores.filter(([act, score]) => broken(act, score)).length;
  const safe = scores.filter(([, score]) => score.verdict === "safe").length;
  const pieces = scores.reduce((sum, [, score]) => sum + (score.oversold ?? 0), 0);
  const failed = played.length - safe;
  return `${count(played.length)} of ${count(acts.length)} acts played: ${count(safe)} safe, ${count(failed)} failed, ` +
    `${count(pieces)} pieces oversold. ` + (surprises ? `${count(surprises)} not as expected.` : "All as expected.");
}
