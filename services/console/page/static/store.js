// What the server told, kept current by deltas. Owns the data; views ask it and are told what kind of thing changed.

const KEYED = ["jobs", "nodes", "apps", "blocks"];
const WAITING = new Set(["queued", "accepted"]);
const PLACED = new Set(["running", "starting", "stopping"]);

export class Store {
  constructor() {
    this.epoch = "";
    this.version = -1;
    this.jobs = new Map();
    this.nodes = new Map();
    this.apps = new Map();
    this.blocks = new Map();
    this.sections = {};
    this.listeners = new Set();
    this.clock = { now: Date.now(), at: performance.now(), rate: 1 };
    this.started = false;
    this._queue = null;
  }

  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  tell(changed) {
    for (const listener of this.listeners) listener(changed);
  }

  load(snapshot) {
    this.epoch = snapshot.epoch;
    this.version = snapshot.version;
    for (const name of KEYED) this[name] = new Map(Object.entries(snapshot[name] ?? {}));
    this.sections = snapshot.sections ?? {};
    this.clock = { now: snapshot.now, at: performance.now(), rate: this.started ? this.clock.rate : 1 };
    this.started = true;
    this._queue = null;
    this.tell(new Set([...KEYED, ...Object.keys(this.sections), "all"]));
  }

  /** Apply a delta; false if one is missing before it. */
  apply(delta) {
    if (delta.version <= this.version) return true;
    if (delta.version !== this.version + 1) return false;
    this.version = delta.version;
    this.time(delta.now);
    const changed = new Set();
    for (const name of KEYED) {
      const rows = delta.set?.[name], gone = delta.gone?.[name];
      if (rows) for (const id in rows) this[name].set(id, rows[id]);
      if (gone) for (const id of gone) this[name].delete(id);
      if (rows || gone) changed.add(name);
    }
    for (const name in delta.sections ?? {}) {
      this.sections[name] = delta.sections[name];
      changed.add(name);
    }
    if (changed.has("jobs")) this._queue = null;
    this.tell(changed);
    return true;
  }

  /** Domain time may run faster than ours: its rate is learnt from what the server says. */
  time(now) {
    const at = performance.now(), passed = at - this.clock.at;
    if (passed > 150) {
      const seen = Math.max(0, (now - this.clock.now) / passed);
      const rate = Math.abs(seen - this.clock.rate) > 0.5 * Math.max(1, this.clock.rate) ? seen : this.clock.rate * 0.8 + seen * 0.2;
      this.clock = { now, at, rate };
    }
  }

  now() {
    const passed = Math.min(performance.now() - this.clock.at, 4000); // a silent server's clock is not believed for long
    return this.clock.now + passed * this.clock.rate;
  }

  /** Waiting jobs in the queue's order: priority, then arrival. */
  queue() {
    if (!this._queue) {
      this._queue = [];
      for (const [id, row] of this.jobs) if (WAITING.has(row.state) && row.kind !== "application") this._queue.push([id, row]);
      this._queue.sort(([, a], [, b]) => (b.prio ?? 0) - (a.prio ?? 0) || (a.order ?? 0) - (b.order ?? 0));
    }
    return this._queue;
  }

  counts() {
    let running = 0, held = 0, completed = 0;
    for (const row of this.jobs.values()) {
      if (PLACED.has(row.state)) {
        held += row.gpus ?? 0;
        running += row.kind !== "application";
      } else completed += row.state === "completed";
    }
    let total = 0, usable = 0, busy = 0, measured = 0;
    for (const node of this.nodes.values()) {
      for (const [utilization, , , flags] of node.gpus) {
        if (flags & 4) continue;
        total++;
        usable += !node.lost && !(flags & 1);
        if (!(flags & 2) && !node.lost) { busy += utilization; measured++; }
      }
    }
    return { running, held, completed, total, usable, busy: measured ? busy / measured / 100 : null, waiting: this.queue().length };
  }

  nodeOrder() {
    return [...this.nodes.entries()].sort(([aName, a], [bName, b]) =>
      a.cluster.localeCompare(b.cluster) || a.pool.localeCompare(b.pool) || a.order - b.order || aName.localeCompare(bName));
  }

  /** Jobs, users and teams that a text names; jobs that are there now come first. */
  search(text, limit) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return [];
    const scored = [];
    for (const [id, row] of this.jobs) {
      const name = id.toLowerCase();
      const place = name === wanted ? 0 : name.startsWith(wanted) ? 1 : name.includes(wanted) ? 2
        : (row.user ?? "").toLowerCase().includes(wanted) ? 3 : (row.team ?? "").toLowerCase().includes(wanted) ? 4 : 9;
      if (place < 9) scored.push([place * 3 + (PLACED.has(row.state) ? 0 : WAITING.has(row.state) ? 1 : 2), id, row]);
    }
    scored.sort((a, b) => a[0] - b[0] || a[1].localeCompare(b[1]));
    return scored.slice(0, limit).map(([, id, row]) => [id, row]);
  }
}

export { WAITING, PLACED };
