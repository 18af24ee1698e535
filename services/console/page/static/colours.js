// One colour per job everywhere: by kind (a shade per job), by team or by priority. Read from the stylesheet, so dark mode follows.

export const KIND_NAMES = ["training", "batch_inference", "quantization", "debug", "application"];
const TEAMS = ["#3f78c9", "#db922a", "#1c957a", "#a85c97", "#53a9cf", "#c2573d", "#8a8f2f", "#6d6fc4", "#b98a63", "#4f8a8b"];
const PRIORITY = [[68, 57, 131], [49, 104, 142], [33, 145, 140], [53, 183, 121], [143, 215, 68], [253, 231, 37]]; // viridis, without its darkest

let kinds = {};
const shades = new Map();

export function readColours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  kinds = Object.fromEntries([...KIND_NAMES, "unknown"].map((name) => [name, read(name)]));
  shades.clear();
  return { idle: read("idle"), idlePast: read("idle-past"), ink: read("ink"), ink2: read("ink-2"), line: read("line"), line2: read("line-2"), surface: read("surface"), now: read("now"), bad: read("bad"), warn: read("warn"), accent: read("accent") };
}

function hash(text) {
  let value = 2166136261;
  for (let index = 0; index < text.length; index++) value = Math.imul(value ^ text.charCodeAt(index), 16777619);
  return value >>> 0;
}

function shaded(hex, factor) {
  const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const mixed = parts.map((part) => Math.round(factor < 1 ? part * factor : part + (255 - part) * (factor - 1)));
  return `rgb(${mixed.join(" ")})`;
}

/** The colour of a job's blocks. `by`: "kind", "team" or "priority". */
export function colourOf(id, row, by) {
  const key = `${by}\n${id}\n${row?.kind}\n${row?.prio}`;
  let found = shades.get(key);
  if (found) return found;
  if (by === "team") found = TEAMS[hash(row?.team ?? "") % TEAMS.length];
  else if (by === "priority") {
    const place = Math.min(1, Math.max(0, ((row?.prio ?? 1) - 1) / 9)) * (PRIORITY.length - 1);
    const low = PRIORITY[Math.floor(place)], high = PRIORITY[Math.ceil(place)], share = place % 1;
    found = `rgb(${low.map((part, index) => Math.round(part + (high[index] - part) * share)).join(" ")})`;
  } else found = shaded(kinds[row?.kind] ?? kinds.unknown, [0.86, 1, 1.14, 1.26][hash(id) % 4]);
  if (shades.size > 50_000) shades.clear();
  shades.set(key, found);
  return found;
}

const triples = new Map();

/** [red, green, blue] of a colour written as "#rrggbb" or "rgb(r g b)". */
export function rgbOf(text) {
  let found = triples.get(text);
  if (!found) {
    found = text[0] === "#" ? [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16)) : text.match(/\d+/g).map(Number);
    triples.set(text, found);
  }
  return found;
}

export const kindColour = (kind) => kinds[kind] ?? kinds.unknown;
