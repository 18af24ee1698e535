// The grid when rows are about a pixel high: filled pixel by pixel, one line per GPU, then stretched. Thousands of GPUs stay fluent.

import { rgbOf } from "./colours.js";
import { LEFT, TOP } from "./gridpaint.js";

const PAST_SHARE = 0.95, EXPECTED_SHARE = 0.6, PLANNED_SHARE = 0.38, DIMMED = 0.25;
let canvas = null, image = null, pixels = null;

export function paintPixels(context, map, frame, scale) {
  const width = Math.max(1, Math.round((frame.width - LEFT) * scale)), rows = Math.max(1, map.rows);
  prepare(width, rows);
  const nowX = Math.max(0, Math.min(width, Math.round((frame.xOf(frame.now) - LEFT) * scale)));
  const past = rgbOf(frame.colours.idlePast), ahead = rgbOf(frame.colours.idle);
  for (let row = 0; row < rows; row++) {
    pixels.fill(packed(past), row * width, row * width + nowX);
    pixels.fill(packed(ahead), row * width + nowX, (row + 1) * width);
  }
  const blends = new Map();
  const blend = (rgb, share, ground) => {
    const key = ((rgb[0] << 16) | (rgb[1] << 8) | rgb[2]) * 1000 + Math.round(share * 100) * 2 + (ground === past);
    let found = blends.get(key);
    if (found === undefined) blends.set(key, (found = packed(rgb.map((part, index) => part * share + ground[index] * (1 - share)))));
    return found;
  };
  for (const rect of map.rects) {
    const x1 = Math.max(0, Math.round((frame.xOf(rect.from) - LEFT) * scale));
    const x2 = Math.min(width, Math.max(x1 + 1, Math.round((frame.xOf(map.endOf(rect, frame.now, frame.step)) - LEFT) * scale)));
    if (x2 <= 0 || x1 >= width) continue;
    const dim = frame.focus !== null && !frame.focus(rect.owner) ? DIMMED : 1, middle = Math.max(x1, Math.min(x2, nowX));
    const before = rect.phase === 2 ? 0 : blend(rect.rgb, PAST_SHARE * dim, past);
    const after = blend(rect.rgb, (rect.phase === 2 ? PLANNED_SHARE : EXPECTED_SHARE) * dim, ahead);
    for (let row = rect.row; row < rect.row + rect.rows && row < rows; row++) {
      if (middle > x1 && rect.phase !== 2) pixels.fill(before, row * width + x1, row * width + middle);
      if (x2 > middle) pixels.fill(after, row * width + middle, row * width + x2);
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(canvas, LEFT, TOP - frame.top, frame.width - LEFT, frame.total);
}

const packed = (rgb) => (255 << 24) | (Math.round(rgb[2]) << 16) | (Math.round(rgb[1]) << 8) | Math.round(rgb[0]);

function prepare(width, rows) {
  if (canvas?.width === width && canvas.height === rows) return;
  canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = rows;
  image = new ImageData(width, rows);
  pixels = new Uint32Array(image.data.buffer);
}
