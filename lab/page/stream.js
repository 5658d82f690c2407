// The lab's events: the whole state after a change, and small additions to the running scenario five times a second.

const AGAIN_MS = 2000;

export class Lab {
  state = null;
  live = null; // the running scenario: its part of the state, extended by every addition since
  connected = false;
  #update;

  constructor(update) {
    this.#update = update; // called with "state", "live" or "connection"
  }

  listen() {
    const events = new EventSource("api/events");
    events.addEventListener("state", (event) => this.#onState(JSON.parse(event.data)));
    events.addEventListener("live", (event) => this.#onDelta(JSON.parse(event.data)));
    events.addEventListener("score", (event) => this.#onScore(JSON.parse(event.data)));
    events.addEventListener("error", () => {
      this.connected = false;
      this.#update("connection");
      // A browser does not reconnect after an answer that is not a stream, but the lab may come back.
      if (events.readyState === EventSource.CLOSED) setTimeout(() => this.listen(), AGAIN_MS);
    });
  }

  score(scenario) {
    return this.state?.scores?.[scenario] ?? null;
  }

  // The run of a scenario that the page draws: the running one, or else the last one.
  picture(scenario) {
    return this.live?.scenario === scenario ? this.live : this.state?.unjudged?.[scenario] ?? this.score(scenario);
  }

  // False for a free sale, and for a scenario that a viewer changed or stopped: the expected verdict does not apply.
  isJudged(run) {
    return !(run?.free || run?.injected || run?.stopped);
  }

  #onState(state) {
    this.state = state;
    this.connected = true;
    this.live = state.live ? begin(state.live) : null;
    this.#update("state");
  }

  #onDelta(delta) {
    if (!this.live || delta.scenario !== this.live.scenario) return;
    extend(this.live, delta);
    this.#update("live");
  }

  #onScore(score) {
    if (!this.state) return;
    const { [score.scenario]: _, ...unjudged } = this.state.unjudged ?? {};
    this.state.unjudged = this.isJudged(score) ? unjudged : { ...unjudged, [score.scenario]: score };
    if (this.isJudged(score)) this.state.scores = { ...this.state.scores, [score.scenario]: score };
    if (this.live?.scenario === score.scenario) this.live = null;
    this.#update("state");
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
  // The first addition after a state may repeat a part of it.
  for (const holder of holders) {
    if (live.seen.has(identity(holder))) continue;
    live.seen.add(identity(holder));
    live.holders.push(holder);
  }
  live.stock_line.push(...points);
  const known = new Set(live.marks.map((each) => `${each.t} ${each.text}`));
  live.marks.push(...marks.filter((each) => !known.has(`${each.t} ${each.text}`)));
}
