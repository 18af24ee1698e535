// Real-time applications: the demand's fan of forecasts, what was really needed, and what was served.

import { fill, frameOnce, h, s } from "./dom.js";
import { area, axes, band, chart, key, nice, nowLine, path, scales } from "./charts.js";
import { HOUR, plural } from "./words.js";

export function open(box, app) {
  const list = h("div.charts", {}), nothing = h("p.note", { hidden: true });
  box.append(h("div.head", {}, h("h1", {}, "Demand of applications"), h("div.grow"), key("needed", "needed"), key("held", "held"), key("band", "forecast P50 to P90"), key("unmet", "missing")), list, nothing);
  const draw = frameOnce(() => {
    const { apps } = app.store, now = app.store.now();
    fill(list, [...apps].sort(([a], [b]) => a.localeCompare(b)).map(([name, row]) => card(app, name, row, now)));
    nothing.hidden = apps.size > 0;
    nothing.textContent = app.store.started ? "No application is registered. Applications report their load on the topic demand; docs/publishing.md shows how." : "Reading the topics …";
  });
  const timer = setInterval(draw, 2000);
  draw();
  return { update: (changed) => { if (changed.has("apps") || changed.has("all")) draw(); }, close: () => clearInterval(timer) };
}

function card(app, name, row, now) {
  const from = now - 12 * HOUR, to = now + 12 * HOUR, window = row.window_ms || 600_000;
  // A window's load is known at its end and meant for all of it.
  const needed = row.observed.filter(([time]) => time > from).map(([time, gpus]) => [Math.max(from, time - window), gpus]);
  const fan = row.fan.filter(([time]) => time >= from && time < to);
  const before = row.held.filter(([time]) => time <= from).at(-1);
  const held = [...(before ? [[from, before[1]]] : []), ...row.held.filter(([time]) => time > from)];
  const most = nice(Math.max(row.peak * 0.25, ...needed.map((one) => one[1]), ...fan.map((one) => one[2]), ...held.map((one) => one[1]), 1));
  const at = scales(from, to, most);
  const last = row.observed.at(-1), holds = row.held.at(-1)?.[1] ?? 0, missing = last ? Math.max(0, last[1] - holds) : 0;
  return h("article.card.chart", {},
    h("header", {}, h("h2", {}, h("button.link", { type: "button", onclick: () => app.select(name) }, name)), h("span.muted", {}, `holds ${plural(holds, "GPU")}, needs ${last ? last[1].toFixed(1) : "?"}${missing > 0.05 ? `, ${missing.toFixed(1)} missing` : ""}`), h("span.muted", { css: { "margin-left": "auto" } }, `floor ${row.floor}, peak ${row.peak}`)),
    chart(`${name}: GPUs needed, held and forecast over 24 hours`, [
      axes(at, { text: (value) => (Number.isInteger(value) ? value : value.toFixed(1)) }),
      s("path.band", { d: band(at, fan) }),
      s("path.p50", { d: path(at, fan.map(([time, p50]) => [time, p50])) }),
      s("path.held-area", { d: area(at, held, { steps: true, end: now }) }),
      unmet(at, needed, held, window, now),
      row.floor ? s("line.floor", { x1: at.x(from), x2: at.x(to), y1: at.y(row.floor), y2: at.y(row.floor) }) : null,
      s("path.needed", { d: path(at, needed, { steps: true, end: last ? last[0] : null }) }),
      s("path.held", { d: path(at, held, { steps: true, end: now }) }),
      nowLine(at, now),
    ]));
}

/** Where more was needed than held. */
function unmet(at, needed, held, window, now) {
  const parts = [];
  for (const [time, gpus] of needed) {
    const end = Math.min(time + window, now);
    const steps = [...held.filter(([when]) => when <= time).slice(-1), ...held.filter(([when]) => when > time && when < end)];
    steps.forEach(([when, got], index) => {
      const first = Math.max(when, time), last = index + 1 < steps.length ? steps[index + 1][0] : end;
      if (gpus > got + 0.02 && last > first) parts.push(s("rect.unmet", { x: at.x(first), width: Math.max(0.5, at.x(last) - at.x(first)), y: at.y(gpus), height: at.y(got) - at.y(gpus) }));
    });
  }
  return parts;
}
