"""The rooms: who imports whom, what a wheel holds, and what the command line's help may load."""

import ast
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parent.parent
LINKS = ("models", "solvers", "cases")

LEAVES = {
    "planner.units",
    "planner.errors",
    "planner.frozen",
    "planner.memory",
    "planner.letters",
    "planner.names",
    "planner.schedules",
    "planner.shipped",
    "planner.words",
    "planner.plugins",
    "planner.shown",
    "planner.targets",
}
SIZES = {
    "planner.transformer",
    "planner.numerics",
    "planner.mixers",
    "planner.encoders",
    "planner.transformer_parts",
    "planner.trained",
}  # what a Dnn was made of, where it is a transformer
GRAPHS = {"planner.cluster", "planner.dnn"} | SIZES
WAIST = {
    "planner.constraints",
    "planner.cost",
    "planner.decisions",
    "planner.links",
    "planner.worker_pool",
    "planner.channel",
    "planner.solution",
    "planner.perturb",
    "planner.plan",
    "planner.sections",
    "planner.problem",
    "planner.relaxation",
    "planner.routes",
    "planner.search",
    "planner.timeline",
    "planner.substitution",
    "planner.networks",
    "planner.used_machines",
}
INNER = LEAVES | GRAPHS | WAIST
MODELS, SOLVERS = {"planner.models"}, {"planner.solvers"}
READERS = {"planner.yaml_text"}  # of text that others wrote
BOUNDARY = {"planner.question"}
CONFLICTS = {"planner.conflicts"}
HEAVY = {"pydantic", "ortools", "typer", "rich", "ruamel"}

# Room -> what of ours it may import. A package stands for its modules; STYLE's table, with the names that exist.
ALLOWED = {
    **dict.fromkeys(LEAVES, LEAVES),
    **dict.fromkeys(GRAPHS, LEAVES | SIZES),
    **dict.fromkeys(WAIST, LEAVES | GRAPHS | WAIST),
    "planner.models": INNER | MODELS,
    "planner.solvers": LEAVES | WAIST | SOLVERS,
    "planner.families": INNER | MODELS | SOLVERS | {"planner.families"},
    "planner.yaml_text": LEAVES,
    "planner.zoo": INNER | MODELS | READERS | {"planner.zoo"},
    "planner.data": INNER | READERS | {"planner.data"},
    "planner.importers": INNER | READERS | {"planner.importers"},
    "planner.exporters": INNER | MODELS | READERS | {"planner.exporters", "planner.families"},
    "planner.procurement": INNER | MODELS | SOLVERS | BOUNDARY | {"planner.answer", "planner.procurement", "planner.checks", "planner.data", "planner.families", "planner.importers", "planner.ranking"},
    "planner.question": INNER | MODELS | BOUNDARY | READERS | {"planner.data", "planner.zoo", "planner.importers"},
    "planner.calibration": INNER | MODELS | BOUNDARY | {"planner.answer", "planner.calibration", "planner.api", "planner.checks", "planner.data", "planner.families", "planner.importers", "planner.ranking", "planner.explanation"},
    "planner.answer": INNER | {"planner.answer", "planner.importers"},
    "planner.explanation": INNER | {"planner.answer", "planner.checks", "planner.families", "planner.ranking"},
    "planner.ranking": INNER | {"planner.families", "planner.ranking"},
    "planner.api": INNER | BOUNDARY | {"planner.checks", "planner.data", "planner.explanation", "planner.planning", "planner.ranking", "planner.families", "planner.exporters", "planner.procurement", "planner.importers", "planner.answer", "planner.sweep"},
    "planner.testing": INNER | MODELS | {"planner.answer", "planner.checks", "planner.data", "planner.exporters", "planner.families", "planner.planning"},
    "planner.planning": INNER | MODELS | BOUNDARY | CONFLICTS | {"planner.data", "planner.exporters", "planner.families", "planner.ranking", "planner.recommendation"},
    "planner.recommendation": INNER | {"planner.exporters", "planner.families", "planner.ranking"},
    "planner.workers": INNER | {"planner.workers"},
    "planner.sweep": INNER | BOUNDARY | {"planner.answer", "planner.planning", "planner.sweep", "planner.workers", "planner.network_import", "planner.procurement"},
    "planner.serve": INNER | BOUNDARY | {"planner.answer", "planner.data", "planner.importers", "planner.planning", "planner.procurement", "planner.serve", "planner.zoo"},
    "planner.network_import": INNER | BOUNDARY | {"planner.importers", "planner.exporters"},
    "planner.conflicts": INNER | CONFLICTS,
    "planner.checks": INNER | BOUNDARY | {"planner.answer", "planner.checks", "planner.families", "planner.data"},
    "planner.case": INNER | MODELS | {"planner.case", "planner.cases.forms", "planner.api", "planner.procurement", "planner.question.source", "planner.question.values"},
    "planner.cases.forms": INNER | MODELS | SOLVERS | {"planner.cases.forms", "planner.zoo", "planner.data", "planner.importers", "planner.question.blocks", "planner.question.values"},
    "planner.cases": set(),
    "planner": {"planner.answer.notebook", "planner.api", "planner.plugins", "planner.shown"},
    "planner.__main__": {"planner.cli"},
}  # fmt: skip
# Libraries that a room never imports.
BARRED = {
    **dict.fromkeys(INNER, HEAVY | {"scipy"}),
    "planner.models": HEAVY,
    "planner.solvers": {"pydantic", "typer", "rich", "ruamel"},
    "planner.families": HEAVY,
}


