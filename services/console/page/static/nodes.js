// Nodes with their GPUs: health, what each GPU does, who holds it, what telemetry found, draining.

import { fill, frameOnce, h } from "./dom.js";
import { colourOf } from "./colours.js";
import { count, fromNow, gpuRanges, plural } from "./words.js";

const SHOWS = { all: "All", busy: "With free GPUs", trouble: "With trouble" };

export function open(box, app) {
  return new NodesView(box, app);
}

class NodesView {
  constructor(box, app) {
    this.app = app;
    this.show = "all";
    this.cards = new Map();
    this.chips = h("div.chips", { role: "group", "aria-label": "Which nodes" });
    this.summary = h("span.muted", {});
    this.list = h("div.nodes", {});
    this.nothing = h("p.note", { hidden: true });
    box.append(h("div.head", {}, h("h1", {}, "Nodes"), this.chips, h("div.grow"), this.summary), this.list, this.nothing);
    this.draw = frameOnce(() => this.drawAll());
    this.draw();
  }

  update(changed) {
    if (["nodes", "blocks", "all", "colours"].some((name) => changed.has(name))) {
      if (changed.has("all") || changed.has("colours")) this.cards.clear();
      this.draw();
    }
  }

  holders() {
    const held = new Map();
    for (const [owner, node, gpus, , until] of this.app.store.blocks.values()) if (until === null) for (const gpu of gpus) held.set(`${node}:${gpu}`, owner);
    return held;
  }

  drawAll() {
    const store = this.app.store, held = this.holders(), ordered = store.nodeOrder();
    let free = 0, whole = 0, total = 0;
    const shown = [];
    const counts = { all: ordered.length, busy: 0, trouble: 0 };
    for (const [name, node] of ordered) {
      const usable = !node.lost && !node.draining && node.health !== "suspect";
      const spare = usable ? node.gpus.filter(([, , , flags], gpu) => !(flags & 5) && !held.has(`${name}:${gpu}`)).length : 0;
      const trouble = node.health !== "usable" || node.draining || node.findings.length > 0;
      free += spare;
      whole += usable && spare === node.gpus.length;
      total += node.gpus.filter(([, , , flags]) => !(flags & 4)).length;
      counts.busy += spare > 0;
      counts.trouble += trouble;
      if (this.show === "all" || (this.show === "busy" ? spare > 0 : trouble)) shown.push(this.card(name, node, held));
    }
    fill(this.chips, Object.entries(SHOWS).map(([name, text]) => h("button.chip", { type: "button", "aria-pressed": String(this.show === name), onclick: () => { this.show = name; this.draw(); } }, text, h("small", {}, count(counts[name])))));
    this.summary.textContent = ordered.length ? `${plural(total, "GPU")}, ${count(free)} free; ${plural(whole, "whole node")} free (schedulability)` : "";
    fill(this.list, shown);
    this.nothing.hidden = shown.length > 0;
    this.nothing.textContent = ordered.length ? "No such node." : store.started ? "No node has reported yet; agents report every few seconds once they run." : "Reading the topics …";
  }

  card(name, node, held) {
    const owners = node.gpus.map((_, gpu) => held.get(`${name}:${gpu}`) ?? "");
    const key = JSON.stringify([node, owners, this.app.orders.mayChange]);
    const known = this.cards.get(name);
    if (known?.key === key) return known.card;
    const card = this.build(name, node, owners);
    this.cards.set(name, { key, card });
    return card;
  }

  build(name, node, owners) {
    const { store, orders } = this.app, state = node.draining ? "draining" : node.health;
    const gpus = node.gpus.map(([utilization, used, total, flags], gpu) => {
      const owner = owners[gpu], colour = owner ? colourOf(owner, store.jobs.get(owner), "kind") : "";
      const words = `GPU ${gpu}: ${flags & 4 ? "its card is cut for another pool" : flags & 1 ? "unhealthy" : owner ? `held by ${owner}` : "free"}, ${flags & 2 ? "no fresh reading" : `${utilization} % used`}, ${Math.round(used / 1024)} of ${Math.round(total / 1024)} GiB`;
      return h(`button.gpu${owner ? ".held" : ""}${flags & 1 ? ".bad" : ""}${flags & 6 ? ".stale" : ""}`, { type: "button", title: words, "aria-label": words, css: colour ? { "--gpu": colour } : {}, onclick: () => owner && this.app.select(owner) },
        h("i", { css: { height: `${flags & 5 ? 0 : utilization}%`, ...(colour ? { background: colour } : {}) } }), h("span", {}, flags & 4 ? "" : flags & 1 ? "✕" : flags & 2 ? "–" : utilization));
    });
    const jobs = [...new Set(owners.filter(Boolean))];
    return h("article.card.node", { "aria-label": `Node ${name}` },
      h("header", {}, h("h2", {}, name), h(`span.state.${state}`, {}, state), h("div.grow"), h("button.quiet", { type: "button", onclick: () => orders.drain(name, node) }, node.draining ? "Undrain" : "Drain")),
      h("div.gpus", { css: { "grid-template-columns": `repeat(${Math.min(8, Math.max(1, node.gpus.length))}, 1fr)` } }, gpus),
      h("ul", {}, jobs.slice(0, 5).map((job) => h("li", {}, h("button.link", { type: "button", onclick: () => this.app.select(job) }, job), ` ${gpuRanges(owners.flatMap((owner, gpu) => (owner === job ? [gpu] : [])))}`)),
        jobs.length > 5 ? h("li", {}, `and ${jobs.length - 5} more`) : null,
        node.findings.slice(0, 4).map((one) => h("li.finding", {}, `${one.code.replaceAll("_", " ")}${one.gpu === null ? "" : `, GPU ${one.gpu}`}${one.job ? `, ${one.job}` : ""}${one.detail ? `: ${one.detail}` : ""}`)),
        h("li", {}, `${node.model || "GPU"}, ${node.pool}, ${node.rack}${node.health === "usable" ? "" : `; heard ${fromNow(node.seen, store.now())}`}`)));
  }
}
