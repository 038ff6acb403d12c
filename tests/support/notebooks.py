"""Run the notebooks of the documentation and write what they show into them: ``python tests/support/notebooks.py``."""

import ast
import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

from docs_commands import ROOT

__all__ = ["FOLDER", "executed", "text_of"]

FOLDER = ROOT / "docs/notebooks"


def executed(notebook: Mapping[str, Any]) -> dict[str, Any]:
    """Return a notebook with what its cells show, each run after those above it."""
    known: dict[str, Any] = {}
    cells, number = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            outputs = list(_outputs("".join(cell["source"]), known, number))
            cells.append({**cell, "execution_count": number, "outputs": outputs})
        else:
            cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(code: str, known: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """Yield what a cell prints, and the value of its last line."""
    tree, printed, value = ast.parse(code), io.StringIO(), None
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), known)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), known)
    if text := printed.getvalue():
        yield {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
    if value is not None:
        html = value._repr_html_() if hasattr(value, "_repr_html_") else None
        data = {"text/plain": repr(value)} if html is None else {"text/html": html}
        lines = {kind: text.splitlines(keepends=True) for kind, text in data.items()}
        yield {"data": lines, "execution_count": number, "metadata": {}, "output_type": "execute_result"}


def text_of(notebook: Mapping[str, Any]) -> str:
    return f"{json.dumps(notebook, indent=1, ensure_ascii=False)}\n"


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.ipynb")):
        path.write_text(text_of(executed(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")
        print(path.relative_to(ROOT))
