"""A page as one HTML file that asks for nothing else: its style, its plots' library and its data are all in it.

What comes from files is text everywhere: jinja2 escapes it in HTML, :func:`script_json` in the data of the plots. The
page forbids itself every request by a content security policy. The same page gives the same bytes.
"""

import json
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

from planner.errors import SpecError
from planner.page.figures import COLOURS, MUTED
from planner.page.parts import Block, Details, Figure, Page
from planner.page.words import plain

__all__ = ["render", "script_json"]

_MISSING = (
    "--html: this needs plotly and jinja2, which are not installed. Install them: "
    "pip install 'training-planner[report]'."
)


def render(page: Page) -> str:
    """Return a page as HTML.

    Raises
    ------
    SpecError
        If plotly or jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, StrictUndefined  # noqa: PLC0415  # late: only a page pays for them
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: PLC0415
    except ImportError:
        raise SpecError(_MISSING) from None
    figures = list(_figures([block for section in page.sections for block in section.blocks]))
    numbers = {id(figure): index for index, figure in enumerate(figures)}
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_seen
    )
    text: str = environment.from_string(_text("page.html")).render(
        page=page,
        number_of=lambda figure: numbers[id(figure)],
        style=_style(),
        script=_text("page.js"),
        library=get_plotlyjs() if figures else "",
        plots=script_json([{"data": one.data, "layout": one.layout} for one in figures]),
    )
    return text


def script_json(value: Any) -> str:
    r"""Return JSON that may stand in a script element: nothing in it ends the element, or begins a comment.

    >>> script_json({"a": "</script><!--&"})
    '{"a":"\\u003c/script\\u003e\\u003c!--\\u0026"}'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII: line separators are escaped, too
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _seen(value: Any) -> Any:
    """Return what the template prints: names from files with every letter seen; what is markup already as it is."""
    return plain(value) if type(value) is str else value


def _figures(blocks: Sequence[Block]) -> Iterator[Figure]:
    """Yield the plots in their order on the page."""
    for block in blocks:
        if isinstance(block, Figure):
            yield block
        elif isinstance(block, Details):
            yield from _figures(block.blocks)


def _style() -> str:
    """Return the style sheet, with the colours that plots and drawings share."""
    shared = [f"--colour-{index}: {colour};" for index, colour in enumerate(COLOURS)]
    return f":root {{ {' '.join(shared)} --muted-fill: {MUTED}; }}\n{_text('page.css')}"


def _text(name: str) -> str:
    """Return a file of this folder."""
    return resources.files("planner.page").joinpath(name).read_text(encoding="utf-8")
