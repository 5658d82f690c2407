// The page of one lock: its holder on each node, its waiters, and its recent holders with their tokens.

import { NOTHING, byId, clock, duration, el, visible } from "./dom.js";
import { bar, drawBar } from "./table.js";

const EVERY_MS = 2000;

export class LockPage {
  #board;
  #name = null;
  #asked = 0;
  #bar = bar();
  #ends = 0; // from readings of this lock alone, which are more frequent

  constructor(board) {
    this.#board = board;
  }

  get name() {
    return this.#name;
  }

  open(name) {
    this.#name = name;
    this.#ends = 0;
    byId("lock").replaceChildren(el("p", { class: "soft" }, name === null ? "" : "Asking the servers …"));
    if (name !== null) this.#refresh(++this.#asked);
    else this.#asked++;
  }

  async #refresh(round) {
    try {
      const answer = await fetch(`api/lock?name=${encodeURIComponent(this.#name)}`);
      if (!answer.ok) throw new Error(await answer.text());
      const said = await answer.json();
      if (round === this.#asked) this.#draw(said);
    } catch (error) {
      // The stream shows whether the dashboard is there; the page keeps its content until it is back.
      if (round === this.#asked && !byId("lock").querySelector("h2")) {
        byId("lock").replaceChildren(back(), el("p", { class: "soft" }, `No answer: ${error.message}`));
      }
    }
    setTimeout(() => round === this.#asked && this.#refresh(round), EVERY_MS);
  }

  #draw({ name, now, holders, found }) {
    const lock = found?.lock ?? null;
    this.#ends = lock?.ttl ? now + lock.ttl * 1000 : 0;
    byId("lock").replaceChildren(
      back(),
      el("h2", { class: "title" }, visible(name)),
      found === null ? el("p", { class: "bad" }, "The servers do not answer.") : el("p", {}, stateOf(lock)),
      lock ? this.#bar : "",
      section("Votes", lock ? votes(lock) : el("p", { class: "soft" }, "Nobody holds it.")),
      section("Waiting", waiting(found?.waiters ?? [])),
      section("Recent holders", recent(holders, found?.last_token ?? null, now)),
      found?.audit?.length ? section("Broken by an operator", audit(found.audit)) : "",
    );
    this.tick();
  }

  tick() {
    const lock = [...this.#board.rows.values()].find((each) => each.name === this.#name);
    this.#bar.hidden = !lock;
    const ends = lock && (lock.ends === null ? null : Math.max(lock.ends, this.#ends));
    if (lock) drawBar(this.#bar, { ...lock, ends }, this.#board.now());
  }
}

const back = () => el("p", {}, el("a", { href: "#", class: "back" }, "← All locks"));

function section(title, ...content) {
  return el("section", {}, el("h3", {}, title), ...content);
}

function stateOf(lock) {
  if (!lock) return "Free.";
  const since = lock.since === null ? "" : ` for ${duration(lock.since * 1000)}`;
  const label = lock.owner.label ? `, ${lock.owner.label}` : "";
  const who = lock.owner.host ? `${lock.owner.host}, process ${lock.owner.pid}${label}` : lock.owner.text;
  if (lock.state === "minority") return `No owner has a majority. Most votes: ${visible(who)}.`;
  return `Held${since} by ${visible(who)}${lock.kind === "lock" ? "" : " (an owner that the callers chose)"}.`;
}

function table(heads, rows) {
  return el(
    "table",
    { class: "plain" },
    el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", {}, head)))),
    el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((cell, i) => el("td", { "data-label": heads[i] }, cell ?? NOTHING))))),
  );
}

function votes(lock) {
  const rows = lock.votes.map((vote) => [
    visible(vote.node),
    vote.error ? el("span", { class: "bad" }, visible(vote.error)) : vote.owner === null ? "nobody" : vote.owner === lock.owner.text ? "the holder" : visible(vote.owner),
    vote.ttl === null ? NOTHING : duration(vote.ttl * 1000),
    vote.token === null ? NOTHING : String(vote.token),
  ]);
  return table(["Node", "Vote", "Time left", "Last token"], rows);
}

function waiting(waiters) {
  if (!waiters.length) return el("p", { class: "soft" }, "Nobody waits.");
  return table(["Place", "Owner", "Waits for"], waiters.map((each, i) => [String(i + 1), visible(each.owner), duration(each.since * 1000)]));
}

function recent(holders, lastToken, now) {
  if (!holders.length) {
    return el("p", { class: "soft" }, `None seen since the dashboard was started.${lastToken ? ` Last token: ${lastToken}` : ""}`);
  }
  const rows = holders.map((each) => [
    visible(each.owner),
    each.token,
    each.began === null ? NOTHING : clock(each.began),
    each.began === null ? NOTHING : duration((each.ended ?? now) - each.began),
    each.end || "holds it",
  ]);
  return table(["Owner", "Token", "Since", "Held for", "End"], rows);
}

function audit(lines) {
  const rows = lines.map((line) => [clock(line.at * 1000), visible(line.by), visible(line.owner.text), visible(line.reason)]);
  return table(["When", "By", "Was held by", "Reason"], rows);
}
