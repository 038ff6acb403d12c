"""The benchmark suite: every entry works, on the smallest question; runs are measured; measurements are compared."""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.cli.run import run as planner_run

ROOT = Path(__file__).parent.parent
# Networks of the zoo differ in their names alone, which tests/zoo holds against the program; one of them stands for all.
SAME = ("zoo", "preset")


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the folder of benchmarks importable, as it is from the root of the checkout."""
    monkeypatch.syspath_prepend(ROOT)


def asked_of(*arguments: str) -> tuple[int, str]:
    """Ask the command line within this process, and return its exit code and what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        return planner_run(list(arguments)), out.getvalue()


def document_of(seconds: tuple[float, float, float], *, sha256: str | None = "a", error: str | None = None) -> Any:
    """Return a measurement of one command: the least, the median and the greatest of its figures."""
    figure = dict(zip(("min", "median", "max"), seconds, strict=True))
    row = {
        "cpu_s": figure,
        "wall_s": figure,
        "peak_bytes": figure,
        "output_sha256": sha256,
        "error": error,
        "num_runs": 3,
    }
    tree = {"commit": "0" * 40, "subject": "", "is_changed": False, "entries": {"plan/x": row | {"exit_code": 0}}}
    return {"schema": "planner.benchmarks/1", "trees": [tree | {"kernels": {}}]}


@pytest.mark.usefixtures("suite")
def test_every_entry_works_on_the_smallest_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.suite.entries import entries, preparations
    from benchmarks.suite.inputs import write_inputs

    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path)
    for arguments in preparations(entries()):
        assert asked_of(*arguments)[0] == 0, arguments
    seen = set[str]()
    for entry in entries():
        if entry.is_python or (entry.group in SAME and entry.group in seen):
            continue
        seen.add(entry.group)
        code, printed = asked_of(*(entry.arguments if entry.tiny is None else entry.tiny))
        assert code in entry.exit_codes, f"{entry.name}: {printed}"
    assert {"start-up", "show", "zoo", "family", "procure", "sweep", "page", "import"} <= seen


@pytest.mark.usefixtures("suite")
def test_the_zoo_of_the_suite_is_the_zoo() -> None:
    from benchmarks.suite.entries import entries
    from planner import zoo

    named = {one.name.removeprefix("zoo/") for one in entries() if one.group == "zoo"}
    assert named == {*zoo.names(), "readme-vgg16"}


def test_a_measurement_of_this_checkout_is_written_and_compared_with_itself(tmp_path: Path) -> None:
    out = tmp_path / "measured.json"
    command = ["-m", "benchmarks.run", "--only", "start-up/python", "--repeat", "2", "--tiny", "--out", str(out)]
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True, capture_output=True)
    (tree,) = json.loads(out.read_text())["trees"]
    found = tree["entries"]["start-up/python"]
    assert (found["exit_code"], found["error"], found["num_runs"]) == (0, None, 2)
    assert 0 < found["cpu_s"]["min"] <= found["cpu_s"]["median"] <= found["cpu_s"]["max"]
    assert 2**20 < found["peak_bytes"]["min"] < 2**30
    compare = [sys.executable, "-m", "benchmarks.compare", str(out), str(out)]
    text = subprocess.run(compare, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "| start-up/python |" in text
    assert "WORSE" not in text


def test_make_bench_finds_its_functions_and_some_of_them_run() -> None:
    command = [sys.executable, "-m", "pytest", "benchmarks", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    command += ["--benchmark-disable", "-k", "test_one_configuration"]
    found = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr  # 5 where none was found


@pytest.mark.usefixtures("suite")
@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((1.0, 1.1, 1.2), (2.0, 2.1, 2.2), "WORSE"),
        ((2.0, 2.1, 2.2), (1.0, 1.1, 1.2), "better"),
        ((1.0, 1.1, 1.5), (1.4, 1.6, 1.7), ""),  # some run of the one is no slower than some of the other
        ((1.0, 1.0, 1.0), (1.02, 1.02, 1.02), ""),  # too little to speak of
    ],
)
def test_a_change_is_one_that_no_scatter_explains(before: Any, after: Any, expected: str, tmp_path: Path) -> None:
    from benchmarks.compare import compared, trees_of

    files = [tmp_path / "before.json", tmp_path / "after.json"]
    for path, seconds in zip(files, (before, after), strict=True):
        path.write_text(json.dumps(document_of(seconds)))
    (row,) = compared(*trees_of(files), ["cpu_s"])
    assert row.verdict(0.03) == expected
    assert row.is_same_output


