// Where time goes per hop: P50, P90, P99 of the last minutes, on one logarithmic scale.

import { fill, frameOnce, h } from "./dom.js";
import { count, milliseconds, span } from "./words.js";

const LEAST_MS = 1, MOST_MS = 100_000;
const SCALE = [[1, "1 ms"], [10, "10 ms"], [100, "100 ms"], [1000, "1 s"], [10_000, "10 s"]];
const place = (ms) => Math.max(0, Math.min(100, (Math.log(Math.max(ms, LEAST_MS) / LEAST_MS) / Math.log(MOST_MS / LEAST_MS)) * 100));

export function open(box, app) {
  const list = h("div.scroll", {}), note = h("p.note", {});
  box.append(h("div.head", {}, h("h1", {}, "Latency per hop")), list, note);
  const draw = frameOnce(() => {
    const section = app.store.sections.latency;
    if (!section) return fill(list, h("p.note", { css: { padding: "12px 14px" } }, "Reading the topics …"));
    fill(list, h("div.hop.cap", {}, h("span", {}, "Hop"), h("span.n", {}, "Jobs"), h("span.scale", { "aria-hidden": "true" }, SCALE.map(([ms, text]) => h("span", { css: { left: `${place(ms)}%` } }, text))), h("span.n", {}, "P50"), h("span.n", {}, "P90"), h("span.n", {}, "P99")),
      section.hops.map((hop) => h("div.hop", {}, h("span", {}, hop.hop), h("span.n", {}, count(hop.jobs)),
        hop.jobs ? h("span.range", { role: "img", "aria-label": `P50 ${milliseconds(hop.p50_ms)}, P99 ${milliseconds(hop.p99_ms)}` }, h("i", { css: { left: `${place(hop.p50_ms)}%`, width: `${Math.max(0.8, place(hop.p99_ms) - place(hop.p50_ms))}%` } }), h("b", { css: { left: `${place(hop.p50_ms)}%` } }), h("b", { css: { left: `${place(hop.p90_ms)}%`, opacity: ".55" } })) : h("span.muted", {}, "none in this time"),
        ["p50_ms", "p90_ms", "p99_ms"].map((part) => h("span.n", {}, hop.jobs ? milliseconds(hop[part]) : "")))));
    note.textContent = `Wall time over the last ${span(section.window_ms)}, from the broker's record times and the executors' own, 1 ms. Waiting in the queue is not latency: hops after the decision are measured from the decision that places the job. gpugrid latency shows the spans of every service, too.`;
  });
  draw();
  return { update: (changed) => { if (changed.has("latency") || changed.has("all")) draw(); } };
}
