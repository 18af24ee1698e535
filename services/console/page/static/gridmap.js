// The grid's geometry: rows of GPUs, rectangles of owners and their colours, what lies under a point. No drawing, no page.

import { colourOf, rgbOf } from "./colours.js";

/** A rectangle: rows [row, row + rows), time [from, to). `phase`: 0 happened, 1 expected, 2 planned. */
export class GridMap {
  constructor() {
    this.rows = 0;
    this.nodes = []; // {name, row, gpus, node}
    this.first = new Map(); // node → its first row
    this.rects = [];
    this.owners = new Set();
    this.byRow = [];
  }

  layout(ordered) {
    this.nodes = [];
    this.first.clear();
    let row = 0;
    for (const [name, node] of ordered) {
      this.nodes.push({ name, row, gpus: node.gpus.length, node });
      this.first.set(name, row);
      row += node.gpus.length;
    }
    this.rows = row;
  }

  /** Rectangles from what was and is held, and from the plan; the plan says nothing about what already runs. */
  build(blocks, plan, now, jobs) {
    const rects = [];
    const running = new Set();
    for (const [owner, node, gpus, since, until, placedFor, , flags] of blocks.values()) {
      const base = this.first.get(node);
      if (base === undefined) continue;
      const expect = until === null ? plan?.ends?.[owner] ?? jobs.get(owner)?.due ?? placedFor : placedFor; // what the plan counts on, else the newest forecast
      const application = (flags & 1) === 1;
      for (let index = 0; index < gpus.length;) {
        let size = 1;
        while (index + size < gpus.length && gpus[index + size] === gpus[index] + size) size++;
        const row = base + gpus[index];
        index += size;
        rects.push({ owner, row, rows: size, from: since, to: until ?? Infinity, open: until === null, expect, phase: 0, application });
      }
      if (until === null) running.add(owner);
    }
    for (const [owner, node, gpu, from, to, size, application] of plan?.blocks ?? []) {
      const base = this.first.get(node);
      if (base === undefined || (running.has(owner) && !application)) continue;
      rects.push({ owner, row: base + gpu, rows: size, from: Math.max(from, now), to, open: false, expect: null, phase: 2, application: !!application });
    }
    this.rects = rects;
    this.owners = new Set(rects.map((rect) => rect.owner));
    this.planned = plan !== undefined && plan !== null;
    this.byRow = null;
    this.coloured = "";
  }

  /** Colours belong to rectangles, so that drawing looks nothing up; made again when `key` (colouring, theme) changes. */
  colour(jobs, by, key) {
    if (this.coloured === key) return;
    this.coloured = key;
    for (const rect of this.rects) {
      rect.colour = colourOf(rect.owner, jobs.get(rect.owner), by);
      rect.rgb = rgbOf(rect.colour);
    }
  }

  index() {
    if (this.byRow) return this.byRow;
    this.byRow = Array.from({ length: this.rows }, () => []);
    for (const rect of this.rects)
      for (let row = rect.row; row < rect.row + rect.rows && row < this.rows; row++) this.byRow[row].push(rect);
    return this.byRow;
  }

  /** Until when an open rectangle is drawn: applications only to now where a plan goes on, jobs to their expected end. */
  endOf(rect, now, step) {
    if (!rect.open) return rect.to;
    if (rect.application) return this.planned ? now : now + step;
    return Math.max(rect.expect ?? 0, now + step);
  }

  /** Who is on a row at a time; the present comes before the plan. */
  at(row, time, now, step) {
    let found = null;
    for (const rect of this.index()[row] ?? [])
      if (rect.from <= time && time < this.endOf(rect, now, step) && (!found || rect.phase < found.phase)) found = rect;
    return found;
  }

  nodeAt(row) {
    let low = 0, high = this.nodes.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.nodes[middle].row <= row) low = middle;
      else high = middle - 1;
    }
    return this.nodes[low];
  }
}
