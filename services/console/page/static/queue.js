// Jobs as a list of any length: only the rows in sight exist. Waiting ones in the queue's order with reason and planned start.

import { fill, frameOnce, h } from "./dom.js";
import { colourOf } from "./colours.js";
import { PLACED, WAITING } from "./store.js";
import { count, fromNow, moment, reasonText, span, stateText } from "./words.js";

const ROW = 36, EXTRA = 8;
const SHOWS = { waiting: "Waiting", running: "Running", ended: "Ended" };

export function open(box, app) {
  return new QueueView(box, app);
}

class QueueView {
  constructor(box, app) {
    this.app = app;
    this.show = "waiting";
    this.reason = "";
    this.text = "";
    this.rows = [];
    this.at = -1;
    this.diagnosis = h("div.diagnosis", { hidden: true });
    this.chips = h("div.chips", { role: "group", "aria-label": "Which jobs" });
    this.reasons = h("div.chips", { role: "group", "aria-label": "Why they wait" });
    this.filter = h("input", { type: "search", placeholder: "Filter", "aria-label": "Filter by job, user or team", oninput: () => { this.text = this.filter.value.trim().toLowerCase(); this.draw(); } });
    this.filter.className = "filter";
    this.head = h("div.rowhead", { role: "row" });
    this.body = h("div.rows", { role: "rowgroup" });
    this.list = h("div.scroll.tall", { role: "table", tabindex: "0", "aria-label": "Jobs", onscroll: () => this.redraw(), onkeydown: (event) => this.key(event) }, h("div", { role: "rowgroup" }, this.head), this.body);
    this.nothing = h("p.note", { hidden: true });
    box.append(h("div.head", {}, h("h1", {}, "Jobs"), this.chips, h("div.grow"), this.filter, h("button.main", { type: "button", onclick: () => app.orders.submit() }, "Submit a job")), this.diagnosis, this.reasons, h("div", { css: { height: "10px" } }), this.list, this.nothing);
    this.redraw = frameOnce(() => this.drawRows());
    this.draw = frameOnce(() => this.drawAll());
    this.timer = setInterval(() => this.redraw(), 1000);
    this.sizes = new ResizeObserver(() => this.redraw());
    this.sizes.observe(this.list);
    this.draw();
  }

  update(changed) {
    if (["jobs", "all", "colours", "diagnosis"].some((name) => changed.has(name))) this.draw();
    else if (changed.has("selected")) this.redraw();
  }

  close() {
    clearInterval(this.timer);
    this.sizes.disconnect();
  }

  drawAll() {
    const store = this.app.store, queue = store.queue();
    const running = [], ended = [];
    for (const [id, row] of store.jobs) {
      if (PLACED.has(row.state) || (row.kind === "application" && WAITING.has(row.state))) running.push([id, row]);
      else if (!WAITING.has(row.state)) ended.push([id, row]);
    }
    const counts = { waiting: queue.length, running: running.length, ended: ended.length };
    fill(this.chips, Object.entries(SHOWS).map(([name, text]) => h("button.chip", { type: "button", "aria-pressed": String(this.show === name), onclick: () => { this.show = name; this.reason = ""; this.list.scrollTop = 0; this.draw(); } }, text, h("small", {}, count(counts[name])))));
    if (this.show === "waiting") this.rows = queue.map(([id, row], index) => [id, row, index + 1]);
    else if (this.show === "running") this.rows = running.sort((a, b) => (b[1].start ?? 0) - (a[1].start ?? 0)).map(([id, row]) => [id, row, ""]);
    else this.rows = ended.sort((a, b) => (b[1].end ?? 0) - (a[1].end ?? 0)).map(([id, row]) => [id, row, ""]);
    this.drawReasons();
    if (this.reason) this.rows = this.rows.filter(([, row]) => (row.reason ?? "") === this.reason);
    if (this.text) this.rows = this.rows.filter(([id, row]) => [id, row.user, row.team, row.kind].some((part) => part?.toLowerCase().includes(this.text)));
    this.drawDiagnosis();
    const heads = { waiting: ["#", "Job", "GPUs", "Priority", "Waited", "Why it waits", "Planned start", "Team / user"], running: ["", "Job", "GPUs", "Priority", "Runs for", "Where it stands", "Expected end", "Team / user"], ended: ["", "Job", "GPUs", "Priority", "Ran for", "How it ended", "Ended", "Team / user"] }[this.show];
    fill(this.head, heads.map((text, index) => h(`span${[0, 2, 3, 4].includes(index) ? ".n" : ""}${[3, 4, 6, 7].includes(index) ? ".wide" : ""}`, { role: "columnheader" }, text)));
    this.list.setAttribute("aria-rowcount", String(this.rows.length + 1));
    this.list.hidden = !this.rows.length;
    this.nothing.hidden = this.rows.length > 0;
    this.nothing.textContent = !store.started ? "Reading the topics …" : this.text || this.reason ? "No job matches." : { waiting: "Nobody waits: every job has its GPUs.", running: "Nothing runs now.", ended: "No job has ended yet." }[this.show];
    this.drawRows();
  }

