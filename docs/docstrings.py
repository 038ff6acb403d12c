"""Docstrings as the site shows them: examples and tables in fences of their own, names of Sphinx's roles as code."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^( *)>>> .*\n?)(?:^ *\S.*\n?)*", re.MULTILINE)
TABLE = re.compile(
    r"(?:^( *)=+(?: +=+)+ *\n)(?:^.*\S.*\n)+?(?:^ *=+(?: +=+)+ *$\n?)(?:(?:^.*\S.*\n)+?(?:^ *=+(?: +=+)+ *$\n?))?",
    re.MULTILINE,
)
ROLE = re.compile(r":(?:mod|class|func|meth|data|attr|exc):`~?([^`]+)`")


def example(found: re.Match[str]) -> str:
    """Return one example: fenced, or, behind a section such as Raises, below a title of its own."""
    titles = re.findall(r"^(\w[\w ]*)\n-{3,}$", found.string[: found.start()], re.MULTILINE)
    if titles and titles[-1] not in ("Notes", "Examples"):
        return f"Examples\n--------\n{found[0]}"
    return f"{found[1]}```pycon\n{found[0].rstrip()}\n{found[1]}```\n"


def shown(text: str) -> str:
    """Return a docstring in Markdown."""
    fenced = EXAMPLE.sub(example, text)
    tables = TABLE.sub(lambda found: f"{found[1]}```text\n{found[0].rstrip()}\n{found[1]}```\n", f"{fenced}\n")
    return ROLE.sub(r"`\1`", tables)


class Docstrings(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring:
            obj.docstring.value = shown(obj.docstring.value)
