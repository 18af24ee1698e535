// What is wrong with the page for people who use a keyboard, a screen reader or weak eyes; an empty list if nothing is.
() => {
  const wrong = [];
  const seen = (element) => element.offsetParent !== null && element.getBoundingClientRect().width > 1;
  for (const control of document.querySelectorAll("button, a[href], input, select, textarea, canvas[tabindex], [role=img]")) {
    if (!seen(control) && control.tagName !== "svg") continue;
    const label = control.getAttribute("aria-label") || control.textContent.trim() || control.closest("label")?.textContent.trim() || control.title;
    if (!label) wrong.push("no name: " + control.outerHTML.slice(0, 80));
  }
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  if (new Set(ids).size !== ids.length) wrong.push("an id twice");
  if (!document.documentElement.lang) wrong.push("no language");
  if (document.querySelectorAll("main").length !== 1) wrong.push("not one main");
  const light = ([r, g, b]) => { const f = (v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
  const parse = (text) => text.match(/[\d.]+/g).map(Number);
  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!text || !seen(element) || element.disabled) continue;
    let ground = element, colour = null;
    while (ground && !(colour && (colour[3] ?? 1) > 0.95)) { colour = parse(getComputedStyle(ground).backgroundColor); ground = ground.parentElement; }
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(colour)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) wrong.push(`contrast ${((a + 0.05) / (b + 0.05)).toFixed(2)}: ${element.className} ${element.textContent.slice(0, 30)}`);
  }
  return wrong;
}
