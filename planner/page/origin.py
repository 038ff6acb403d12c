"""The question and how to ask it again."""

import json
import shlex
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from planner.page.parts import Block, Code, Section, Table

__all__ = ["origin_section", "yaml_of"]

_MOST_LEAVES = 3000  # values beyond which the question is written as JSON, which is YAML too, and read quickly
_MOST_LETTERS = 300_000


def origin_section(
    question: Mapping[str, Any],
    commands: Sequence[Sequence[str]],
    *,
    configuration: Mapping[str, Any] | None = None,
    facts: Sequence[tuple[str, str]] = (),
) -> Section:
    """Return the question that needs no other file, the commands that ask it, and versions and digests."""
    blocks: list[Block] = []
    if commands:
        lines = "\n".join(shlex.join(command) for command in commands)
        blocks.append(
            Code(caption="To get this answer again: save the question below as question.yaml, then", text=lines)
        )
    text, note = yaml_of(question)
    blocks.append(Code(caption="question.yaml", text=text, note=note))
    if configuration is not None:
        text, note = yaml_of({"configuration": configuration})
        blocks.append(Code(caption="To predict this plan alone, with planner predict, add", text=text, note=note))
    if facts:
        blocks.append(Table(caption="How this answer came about", columns=("what", "value"), rows=facts))
    return Section(name="question", title="The question, and how to repeat it", blocks=blocks)


def yaml_of(value: Mapping[str, Any]) -> tuple[str, str]:
    """Return data as YAML, and a note where it was cut."""
    if _num_leaves(value) > _MOST_LEAVES:
        text = json.dumps(value, ensure_ascii=False, indent=1, default=str)
    else:
        from ruamel.yaml import YAML  # noqa: PLC0415  # late: only a page pays for it

        writer = YAML(typ="safe", pure=True)
        writer.default_flow_style = None
        writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
        writer.width = 96
        writer.allow_unicode = True
        target = StringIO()
        writer.dump(json.loads(json.dumps(value, default=str)), target)
        text = target.getvalue()
    if len(text) <= _MOST_LETTERS:
        return text.rstrip("\n"), ""
    return text[:_MOST_LETTERS], f"Only the first {_MOST_LETTERS:,} of {len(text):,} letters are shown; --json has all."


def _num_leaves(value: Any) -> int:
    """Return the number of plain values in nested data."""
    if isinstance(value, Mapping):
        return sum(map(_num_leaves, value.values()))
    return sum(map(_num_leaves, value)) if isinstance(value, list | tuple) else 1
