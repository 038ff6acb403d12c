"""Wheel and sdist as users meet them: what they hold, and the commands of the README in clean environments."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs_commands import ROOT, blocks

for library in ("build", "pipx", "uv"):
    pytest.importorskip(library, reason=f"{library} is not installed; run make test-heavy")

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
LINKS = ("models", "solvers", "cases")
BIN = Path(sys.executable).parent
# Nothing of the checkout, and no interpreter from elsewhere.
CLEAN = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PLANNER", "VIRTUAL_ENV"))},
    "UV_PYTHON_DOWNLOADS": "never",
    "NO_COLOR": "1",
}
TYPED = """\
from typing import assert_type
import planner
from planner.plan import Plan
from planner.problem import Problem
problem = planner.load({"dnn": {"zoo": "vgg16"}, "cluster": {"preset": "osf-testbed"}})
assert_type(problem, Problem)
assert_type(planner.plan(problem), Plan)
planner.plan(problem, time_limit_s="60 s")
"""


def run(*command: str | Path, folder: Path, code: int = 0) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=CLEAN, capture_output=True, text=True, check=False)
    assert done.returncode == code, (words, done.stdout[-2000:], done.stderr[-4000:])
    return done.stdout + done.stderr


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no checkout of git")
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def copied(folder: Path, *, has_links: bool = True) -> Path:
    """The files of the repository in a folder; without links, as Windows checks them out, their targets as text."""
    for name in tracked():
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink() and not has_links:
            target.write_text(str(source.readlink()), encoding="utf-8")
        else:
            shutil.copy2(source, target, follow_symlinks=False)
    return folder


def built(tree: Path, out: Path, *kinds: str) -> Path:
    """What is built of a tree, in a folder."""
    run(BIN / "python", "-m", "build", *kinds, "--outdir", out, tree, folder=tree)
    return out


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel; its list of them depends on their order alone."""
    with zipfile.ZipFile(wheel) as opened:
        return {name: opened.read(name) for name in opened.namelist() if not name.endswith("/RECORD")}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sdist, and the wheel that is made of it."""
    folder = tmp_path_factory.mktemp("packages")
    return built(copied(folder / "tree"), folder / "dist")


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


def interpreter(version: str) -> str:
    """A Python of a version, on the path or among those that pyenv keeps."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for one in (shutil.which(f"python{version}"), *sorted(kept.glob(f"{version}.*/bin/python"))):
        if one is not None:
            said = subprocess.run([one, "--version"], capture_output=True, text=True, check=False)
            if said.returncode == 0 and f" {version}." in said.stdout:
                return str(one)
    pytest.skip(f"there is no Python {version} here")


