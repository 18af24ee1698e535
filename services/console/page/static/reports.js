// GPU-hours and what they bought, by team, user, job or kind; the same numbers as `gpugrid report`.

import { fill, h } from "./dom.js";
import { count, milliseconds, percent } from "./words.js";

const REFRESH_MS = 10_000;
const PARTS = [["effective_h", "effective", "var(--accent)"], ["idle_h", "idle", "var(--application)"], ["lost_h", "lost to restarts", "var(--bad)"]];

export function open(box, app) {
  let by = "team", hours = 24, closed = false, asked = 0;
  const choose = (label, options, set) => h("select", { "aria-label": label, onchange: (event) => { set(event.target.value); load(); } }, options.map(([value, text, selected]) => h("option", { value, selected }, text)));
  const links = h("span", {}), body = h("div", {});
  box.append(h("div.head", {}, h("h1", {}, "GPU-hours"),
    choose("By", [["team", "by team", true], ["user", "by user"], ["kind", "by kind"], ["job", "by job"]], (value) => { by = value; }),
    choose("Over", [["1", "last hour"], ["6", "last 6 hours"], ["24", "last 24 hours", true], ["168", "last 7 days"]], (value) => { hours = Number(value); }),
    h("div.grow"), h("div.legend", {}, PARTS.map(([, name, colour]) => h("span", {}, h("i", { css: { background: colour } }), name))), links), body);

  async function load() {
    const mine = ++asked, query = `by=${by}&hours=${hours}`;
    fill(links, h("a", { href: `/api/report?${query}&format=csv` }, "CSV"), " · ", h("a", { href: `/api/report?${query}&format=html` }, "HTML"));
    try {
      const response = await fetch(`/api/report?${query}`), report = await response.json();
      if (closed || mine !== asked) return;
      fill(body, response.ok ? table(app, report) : h("p.note", {}, report.error));
    } catch {
      if (!closed && !body.childNodes.length) fill(body, h("p.note", {}, "The server does not answer now."));
    }
  }

  const timer = setInterval(load, REFRESH_MS);
  load();
  return { update: (changed) => { if (changed.has("all")) load(); }, close: () => { closed = true; clearInterval(timer); } };
}

function table(app, report) {
  if (!report.rows.length) return h("p.note", {}, "Nobody held a GPU in that time.");
  const most = Math.max(...report.rows.map((row) => row.held_h), 1e-9), by = report.by;
  const units = Object.keys(report.total).filter((name) => name.startsWith("gpu_hours_per_"));
  const heads = [["GPU-hours", "held_h", hours], ...(report.total.slot_hours ? [["Slot-hours", "slot_hours", hours]] : []), ["Effective", "effective_h", hours], ["Idle", "idle_h", hours], ["Lost", "lost_h", hours], ["Jobs", "jobs", count], ["Completed", "completed", count], ["Success", "success", (value) => percent(value)], ["Per completed", "hours_per_completed", hours], ["Interrupted", "interruptions", count], ["Resumed", "resumptions", count], ["Starved", "starved", count], ...REQUESTS.filter(([, name]) => report.total[name] !== null), ...units.map((name) => [`per ${name.slice(14).replaceAll("_", " ")}`, name, (value) => value.toPrecision(2)])];
  const line = (row) => h("tr", {}, h("td", {}, by === "job" && app.store.jobs.has(row[by]) ? h("button.link", { type: "button", onclick: () => app.select(row[by]) }, row[by]) : row[by]),
    h("td", {}, row[by] === "total" ? "" : h("span.bars", { "aria-hidden": "true" }, PARTS.map(([part, , colour]) => h("i", { css: { width: `${(row[part] / most) * 100}%`, background: colour } })))),
    heads.map(([, name, text]) => h("td.n", {}, row[name] === null || row[name] === undefined ? "" : text(row[name]))));
  return h("div.scroll", {}, h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, by[0].toUpperCase() + by.slice(1)), h("th", {}, h("span.sr", {}, "Bar")), heads.map(([text]) => h("th.n", { scope: "col" }, text)))),
    h("tbody", {}, report.rows.slice(0, 300).map(line)), h("tfoot", {}, line({ ...report.total, [by]: "total" }))));
}

const seconds = (value) => milliseconds(value * 1000);
const REQUESTS = [["Requests ok", "requests_ok", (value) => `${(value * 100).toFixed(3)} %`], ["Latency P50", "latency_p50_s", seconds], ["P99", "latency_p99_s", seconds]];
const hours = (value) => (value >= 100 ? count(value) : value.toFixed(value < 1 && value > 0 ? 2 : 1));
