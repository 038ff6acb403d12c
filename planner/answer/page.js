"use strict";
(function () {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const isDark = function () { return root.dataset.theme ? root.dataset.theme === "dark" : dark.matches; };
  const name = function () {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Show light colours" : "Show dark colours");
  };
  button.hidden = false;
  button.addEventListener("click", function () { root.dataset.theme = isDark() ? "light" : "dark"; name(); });
  dark.addEventListener("change", name);
  name();

  const held = document.getElementById("plots");
  if (!held) { return; }
  const begin = function () {
    const plots = JSON.parse(held.textContent);
    const places = Array.from(document.querySelectorAll("[data-plot]"));
    const paperWidth = 680;
    const shortened = function (text, most) {  // an entity counts as one letter, and is never cut
      const letters = text.match(/&(?:amp|lt|gt);|[^]/gu) || [];
      return letters.length <= most ? text : letters.slice(0, most - 8).join("") + "\u2026" + letters.slice(-7).join("");
    };
    const layoutFor = function (layout, width) {
      const copy = JSON.parse(JSON.stringify(layout));
      copy.width = width;
      if (width < 560) {
        copy.font.size = 11;
        if (copy.yaxis && copy.yaxis.ticktext) { copy.yaxis.ticktext = copy.yaxis.ticktext.map(function (one) { return shortened(one, 16); }); }
      }
      return copy;
    };
    const lettersOf = function (texts) { return texts.reduce(function (most, one) { return Math.max(most, one.length); }, 0); };
    const makeRoom = function (data, layout, width) {  // for the texts at the ends of bars
      const letter = layout.font.size * 0.56;
      const span = layout.meta.span;
      const bars = data[0];
      const left = lettersOf(bars.text.filter(function (one, index) { return bars.x[index] < 0; })) * letter;
      const right = lettersOf(bars.text.filter(function (one, index) { return !(bars.x[index] < 0); })) * letter + 8;
      const plot = width - lettersOf(layout.yaxis.ticktext) * letter - 40;
      const unit = (span[1] - span[0]) / Math.max(60, plot - left - right);
      layout.xaxis.range = [span[0] - (left ? left + 8 : 0) * unit, span[1] + right * unit];
    };
    const draw = function (place, width) {
      const plot = plots[Number(place.dataset.plot)];
      const layout = layoutFor(plot.layout, width);
      let data = plot.data;
      if (layout.meta && layout.meta.span) {
        if (width < 560) { data = [Object.assign({}, data[0], { text: data[0].text.map(function (one) { return one.split(", ")[0]; }) })]; }
        makeRoom(data, layout, width);
      }
      if (place.dataset.width !== String(width)) { window.Plotly.purge(place); }  // else a legend keeps the room it had
      place.dataset.width = width;
      window.Plotly.react(place, data, layout, { displayModeBar: false, doubleClick: "reset" });
    };
    const widthOf = function (place) { return Math.max(260, Math.floor(place.getBoundingClientRect().width)); };
    const drawAll = function (width) {
      places.forEach(function (place) {
        if (!place.closest("details:not([open])")) { draw(place, width || widthOf(place)); }  // one that is folded away waits
      });
    };
    drawAll(0);
    document.querySelectorAll("details").forEach(function (one) { one.addEventListener("toggle", function () { drawAll(0); }); });
    let waiting = 0;
    let lastWidth = window.innerWidth;
    window.addEventListener("resize", function () {
      if (window.innerWidth === lastWidth || window.matchMedia("print").matches) { return; }
      lastWidth = window.innerWidth;
      window.clearTimeout(waiting);
      waiting = window.setTimeout(function () { drawAll(0); }, 150);
    });
    window.addEventListener("beforeprint", function () { drawAll(paperWidth); });
    window.addEventListener("afterprint", function () { drawAll(0); });
  };
  if (window.Plotly) { begin(); } else { window.addEventListener("plotly", begin, { once: true }); }
}());
