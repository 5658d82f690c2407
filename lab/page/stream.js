// What the lab tells: the whole state now and then, small additions to the running scenario five times a second.

const AGAIN_MS = 2000;

export class Lab {
  state = null;
  live = null; // the running scenario, put together from the state and from what came since
  connected = false;
  #heard;

  constructor(heard) {
    this.#heard = heard; // called with "state", "live" or "connection"
  }

  listen() {
    const events = new EventSource("api/events");
    events.addEventListener("state", (event) => this.#onState(JSON.parse(event.data)));
    events.addEventListener("live", (event) => this.#onDelta(JSON.parse(event.data)));
    events.addEventListener("score", (event) => this.#onScore(JSON.parse(event.data)));
    events.addEventListener("error", () => {
      this.connected = false;
      this.#heard("connection");
      // A browser gives up for good if it gets an answer that is no stream; the lab may be back later.
      if (events.readyState === EventSource.CLOSED) setTimeout(() => this.listen(), AGAIN_MS);
    });
  }

  score(scenario) {
    return this.state?.scores?.[scenario] ?? null;
  }

  // What is to be drawn of a scenario: it as it runs, else its last run.
  picture(scenario) {
    return this.live?.scenario === scenario ? this.live : this.state?.free?.[scenario] ?? this.score(scenario);
  }

  // A free sale, or a scenario into which a viewer struck: what the story expects does not apply to it.
  isFree(run) {
    return Boolean(run?.free || run?.struck);
  }

  #onState(state) {
    this.state = state;
    this.connected = true;
    this.live = state.live ? begin(state.live) : null;
    this.#heard("state");
  }

  #onDelta(delta) {
    if (!this.live || delta.scenario !== this.live.scenario) return;
    extend(this.live, delta);
    this.#heard("live");
  }

  #onScore(score) {
    if (!this.state) return;
    const { [score.scenario]: _, ...free } = this.state.free ?? {};
    this.state.free = this.isFree(score) ? { ...free, [score.scenario]: score } : free;
    if (!this.isFree(score)) this.state.scores = { ...this.state.scores, [score.scenario]: score };
    if (this.live?.scenario === score.scenario) this.live = null;
    this.#heard("state");
  }
}

const identity = (holder) => `${holder.order} ${holder.stripe} ${holder.from}`;

function begin(live) {
  const holders = live.holders ?? [];
  const finished = holders.filter((holder) => holder.end !== "open");
  return {
    ...live,
    holders: finished,
    open: holders.filter((holder) => holder.end === "open"),
    stock_line: live.stock_line ?? [],
    marks: live.marks ?? [],
    overlaps: live.overlaps ?? [],
    seen: new Set(finished.map(identity)),
  };
}

function extend(live, delta) {
  const { holders = [], stock_line: points = [], marks = [], open = [], ...rest } = delta;
  Object.assign(live, rest, { open });
  // The first addition after a state may tell again what the state has told.
  for (const holder of holders) {
    if (live.seen.has(identity(holder))) continue;
    live.seen.add(identity(holder));
    live.holders.push(holder);
  }
  live.stock_line.push(...points);
  const told = new Set(live.marks.map((each) => `${each.t} ${each.text}`));
  live.marks.push(...marks.filter((each) => !told.has(`${each.t} ${each.text}`)));
}