@pytest.mark.usefixtures("suite")
def test_what_failed_is_not_compared_and_what_is_no_measurement_is_refused(tmp_path: Path) -> None:
    from benchmarks.compare import compared, main

    ok, failed = document_of((1.0, 1.0, 1.0)), document_of((1.0, 1.0, 1.0), error="no answer")
    assert not list(compared(ok["trees"][0], failed["trees"][0], ["cpu_s"]))
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert main([str(other), str(other)]) == 2
    one = tmp_path / "one.json"
    one.write_text(json.dumps(ok))
    assert main([str(one)]) == 2


@pytest.mark.usefixtures("suite")
def test_a_command_that_fails_is_told_with_what_it_said_last(tmp_path: Path) -> None:
    from benchmarks.suite.process import environment, run

    code = "import sys; print('out'); print('one\\ntwo', file=sys.stderr); sys.exit(3)"
    found = run([sys.executable, "-c", code], folder=tmp_path, variables=environment(ROOT, tmp_path / "bytecode"))
    assert (found.exit_code, found.error) == (3, "two")


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("suite")
def test_every_hard_question_of_the_limits_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    import planner
    from benchmarks import limits

    monkeypatch.setattr(limits, "_LAYERS", 20)
    for family, name, make in limits.asked_of([]):
        problem = planner.load(make())
        assert problem.families == (family,), name
    assert {family for family, *_ in limits.asked_of([])} == set(limits.FAMILIES)
    assert [name for _, name, _ in limits.asked_of(["hybrid/GPT-3"])] == ["GPT-3 on 4 kinds"]


@pytest.mark.usefixtures("suite")
def test_what_is_late_or_too_large_is_marked_in_the_table_of_limits() -> None:
    from benchmarks.limits import Row

    row = Row(family="hybrid", question="q", seconds=4.1, cpu_s=3.0, peak_bytes=3 * 2**30, code=3)
    assert row.cells(2.0, 2.0**31) == ["hybrid", "q", "4.1 (late)", "3.0", "3072 (too much)", "3"]
    struck = Row(family="hybrid", question="q", seconds=9.0, cpu_s=8.04, peak_bytes=2**30, code=143, signal_s=0.52)
    assert struck.cells(2.0, 2.0**31) == ["hybrid", "q", "0.5 after SIGTERM", "8.0", "1024", "143"]


@pytest.mark.usefixtures("suite")
def test_a_process_is_measured_and_a_signal_is_sent_to_it() -> None:
    from benchmarks.limits import measured

    seconds, _, peak_bytes, code, latency_s = measured(["--version"], [], stuck_s=60.0)
    assert (code, latency_s) == (0, None)
    assert seconds > 0
    assert peak_bytes > 2**22
    line = "plan --dnn gpt3-175b --machines 16x8xa100-80g --network 200_Gbit/s --inside nvlink-3 --global-batch 1536 --families hybrid"
    words = [word.replace("_", " ") for word in line.split()]
    *_, code, latency_s = measured(words, ["--time-limit", "1 h"], stuck_s=60.0, signal_after_s=0.3)
    # By the system's own hand while Python starts; by SIGINT where a library's own call of the interpreter was under way.
    assert code in (0, 3, 143, -15, -2)
    assert latency_s is not None