  drawReasons() {
    const counts = new Map();
    if (this.show === "waiting") for (const [, row] of this.rows) counts.set(row.reason ?? "", (counts.get(row.reason ?? "") ?? 0) + 1);
    if (counts.size < 2) return fill(this.reasons);
    fill(this.reasons, [...counts].sort((a, b) => b[1] - a[1]).map(([code, number]) => h("button.chip", { type: "button", "aria-pressed": String(this.reason === code), onclick: () => { this.reason = this.reason === code ? "" : code; this.list.scrollTop = 0; this.draw(); } }, reasonText(code) || "about to start", h("small", {}, count(number)))));
  }

  drawDiagnosis() {
    const found = this.app.store.sections.diagnosis;
    this.diagnosis.hidden = !found || this.show !== "waiting" || !found.headline;
    if (!this.diagnosis.hidden) fill(this.diagnosis, h("b", {}, found.headline), h("p", {}, found.sentence, found.would_help?.[0] ? ` ${found.would_help[0].replaceAll("`", "")}` : ""));
  }

  drawRows() {
    this.body.style.height = `${this.rows.length * ROW}px`;
    const top = Math.max(0, Math.floor((this.list.scrollTop - ROW) / ROW) - EXTRA), shown = Math.ceil(this.list.clientHeight / ROW) + 2 * EXTRA;
    fill(this.body, this.rows.slice(top, top + shown).map(([id, row, position], index) => this.row(id, row, position, top + index)));
  }

  row(id, row, position, index) {
    const now = this.app.store.now();
    const cells = this.show === "waiting" ? [row.at ? span(now - row.at) : "", reasonText(row.reason) || "about to start", row.p50 ? `${moment(row.p50, now)} · ${fromNow(row.p50, now)}` : "not within the plan"]
      : this.show === "running" ? [row.start ? span(now - row.start) : "", stateText(row.state), row.due ? fromNow(row.due, now) : ""]
        : [row.start && row.end ? span(row.end - row.start) : "", stateText(row.state) + (row.reason ? ` (${reasonText(row.reason)})` : ""), row.end ? moment(row.end, now) : ""];
    const chosen = id === this.app.selected;
    return h("div.row.cols", { role: "row", "aria-rowindex": String(index + 2), "aria-selected": String(chosen || index === this.at), css: { top: `${index * ROW}px` }, onclick: () => { this.at = index; this.app.select(id); } },
      h("span.n.muted", { role: "cell" }, position ? count(position) : ""),
      h("span", { role: "cell" }, h("span.dot", { css: { background: colourOf(id, row, "kind") } }), id),
      h("span.n", { role: "cell" }, row.gpus ?? row.sizes?.join(", ") ?? ""),
      h("span.n.wide", { role: "cell" }, row.prio ?? ""),
      h("span.n.wide", { role: "cell" }, cells[0]),
      h("span", { role: "cell" }, this.show === "waiting" ? cells[1] : h(`span.state.${row.state}`, {}, cells[1])),
      h("span.wide", { role: "cell" }, cells[2]),
      h("span.muted.wide", { role: "cell" }, [row.team, row.user].filter(Boolean).join(" / ")));
  }

  key(event) {
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity };
    if (event.key === "Enter" && this.rows[this.at]) this.app.select(this.rows[this.at][0]);
    else if (event.key in moves && this.rows.length) {
      event.preventDefault();
      this.at = Math.max(0, Math.min(this.rows.length - 1, (this.at < 0 ? -1 : this.at) + moves[event.key]));
      const top = this.at * ROW, head = this.head.offsetHeight;
      if (top < this.list.scrollTop) this.list.scrollTop = top;
      else if (top + ROW + head > this.list.scrollTop + this.list.clientHeight) this.list.scrollTop = top + ROW + head - this.list.clientHeight;
      this.drawRows();
    }
  }
}
