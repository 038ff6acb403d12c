"""An answer as text for a terminal: its opening, then each section that a terminal shows; and tables as text."""

from collections.abc import Iterable, Mapping, Sequence

from planner.sections import Answer

__all__ = ["bullets", "note_lines", "table", "text_of"]


def text_of(answer: Answer) -> str:
    """Return an answer as text, without colour."""
    parts = [answer.opening, *(section.lines for section in answer.sections if section.lines)]
    return "\n\n".join("\n".join(lines) for lines in parts)


def bullets(title: str, lines: Iterable[str]) -> list[str]:
    """Return a title and its lines, indented; nothing where there are no lines."""
    listed = [f"  {line}" for line in lines]
    return [title, *listed] if listed else []


def note_lines(warnings: Sequence[str], parts: Mapping[str, Sequence[str]]) -> list[str]:
    """Return warnings, a line each, and what else is to be known, a line for each part."""
    listed = bullets("Warnings", [f"{line}." for line in warnings])
    return listed + [f"{title}: {'; '.join(lines)}." for title, lines in parts.items() if lines]


def table(rows: Sequence[Mapping[str, object]], *, columns: Sequence[str] | None = None) -> str:
    """Return rows as columns of text, numbers to the right."""
    names = list(columns or (rows[0] if rows else []))
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(name), *(len(line[i]) for line in cells), 0) for i, name in enumerate(names)]
    is_number = [all(isinstance(row.get(name), int | float | None) for row in rows) for name in names]

    def line(texts: Iterable[str]) -> str:
        placed = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(texts, widths, is_number, strict=True)
        )
        return "  ".join(placed).rstrip()

    return "\n".join([line(names), line("-" * width for width in widths), *(line(texts) for texts in cells)])


def _cell(value: object) -> str:
    """Return a table cell."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
