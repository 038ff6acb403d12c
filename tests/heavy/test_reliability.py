"""Every command with every option that writes a file, under every fault: what tests/reliability tries on a few of them."""

import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_commands import READERS, WRITERS, Writer, write_inputs
from faults import Server, can_mount, file_system, fill, make_read_only, temporary_of, wrong_of
from faults_text import NAMES, READ, READERS_OF_ANY, try_forms, try_name, try_no_files
from faults_tried import FAULTS, OLD, Place, contents

from planner.cli.run import run

MOMENTS = int(os.environ.get("PLANNER_MOMENTS", "6"))  # of each command line; 30 were tried for docs/reliability.md
PROCESSES = 10
SEED = 29
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Fresh = Callable[[], Path]
each_writer = pytest.mark.parametrize("writer", WRITERS, ids=lambda one: one.name)
needs_mount = pytest.mark.skipif(not can_mount(), reason="only root may mount a file system that is full or read-only")
LINES = [line for _, line in READERS] + [" ".join(one.words(f"t{one.suffix}")) for one in WRITERS]
# These may answer with their best so far, a page with the steps until then, a store with what it has.
BEST_SO_FAR = (
    "procure",
    "calibrate plan.json",
    "explain",
    "export",
    "plan q.yaml --no-explain --html",
    "plan q.yaml --trace",
    "sweep s.yaml --store",
)
each_line = pytest.mark.parametrize("line", LINES)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    assert run(["plan", str(folder / "q.yaml"), "--out", str(folder / "plan.json")]) == 0
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, inputs: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    lines = [writer.words(folder / f"{number}{writer.suffix}") for number, writer in enumerate(WRITERS)]
    lines += [line.split() for _, line in READERS]
    with Server(
        folder, [[str(inputs / one) if (inputs / one).is_file() else one for one in line] for line in lines]
    ) as made:
        yield made


@pytest.fixture
def fresh(tmp_path: Path, inputs: Path) -> Callable[[], Path]:
    number = iter(range(10**9))
    return lambda: Path(shutil.copytree(inputs, tmp_path / str(next(number))))


@each_writer
@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.__name__)
def test_an_impossible_output_is_refused_and_changes_nothing(
    server: Server, fresh: Fresh, writer: Writer, fault: Callable[[Path, Writer], Place]
) -> None:
    folder = fresh()
    place = fault(folder, writer)
    before = contents(folder)
    ended = server.run(*writer.words(place.target), folder=folder)
    assert not wrong_of(ended, place.codes)
    assert not place.is_unchanged or contents(folder) == before
    assert not temporary_of(folder)


@needs_mount
@each_writer
@pytest.mark.parametrize("fault", ["full", "read-only", "64 KiB"])
def test_a_disk_that_takes_nothing_more_keeps_what_it_has(
    server: Server, fresh: Fresh, writer: Writer, fault: str
) -> None:
    folder = fresh()
    with file_system(folder / "disk", 2**16) as disk:
        target = disk / f"t{writer.suffix}"
        if writer.is_folder:
            target.mkdir()
            (target / "launch.sh").write_bytes(OLD)
        elif writer.suffix != ".sqlite":
            target.write_bytes(OLD)
        if fault == "full":
            fill(disk)
        elif fault == "read-only":
            make_read_only(disk)
        before = contents(disk)
        ended = server.run(*writer.words(target), *(["--force"] if writer.is_folder else []), folder=folder)
        assert not wrong_of(ended, (0, 2) if fault == "64 KiB" else (2,))
        if ended.code and writer.suffix != ".sqlite":  # a store may be begun: the next test of stores goes on with it
            assert contents(disk) == before
        assert not temporary_of(disk)


@each_line
def test_limits_and_streams_that_fail_are_said(server: Server, fresh: Fresh, line: str) -> None:
    full = ("/dev/full", os.O_WRONLY)
    for streams in ({1: full}, {2: full}, {1: full, 2: full}, {1: (os.devnull, os.O_RDONLY)}):
        assert not wrong_of(server.run(*line.split(), folder=fresh(), streams=streams), (0, 2))
    for limits in ({"RLIMIT_NOFILE": 3}, {"RLIMIT_NOFILE": 8}, {"RLIMIT_NOFILE": 32}, {"RLIMIT_FSIZE": 100}):
        folder = fresh()
        assert not wrong_of(server.run(*line.split(), folder=folder, limits=limits), (0, 2)), limits
        assert not temporary_of(folder)


@each_line
def test_signals_at_random_moments_leave_an_answer_or_nothing(server: Server, fresh: Fresh, line: str) -> None:
    lots, ends = random.Random(f"{SEED} {line}"), collections.Counter[int]()
    folder = fresh()
    whole = server.run(*line.split(), folder=folder)
    written = contents(folder)
    for _ in range(MOMENTS):
        number, after_s = lots.choice(ENDING), lots.uniform(0.0, 1.05 * whole.wall_s)
        folder = fresh()
        ended = server.run(*line.split(), folder=folder, signals=[(after_s, int(number))])
        # Less the number: the interpreter takes itself apart, all is said and written.
        assert not wrong_of(ended, (0, whole.code, 128 + number, -number)), after_s
        assert not temporary_of(folder), after_s
        if not line.startswith(BEST_SO_FAR):
            found = contents(folder)
            assert all(_agrees(found[name], written[name]) for name in found), after_s
            assert ended.code or found.keys() == written.keys(), after_s
        ends[ended.code] += 1
    print(line, dict(ends))


