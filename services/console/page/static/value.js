// Utilization and value beside the shadow of FIFO on the same events, and the waits behind them.

import { fill, frameOnce, h, s } from "./dom.js";
import { area, axes, chart, key, nice, path, scales } from "./charts.js";
import { count, moment, percent, span } from "./words.js";

export function open(box, app) {
  const body = h("div", {});
  box.append(h("div.head", {}, h("h1", {}, "Value and utilization, beside FIFO"), h("div.grow"), key("ours", "gpugrid"), key("fifo", "FIFO on the same events")), body);
  const draw = frameOnce(() => drawAll(body, app));
  draw();
  return { update: (changed) => { if (changed.has("shadow") || changed.has("all")) draw(); } };
}

function drawAll(body, app) {
  const shadow = app.store.sections.shadow, now = app.store.now();
  if (!shadow) return fill(body, h("p.note", {}, app.store.started ? "Nothing to compare yet: this needs a minute of decisions." : "Reading the topics …"));
  const { start_ms: from, end_ms: to, bins, gpus, gpugrid: ours, fifo } = shadow;
  const middle = (index) => from + ((index + 0.5) * (to - from)) / bins;
  const points = (values) => values.map((value, index) => [middle(index), value]);
  const used = scales(from, to, gpus);
  const values = [...ours.value_curve, ...fifo.value_curve];
  const most = nice(Math.max(...values, 1)), least = Math.min(0, ...values);
  const earned = scales(from, to, most);
  if (least < 0) earned.y = (value) => earned.height - 24 - ((value - least) / (most - least)) * (earned.height - 32);
  fill(body, h("div.charts", {},
    h("article.card.chart", {}, h("header", {}, h("h2", {}, "GPUs at work"), h("span.muted", {}, `${percent(ours.utilization)} of ${count(gpus)} GPUs; FIFO ${percent(fifo.utilization)}`)),
      chart(`GPUs at work over time: ${percent(ours.utilization)}, FIFO ${percent(fifo.utilization)}`, [axes(used, { text: (value) => count(value) }), s("path.ours-area", { d: area(used, points(ours.used)) }), s("path.fifo", { d: path(used, points(fifo.used)) }), s("path.ours", { d: path(used, points(ours.used)) })])),
    h("article.card.chart", {}, h("header", {}, h("h2", {}, "Value earned"), h("span.muted", {}, `${count(ours.value)}; FIFO ${count(fifo.value)}`)),
      chart(`Value earned: ${count(ours.value)}, FIFO ${count(fifo.value)}`, [axes(earned, { text: (value) => count(value), least }), s("path.ours-area", { d: least < 0 ? "" : area(earned, points(ours.value_curve)) }), s("path.fifo", { d: path(earned, points(fifo.value_curve)) }), s("path.ours", { d: path(earned, points(ours.value_curve)) })]))),
    table(shadow),
    h("p.note", {}, `From ${moment(from, now)} UTC until now. Value is priority × useful GPU-hours, less seven times the priority of every missing real-time GPU-hour. FIFO gets the same ${count(shadow.jobs)} jobs and the same load: arrival order, no priorities, every application's peak held all the time. ${shadow.estimated ? `${count(shadow.estimated)} jobs have not completed; for them the forecast's median stands in.` : ""}`));
}

function table({ gpugrid: ours, fifo }) {
  const line = (name, text) => h("tr", {}, h("th", { scope: "row" }, name), h("td.n", {}, text(ours)), h("td.n", {}, text(fifo)));
  const waits = ours.waits.filter((wait) => wait.jobs);
  return h("div.scroll", { css: { "margin-top": "14px" } }, h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }), h("th.n", { scope: "col" }, "gpugrid"), h("th.n", { scope: "col" }, "FIFO"))),
    h("tbody", {},
      line("GPUs at work (an application's up to its load)", (side) => percent(side.utilization)),
      line("GPUs held", (side) => percent(side.held)),
      line("Effective: useful GPU time of all there is", (side) => percent(side.useful)),
      line("Jobs completed", (side) => count(side.completed)),
      line("Interruptions", (side) => count(side.interruptions)),
      line("Missing real-time GPU-hours", (side) => side.unmet_gpu_hours.toFixed(2)),
      waits.map(({ size }) => line(`Wait of ${size}-GPU jobs, P50 / P90 / P99`, (side) => { const wait = side.waits.find((one) => one.size === size); return ["p50_s", "p90_s", "p99_s"].map((part) => span(wait[part] * 1000)).join(" / "); })))));
}
