// The table of locks. The document has one page of them, however many there are.

import { NOTHING, addressOf, byId, count, duration, el, mark, say, show, visible } from "./dom.js";

const NARROW = window.matchMedia("(max-width: 720px)");
const pageSize = () => (NARROW.matches ? 15 : 50);
const VOTES = { y: "votes for the holder", n: "no vote", o: "votes for another owner", e: "does not answer" };

const ORDER = {
  name: (a, b) => compare(a.name, b.name),
  owner: (a, b) => compare(a.owner, b.owner) || compare(a.name, b.name),
  began: (a, b) => (a.began ?? Infinity) - (b.began ?? Infinity) || compare(a.name, b.name),
  ends: (a, b) => (a.ends ?? Infinity) - (b.ends ?? Infinity) || compare(a.name, b.name),
  waiters: (a, b) => b.waiters - a.waiters || compare(a.name, b.name),
};

const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

export function bar() {
  return el("span", { class: "bar" }, el("span", { class: "fill" }), el("span", { class: "left" }));
}

// The remaining time as a share of the longest that was seen; a renewal fills the bar again.
export function drawBar(element, lock, now) {
  const [fill, left] = element.children;
  const rest = lock.ends === null ? null : Math.max(0, lock.ends - now);
  const share = rest === null ? 1 : lock.span > 0 ? Math.min(1, rest / lock.span) : 0;
  fill.style.width = `${(share * 100).toFixed(1)}%`;
  mark(element, "level", rest !== null && share < 0.34 ? "low" : "fine");
  // A listed lock counts as held: the next reading of the servers shows its renewal.
  say(left, rest === null ? "no end" : rest === 0 ? "renewal not seen yet" : duration(rest));
}

export function drawVotes(element, lock, nodes) {
  if (element.dataset.votes === lock.votes) return;
  element.dataset.votes = lock.votes;
  element.replaceChildren(
    ...[...lock.votes].map((vote, i) => el("i", { "data-vote": vote, title: `${nodes[i]}: ${VOTES[vote]}` })),
  );
  element.setAttribute("aria-label", [...lock.votes].map((vote, i) => `${nodes[i]} ${VOTES[vote]}`).join(", "));
}

export class Table {
  #board;
  #page = 0;
  #sort = "waiters";
  #turned = false;
  #shown = [];
  #lines = [];

  constructor(board) {
    this.#board = board;
    byId("search").addEventListener("input", () => this.#turnTo(0));
    byId("previous").addEventListener("click", () => this.#turnTo(this.#page - 1));
    byId("next").addEventListener("click", () => this.#turnTo(this.#page + 1));
    for (const button of document.querySelectorAll("[data-sort]")) {
      button.addEventListener("click", () => this.#sortBy(button.dataset.sort));
    }
    this.#markSort();
  }

  #turnTo(page) {
    this.#page = page;
    this.draw();
  }

  #sortBy(field) {
    this.#turned = this.#sort === field && !this.#turned;
    this.#sort = field;
    this.#markSort();
    this.#turnTo(0);
  }

  #markSort() {
    for (const button of document.querySelectorAll("[data-sort]")) {
      const mine = button.dataset.sort === this.#sort;
      const sorted = !mine ? "none" : this.#turned !== (this.#sort === "waiters") ? "descending" : "ascending";
      button.closest("th").setAttribute("aria-sort", sorted);
    }
  }

  #found() {
    const wanted = byId("search").value.trim().toLowerCase();
    const all = [...this.#board.rows.values()];
    const found = wanted
      ? all.filter((lock) => lock.name.toLowerCase().includes(wanted) || lock.owner.toLowerCase().includes(wanted))
      : all;
    found.sort(ORDER[this.#sort]);
    return this.#turned ? found.reverse() : found;
  }

  draw() {
    const found = this.#found();
    const size = pageSize();
    const pages = Math.max(1, Math.ceil(found.length / size));
    this.#page = Math.min(Math.max(0, this.#page), pages - 1);
    const first = this.#page * size;
    this.#shown = found.slice(first, first + size);
    while (this.#lines.length < this.#shown.length) this.#lines.push(new Line());
    const body = byId("rows");
    this.#shown.forEach((lock, i) => {
      this.#lines[i].draw(lock, this.#board);
      if (!this.#lines[i].element.isConnected) body.append(this.#lines[i].element);
    });
    for (const line of this.#lines.slice(this.#shown.length)) line.element.remove();
    this.#drawPager(found.length, first, pages);
    this.tick();
  }

  #drawPager(found, first, pages) {
    const { rows, reading } = this.#board;
    const searching = byId("search").value.trim() !== "";
    const unlisted = reading?.unlisted ? `, and ${count(reading.unlisted)} more on the servers` : "";
    say(byId("range"), `${found ? count(first + 1) : 0} to ${count(first + this.#shown.length)} of ${count(found)}${unlisted}`);
    byId("previous").disabled = this.#page === 0;
    byId("next").disabled = this.#page >= pages - 1;
    say(byId("empty"), searching && rows.size ? "No lock matches." : "Nobody holds a lock.");
    show(byId("empty"), found === 0);
  }

  // The times, between two messages.
  tick() {
    const now = this.#board.now();
    this.#shown.forEach((lock, i) => this.#lines[i].tick(lock, now));
  }
}

class Line {
  constructor() {
    this.name = el("a", { class: "name" });
    this.owner = el("span", { class: "owner" });
    this.held = el("td", { class: "number", "data-label": "Held for" });
    this.bar = bar();
    this.votes = el("span", { class: "votes", role: "img" });
    this.waiters = el("td", { class: "number", "data-label": "Waiting" });
    this.element = el(
      "tr",
      {},
      el("td", { "data-label": "Name" }, this.name),
      el("td", { "data-label": "Owner" }, this.owner),
      this.held,
      el("td", { "data-label": "Time left" }, this.bar),
      el("td", { "data-label": "Votes" }, this.votes),
      this.waiters,
    );
  }

  draw(lock, board) {
    const name = visible(lock.name);
    say(this.name, name);
    this.name.title = name;
    const address = addressOf(lock.name);
    if (this.name.getAttribute("href") !== address) this.name.setAttribute("href", address);
    say(this.owner, visible(lock.owner));
    this.owner.title = visible(lock.owner);
    say(this.waiters, lock.waiters ? count(lock.waiters) : NOTHING);
    mark(this.element, "state", lock.state);
    mark(this.element, "contended", lock.waiters > 0);
    drawVotes(this.votes, lock, board.nodes);
  }

  tick(lock, now) {
    say(this.held, lock.began === null ? NOTHING : duration(now - lock.began));
    drawBar(this.bar, lock, now);
  }
}