@pytest.fixture(scope="module", params=PYTHONS)
def installed(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of programs of a fresh environment that holds the wheel: by pip with this Python, by uv with others."""
    python, folder = interpreter(request.param), tmp_path_factory.mktemp(f"python-{request.param}")
    room = folder / "venv"
    if request.param == f"3.{sys.version_info.minor}":
        run(python, "-m", "venv", room, folder=folder)
        run(room / "bin/python", "-m", "pip", "install", "--quiet", wheel, folder=folder)
    else:
        run(BIN / "uv", "venv", "--quiet", "--python", python, room, folder=folder)
        run(BIN / "uv", "pip", "install", "--quiet", "--python", room / "bin/python", wheel, folder=folder)
    yield room / "bin"
    shutil.rmtree(folder)  # half a gigabyte


def test_a_wheel_holds_the_package_and_all_its_data_and_nothing_else(wheel: Path) -> None:
    rooms = tuple(f"{name}/" for name in LINKS)
    own = {
        f"planner/{name}" if name.startswith(rooms) else name
        for name in tracked()
        if name.startswith(("planner/", *rooms)) and not (ROOT / name).is_symlink()
    }
    held = {name for name in contents(wheel) if ".dist-info/" not in name}
    assert held == own
    assert "planner/py.typed" in held
    assert not [name for name in held if re.search(r"(^|/)(tests?|conftest\.py|test_\w+\.py)(/|$)", name)]


def test_wheels_of_the_sdist_of_the_tree_and_of_a_tree_without_links_are_the_same(wheel: Path, tmp_path: Path) -> None:
    for has_links in (True, False):
        tree = copied(tmp_path / f"tree-{has_links}", has_links=has_links)
        (other,) = built(tree, tmp_path / f"dist-{has_links}", "--wheel").glob("*.whl")
        assert other.name == wheel.name
        assert contents(other) == contents(wheel)


def test_an_sdist_holds_what_the_wheel_is_built_of_and_no_tests(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        members = opened.getmembers()
    assert not [one.name for one in members if one.issym() or one.islnk()]
    tops = {one.name.split("/")[1] for one in members if "/" in one.name}
    assert tops - {"PKG-INFO", "setup.cfg", "training_planner.egg-info"} == {
        *LINKS,
        "planner",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "MANIFEST.in",
    }


def test_the_readme_is_followed_in_a_clean_environment(installed: Path, tmp_path: Path) -> None:
    planner = installed / "planner"
    assert run(planner, "--version", folder=tmp_path).split() == ["planner", PROJECT["version"]]
    (main,) = re.findall(r"\$\(BIN\)/planner (plan --dnn .*)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    question = [word.strip('"') for word in re.findall(r'"[^"]+"|\S+', main)]
    shown = run(planner, *question, "--out", "plan.json", "--html", "plan.html", "--no-explain", folder=tmp_path)
    assert "Proven optimal" in shown
    assert "<script>" in (tmp_path / "plan.html").read_text(encoding="utf-8")
    run(planner, "check", "plan.json", folder=tmp_path)
    resnet = ("--dnn", "resnet50", "--cluster", "osf-testbed", "--families", "all_reduce")
    gpt = ("--dnn", "gpt3-13b", "--machines", "2x8xa100-sxm4-80gb", "--network", "200 Gbit/s", "--global-batch", "64")
    for words, target in ((resnet, "ddp"), (gpt, "megatron")):
        run(planner, "plan", *words, "--out", f"{target}.json", folder=tmp_path)
        run(planner, "export", f"{target}.json", "--to", target, "--out", target, folder=tmp_path)
        assert any((tmp_path / target).iterdir())
    run(planner, "show", "dnn", "llama3-8b", folder=tmp_path)
    run(planner, "case", "osf-table-2", folder=tmp_path)


def test_what_an_extra_is_for_names_it_before_the_search(installed: Path, tmp_path: Path) -> None:
    planner = installed / "planner"
    (tmp_path / "model.onnx").write_bytes(b"\x08\x07\x12\x00")
    (tmp_path / "nets.py").write_text("def net(): return None\n", encoding="utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "nobody-knows"}', encoding="utf-8")
    (tmp_path / "timings.csv").write_text("x\n", encoding="utf-8")
    (tmp_path / "sweep.yaml").write_text(
        "dnn: {zoo: vgg16}\ncluster: {preset: osf-testbed}\nsweep: {vary: {dnn.batch_per_device: [1, 2]}}\n",
        encoding="utf-8",
    )
    short = ("--machines", "2x8xa100", "--network", "25 Gbit/s")
    needs = {
        "onnx": ("plan", "--dnn", "model.onnx", *short),
        "torch": ("import", "--run", "nets:net"),
        "hf": ("import", "config.json"),
        "distributed": ("plan", "--dnn", "vgg16", *short, "--workers", "2"),
        "parquet": ("sweep", "sweep.yaml", "--export", "rows.parquet"),
        "serve": ("serve", "--no-open"),
        "plot": ("calibrate", "timings.csv", "--plot", "fit.svg"),
    }
    for extra, command in needs.items():
        assert f"pip install 'training-planner[{extra}]'" in run(planner, *command, folder=tmp_path, code=2)
    assert not list(tmp_path.glob("*.sqlite"))


def test_the_lines_that_need_no_installation_run(tmp_path: Path) -> None:
    tree = copied(tmp_path / "tree")
    lines = [
        command.parts[0].words
        for page in ("docs/install.md", "README.md")
        for block in blocks(page)
        for command in block.commands
        if command.parts[0].program in ("pipx", "uvx")
    ]
    assert {words[0] for words in lines} == {"pipx", "uvx"}
    for words in lines:
        assert PROJECT["version"] in run(BIN / words[0], *words[1:], folder=tree)


def test_a_user_of_the_wheel_sees_its_types(wheel: Path, tmp_path: Path) -> None:
    room = tmp_path / "venv"
    run(BIN / "uv", "venv", "--quiet", "--python", sys.executable, room, folder=tmp_path)
    run(BIN / "uv", "pip", "install", "--quiet", "--python", room / "bin/python", wheel, "mypy", folder=tmp_path)
    (tmp_path / "mine.py").write_text(TYPED, encoding="utf-8")
    said = run(room / "bin/mypy", "--strict", "mine.py", folder=tmp_path, code=1)
    (line,) = [one for one in said.splitlines() if ": error:" in one]  # the last line's, and no other
    assert '"time_limit_s"' in line
    assert 'incompatible type "str"' in line
