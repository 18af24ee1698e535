// The grid: GPUs down, time across; what happened, now, what is expected and planned. Zoom, pan, point, choose, or use the keys.

import { fill, frameOnce, h } from "./dom.js";
import { GridMap } from "./gridmap.js";
import { LEFT, paint, paintOver, TOP } from "./gridpaint.js";
import { paintPixels } from "./gridpixels.js";
import { colourOf, kindColour, KIND_NAMES } from "./colours.js";
import { clock, fromNow, HOUR, kindText, moment, reasonText, span, stateText } from "./words.js";

const PAST = 24 * HOUR, AHEAD = 24 * HOUR, SPAN_MIN = HOUR / 2;
const ROW_MAX = 40;
const WHY_WAIT_MS = 140;

export function open(box, app) {
  return new GridView(box, app);
}

class GridView {
  constructor(box, app) {
    this.app = app;
    this.map = new GridMap();
    this.by = localStorage.getItem("gpugrid-colour") ?? "kind";
    this.range = { from: -6 * HOUR, span: 24 * HOUR }; // relative to now: the picture moves on with it
    this.rowHeight = 0; // 0: everything fits
    this.top = 0;
    this.touched = false;
    this.hover = null;
    this.cursor = null;
    this.why = new Map();
    this.pointers = new Map();
    this.stale = true;
    this.build(box);
    this.draw = frameOnce(() => this.paint());
    this.timer = setInterval(() => this.draw(), 500);
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.box);
    this.draw();
  }

  build(box) {
    const button = (text, label, action) => h("button", { type: "button", "aria-label": label, title: label, onclick: action }, text);
    this.legend = h("div.legend", { "aria-hidden": "true" });
    this.colour = h("select", { "aria-label": "Colour by", onchange: () => { this.by = this.colour.value; localStorage.setItem("gpugrid-colour", this.by); this.draw(); this.drawLegend(); } },
      ["kind", "team", "priority"].map((name) => h("option", { value: name, selected: name === this.by }, `Colour by ${name}`)));
    this.base = h("canvas", { "aria-hidden": "true" });
    this.over = h("canvas.over", { tabindex: "0", role: "application", "aria-roledescription": "grid of GPUs and time", "aria-label": "Grid of GPUs and time. Arrow keys move, plus and minus zoom, 0 shows everything, Enter opens the job." });
    this.tip = h("div.tip", { hidden: true });
    this.said = h("div.sr", { "aria-live": "polite" });
    this.nothing = h("div.empty", { hidden: true });
    this.box = h("div.gridbox", {}, this.base, this.over, this.nothing, this.tip);
    box.append(
      h("div.head.one", {}, h("h1", {}, "GPUs and time"), this.legend, this.colour,
        h("div.zoom", { role: "group", "aria-label": "Zoom" }, button("−", "Zoom out (-)", () => this.zoom(1 / 1.4)), button("Fit", "Show everything (0)", () => this.fit()), button("+", "Zoom in (+)", () => this.zoom(1.4)))),
      this.box, this.said);
    this.drawLegend();
    this.over.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.over.addEventListener("pointerdown", (event) => this.down(event));
    this.over.addEventListener("pointermove", (event) => this.move(event));
    this.over.addEventListener("pointerup", (event) => this.up(event));
    this.over.addEventListener("pointercancel", (event) => this.up(event));
    this.over.addEventListener("pointerleave", () => { if (!this.pointers.size) this.point(null); });
    this.over.addEventListener("dblclick", (event) => this.zoom(2, event.offsetX, event.offsetY));
    this.over.addEventListener("keydown", (event) => this.key(event));
    this.over.addEventListener("blur", () => { this.cursor = null; this.drawOver(); });
  }

  drawLegend() {
    const swatch = (colour, text, plan) => h("span", {}, h(`i${plan ? ".plan" : ""}`, { css: { background: colour } }), text);
    if (this.by === "kind") fill(this.legend, KIND_NAMES.map((kind) => swatch(kindColour(kind), kindText(kind))), swatch("var(--ink-2)", "planned", true));
    else if (this.by === "priority") fill(this.legend, [1, 3, 5, 7, 10].map((prio) => swatch(colourOf("", { prio }, "priority"), prio)), swatch("var(--ink-2)", "planned", true));
    else {
      const held = new Map();
      for (const row of this.app.store.jobs.values()) if (row.gpus && row.team) held.set(row.team, (held.get(row.team) ?? 0) + row.gpus);
      const teams = [...held].sort((a, b) => b[1] - a[1]).slice(0, 6);
      fill(this.legend, teams.map(([team]) => swatch(colourOf("", { team }, "team"), team)), swatch("var(--ink-2)", "planned", true));
    }
  }

  update(changed) {
    if (changed.has("nodes") || changed.has("blocks") || changed.has("plan") || changed.has("all")) this.stale = true;
    if (changed.has("colours")) this.drawLegend();
    if (changed.has("all") && this.by === "team") this.drawLegend();
    if (this.stale || changed.has("jobs") || changed.has("selected")) this.draw();
  }

  close() {
    clearInterval(this.timer);
    this.sizes.disconnect();
  }

  // --- geometry

  frame() {
    const { clientWidth: width, clientHeight: height } = this.box, store = this.app.store, now = store.now(), map = this.map;
    if (!this.touched && store.started) this.settle(now);
    const fitted = (height - TOP - 6) / Math.max(map.rows, 1);
    const perNode = map.nodes.length ? map.rows / map.nodes.length : 1;
    let rowHeight = Math.max(fitted, this.rowHeight);
    if (!this.rowHeight) rowHeight = Math.min(ROW_MAX * 0.6, fitted);
    const gap = rowHeight * perNode > 40 ? 4 : rowHeight * perNode > 12 ? 1.5 : 0;
    if (!this.rowHeight && gap) rowHeight = Math.min(ROW_MAX * 0.6, (height - TOP - 6 - gap * (map.nodes.length - 1)) / Math.max(map.rows, 1));
    const total = rowHeight * map.rows + gap * Math.max(0, map.nodes.length - 1);
    this.top = Math.max(0, Math.min(this.top, total - (height - TOP - 6)));
    const from = now + this.range.from, perMs = (width - LEFT) / this.range.span;
    const nodeOf = map.rowNode ?? [];
    return {
      width, height, now, rowHeight, gap, total, top: this.top, jobs: store.jobs, colours: this.app.colours, by: this.by, step: store.sections.plan?.step_ms ?? 900_000,
      xOf: (time) => LEFT + (time - from) * perMs, timeOf: (x) => from + (x - LEFT) / perMs,
      yOf: (row) => TOP + row * rowHeight + (nodeOf[row] ?? 0) * gap - this.top,
      rowOf: (y) => this.rowAt(y - TOP + this.top, rowHeight, gap, nodeOf),
      focus: this.app.selected && map.owners.has(this.app.selected) ? (owner) => owner === this.app.selected : null,
    };
  }

  rowAt(y, rowHeight, gap, nodeOf) {
    if (y < 0) return -1;
    let low = 0, high = this.map.rows - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (middle * rowHeight + nodeOf[middle] * gap <= y) low = middle;
      else high = middle - 1;
    }
    return y <= (low + 1) * rowHeight + (nodeOf[low] ?? 0) * gap + gap ? low : -1;
  }

  /** At first sight: as much of the past as there is, up to a quarter of the picture. */
  settle(now) {
    let oldest = now;
    for (const block of this.app.store.blocks.values()) oldest = Math.min(oldest, block[3]);
    const past = Math.min(6 * HOUR, Math.max(HOUR / 2, now - oldest));
    this.range = { from: -past * 1.02, span: past + 18 * HOUR };
  }

  rebuild(now) {
    const store = this.app.store, map = this.map;
    map.layout(store.nodeOrder());
    map.rowNode = [];
    map.nodes.forEach((node, index) => { for (let gpu = 0; gpu < node.gpus; gpu++) map.rowNode.push(index); });
    map.build(store.blocks, store.sections.plan, now, store.jobs);
    this.stale = false;
  }

  // --- drawing

  paint() {
    const store = this.app.store;
    if (this.stale && store.started) this.rebuild(store.now());
    const empty = store.started && !this.map.rows;
    this.nothing.hidden = !empty;
    if (empty && !this.nothing.childNodes.length)
      fill(this.nothing, h("h1", {}, "No node has reported yet"), h("p", {}, "Agents report every few seconds once they run. ", h("br"), h("code", {}, "gpugrid doctor"), " says what is missing."));
    const frame = this.frame();
    if (frame.width < 10 || empty) return;
    this.map.colour(store.jobs, this.by, `${this.by} ${document.documentElement.dataset.theme}`);
    const dense = frame.gap === 0 && this.map.nodes.length > 1;
    paint(this.context(this.base, frame), this.map, frame, dense ? (...what) => paintPixels(...what, Math.min(devicePixelRatio || 1, 2)) : null);
    this.lastFrame = frame;
    this.drawOver();
  }

  drawOver() {
    const frame = this.lastFrame;
    if (!frame) return;
    const chosen = this.app.selected ? this.map.rects.filter((rect) => rect.owner === this.app.selected) : [];
    const outlined = this.hover ? [...chosen, ...this.map.rects.filter((rect) => rect.owner === this.hover.rect?.owner && rect.phase === this.hover.rect.phase && rect.from === this.hover.rect.from)] : chosen;
    paintOver(this.context(this.over, frame), this.map, frame, { outlined, cursor: this.cursor });
  }

  context(canvas, frame) {
    const scale = Math.min(devicePixelRatio || 1, 2);
    const width = Math.round(frame.width * scale), height = Math.round(frame.height * scale);
    if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    return context;
  }

  // --- pointing

  point(place) {
    const frame = this.lastFrame;
    if (!place || !frame || place.x < LEFT || place.y < TOP) {
      this.hover = null;
      this.tip.hidden = true;
      this.drawOver();
      return;
    }
    const row = frame.rowOf(place.y), time = frame.timeOf(place.x);
    if (row < 0) return this.point(null);
    const rect = this.map.at(row, time, frame.now, frame.step);
    this.hover = { row, time, rect };
    this.showTip(place, frame);
    this.drawOver();
  }

  showTip(place, frame) {
    const { row, time, rect } = this.hover, node = this.map.nodeAt(row), gpu = row - node.row;
    fill(this.tip, describe(this.app.store, node, gpu, time, rect, frame), rect ? this.whyLine(rect) : null);
    this.tip.hidden = false;
    const width = this.tip.offsetWidth, height = this.tip.offsetHeight;
    this.tip.style.left = `${place.x + 18 + width > frame.width ? Math.max(4, place.x - width - 14) : place.x + 18}px`;
    this.tip.style.top = `${place.y + 18 + height > frame.height ? Math.max(4, place.y - height - 12) : place.y + 18}px`;
  }

  /** Why it is here: asked of the server once per job, a moment after the pointer rests on it. */
  whyLine(rect) {
    const known = this.why.get(rect.owner);
    if (known) return known.text ? h("p.muted", {}, known.text) : null;
    clearTimeout(this.asking);
    this.asking = setTimeout(async () => {
      if (this.hover?.rect?.owner !== rect.owner) return;
      try {
        const answer = await (await fetch(`/api/jobs/${encodeURIComponent(rect.owner)}`)).json();
        if (this.why.size > 500) this.why.clear();
        this.why.set(rect.owner, { text: whyHere(answer, this.app.store.now()) });
        if (this.hover?.rect?.owner === rect.owner && this.lastPlace) this.showTip(this.lastPlace, this.lastFrame);
      } catch { /* the next look asks again */ }
    }, WHY_WAIT_MS);
    return null;
  }

  down(event) {
    this.over.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    this.moved = 0;
    this.over.focus({ preventScroll: true });
    this.cursor = null;
  }

  move(event) {
    const before = this.pointers.get(event.pointerId);
    this.lastPlace = { x: event.offsetX, y: event.offsetY };
    if (!before) return this.point(this.lastPlace);
    const all = [...this.pointers.values()];
    if (this.pointers.size === 2) {
      const other = all.find((one) => one !== before);
      const was = Math.hypot(before.x - other.x, before.y - other.y), is = Math.hypot(event.offsetX - other.x, event.offsetY - other.y);
      if (was > 10) this.zoom(is / was, (event.offsetX + other.x) / 2, (event.offsetY + other.y) / 2);
    } else {
      this.moved += Math.abs(event.offsetX - before.x) + Math.abs(event.offsetY - before.y);
      if (this.moved > 4) {
        this.over.classList.add("dragging");
        this.pan(before.x - event.offsetX, before.y - event.offsetY);
        this.point(null);
      }
    }
    this.pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
  }

  up(event) {
    this.pointers.delete(event.pointerId);
    this.over.classList.remove("dragging");
    if (this.moved <= 4 && event.type === "pointerup") {
      this.point({ x: event.offsetX, y: event.offsetY });
      this.app.select(this.hover?.rect?.owner ?? "");
    }
  }

  wheel(event) {
    event.preventDefault();
    const frame = this.lastFrame;
    if (!frame) return;
    if (event.ctrlKey || event.metaKey || frame.total <= frame.height - TOP) this.zoom(Math.exp(-event.deltaY * 0.0022), event.offsetX, event.offsetY);
    else if (event.shiftKey) this.pan(event.deltaY, 0);
    else this.pan(event.deltaX, event.deltaY);
  }

  pan(dx, dy) {
    const frame = this.lastFrame;
    if (!frame) return;
    this.touched = true;
    this.setRange(this.range.from + (dx / (frame.width - LEFT)) * this.range.span, this.range.span);
    this.top = Math.max(0, this.top + dy);
    this.draw();
  }

  /** Both ways at once, around a point; without one around now, where it is in sight. */
  zoom(factor, x, y) {
    const frame = this.lastFrame;
    if (!frame) return;
    this.touched = true;
    const nowX = frame.xOf(frame.now);
    x ??= nowX > LEFT && nowX < frame.width ? nowX : LEFT + (frame.width - LEFT) / 2;
    y ??= TOP + (frame.height - TOP) / 2;
    const share = Math.max(0, (x - LEFT) / (frame.width - LEFT));
    const wide = Math.max(SPAN_MIN, Math.min(PAST + AHEAD, this.range.span / factor));
    this.setRange(this.range.from + (this.range.span - wide) * share, wide);
    const fitted = (frame.height - TOP - 6) / Math.max(this.map.rows, 1);
    const rowHeight = Math.max(fitted, Math.min(ROW_MAX, frame.rowHeight * factor));
    const at = (this.top + y - TOP) / frame.rowHeight;
    this.rowHeight = rowHeight <= fitted * 1.01 ? 0 : rowHeight;
    this.top = Math.max(0, at * rowHeight - (y - TOP));
    this.draw();
  }

  fit() {
    this.rowHeight = 0;
    this.top = 0;
    this.touched = false;
    this.draw();
  }

  setRange(from, wide) {
    this.range = { from: Math.max(-PAST, Math.min(AHEAD - wide, from)), span: wide };
  }

  // --- keys

  key(event) {
    const frame = this.lastFrame;
    if (!frame || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = frame.step, moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -step], ArrowRight: [0, step], PageUp: [-8, 0], PageDown: [8, 0] };
    if (moves[event.key]) {
      const [rows, time] = moves[event.key];
      const at = this.cursor ?? { row: 0, time: frame.now };
      this.cursor = { row: Math.max(0, Math.min(this.map.rows - 1, at.row + (this.cursor ? rows : 0))), time: Math.max(frame.now - PAST, Math.min(frame.now + AHEAD, at.time + (this.cursor ? time : 0))) };
      this.reveal(frame);
      const node = this.map.nodeAt(this.cursor.row), rect = this.map.at(this.cursor.row, this.cursor.time, frame.now, step);
      this.said.textContent = `${node.name} GPU ${this.cursor.row - node.row}, ${clock(this.cursor.time)}: ${rect ? rect.owner + (rect.phase === 2 ? ", planned" : "") : "free"}`;
      this.hover = { row: this.cursor.row, time: this.cursor.time, rect };
      this.showTip({ x: this.lastFrame.xOf(this.cursor.time), y: this.lastFrame.yOf(this.cursor.row) }, this.lastFrame);
    } else if (event.key === "Enter" && this.cursor) this.app.select(this.map.at(this.cursor.row, this.cursor.time, frame.now, step)?.owner ?? "");
    else if (event.key === "+" || event.key === "=") this.zoom(1.4);
    else if (event.key === "-") this.zoom(1 / 1.4);
    else if (event.key === "0") this.fit();
    else return;
    event.preventDefault();
    this.drawOver();
  }

  reveal(frame) {
    const y = frame.yOf(this.cursor.row), x = frame.xOf(this.cursor.time);
    if (y < TOP) this.top -= TOP - y;
    else if (y + frame.rowHeight > frame.height) this.top += y + frame.rowHeight - frame.height;
    if (x < LEFT) this.pan(x - LEFT - 40, 0);
    else if (x > frame.width - 20) this.pan(x - frame.width + 60, 0);
    this.paint();
  }
}