def modules() -> dict[str, Path]:
    """Every module of the packages by its import name, reached through the links."""
    files = list((ROOT / "planner").rglob("*.py"))
    files += [path for link in LINKS for path in (ROOT / "planner" / link).rglob("*.py")]
    names = {}
    for path in files:
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


MODULES = modules()


@cache
def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, also inside functions, but for type checkers alone."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            known = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            found |= known or {node.module}
    return found


def room_of(module: str, rooms: set[str]) -> str | None:
    """The most special room that holds a module."""
    holding = [room for room in rooms if module == room or (room != "planner" and module.startswith(f"{room}."))]
    return max(holding, key=len, default=None)


# The command line stands above all rooms.
@pytest.mark.parametrize("module", [name for name in sorted(MODULES) if not f"{name}.".startswith("planner.cli.")])
def test_a_module_imports_only_the_rooms_below_it(module: str) -> None:
    room = room_of(module, set(ALLOWED))
    assert room is not None, f"{module} is in no room: put it into STYLE's table and this one"
    ours = {name for name in imports_of(MODULES[module]) if name.split(".")[0] == "planner"}
    below = {name for name in ours if room_of(name, ALLOWED[room] | {room}) is not None or name == "planner"}
    assert ours == below, f"{module} must not import {sorted(ours - below)}"


@pytest.mark.parametrize("module", [name for name in sorted(MODULES) if room_of(name, set(BARRED))])
def test_a_room_keeps_out_the_libraries_of_others(module: str) -> None:
    barred = BARRED[room_of(module, set(BARRED)) or ""]
    libraries = {name.split(".")[0] for name in imports_of(MODULES[module])}
    assert not libraries & barred


def test_nothing_imports_a_family_by_going_round_the_composer() -> None:
    for module, path in MODULES.items():
        if not module.startswith(
            (
                "planner.families",
                "planner.ranking",
                "planner.planning",
                "planner.recommendation",
                "planner.answer",
                "planner.api",
                "planner.calibration.iterations",
                "planner.checks",
                "planner.explanation",
                "planner.procurement",
                "planner.exporters",
                "planner.cli",
                "planner.testing",
            )
        ):
            assert not any(name.startswith("planner.families") for name in imports_of(path)), module


def test_the_second_physics_shares_no_cost_with_the_family_that_it_judges() -> None:
    for path in (ROOT / "tests" / "referee" / "second_physics").glob("*.py"):
        shared = {name for name in imports_of(path) if name.startswith(("planner.families", "planner.models"))}
        assert not shared, f"{path} must count by itself, without {sorted(shared)}"


@pytest.mark.parametrize("depth", [2, None], ids=["packages", "files"])
def test_there_are_no_circles_late_imports_counted(depth: int | None) -> None:
    def part(module: str) -> str:
        return ".".join(module.split(".")[:depth])

    pairs = {(part(one), part(other)) for one, path in MODULES.items() for other in imports_of(path) & MODULES.keys()}
    graph = nx.DiGraph((one, other) for one, other in pairs if one != other)
    assert [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1] == []


def test_only_cases_ask_the_printed_forms() -> None:
    for module, path in MODULES.items():
        if not module.startswith(("planner.case.", "planner.cases.forms")):
            assert not any(name.startswith("planner.cases.forms") for name in imports_of(path)), module


def test_nothing_that_ships_imports_research() -> None:
    for module, path in MODULES.items():
        assert not any(name.split(".")[0] == "research" for name in imports_of(path)), module


def test_the_packages_listed_are_the_folders_there_are() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    own = [path.parent for path in (ROOT / "planner").rglob("__init__.py")]
    linked = [path.parent for link in LINKS for path in (ROOT / "planner" / link).rglob("__init__.py")]
    assert sorted(listed) == sorted({".".join(path.relative_to(ROOT).parts) for path in own + linked})


@pytest.mark.parametrize("link", LINKS)
def test_each_link_leads_to_its_room(link: str) -> None:
    assert (ROOT / "planner" / link).resolve() == ROOT / link


def test_every_data_file_is_packaged() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    folders = {
        "planner.data": "planner/data",
        "planner.exporters": "planner/exporters",
        "planner.answer": "planner/answer",
        "planner.serve": "planner/serve",
        "planner.zoo": "planner/zoo",
        "planner.cases": "cases",
    }
    for package, folder in ((package, ROOT / folder) for package, folder in folders.items()):
        files = {path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
        assert files
        assert files == {path for pattern in patterns[package] for path in folder.glob(pattern) if path.is_file()}


# What planning a network of the zoo has no use for.
NEEDLESS = {"ortools", "pandas", "plotly", "jinja2", "onnx", "torch", "scipy", "distributed", "dask", "matplotlib"}
NEEDLESS |= {
    "planner.checks",
    "planner.explanation",
    "planner.procurement",
    "planner.conflicts",
    "planner.answer.html",
    "planner.answer.schemas",
}


def loaded_by(*arguments: str) -> set[str]:
    """The modules that a run of the command line leaves loaded, and the packages that they are in."""
    code = (
        "import sys; from planner.cli.run import run; code = run(sys.argv[1:]); "
        "print('LOADED', *sorted(sys.modules)); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    names = [name.split(".") for name in done.stdout.rsplit("LOADED", 1)[1].split()]
    return {".".join(parts[:depth]) for parts in names for depth in range(1, len(parts) + 1)}


def test_help_loads_nothing_heavy() -> None:
    assert not loaded_by("--help") & (NEEDLESS | {"numpy", "networkx", "pydantic", "ruamel"})


def test_planning_a_zoo_network_loads_nothing_that_it_does_not_use() -> None:
    assert not loaded_by("plan", "--dnn", "vgg16", "--cluster", "osf-testbed", "--json") & NEEDLESS
