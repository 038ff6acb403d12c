"""Plug-ins: the sample of the documentation is installed and keeps the contracts; broken ones are told in a sentence."""

import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.data.devices import DEVICES
from planner.exporters import TARGETS
from planner.families import FAMILIES
from planner.importers.kinds import IMPORTERS
from planner.models.communication import ALL_REDUCES
from planner.plugins import GROUPS, Registry, missing, named
from planner.testing import check_all_reduce

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "docs/plugin"
TABLES: list[Registry[Any]] = [FAMILIES, DEVICES, TARGETS, IMPORTERS, ALL_REDUCES]
QUIET = "import warnings; warnings.simplefilter('ignore'); import setuptools; setuptools.setup()"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the sample is installed; where setuptools makes no wheels, as an egg beside its sources."""
    folder = tmp_path_factory.mktemp("plugin")
    source = folder / "source"
    shutil.copytree(SAMPLE, source)
    if tuple(map(int, version("setuptools").split(".")[:2])) < (70, 1):
        subprocess.run([sys.executable, "-c", QUIET, "-q", "egg_info"], cwd=source, check=True, capture_output=True)
        return source
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(folder / "site"), str(source)], check=True)
    return folder / "site"


def run(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Python with a folder of plug-ins."""
    path = os.pathsep.join([str(site), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, env=env)


def entry(folder: Path, distribution: str, group: str, line: str, code: str = "") -> None:
    """Write a distribution with one entry point, and its module where it has one."""
    info = folder / f"{distribution}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{group}]\n{line}\n", encoding="utf-8")
    if code:
        (folder / f"{distribution}.py").write_text(code, encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of distributions that are found, and forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    named.cache_clear()
    monkeypatch.setattr("planner.plugins._loaded", {})
    for table in TABLES:
        monkeypatch.setattr(table, "_made", {})
    return tmp_path


@pytest.fixture(autouse=True)
def _nothing_is_left() -> None:
    named.cache_clear()


def test_the_sample_adds_one_of_each_kind_and_keeps_their_contracts(site: Path) -> None:
    groups = tomllib.loads((SAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    assert groups.keys() == GROUPS.keys() == {table.group for table in TABLES}
    tests = str(SAMPLE / "tests")
    done = run(
        site,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--rootdir",
        tests,
        "-c",
        os.devnull,
        tests,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_installed_is_shown_with_its_distribution(site: Path) -> None:
    done = run(site, "-m", "planner", "show", "plugins")
    assert done.stdout.count("planner-sample 1.0") == len(GROUPS)
    assert "plugins: 5" in done.stdout
    none = run(ROOT, "-m", "planner", "show", "plugins")
    assert none.stdout == "plugins: 0\n"


def test_nothing_of_a_plug_in_is_read_for_a_question_that_names_none(site: Path) -> None:
    code = (
        "import sys, planner; from planner.plugins import loaded, named; "
        "planner.plan({'dnn': {'zoo': 'alexnet', 'batch_per_device': 32}, 'cluster': {'preset': 'osf-testbed'}, "
        "'families': ['all_reduce']}); print(named.cache_info().misses, loaded(), 'planner_sample' in sys.modules)"
    )
    assert run(site, "-c", code).stdout.strip() == "0 [] False"


def test_a_plan_without_its_plug_in_is_refused_with_what_is_missing() -> None:
    question = {"dnn": {"zoo": "resnet50"}, "cluster": {"preset": "osf-testbed"}, "families": ["all_reduce"]}
    document = planner.plan(question).to_dict()
    assert "plugins" not in document["provenance"]
    document["provenance"]["plugins"] = {"planner.families:lost": "lost-and-found 2.1"}
    with pytest.raises(
        planner.errors.SpecError, match=r"rests on the family 'lost' of lost-and-found 2\.1, which is not"
    ):
        planner.load(document)
    assert missing({"planner.nothing:x": "y 1"}) == ["planner.nothing 'x' of y 1, which is not installed"]


def test_a_broken_plug_in_is_told_with_its_distribution(folder: Path) -> None:
    entry(folder, "halfdone", "planner.devices", "half-npu = halfdone:NPU", "raise RuntimeError('no driver')")
    with pytest.raises(
        planner.errors.SpecError,
        match=r"device 'half-npu' of halfdone 1\.0 \(halfdone:NPU\) cannot be loaded: RuntimeError: no driver",
    ):
        DEVICES["half-npu"]
    entry(folder, "nofamily", "planner.families", "none = nofamily:FAMILY", "FAMILY = object()")
    named.cache_clear()
    with pytest.raises(planner.errors.SpecError, match=r"family 'none' of nofamily 1\.0 .* has no NAME, WORDS"):
        FAMILIES["none"]
    entry(folder, "wrongkind", "planner.exporters", "wrong = wrongkind:X", "X = 3")
    named.cache_clear()
    with pytest.raises(planner.errors.SpecError, match=r"wrongkind 1\.0 .* is no Exporter"):
        TARGETS["wrong"]


def test_a_question_that_names_a_broken_plug_in_says_whose_it_is(folder: Path) -> None:
    entry(folder, "leaves", "planner.devices", "left-npu = leaves:NPU", "import sys; sys.exit(0)")
    machines = {"machines": [{"count": 2, "device": "left-npu", "network": "10 Gbit/s"}]}
    with pytest.raises(planner.errors.SpecError, match=r"device: plug-ins: device 'left-npu' of leaves 1\.0 .*Exit: 0"):
        planner.load({"dnn": {"zoo": "resnet50"}, "cluster": machines})
    words = ["-m", "planner", "plan", "--dnn", "alexnet", "--machines"]
    done = run(folder, *words, "2xleft-npu", "--network", "10 Gbit/s")
    assert (done.returncode, "leaves 1.0" in done.stderr) == (2, True)
    entry(folder, "absent", "planner.cost_models", "absent = nowhere:cost")
    pinned = folder / "pinned.yaml"
    pinned.write_text(
        "dnn: {zoo: alexnet}\ncluster: {preset: osf-testbed}\nfix: {algorithm: absent}\n", encoding="utf-8"
    )
    done = run(folder, "-m", "planner", "plan", str(pinned))
    assert (done.returncode, "cost model 'absent' of absent 1.0 (nowhere:cost) cannot be loaded" in done.stderr) == (
        2,
        True,
    )
    entry(folder, "clashes", "planner.devices", "h100-sxm = leaves:NPU")
    done = run(folder, "-m", "planner", "show", "plugins")
    assert (done.returncode, "not used: it bears the name of a built-in one" in done.stdout) == (0, True)
    assert "cost model 'absent' of absent 1.0" in done.stdout
    assert "device 'left-npu' of leaves 1.0" in done.stdout  # the others of its group are listed all the same
    done = run(folder, "-m", "planner", "show", "devices")
    assert (done.returncode, "left out: left-npu; planner show plugins says why" in done.stdout) == (0, True)
    pinned.write_text(pinned.read_text(encoding="utf-8").replace("absent", "absemt"), encoding="utf-8")
    done = run(folder, "-m", "planner", "plan", str(pinned))
    assert "'in_network' or 'absent'; got 'absemt'. Did you mean 'absent'?" in done.stderr


def test_a_broken_plug_in_ends_no_question_that_does_not_name_it(folder: Path) -> None:
    words = ["-m", "planner", "plan", "--dnn", "alexnet", "--machines", "2x8xh100-sxm", "--network", "100 Gbit/s"]
    alone = run(ROOT, *words)
    assert "no target of `planner export` can launch this plan" in alone.stdout  # every target of ours was asked
    entry(folder, "wrongkind", "planner.exporters", "wrong = wrongkind:X", "X = 3")
    entry(folder, "noreader", "planner.importers", "torn = noreader:X", "raise RuntimeError('no driver')")
    beside = run(folder, *words)
    assert (beside.returncode, beside.stdout, beside.stderr) == (0, alone.stdout, alone.stderr)
    (folder / "odd.json").write_text('{"a": 1}', encoding="utf-8")
    done = run(folder, *words[:4], str(folder / "odd.json"), *words[5:])
    assert (done.returncode, "unknown key 'a'" in done.stderr) == (2, True)
    assert "cannot be loaded" in run(folder, "-m", "planner", "show", "plugins").stdout


def test_a_plug_in_that_fails_when_it_is_asked_ends_no_question_that_does_not_name_it(folder: Path) -> None:
    code = "def fail(*_, **__): raise KeyError('boom')\n"
    read = f"from planner.importers.kinds import Importer\n{code}READ = Importer(recognises=fail, read=fail)\n"
    write = "from planner.exporters.export import Exporter\n"
    write += f"{code}WRITE = Exporter(export=fail, recognises=fail, degrees=fail)\n"
    entry(folder, "a_reader", "planner.importers", "a_reader = a_reader:READ", read)
    entry(folder, "a_writer", "planner.exporters", "a_writer = a_writer:WRITE", write)
    table, plan = folder / "runs.csv", folder / "plan.json"
    table.write_text(run(folder, "-m", "planner", "calibrate", "--template", "collectives").stdout, encoding="utf-8")
    assert run(folder, "-m", "planner", "calibrate", str(table)).returncode == 0
    (folder / "odd.txt").write_text("of no kind\n", encoding="utf-8")
    odd = run(folder, "-m", "planner", "import", str(folder / "odd.txt"))
    assert (odd.returncode, "failed" in odd.stderr) == (2, False)
    words = ["--dnn", "alexnet", "--cluster", "osf-testbed", "--families", "all_reduce", "--out", str(plan)]
    assert run(folder, "-m", "planner", "plan", *words).returncode == 0
    other = run(folder, "-m", "planner", "export", str(plan), "--to", "megatron")
    assert (other.returncode, "Targets that can: ddp" in other.stderr) == (1, True)
    assert "failed: KeyError" in run(folder, "-m", "planner", "export", str(plan), "--to", "a_writer").stderr


def test_two_of_one_name_and_the_name_of_a_built_in_one_are_refused(folder: Path) -> None:
    for distribution in ("first", "second"):
        entry(folder, distribution, "planner.cost_models", f"mine = {distribution}:cost", "cost = print")
    with pytest.raises(
        planner.errors.SpecError, match=r"two distributions give a cost model 'mine': first 1\.0 and second 1\.0"
    ):
        ALL_REDUCES["mine"]
    assert callable(ALL_REDUCES["ring"])  # what is built in is there all the same
    entry(folder, "fourth", "planner.cost_models", "other = fourth:cost", "cost = print")
    entry(folder, "third", "planner.importers", "graph = third:X", "X = 3")
    named.cache_clear()
    assert callable(ALL_REDUCES["other"])  # and so are others of the group
    assert list(IMPORTERS) == list(IMPORTERS.own)  # a name that is built in stays ours


def test_what_is_no_device_is_told_as_such(folder: Path) -> None:
    entry(folder, "number", "planner.devices", "number-npu = number:NPU", "NPU = 3")
    with pytest.raises(planner.errors.SpecError, match=r"number:NPU is no planner\.cluster\.Device"):
        DEVICES["number-npu"]


def test_what_a_plug_in_returned_is_not_laid_to_us_alone(folder: Path) -> None:
    entry(folder, "word", "planner.cost_models", "word = word:cost", "def cost(places): return 'fast'")
    asked = folder / "asked.yaml"
    asked.write_text(
        "dnn: {zoo: alexnet}\ncluster: {preset: osf-testbed}\nfamilies: [all_reduce]\nfix: {algorithm: word}\n",
        encoding="utf-8",
    )
    done = run(folder, "-m", "planner", "plan", str(asked))
    assert done.returncode == 70
    assert "a bug of ours, or of the cost model 'word' of word 1.0: AttributeError" in done.stderr
    with pytest.raises(AssertionError, match="word: it gives str, where planner"):
        check_all_reduce("word")


def test_what_fails_in_a_plug_in_is_laid_to_it_and_not_to_us(folder: Path) -> None:
    code = "class F:\n" + "".join(f"    {name} = NAME = 'late'\n" for name in FAMILIES._needs)
    code += "    def bound(self, problem): return 0.0\n    def search(self, problem, search, /): return 1 / 0\nFAMILY = F()\n"
    entry(folder, "late", "planner.families", "late = late:FAMILY", code)
    words = [
        "-m",
        "planner",
        "plan",
        "--dnn",
        "alexnet",
        "--cluster",
        "osf-testbed",
        "--families",
        "late",
        "--no-explain",
    ]
    done = run(folder, *words)
    assert done.returncode == 70
    assert "the family 'late' of late 1.0 failed: ZeroDivisionError" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.group)
def test_a_table_without_plug_ins_is_what_is_built_in(table: Registry[Any]) -> None:
    assert list(table) == list(table.own)
    assert len(table) == len(table.own)
    assert all(table.origin(name) is None for name in table.own)
    assert "no such name" not in table
