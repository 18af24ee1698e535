// The connection: a snapshot, then deltas; after a loss it comes back by itself, and a silent connection counts as lost.

const SILENCE_MS = 10_000; // the server beats every three seconds
const RETRY_MS = [500, 1000, 2000, 4000, 8000];

export class Live {
  constructor(store, onState) {
    this.store = store;
    this.onState = onState;
    this.failures = 0;
    this.source = null;
    this.timer = 0;
    this.heard = performance.now();
    setInterval(() => this.watch(), 1000);
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.watch(); });
    addEventListener("online", () => { if (!this.source) this.connect(); });
  }

  async connect() {
    clearTimeout(this.timer);
    this.close();
    try {
      const response = await fetch("/api/snapshot", { cache: "no-store", signal: AbortSignal.timeout(60_000) });
      if (!response.ok) throw new Error(`the server answers ${response.status}`);
      this.store.load(await response.json());
      this.listen();
    } catch (error) {
      this.retry(error.message);
    }
  }

  listen() {
    this.close();
    const { epoch, version } = this.store;
    const source = new EventSource(`/api/stream?epoch=${encodeURIComponent(epoch)}&version=${version}`);
    this.source = source;
    this.heard = performance.now();
    source.addEventListener("beat", (event) => {
      const beat = JSON.parse(event.data);
      this.heard = performance.now();
      this.failures = 0;
      this.store.time(beat.now);
      this.onState(beat.lost ? "stale" : "live", beat.lost);
    });
    source.addEventListener("delta", (event) => {
      this.heard = performance.now();
      if (!this.store.apply(JSON.parse(event.data))) this.connect();
    });
    source.addEventListener("reset", () => this.connect());
    source.onerror = () => {
      // The browser would repeat the old version for ever; we continue from the newest one.
      this.close();
      this.retry("the connection was lost");
    };
  }

  close() {
    if (this.source) this.source.close();
    this.source = null;
  }

  retry(why) {
    this.close();
    this.onState("lost", why);
    clearTimeout(this.timer);
    const wait = RETRY_MS[Math.min(this.failures++, RETRY_MS.length - 1)];
    this.timer = setTimeout(() => (this.store.started && this.failures < 3 ? this.listen() : this.connect()), wait);
  }

  watch() {
    if (this.source && performance.now() - this.heard > SILENCE_MS) this.retry("the server is silent");
  }
}
