// The search box: jobs by id, user or team, from what the page already knows.

import { byId, fill, h } from "./dom.js";
import { kindText, stateText } from "./words.js";

const SHOWN_MAX = 12;

export function openSearch(app) {
  const box = byId("search"), list = byId("found");
  let found = [], at = 0;

  function show() {
    found = app.store.search(box.value, SHOWN_MAX);
    at = 0;
    const open = box.value.trim() !== "";
    list.hidden = !open;
    box.setAttribute("aria-expanded", String(open));
    draw();
  }

  function draw() {
    fill(list, found.length ? found.map(([id, row], index) =>
      h("li", { role: "option", id: `found-${index}`, "aria-selected": String(index === at), onmousedown: (event) => { event.preventDefault(); choose(index); } },
        h("b", {}, id), h("span", {}, [row.team, row.user].filter(Boolean).join(" / "), " · ", kindText(row.kind), " · ", stateText(row.state))))
      : h("li.none", { role: "option", "aria-selected": "false" }, "Nothing here has that name, user or team."));
    if (found.length) box.setAttribute("aria-activedescendant", `found-${at}`);
    else box.removeAttribute("aria-activedescendant");
  }

  function choose(index) {
    if (!found[index]) return;
    app.select(found[index][0]);
    hide();
    box.value = "";
    box.blur();
  }

  function hide() {
    list.hidden = true;
    box.setAttribute("aria-expanded", "false");
  }

  box.addEventListener("input", show);
  box.addEventListener("focus", () => { if (box.value) show(); });
  box.addEventListener("blur", hide);
  box.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      at = Math.max(0, Math.min(found.length - 1, at + (event.key === "ArrowDown" ? 1 : -1)));
      draw();
    } else if (event.key === "Enter") choose(at);
    else if (event.key === "Escape") { box.value = ""; hide(); box.blur(); }
  });
}
