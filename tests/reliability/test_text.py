"""Text as other systems write it, names as file systems allow them, and files that are none."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import Server, wrong_of
from faults_text import NAMES, READ, try_forms, try_name, try_no_files

from planner.errors import SpecError
from planner.importers.text import read_text

Fresh = Callable[[], Path]


def test_line_ends_and_marks_of_other_systems_change_no_answer(server: Server, fresh: Fresh) -> None:
    try_forms(server, fresh(), *READ[0])


def test_every_text_is_read_with_line_feeds_alone(tmp_path: Path) -> None:
    for number, data in enumerate((b"a\r\nb\r\n", b"a\rb\r", b"\xef\xbb\xbfa\nb\n")):
        path = tmp_path / str(number)
        path.write_bytes(data)
        assert read_text(path) == "a\nb\n"
    (tmp_path / "wide").write_text("a\nb\n", encoding="utf-16")
    with pytest.raises(SpecError, match=r"this is UTF-16 text\. Save it as UTF-8"):
        read_text(tmp_path / "wide")


def test_odd_names_are_read_and_written(server: Server, fresh: Fresh) -> None:
    for name in NAMES[1], NAMES[7]:
        try_name(server, fresh(), name)


def test_what_is_no_file_or_an_endless_one_is_refused_as_an_input(server: Server, fresh: Fresh) -> None:
    try_no_files(server, fresh(), ["plan {}"])


def test_words_of_a_training_script_are_quoted_in_shell_files(server: Server, fresh: Fresh) -> None:
    folder = fresh()
    script = "train.py --data 'a b' \"$(touch gone)\" `touch gone` ; é"
    for target in ("ddp", "slurm"):
        words = ("export", "plan.json", "--to", target, "--script", script, "--out", f"o {target}")
        assert not wrong_of(server.run(*words, folder=folder), (0, 2)), target
    files = [*folder.glob("o */*.sh"), *folder.glob("o */*.sbatch")]
    assert files
    for file in files:
        assert subprocess.run(["bash", "-n", str(file)], check=False).returncode == 0
    text = "".join(file.read_text() for file in files)
    assert "'$(touch gone)'" in text
    assert "'`touch'" in text
