// Draws the grid onto a canvas: idle ground, blocks, nodes' troubles, axes. Stateless: everything comes in as arguments.

import { clock, HOUR, MINUTE } from "./words.js";

const NARROW = matchMedia("(max-width: 860px)").matches;
export const LEFT = NARROW ? 50 : 74, TOP = 26;
const NAME_LETTERS = NARROW ? 5 : 9;
const LABEL_WIDTH = 46, LABEL_HEIGHT = 11;
const TICKS = [5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR];

export function paint(context, map, frame, pixels) {
  const { width, height } = frame;
  context.clearRect(0, 0, width, height);
  context.save();
  context.beginPath();
  context.rect(LEFT, TOP, width - LEFT, height - TOP);
  context.clip();
  if (pixels) pixels(context, map, frame);
  else blocks(context, map, frame);
  troubles(context, map, frame);
  context.restore();
  axes(context, map, frame);
}

function blocks(context, map, frame) {
  ground(context, map, frame);
  for (const rect of map.rects) {
    const y1 = frame.yOf(rect.row), y2 = frame.yOf(rect.row + rect.rows - 1) + frame.rowHeight;
    if (y2 < TOP || y1 > frame.height) continue;
    const x1 = Math.max(frame.xOf(rect.from), LEFT - 2), x2 = Math.min(frame.xOf(map.endOf(rect, frame.now, frame.step)), frame.width + 2);
    if (x2 > LEFT && x1 < frame.width && x2 > x1) block(context, map, frame, rect, x1, x2, y1, y2);
  }
}

function ground(context, map, frame) {
  const nowX = frame.xOf(frame.now);
  const last = map.nodes.at(-1);
  if (!last) return;
  for (const node of map.nodes) {
    const y = frame.yOf(node.row), height = frame.yOf(node.row + node.gpus - 1) + frame.rowHeight - y;
    if (y + height < TOP || y > frame.height) continue;
    context.fillStyle = frame.colours.idlePast;
    context.fillRect(LEFT, y, Math.max(0, nowX - LEFT), height);
    context.fillStyle = frame.colours.idle;
    context.fillRect(Math.max(LEFT, nowX), y, frame.width - Math.max(LEFT, nowX), height);
  }
  context.fillStyle = frame.colours.line;
  const bottom = Math.min(frame.height, TOP + frame.total - frame.top);
  for (const time of ticks(frame)) context.fillRect(Math.round(frame.xOf(time)), TOP, 1, bottom - TOP);
}

function ticks(frame) {
  const perHour = frame.xOf(frame.now + HOUR) - frame.xOf(frame.now);
  const tick = TICKS.find((one) => (one / HOUR) * perHour > 58) ?? TICKS.at(-1);
  const found = [];
  for (let time = Math.ceil(frame.timeOf(LEFT) / tick) * tick; frame.xOf(time) < frame.width; time += tick) found.push(time);
  return found;
}

function block(context, map, frame, rect, x1, x2, y1, y2) {
  const dimmed = frame.focus !== null && !frame.focus(rect.owner);
  const gap = frame.rowHeight >= 3.5 ? 0.8 : 0;
  const height = Math.max(0.6, y2 - y1 - gap), nowX = frame.xOf(frame.now);
  context.fillStyle = rect.colour;
  const draw = (from, to, alpha) => {
    if (to <= from) return;
    context.globalAlpha = dimmed ? alpha * 0.25 : alpha;
    context.fillRect(from, y1, Math.max(0.7, to - from - (to - from > 3 ? 0.8 : 0)), height);
  };
  if (rect.phase === 2) {
    draw(x1, x2, 0.32);
    if (height > 5 && x2 - x1 > 4) {
      context.globalAlpha = dimmed ? 0.15 : 0.85;
      context.strokeStyle = context.fillStyle;
      context.lineWidth = 1;
      context.strokeRect(x1 + 0.5, y1 + 0.5, x2 - x1 - 1.8, height - 1);
    }
  } else {
    draw(x1, Math.min(x2, nowX), 0.95);
    draw(Math.max(x1, nowX), x2, 0.6);
  }
  if (x2 - x1 > LABEL_WIDTH && height >= LABEL_HEIGHT) label(context, frame, rect, dimmed, x1, x2, y1, height);
  context.globalAlpha = 1;
}

function label(context, frame, rect, dimmed, x1, x2, y1, height) {
  const nowX = frame.xOf(frame.now);
  let left = Math.max(x1, LEFT) + 6;
  if (left > nowX - 24 && left < nowX + 5) left = nowX + 6; // not across the line of now
  const room = Math.min(x2, frame.width) - left - 4;
  if (room < LABEL_WIDTH - 10) return;
  const size = Math.min(12, Math.max(9.5, height * 0.62));
  context.font = `500 ${size}px system-ui, sans-serif`;
  let text = rect.owner;
  if (context.measureText(text).width > room) {
    while (text.length > 3 && context.measureText(text + "…").width > room) text = text.slice(0, -1);
    text += "…";
  }
  context.globalAlpha = dimmed ? 0.25 : 1;
  context.fillStyle = rect.phase === 2 || left > nowX - 2 ? frame.colours.ink : frame.by === "priority" ? "#101418" : "#ffffff";
  context.textBaseline = "middle";
  context.fillText(text, left, y1 + height / 2 + 0.5);
}

