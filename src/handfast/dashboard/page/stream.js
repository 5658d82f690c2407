// The data of the dashboard: everything once, then the differences. The messages set the page's clock.

const AGAIN_MS = 2000;
const POINTS = 300;
const TAPE = 300;
const FIELDS = ["id", "name", "owner", "token", "ends", "began", "span", "waiters", "votes", "state"];

const row = (values) => Object.fromEntries(FIELDS.map((field, i) => [field, values[i]]));

export class Board {
  connected = false;
  rows = new Map();
  tape = [];
  points = [];
  nodes = [];
  checks = [];
  faults = {};
  stats = {};
  readable = true;
  heardAt = 0;
  #offset = 0;
  #seq = -1;
  #changed;

  constructor(changed) {
    this.#changed = changed;
  }

  // The dashboard's time in ms: TTLs are measured by its clock, not by the viewer's.
  now() {
    return Date.now() + this.#offset;
  }

  listen() {
    const events = new EventSource("api/events");
    events.addEventListener("all", (event) => this.#all(JSON.parse(event.data)));
    events.addEventListener("news", (event) => this.#news(JSON.parse(event.data)));
    events.addEventListener("error", () => {
      this.connected = false;
      this.#changed();
      // A browser does not reconnect after an answer that is no stream, but the dashboard may come back.
      if (events.readyState === EventSource.CLOSED) setTimeout(() => this.listen(), AGAIN_MS);
    });
  }

  #common(message) {
    this.connected = true;
    this.#seq = message.seq;
    this.#offset = message.now - Date.now();
    this.heardAt = Date.now();
    for (const field of ["readable", "faults", "stats", "reading", "viewers", "checks"]) {
      if (field in message) this[field] = message[field];
    }
  }

  #all(message) {
    this.#common(message);
    this.nodes = message.nodes;
    this.need = message.need;
    this.prefix = message.prefix;
    this.rows = new Map(message.rows.map((values) => [values[0], row(values)]));
    this.tape = message.tape;
    this.points = message.points;
    this.#changed();
  }

  #news(message) {
    if (message.seq <= this.#seq) return;
    this.#common(message);
    for (const id of message.gone) this.rows.delete(id);
    for (const values of message.rows) this.rows.set(values[0], row(values));
    for (const [id, ends] of message.renewed) {
      const lock = this.rows.get(id);
      if (!lock) continue;
      lock.ends = ends;
      if (ends !== null) lock.span = Math.max(lock.span, ends - message.now);
    }
    this.tape = [...this.tape, ...message.tape].slice(-TAPE);
    if (message.point.length) this.points = [...this.points, message.point].slice(-POINTS);
    this.#changed();
  }
}
