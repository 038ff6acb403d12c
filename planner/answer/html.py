"""An answer as one HTML file that asks for nothing else: its style, its plots' library and its data are all in it.

What comes from files is text everywhere: jinja2 escapes it in HTML, :func:`script_json` in the data of the plots. The
page forbids itself every request by a content security policy. The same answer gives the same bytes.
"""

import json
from typing import Any

from planner.answer.charts import COLOURS, MUTED, plot_of
from planner.letters import visible
from planner.sections import Answer, Chart
from planner.shipped import shipped_text

# In the place of the plots' library: whoever frames the page sends it.
_AWAITED = """window.addEventListener("message", function (event) {
  if (event.source !== window.parent || typeof event.data !== "string" || window.Plotly) { return; }
  const script = document.createElement("script");
  script.textContent = event.data;
  document.head.append(script);
  window.dispatchEvent(new Event("plotly"));
});"""


def library() -> str:
    """Return the library of the plots, a script of 5 MB."""
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # noqa: PLC0415

    return str(get_plotlyjs())


def whole(page: str) -> str:
    """Return a light page with its plots' library in it."""
    return page.replace(_AWAITED, library()) if _AWAITED in page else page


def page_of(answer: Answer, *, is_light: bool = False) -> str:
    """Return an answer as HTML; a light one awaits the library of its plots from the page that frames it."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415  # late: only a page pays for it

    sections = [(section, blocks) for section in answer.sections if (blocks := section.blocks())]
    charts = [block for _, blocks in sections for block in blocks if isinstance(block, Chart)]
    numbers = {id(chart): index for index, chart in enumerate(charts)}
    plots = [plot_of(chart) for chart in charts]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_seen
    )
    shared = [f"--colour-{index}: {colour};" for index, colour in enumerate(COLOURS)]
    text: str = environment.from_string(shipped_text("planner.answer", "page.html")).render(
        page=answer,
        sections=sections,
        number_of=lambda chart: numbers[id(chart)],
        style=f":root {{ {' '.join(shared)} --muted-fill: {MUTED}; }}\n{shipped_text('planner.answer', 'page.css')}",
        script=shipped_text("planner.answer", "page.js"),
        library=_AWAITED if plots else "",
        plots=script_json([{"data": data, "layout": layout} for data, layout in plots]),
    )
    return text if is_light else whole(text)


def script_json(value: object) -> str:
    r"""Return JSON that may stand in a script element: nothing in it ends the element, or begins a comment.

    >>> script_json({"a": "</script><!--&"})
    '{"a":"\\u003c/script\\u003e\\u003c!--\\u0026"}'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII: line separators are escaped, too
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _seen(value: Any) -> Any:
    """Return what the template prints: names from files with every letter seen; what is markup already as it is.

    Unicode's directional formatting characters would turn the rest of a line.
    """
    return visible(value, keep="\n\t") if type(value) is str else value