/** From now on nothing new starts on these: lost, unhealthy or cut for another pool (dense hatching), suspect or draining (wide). */
function troubles(context, map, frame) {
  const nowX = Math.max(LEFT, frame.xOf(frame.now));
  for (const { row, gpus, node } of map.nodes) {
    const whole = node.lost || node.health === "lost" ? "bad" : node.draining || node.health === "suspect" ? "warn" : "";
    for (let gpu = 0; gpu < gpus; gpu++) {
      const kind = whole || (node.gpus[gpu][3] & 5 ? "bad" : "");
      if (!kind) continue;
      const size = whole ? gpus : 1;
      const y = frame.yOf(row + gpu), height = frame.yOf(row + gpu + size - 1) + frame.rowHeight - y;
      hatch(context, nowX, y, frame.width - nowX, height, frame.colours[kind], kind === "bad" ? 6 : 11);
      gpu += size - 1;
    }
  }
}

function hatch(context, x, y, width, height, colour, every) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = colour;
  context.globalAlpha = 0.55;
  context.lineWidth = 1;
  context.beginPath();
  for (let at = -height; at < width; at += every) {
    context.moveTo(x + at, y + height);
    context.lineTo(x + at + height, y);
  }
  context.stroke();
  context.restore();
}

function axes(context, map, frame) {
  const { width, height, colours } = frame;
  context.fillStyle = colours.surface;
  context.fillRect(0, 0, width, TOP);
  context.fillRect(0, 0, LEFT, height);
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = colours.ink2;
  context.textBaseline = "middle";
  const nowX = frame.xOf(frame.now);
  context.textAlign = "center";
  for (const time of ticks(frame)) {
    const x = frame.xOf(time);
    if (Math.abs(x - nowX) >= 40 && x < width - 18) context.fillText(clock(time), x, TOP / 2);
  }
  context.textAlign = "right";
  let freeFrom = TOP;
  for (const { name, row, gpus, node } of map.nodes) {
    const y = frame.yOf(row), middle = y + (frame.yOf(row + gpus - 1) + frame.rowHeight - y) / 2;
    if (middle < freeFrom + 6 || middle > height - 4) continue;
    const mark = node.lost || node.health === "lost" ? "✕ " : node.draining ? "↓ " : node.health === "suspect" ? "? " : node.health === "degraded" ? "! " : "";
    context.fillStyle = mark === "✕ " ? colours.bad : mark ? colours.warn : colours.ink2;
    context.fillText(mark + (name.length > NAME_LETTERS ? name.slice(0, NAME_LETTERS - 1) + "…" : name), LEFT - 10, middle);
    freeFrom = middle + 8;
  }
  context.textAlign = "left";
}

/** What moves: the line of now, the block under the pointer, the chosen cell. */
export function paintOver(context, map, frame, over) {
  const { width, height, colours } = frame;
  context.clearRect(0, 0, width, height);
  const nowX = Math.round(frame.xOf(frame.now)) + 0.5;
  if (nowX > LEFT && nowX < width) {
    context.strokeStyle = colours.now;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(nowX, TOP - 3);
    context.lineTo(nowX, height);
    context.stroke();
    context.fillStyle = colours.now;
    const text = clock(frame.now);
    context.font = "600 11px system-ui, sans-serif";
    const wide = context.measureText(text).width + 12;
    context.beginPath();
    context.roundRect(nowX - wide / 2, 4, wide, 18, 5);
    context.fill();
    context.fillStyle = colours.surface;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(text, nowX, 13.5);
    context.textAlign = "left";
  }
  context.save();
  context.beginPath();
  context.rect(LEFT, TOP, width - LEFT, height - TOP);
  context.clip();
  context.strokeStyle = colours.ink;
  context.lineWidth = 1.6;
  for (const rect of over.outlined) {
    const x1 = frame.xOf(rect.from), x2 = frame.xOf(map.endOf(rect, frame.now, frame.step));
    const y1 = frame.yOf(rect.row), y2 = frame.yOf(rect.row + rect.rows - 1) + frame.rowHeight;
    context.strokeRect(x1 - 0.5, y1 - 0.5, Math.max(2, x2 - x1), Math.max(2, y2 - y1));
  }
  if (over.cursor) {
    const y = frame.yOf(over.cursor.row), x = frame.xOf(over.cursor.time);
    context.setLineDash([3, 2]);
    context.strokeRect(x - 4, y - 1, 8, Math.max(6, frame.rowHeight + 1));
  }
  context.restore();
}
