// "Where is my job and why": the sentence, what would help, why it is there, its attempts, its trace as a waterfall.

import { byId, fill, frameOnce, h } from "./dom.js";
import { colourOf } from "./colours.js";
import { fromNow, gpuRanges, kindText, milliseconds, moment, reasonText, span, stateText } from "./words.js";
import { whyHere } from "./grid.js";

const REFRESH_MS = 2500;

export class Panel {
  constructor(app) {
    this.app = app;
    this.job = "";
    this.asked = 0;
    this.trace = null;
    this.refresh = frameOnce(() => this.load());
  }

  show(job) {
    const panel = byId("panel");
    this.job = job;
    this.trace = null;
    this.answer = null;
    this.tracing = 0;
    panel.hidden = !job;
    if (!job) return fill(panel);
    this.opener = document.activeElement;
    fill(panel, this.header(), h("p.muted", {}, "Looking …"));
    if (this.app.store.started) this.load(true);
  }

  update(changed) {
    if (!this.job) return;
    if (changed.has("all") || (changed.has("jobs") && performance.now() - this.asked > REFRESH_MS)) this.refresh();
  }

  header() {
    const row = this.app.store.jobs.get(this.job);
    return h("header", {}, h("span.dot", { css: { background: colourOf(this.job, row, "kind") } }), h("h1", {}, this.job),
      row ? h(`span.state.${row.state}`, {}, stateText(row.state)) : null,
      h("button.quiet", { type: "button", "aria-label": "Close (Escape)", onclick: () => this.app.select("") }, "✕"));
  }

  async load(first) {
    const job = this.job;
    this.asked = performance.now();
    let answer;
    try {
      const response = await fetch(`/api/jobs/${encodeURIComponent(job)}`);
      answer = await response.json();
      if (!response.ok) {
        if (job === this.job) fill(byId("panel"), this.header(), h("p", {}, answer.error));
        return;
      }
    } catch {
      return; // the banner says that the connection is lost
    }
    if (job !== this.job) return;
    this.answer = answer;
    this.draw();
    if (first || !this.trace || !answer.row.end) this.loadTrace(job);
  }

  async loadTrace(job) {
    if (this.tracing && performance.now() - this.tracing < REFRESH_MS * 4) return;
    this.tracing = performance.now();
    try {
      const response = await fetch(`/api/jobs/${encodeURIComponent(job)}/trace`);
      const trace = await response.json();
      if (job !== this.job) return;
      this.trace = response.ok ? trace : { spans: [], error: trace.error };
      this.draw();
    } catch { /* as above */ } finally {
      if (job !== this.job) this.tracing = 0;
    }
  }

  draw() {
    const { answer } = this, { row, explanation } = answer, now = this.app.store.now(), panel = byId("panel");
    const scrolled = panel.scrollTop, active = document.activeElement?.dataset?.action;
    const why = whyHere(answer, now);
    fill(panel, this.header(),
      h("p.sentence", {}, linked(explanation.sentence, this.app)),
      explanation.lines.length ? h("div.lines", {}, explanation.lines.map((line) => h("p", {}, linked(line, this.app)))) : null,
      explanation.would_help.length ? h("section", {}, h("h3", {}, "What would help"), h("ul", {}, explanation.would_help.map((line) => h("li", {}, line.replaceAll("`", ""))))) : null,
      why && !row.end ? h("section", {}, h("h3", {}, "Why here"), h("p", {}, linked(why, this.app))) : null,
      h("section", {}, h("h3", {}, "Facts"), facts(answer, now)),
      answer.attempts.length ? h("section", {}, h("h3", {}, answer.attempts.length > 1 ? "Attempts" : "Where it ran"), attempts(answer.attempts, now)) : null,
      h("section.waterfall", {}, h("h3", {}, "Trace"), waterfall(this.trace)),
      this.actions(row));
    panel.scrollTop = scrolled;
    if (active) panel.querySelector(`[data-action="${active}"]`)?.focus();
  }

  actions(row) {
    if (row.end || ["completed", "failed", "cancelled", "timed_out", "refused"].includes(row.state)) return null;
    const orders = this.app.orders;
    return h("div.actions", {},
      row.kind !== "application" ? h("button", { type: "button", "data-action": "priority", onclick: () => orders.priority(this.job, row) }, "Change priority") : null,
      h("button.danger", { type: "button", "data-action": "cancel", onclick: () => orders.cancel(this.job) }, "Cancel the job"));
  }
}

