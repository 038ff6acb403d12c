import os
import stat
import threading
from pathlib import Path

import pytest

from planner.cli.output import write_text
from planner.errors import SpecError


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "plan.json", tmp_path / "plan.json"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_text(pipe, "whole")
    reader.join(timeout=60)
    assert read == ["whole"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_folder_in_its_place_is_refused_and_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(SpecError, match="cannot be written"):
        write_text(tmp_path / "plan.json", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
