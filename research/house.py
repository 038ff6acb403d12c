"""The measures of the house: ``make house`` prints what they are now, what they were, and the aims.

Each is counted by the method that its function states, both times. The time of ``make test`` is not measured here: it
depends on what else the machine does.
"""

import ast
import contextlib
import importlib
import io
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

import networkx as nx

ROOT = Path(__file__).parents[1]
ROOMS = ("planner", "models", "solvers", "cases")
QUESTION = ("plan", "--dnn", "vgg16", "--machines", "4x8xrtx-2080-ti", "--network", "25 Gbit/s")
# Names that a decision of the family hybrid, or a constraint, has had or has: of spec, document, array and field.
DECISIONS = (
    ("zero", "zero_stage"),
    ("recompute",),
    ("interleave", "chunks_per_device"),
    ("microbatch", "microbatch_size"),
    ("sequence_parallel", "sequence_parallel"),
    ("overlap_data", "overlap_data"),
    ("overlap_tensor", "overlap_tensor"),
    ("offload_optimizer", "offload_optimizer"),
    ("rank_order",),
    ("expert_parallel_size",),
)
CONSTRAINTS = (
    ("deadline", "deadline_s"),
    ("budget", "budget_usd"),
    ("power", "power_w"),
    ("capital", "capital_usd"),
    ("memory_per_device", "memory_per_device_bytes"),
    ("max_staleness",),
    ("quotas",),
)
# Each measure: at commit c1a15ef, and the aim.
MEASURES = {
    "lines shipped": ("97,884", "<= 55,000"),
    "modules shipped": ("615", "<= 200"),
    "files that a plan of VGG16 passes": ("144", "<= 45"),
    "functions that a plan of VGG16 passes": ("907", "<= 300"),
    "modules a decision stands in, mean / most": ("29 / 50", "<= 4"),
    "modules a constraint stands in, mean / most": ("17 / 34", "<= 3"),
    "circles between packages / between files": ("1 / 1", "0 / 0"),
    "functions with more than 8 parameters": ("20", "0"),
    "public signatures with Any": ("295", "0"),
    "words of docs": ("79,647", "<= 35,000"),
    "public functions with a whole docstring": ("13 %", "100 %"),
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def shipped() -> dict[str, Path]:
    """Return the modules that ship, by import name: every ``.py`` file of the rooms, linked ones once."""
    found = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[:2] in {("planner", name) for name in ROOMS[1:]}:
                continue  # a link to the room at the top
            names = parts if room == "planner" else ("planner", *parts)
            found[".".join(names[:-1] if names[-1] == "__init__" else names)] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    """Return the syntax of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def lines() -> int:
    """Count the lines of all shipped modules, blank ones and comments too."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in shipped().values())


def passed() -> tuple[int, int]:
    """Count files and functions of ours that the README's question enters.

    All modules are imported first, so that no module's or class's body counts; then ``sys.setprofile`` sees every call
    of the command line's one run. Comprehensions and lambdas are parts of the functions that they stand in.
    """
    for name in shipped():
        with contextlib.suppress(ImportError):  # of a library that is not installed
            importlib.import_module(name)
    ours = {str(path.resolve()) for path in shipped().values()}
    seen: set[CodeType] = set()

    def hear(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            seen.add(frame.f_code)

    run = importlib.import_module("planner.cli.run").run
    with contextlib.redirect_stdout(io.StringIO()):
        sys.setprofile(hear)
        try:
            code = run(QUESTION)
        finally:
            sys.setprofile(None)
    assert code == 0
    functions = {
        (str(Path(one.co_filename).resolve()), one.co_qualname) for one in seen if not one.co_name.startswith("<")
    }
    entered = {one for one in functions if one[0] in ours}
    return len({file for file, _ in entered}), len(entered)


@cache
def words_of(path: Path) -> frozenset[str]:
    """Return every name of a module: identifiers, attributes, parameters, keywords, and texts that are one name."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        for key in ("id", "attr", "arg", "name", "asname", "value"):
            word = getattr(node, key, None)
            if isinstance(word, str):
                found.add(word)
    return frozenset(found)


def spread(concepts: Iterable[tuple[str, ...]]) -> str:
    """Count the modules that name a concept by any of its names; return the mean and the most."""
    numbers = [sum(not words_of(path).isdisjoint(names) for path in shipped().values()) for names in concepts]
    return f"{sum(numbers) / len(numbers):.0f} / {max(numbers)}"


def imports(name: str, path: Path) -> Iterator[str]:
    """Yield the modules of ours that a module imports, also late ones; not those for the type checker alone."""
    skipped = {
        id(inner)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree(path)):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name in shipped())
        elif isinstance(node, ast.ImportFrom) and node.module in shipped():
            for one in node.names:
                inner = f"{node.module}.{one.name}"
                yield inner if inner in shipped() else node.module


def circles() -> str:
    """Count strongly connected parts of more than one package, and of more than one file.

    A package is a folder of the first floor (``planner.cli``, ``planner.models``); a file beside them is its own.
    """
    files: nx.DiGraph[str] = nx.DiGraph()
    rooms: nx.DiGraph[str] = nx.DiGraph()
    for name, path in shipped().items():
        for other in imports(name, path):
            ends = [".".join(one.split(".")[:2]) for one in (name, other)]
            files.add_edge(name, other)
            rooms.add_edge(*ends)
    numbers = [sum(len(part) > 1 for part in nx.strongly_connected_components(graph)) for graph in (rooms, files)]
    return f"{numbers[0]} / {numbers[1]}"


def functions_of(node: ast.AST, *, is_public: bool) -> Iterator[Function]:
    """Yield functions and methods; the public ones have no underscore before their name, nor has their class."""
    for inner in ast.iter_child_nodes(node):
        is_named = isinstance(inner, Function | ast.ClassDef)
        if is_named and is_public and getattr(inner, "name", "").startswith("_"):
            continue
        if isinstance(inner, Function):
            yield inner
        if not (is_public and isinstance(inner, Function)):
            yield from functions_of(inner, is_public=is_public)


def parameters(function: Function) -> list[ast.arg]:
    """Return its parameters, less ``self`` and ``cls``."""
    given = function.args
    found = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return [one for one in found if one.arg not in ("self", "cls")]


def long_signatures() -> int:
    """Count functions and methods, private ones and the options of commands too, with more than eight parameters."""
    trees = map(tree, shipped().values())
    return sum(len(parameters(one)) > 8 for each in trees for one in functions_of(each, is_public=False))


def loose_signatures() -> int:
    """Count public functions and methods that say ``Any`` of a parameter or of what they return."""
    total = 0
    for path in shipped().values():
        for one in functions_of(tree(path), is_public=True):
            rest = [one.args.vararg, one.args.kwarg]
            said = [each.annotation for each in [*parameters(one), *rest] if each is not None] + [one.returns]
            total += any(re.search(r"\bAny\b", ast.unparse(each)) for each in said if each is not None)
    return total


def words() -> int:
    """Count what stands between blanks in README.md and in ``docs/``, less the gallery."""
    pages = (page for page in (ROOT / "docs").rglob("*.md") if "gallery" not in page.parts)
    return sum(len(page.read_text(encoding="utf-8").split()) for page in (ROOT / "README.md", *pages))


def documented() -> str:
    """Return the share of public functions and methods of ``models`` and ``solvers`` with a whole docstring.

    Whole: a section Parameters that names every parameter, where there are any; a section Raises, where it raises; and
    a source (``Source``, doi, arXiv, an equation or a section), its own or its module's.
    """
    number, whole = 0, 0
    for name, path in shipped().items():
        if name.startswith(("planner.models.", "planner.solvers.")):
            about = ast.get_docstring(tree(path)) or ""
            for one in functions_of(tree(path), is_public=True):
                number += 1
                whole += _is_whole(one, about)
    return f"{100 * whole / number:.0f} %"


def _is_whole(function: Function, about: str) -> bool:
    text = ast.get_docstring(function) or ""
    named = text.partition("Parameters\n---")[2]
    has_all = all(re.search(rf"\b{re.escape(one.arg)}\b", named) for one in parameters(function))
    has_raises = "Raises\n---" in text or not any(isinstance(node, ast.Raise) for node in ast.walk(function))
    cited = re.search(r"(?i)\bsource|doi[:.]|arxiv|\beqs?\.|equation|\bsection|et al\.", f"{text}\n{about}")
    return has_all and has_raises and cited is not None


def main() -> None:
    """Print the table."""
    files, functions = passed()
    found = [f"{lines():,}", str(len(shipped())), str(files), str(functions), spread(DECISIONS), spread(CONSTRAINTS)]
    found += [circles(), str(long_signatures()), str(loose_signatures()), f"{words():,}", documented()]
    print(f"{'measure':<46}{'before':>12}{'now':>12}{'aim':>12}")
    for (name, (before, aim)), now in zip(MEASURES.items(), found, strict=True):
        print(f"{name:<46}{before:>12}{now:>12}{aim:>12}")
    print("before: commit c1a15ef. The time of `make test` is not measured here: the aim is 6 minutes on two cores.")


if __name__ == "__main__":
    main()