def _agrees(found: bytes | str, whole: bytes | str) -> bool:
    """Whether a file is that of the whole run, or a plan that says it was stopped: then its bound must hold."""
    if isinstance(found, str) or b"was not computed: the search was stopped" not in found:
        return found == whole
    plan, best_s = json.loads(found), json.loads(whole)["objective"]["value"]
    bound_s, objective_s = plan["objective"]["bound"], plan["objective"]["value"]
    assert (plan["status"] == "optimal") == (bound_s == objective_s)
    return bool(bound_s <= best_s <= objective_s)


@pytest.mark.parametrize(
    "line", ["plan q.yaml --out t.json", "sweep s.yaml --export t.csv", "calibrate timings.csv -o t.yaml", "--help"]
)
def test_signals_while_a_process_starts_leave_no_traceback(fresh: Fresh, line: str) -> None:
    lots, ends = random.Random(f"{SEED} {line}"), collections.Counter[int]()
    command = [sys.executable, "-m", "planner", *line.split()]
    begin_s = time.monotonic()
    subprocess.run(command, cwd=fresh(), capture_output=True, check=True)
    whole_s = time.monotonic() - begin_s
    for _ in range(PROCESSES):
        folder, number = fresh(), lots.choice(ENDING)
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            time.sleep(lots.uniform(0.15, 1.0) * whole_s)  # before that Python itself starts, and nothing is ours
            process.send_signal(number)
            _, err = process.communicate(timeout=120)
        assert b"bug of ours" not in err
        assert b"Traceback" not in err, err.decode()
        # SIGINT, too: Python ends so where the interruption passed through a library's own call of the interpreter.
        assert process.returncode in (0, 128 + number, -number, -signal.SIGINT), err.decode()
        assert not temporary_of(folder)
        ends[process.returncode] += 1
    print(line, dict(ends))


@pytest.mark.parametrize(("name", "line"), READ)
def test_line_ends_and_marks_of_other_systems_change_no_answer(
    server: Server, fresh: Fresh, name: str, line: str
) -> None:
    try_forms(server, fresh(), name, line)


@pytest.mark.parametrize("name", NAMES)
def test_odd_names_are_read_and_written(server: Server, fresh: Fresh, name: bytes) -> None:
    try_name(server, fresh(), name)


@each_writer
@pytest.mark.parametrize("name", [*NAMES, b"n" * 240])
def test_odd_names_are_written_to(server: Server, fresh: Fresh, writer: Writer, name: bytes) -> None:
    folder = fresh()
    target = os.fsdecode(b"./" + name + writer.suffix.encode())
    assert not wrong_of(server.run(*writer.words(target), folder=folder), (0,))
    assert (folder / target).exists()
    assert not temporary_of(folder)


@pytest.mark.parametrize("line", READERS_OF_ANY)
def test_what_is_no_file_or_an_endless_one_is_refused(server: Server, fresh: Fresh, line: str) -> None:
    try_no_files(server, fresh(), [line])


ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {"LC_ALL": "C"},
    {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"LC_ALL": "xx_YY.UTF-8"},
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1"},
    {"TERM": "dumb", "COLUMNS": "20"},
    {"COLUMNS": "x", "LINES": "-1"},
    {"HOME": "/nonexistent", "TMPDIR": "/nonexistent"},
    {"TZ": "Nowhere/Else"},
    {"PYTHONWARNINGS": "error"},
    {"OMP_NUM_THREADS": "x"},
)


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=str)
def test_the_environment_changes_no_answer(fresh: Fresh, environment: dict[str, str]) -> None:
    folder = fresh()
    command = [sys.executable, "-m", "planner", "plan", "q.yaml", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False, env={**os.environ, **environment})
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout) == json.loads((folder / "plan.json").read_text())


@pytest.mark.parametrize(
    "line", ["plan {}/q.yaml --out t.json", "sweep {}/s.yaml", "show devices", "import --run a:b", "init t.yaml"]
)
def test_a_working_folder_that_is_gone_is_said(fresh: Fresh, tmp_path: Path, line: str) -> None:
    inputs, gone = fresh(), tmp_path / "gone"
    gone.mkdir()
    script = f"rmdir ../gone; exec {sys.executable} -m planner {line.format(inputs)}"
    done = subprocess.run(["sh", "-c", script], cwd=gone, capture_output=True, check=False)
    assert done.returncode in (0, 2)
    assert b"Traceback" not in done.stderr
    assert b"bug of ours" not in done.stderr