/** Names of jobs in a sentence become links to them. */
function linked(text, app) {
  return text.split(/([A-Za-z0-9](?:[\w.-]*\w)?)/).map((part) =>
    part.length > 1 && app.store.jobs.has(part) && part !== app.selected ? h("button.link", { type: "button", onclick: () => app.select(part) }, part) : part);
}

function facts(answer, now) {
  const { row, spec, forecast } = answer, pairs = [];
  const add = (name, value) => { if (value !== undefined && value !== null && value !== "") pairs.push(h("dt", {}, name), h("dd", {}, value)); };
  add("Kind", kindText(row.kind));
  add("Team, user", [row.team, row.user].filter(Boolean).join(" / "));
  add("Priority", row.prio);
  if (row.kind === "application") add("GPUs", `${spec.floor_gpus} (floor) to ${spec.peak_gpus}, holds ${row.gpus ?? 0}`);
  else add("GPUs", row.gpus ? `${row.gpus}${row.sizes?.length > 1 ? ` (offers ${row.sizes.join(", ")})` : ""}` : row.sizes?.join(", "));
  add("Submitted", row.at ? `${moment(row.at, now)} UTC` : null);
  if (!row.start && row.p50) add("Planned start", `${moment(row.p50, now)} (${fromNow(row.p50, now)})${row.p90 && row.p90 !== row.p50 ? `, by ${moment(row.p90, now)} at P90` : ""}`);
  if (row.start) add("Started", `${moment(row.start, now)} UTC`);
  if (row.end) add("Ended", `${moment(row.end, now)} UTC`);
  if (spec.time_limit_s && row.kind !== "application") add("Time limit", span(spec.time_limit_s * 1000));
  if (forecast) {
    const sizes = forecast.sizes.filter((size) => !row.gpus || size.gpus === row.gpus);
    add("Forecast", sizes.slice(0, 4).map((size) => `${size.gpus} GPU: ${span(size.p50_s * 1000)} (P90 ${span(size.p90_s * 1000)})`).join("; "));
  }
  if (row.reason && !row.start) add("Reason", reasonText(row.reason));
  add("Checkpoints", spec.checkpoint?.mode && spec.checkpoint.mode !== "none" ? "yes" : row.kind === "application" ? null : "no");
  return h("dl", {}, pairs);
}

function attempts(list, now) {
  return h("dl", {}, list.slice(-6).map((one) => [
    h("dt", {}, list.length > 1 ? `${one.number}.` : one.how),
    h("dd", {}, one.where.slice(0, 8).map((part) => `${part.node}: ${gpuRanges(part.gpus)}`).join("; ") + (one.where.length > 8 ? ` and ${one.where.length - 8} nodes` : ""),
      h("div.muted", {}, `${moment(one.start, now)} to ${one.end ? moment(one.end, now) : "now"}${list.length > 1 ? `, ${one.how}${one.cause ? ` (${stateText(one.cause)})` : ""}` : ""}${one.saved ? `, saved at ${moment(one.saved, now)}` : ""}`)),
  ]));
}

function waterfall(trace) {
  if (!trace) return h("p.muted", {}, "Looking …");
  if (!trace.spans.length) return h("p.muted", {}, trace.error ?? "Nothing was recorded.");
  const first = Math.min(...trace.spans.map((one) => one.start_ns)), last = Math.max(...trace.spans.map((one) => one.end_ns));
  const whole = Math.max(1, last - first);
  return [
    trace.spans.map((one) => h(`div.span${one.error ? ".error" : ""}`, { title: `${one.service}: ${one.name}${one.error ? ` (${one.error})` : ""}, from ${milliseconds((one.start_ns - first) / 1e6)}` },
      h("span.name", { css: { "padding-left": `${Math.min(one.depth, 6) * 9}px` } }, one.name, h("span.muted", {}, ` ${one.service}`)),
      h("span.track", {}, h("i", { css: { left: `${((one.start_ns - first) / whole) * 100}%`, width: `${((one.end_ns - one.start_ns) / whole) * 100}%` } })),
      h("span.n.muted", {}, milliseconds(one.duration_ms)))),
    h("p.muted", {}, `${trace.source === "spans" ? "Spans of all services" : "From the times of its records"}${trace.left_out ? `; ${trace.left_out} more` : ""}${trace.trace_id ? "" : "."}`, trace.trace_id ? h("span", {}, "; trace ", h("code", {}, trace.trace_id.slice(0, 16)), "…") : null),
  ];
}
