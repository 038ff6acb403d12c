// What an audit of accessibility asks of a page, by hand: returns what is wrong, in words. Run in a browser.
() => {
  const found = [];
  const parse = (text) => { const parts = text.match(/[\d.]+/g).map(Number); return parts.length > 3 ? parts : [...parts.slice(0, 3), 1]; };
  const luminance = ([r, g, b]) => [r, g, b].map((one) => { const v = one / 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; })
    .reduce((sum, one, index) => sum + one * [0.2126, 0.7152, 0.0722][index], 0);
  const contrast = (one, other) => { const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a); return (high + 0.05) / (low + 0.05); };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0.99) { return colour; }
    }
    return [255, 255, 255, 1];
  };
  const seen = (element) => element.getClientRects().length > 0 && getComputedStyle(element).visibility !== "hidden";
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !seen(element) || ["SCRIPT", "STYLE"].includes(element.tagName) || element.closest(".heard")) { continue; }
    const style = getComputedStyle(element);
    const isSvg = element instanceof SVGElement;
    if (isSvg && (style.fillOpacity === "0" || element.closest(".hoverlayer"))) { continue; }
    const ink = parse(isSvg ? style.fill : style.color);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = contrast(ink, ground(element));
    if (ratio < (isLarge ? 3 : 4.5)) { found.push(`contrast ${ratio.toFixed(2)} of ${element.tagName} ${element.className.baseVal ?? element.className}: ${element.textContent.slice(0, 30)}`); }
  }
  const count = (what) => document.querySelectorAll(what).length;
  if (count("main") !== 1 || count("body > header") !== 1 || count("body > footer") !== 1) { found.push("landmarks"); }
  if (count("nav:not([aria-label])")) { found.push("a nav without a name"); }
  for (const table of document.querySelectorAll("table")) {
    if (!table.caption || !table.caption.textContent.trim()) { found.push("a table without a caption"); }
    for (const cell of table.querySelectorAll("th")) { if (!cell.scope) { found.push("a header without a scope"); } if (!cell.textContent.trim() && cell.scope === "col") { found.push("an empty header"); } }
  }
  for (const figure of document.querySelectorAll("figure")) { if (!figure.querySelector("figcaption")) { found.push("a figure without a caption"); } }
  for (const image of document.querySelectorAll("[role=img]")) { if (!image.getAttribute("aria-label")) { found.push("a plot without words"); } }
  for (const section of document.querySelectorAll("main section")) { const title = document.getElementById(section.getAttribute("aria-labelledby")); if (!title || !title.textContent.trim()) { found.push("a section without a name"); } }
  for (const region of document.querySelectorAll("[role=region]")) { if (!region.getAttribute("aria-label")) { found.push("a region without a name"); } if (region.scrollWidth > region.clientWidth && region.tabIndex !== 0) { found.push("a region that keys do not reach"); } }
  let before = 0;
  for (const heading of document.querySelectorAll("h1, h2, h3, h4")) { const level = Number(heading.tagName[1]); if (level > before + 1) { found.push(`a heading jumps: ${heading.textContent}`); } before = level; }
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  if (new Set(ids).size !== ids.length) { found.push(`ids twice: ${ids.filter((one, index) => ids.indexOf(one) !== index)}`); }
  if (!document.documentElement.lang || !document.title) { found.push("no language or title"); }
  for (const hidden of document.querySelectorAll("[aria-hidden=true]")) { if (hidden.querySelector("a, button, summary, [tabindex]")) { found.push("something hidden takes the focus"); } }
  for (const target of document.querySelectorAll("button, summary")) { if (seen(target) && target.getBoundingClientRect().height < 24) { found.push(`a small target: ${target.textContent} ${target.getBoundingClientRect().height}`); } }
  if (document.getAnimations().length) { found.push("something moves"); }
  return [...new Set(found)];
}
