// The few chart parts that are needed, as SVG: time axis, value axis, step lines, areas. Sizes in view units; the page scales them.

import { s } from "./dom.js";
import { clock, HOUR } from "./words.js";

export const W = 640, H = 220, L = 52, R = 10, T = 8, B = 24;

export function scales(from, to, most, height = H) {
  const x = (time) => L + ((time - from) / Math.max(1, to - from)) * (W - L - R);
  const y = (value) => height - B - (value / Math.max(most, 1e-9)) * (height - T - B);
  return { x, y, from, to, most, height };
}

export function nice(most) {
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12].find((step) => step * power >= most * 1.02) * power;
}

export function axes(at, { text = (value) => value, lines = 4, least = 0 } = {}) {
  const parts = [];
  const step = least < 0 ? nice((at.most - least) / (lines + 1)) : at.most / lines;
  for (let value = Math.ceil(least / step) * step; value <= at.most + step / 100; value += step) {
    const y = at.y(value);
    parts.push(s("line.axis", { x1: L, x2: W - R, y1: y, y2: y }), s("text", { x: L - 7, y: y + 4, "text-anchor": "end" }, text(value)));
  }
  const every = [0.25, 0.5, 1, 2, 3, 4, 6, 12].map((hours) => hours * HOUR).find((tick) => (at.to - at.from) / tick <= 9) ?? 24 * HOUR;
  for (let time = Math.ceil(at.from / every) * every; time < at.to; time += every) parts.push(s("text", { x: at.x(time), y: at.height - 6, "text-anchor": "middle" }, clock(time)));
  return parts;
}

const fixed = (number) => number.toFixed(1);

/** A line through points [time, value]; `steps`: each value holds until the next. */
export function path(at, points, { steps = false, end = null } = {}) {
  if (!points.length) return "";
  let text = `M${fixed(at.x(points[0][0]))},${fixed(at.y(points[0][1]))}`;
  for (let index = 1; index < points.length; index++) {
    const [time, value] = points[index];
    if (steps) text += `H${fixed(at.x(time))}`;
    text += steps ? `V${fixed(at.y(value))}` : `L${fixed(at.x(time))},${fixed(at.y(value))}`;
  }
  if (steps && end !== null) text += `H${fixed(at.x(end))}`;
  return text;
}

export function area(at, points, options = {}) {
  const line = path(at, points, options);
  if (!line) return "";
  const last = options.steps && options.end !== null && options.end !== undefined ? options.end : points.at(-1)[0];
  return `${line}L${fixed(at.x(last))},${fixed(at.y(0))}L${fixed(at.x(points[0][0]))},${fixed(at.y(0))}Z`;
}

/** The band between two lines over the same times. */
export function band(at, points) {
  if (points.length < 2) return "";
  const upper = points.map(([time, , high]) => `${fixed(at.x(time))},${fixed(at.y(high))}`);
  const lower = points.map(([time, low]) => `${fixed(at.x(time))},${fixed(at.y(low))}`).reverse();
  return `M${upper.join("L")}L${lower.join("L")}Z`;
}

export function nowLine(at, now) {
  if (now < at.from || now > at.to) return null;
  return s("line.nowline", { x1: at.x(now), x2: at.x(now), y1: T, y2: at.height - B });
}

export function chart(label, parts, height = H) {
  return s("svg", { viewBox: `0 0 ${W} ${height}`, role: "img", "aria-label": label }, parts);
}

export function key(kind, text) {
  const mark = kind === "band" ? s("rect.band", { x: 0, y: 0, width: 22, height: 9 }) : kind === "unmet" ? s("rect.unmet", { x: 0, y: 0, width: 22, height: 9 }) : s(`line.${kind}`, { x1: 0, x2: 22, y1: 5, y2: 5 });
  const span = document.createElement("span");
  span.className = "key";
  span.append(s("svg", { viewBox: "0 0 22 9", "aria-hidden": "true" }, mark), text);
  return span;
}
