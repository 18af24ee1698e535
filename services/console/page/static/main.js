// Wires the parts: store, connection, views, search, panel, keys. Views are modules with `open(box, app)` that return `{update, close}`.

import { byId, fill, frameOnce, h } from "./dom.js";
import { Live } from "./live.js";
import { Store } from "./store.js";
import { readColours } from "./colours.js";
import { clock, count, percent } from "./words.js";
import { Panel } from "./panel.js";
import { openSearch } from "./search.js";
import { Orders } from "./orders.js";
import * as grid from "./grid.js";
import * as queue from "./queue.js";
import * as nodes from "./nodes.js";
import * as demand from "./demand.js";
import * as value from "./value.js";
import * as latency from "./latency.js";
import * as reports from "./reports.js";

const VIEWS = { grid, queue, nodes, demand, value, latency, reports };
const TITLES = { grid: "Grid", queue: "Jobs", nodes: "Nodes", demand: "Demand", value: "Value", latency: "Latency", reports: "Reports" };
const KEYS = { g: "grid", j: "queue", n: "nodes", d: "demand", v: "value", l: "latency", r: "reports" };

class App {
  constructor() {
    this.store = new Store();
    this.selected = "";
    this.view = null;
    this.viewName = "";
    this.colours = {};
    this.orders = new Orders(this);
    this.panel = new Panel(this);
    this.live = new Live(this.store, (state, why) => this.connection(state, why));
  }

  start() {
    this.theme(localStorage.getItem("gpugrid-theme"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.theme(localStorage.getItem("gpugrid-theme")));
    byId("theme").addEventListener("click", () => {
      const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      localStorage.setItem("gpugrid-theme", next);
      this.theme(next);
    });
    fill(byId("tabs"), Object.keys(VIEWS).map((name) => h("a", { href: `#${name}`, "data-view": name }, TITLES[name], h("span.count", {}))));
    addEventListener("hashchange", () => this.route());
    document.addEventListener("keydown", (event) => this.key(event));
    openSearch(this);
    this.drawNumbers = frameOnce(() => this.numbers());
    this.store.listen((changed) => {
      this.drawNumbers();
      this.view?.update?.(changed);
      this.panel.update(changed);
    });
    setInterval(() => this.drawNumbers(), 1000);
    this.orders.start();
    this.route();
    this.live.connect();
  }

  theme(wanted) {
    const dark = wanted ? wanted === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    byId("theme").textContent = dark ? "Light" : "Dark";
    this.colours = readColours();
    this.view?.update?.(new Set(["all", "colours"]));
  }

  /** "#queue" or "#grid/JOB": the view, and the job whose panel is open. Links to a job can be sent to others. */
  route() {
    const [name, ...rest] = decodeURIComponent(location.hash.slice(1)).split("/");
    const viewName = VIEWS[name] ? name : "grid";
    const job = rest.join("/");
    if (viewName !== this.viewName) {
      this.view?.close?.();
      const box = byId("view");
      fill(box);
      box.scrollTop = 0;
      this.viewName = viewName;
      this.view = VIEWS[viewName].open(box, this);
      document.title = `${TITLES[viewName]} · gpugrid`;
      for (const tab of byId("tabs").children) {
        if (tab.dataset.view === viewName) tab.setAttribute("aria-current", "page");
        else tab.removeAttribute("aria-current");
      }
    }
    if (job !== this.selected) {
      this.selected = job;
      this.panel.show(job);
      this.view?.update?.(new Set(["selected"]));
    }
  }

  select(job) {
    location.hash = job ? `#${this.viewName}/${encodeURIComponent(job)}` : `#${this.viewName}`;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("dialog").open) return;
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    if (event.key === "Escape" && !typing && this.selected) this.select("");
    else if (typing) return;
    else if (event.key === "/") { event.preventDefault(); byId("search").focus(); }
    else if (event.key === "?") this.orders.help();
    else if (KEYS[event.key]) location.hash = `#${KEYS[event.key]}${this.selected ? "/" + encodeURIComponent(this.selected) : ""}`;
  }

  connection(state, why) {
    const live = byId("live"), banner = byId("lost");
    live.classList.toggle("lost-now", state !== "live");
    this.state = state;
    banner.hidden = state === "live";
    const text = state === "lost" ? `Not connected (${why}). What you see is from ${clock(this.store.clock.now)} UTC; trying again.`
      : `Kafka can't be read now (${why}). What you see is from ${clock(this.store.clock.now)} UTC.`;
    if (!banner.hidden && banner.textContent !== text) banner.textContent = text;
    this.drawNumbers?.();
  }

  numbers() {
    const store = this.store, live = byId("live");
    const word = this.state === "live" ? `${clock(store.now())} UTC` : "offline";
    if (live.textContent !== word) live.textContent = word;
    if (!store.started) return;
    const counts = store.counts(), shadow = store.sections.shadow;
    const needed = [...store.apps.values()].reduce((sum, app) => sum + (app.observed?.at(-1)?.[1] ?? 0), 0);
    const held = [...store.apps.values()].reduce((sum, app) => sum + (app.held?.at(-1)?.[1] ?? 0), 0);
    const short = [...store.apps.values()].reduce((sum, app) => sum + Math.max(0, (app.observed?.at(-1)?.[1] ?? 0) - (app.held?.at(-1)?.[1] ?? 0)), 0);
    const gain = shadow && shadow.fifo.value ? (shadow.gpugrid.value - shadow.fifo.value) / Math.abs(shadow.fifo.value) : null;
    const tile = (big, small, label, tone) => h("div.tile", {}, h(`b${tone ? "." + tone : ""}`, {}, big, small ? h("small", {}, small) : null), h("span", {}, label));
    fill(byId("tiles"), [
      tile(count(counts.held), `of ${count(counts.usable)}`, "GPUs held now"),
      tile(shadow ? percent(shadow.gpugrid.utilization) : "–", shadow ? `FIFO ${percent(shadow.fifo.utilization)}` : "", "GPUs at work, so far"),
      tile(count(counts.waiting), "", counts.waiting === 1 ? "job waits" : "jobs wait"),
      tile(count(counts.running), "", counts.running === 1 ? "job runs" : "jobs run"),
      store.apps.size ? tile(needed.toFixed(1), `of ${held} held`, short > 0.05 ? `real-time GPUs needed, ${short.toFixed(1)} missing` : "real-time GPUs needed", short > 0.05 ? "worse" : "") : null,
      gain === null || !isFinite(gain) ? null : tile(`${gain >= 0 ? "+" : "−"}${Math.abs(gain * 100).toFixed(0)} %`, "", "value over FIFO, so far", gain >= 0 ? "better" : "worse"),
    ]);
    for (const tab of byId("tabs").children) {
      const label = tab.dataset.view === "queue" && counts.waiting ? count(counts.waiting) : "";
      const badge = tab.querySelector(".count");
      if (badge.textContent !== label) badge.textContent = label;
    }
  }
}

const app = new App();
app.start();
window.gpugrid = app; // for people with a console, and for tests
