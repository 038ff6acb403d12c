"""Docstrings as the site shows them: examples and tables in fences of their own, names of Sphinx's roles as code.

A class has a section of its fields by the comments beside them, or above them.
"""

import re
from collections.abc import Iterable
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^( *)>>> .*\n?)(?:^ *\S.*\n?)*", re.MULTILINE)
TABLE = re.compile(
    r"(?:^( *)=+(?: +=+)+ *\n)(?:^.*\S.*\n)+?(?:^ *=+(?: +=+)+ *$\n?)(?:(?:^.*\S.*\n)+?(?:^ *=+(?: +=+)+ *$\n?))?",
    re.MULTILINE,
)
FIELD = re.compile(r"    (\w+): [^#]*(?:# (.*))?$")
SEVERAL = re.compile(r"((?:\w+, )+\w+): ")  # which of the fields below a comment is of, where it is of several
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


def fields(lines: Iterable[str]) -> str:
    """Return the section of a class's fields, from its lines; empty where none has a comment."""
    found: list[str] = []
    above: list[str] = []
    for line in lines:
        if line.startswith("    # "):
            above.append(line[6:])
        elif (field := FIELD.match(line)) and (said := " ".join([*above, *filter(None, [field[2]])])):
            named = SEVERAL.match(said) if above else None
            names, text = (named[1], said[named.end() :]) if named else (field[1], said)
            found.append(f"{names}\n    {text[:1].upper()}{text[1:]}.")
            above = []
        elif line.startswith(("    def ", "    @")):
            break
        else:
            above = []
    return "\n".join(["", "", "Attributes", "----------", *found]) if found else ""


class Frozen(griffe.ExprCall):
    """The decorator ``frozen``, as one that is known to make dataclasses."""

    @property
    def canonical_path(self) -> str:
        """The path of the decorator that it stands for."""
        return "dataclasses.dataclass"


class Docstrings(griffe.Extension):
    """Rewrites every docstring before it is parsed, and has frozen classes taken for the dataclasses that they are."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Say how objects of a frozen class are made."""
        for decorator in cls.decorators:
            if decorator.callable_path == "planner.frozen.frozen":
                arguments = getattr(decorator.value, "arguments", [])
                is_by_name = all(str(one) != "kw_only=False" for one in arguments)
                decorator.value = Frozen(decorator.value, [griffe.ExprKeyword("kw_only", str(is_by_name))])
                cls.labels.add("dataclass")

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring:
            has_own = not obj.is_class or "Attributes\n---" in obj.docstring.value
            obj.docstring.value = shown(obj.docstring.value + ("" if has_own else fields(obj.lines)))
