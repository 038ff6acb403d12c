"""Documents as text: the bytes of the standard library's writer, without its time."""

import json
from types import MappingProxyType
from typing import Any

import pytest

from planner.answer.documents import dump, finite
from planner.letters import visible_json
from planner.solution import Status

INNER: list[Any] = [
    1,
    10**30,
    -5,
    True,
    False,
    None,
    1.5,
    float("inf"),
    float("nan"),
    1e300,
    -0.0,
    'a"\\\n\x1b\u202eé',
    {},
    [],
    (),
]


@pytest.mark.parametrize("value", [{}, {"a": INNER}, {"é": {"b": [[INNER], {"c": Status.OPTIMAL}]}, "d": [[], [{}]]}])
def test_a_document_is_written_as_the_standard_library_writes_it(value: dict[str, Any]) -> None:
    expected = json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False)
    assert dump(MappingProxyType(value)) == visible_json(expected)


def test_a_document_of_a_million_values_is_not_written_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("some ten times as many calls as values")

    monkeypatch.setattr(json, "dumps", refuse)
    assert dump({"a": [1, 2.5, "b"]}) == '{\n  "a": [\n    1,\n    2.5,\n    "b"\n  ]\n}'
