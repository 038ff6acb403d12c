"""Standard input, which a dash names."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner import load
from planner.errors import SpecError
from planner.importers import text
from planner.importers.text import MOST_DOCUMENT_BYTES, read_text


@pytest.fixture(autouse=True)
def read_anew() -> Iterator[None]:
    """Forget what standard input held, which is read once in a process."""
    text._standard_input.cache_clear()
    yield
    text._standard_input.cache_clear()


def test_standard_input_is_read_whole_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = "1,2\n" * (MOST_DOCUMENT_BYTES // 4 + 2)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(whole.encode())))
    assert read_text(Path("-")) == whole
    with pytest.raises(SpecError, match="more than"):
        read_text(Path("-"), most_bytes=MOST_DOCUMENT_BYTES)


def test_a_file_called_dash_does_not_stand_for_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-").write_text("file")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"piped")))
    assert read_text(Path("-")) == "piped"


@pytest.mark.parametrize("stream", [None, io.StringIO("dnn: {}")], ids=["none", "a notebook's"])
def test_where_there_is_no_standard_input_a_dash_is_refused(
    stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", stream)
    with pytest.raises(SpecError, match="no standard input here"):
        load("-")