/** The tip's lines: who, what it is, when; or why nobody is there. */
function describe(store, node, gpu, time, rect, frame) {
  const where = `${node.name}, GPU ${gpu}`;
  if (!rect) {
    const state = node.node.lost ? "The node is lost." : node.node.draining ? "Draining: nothing new starts here." : node.node.gpus[gpu][3] & 1 ? "This GPU is unhealthy." : node.node.gpus[gpu][3] & 4 ? "Its card is cut for another pool." : time > frame.now ? "Nothing is planned here." : "Nobody held it.";
    return [h("p", {}, h("b", {}, where)), h("p.muted", {}, `${clock(time)} UTC. ${state}`)];
  }
  const row = store.jobs.get(rect.owner), end = frame && rect.open ? rect.expect : rect.to, now = frame.now;
  const facts = [kindText(row?.kind ?? (rect.application ? "application" : "")), row?.prio ? `priority ${row.prio}` : "", [row?.team, row?.user].filter(Boolean).join(" / ")];
  const when = rect.phase === 2 ? `Planned for ${moment(rect.from, now)} (${fromNow(rect.from, now)}), for ${span(rect.to - rect.from)}.`
    : rect.open ? `Holds it since ${moment(rect.from, now)}${end ? `, expected until ${moment(end, now)}` : ""}.`
      : `Held it ${moment(rect.from, now)} to ${moment(rect.to, now)} (${span(rect.to - rect.from)}).`;
  return [h("p", {}, h("b", {}, rect.owner), row ? ` · ${stateText(row.state)}` : ""), h("p.muted", {}, facts.filter(Boolean).join(" · ")), h("p", {}, when), rect.phase === 2 && row?.reason ? h("p.muted", {}, `Until then: ${reasonText(row.reason)}.`) : null, h("p.muted", {}, where)];
}

/** Why a job is where it is, from the facts of its placing decision, in one or two sentences. */
export function whyHere(answer, now) {
  const why = answer.why_here, row = answer.row;
  if (!why) return "";
  const parts = [];
  const waited = row?.at ? why.at - row.at : null;
  if (waited !== null && waited > 60_000) parts.push(`It waited ${span(waited)}${why.waited_for && why.waited_for !== "awaiting_forecast" ? ` (${reasonText(why.waited_for)})` : ""}.`);
  const before = why.before?.[0];
  if (before && why.at - before.left < 60_000) parts.push(`Here because ${before.owner} left these GPUs at ${moment(before.left, now)}.`);
  else if (before) parts.push(`These GPUs were free since ${before.owner} left at ${moment(before.left, now)}.`);
  else parts.push("These GPUs had not been used before.");
  parts.push(`Decision ${why.sequence} gave it ${why.gpus} GPU${why.gpus === 1 ? "" : "s"}${(row?.sizes?.length ?? 0) > 1 ? ` of the sizes ${row.sizes.join(", ")}` : ""}.`);
  return parts.join(" ");
}
