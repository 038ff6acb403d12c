"""docs/architecture.md names what exists, its picture is legible, and no page of the project has a link that leads nowhere."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pages import contrast

from planner.families import FAMILIES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
PICTURE = (ROOT / "docs/architecture.svg").read_text(encoding="utf-8")
LINKS = ["planner/cases", "planner/models", "planner/solvers"]
SVG = "{http://www.w3.org/2000/svg}"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "cases").rglob("*.md")),
]
BUILT = {"build", "dist", "htmlcov", "__pycache__"}


# -- names -----------------------------------------------------------------------------------------------------------


def quoted(text: str) -> list[str]:
    """What stands between backticks, in lines of text; placeholders in angle brackets are left out."""
    return [one for one in re.findall(r"`([^`\n]+)`", text) if "<" not in one]


def is_path(name: str) -> bool:
    """Whether a quoted name is meant as a file or a folder of the repository, or as something in a file."""
    return re.fullmatch(r"[\w./*]+(::\w+)?", name) is not None and (
        "/" in name or name.endswith((".py", ".md", ".toml", ".csv"))
    )


PATHS = sorted({name for name in quoted(TEXT) if is_path(name) and name != "published.csv"})
FILES, NAMES = ([one for one in PATHS if ("::" in one) == has_name] for has_name in (False, True))


@cache
def bound_in(path: Path) -> frozenset[str]:
    """The names that a module binds at its top level."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return frozenset(found)


def test_what_the_page_names_is_there() -> None:
    assert [name for name in FILES if not any(ROOT.glob(name.rstrip("/")))] == []


def test_a_folder_has_a_slash_and_a_file_has_none() -> None:
    assert [name for name in FILES if name.endswith("/") and not (ROOT / name).is_dir()] == []
    assert [name for name in FILES if not name.endswith("/") and "." not in name] == LINKS


def test_what_the_page_names_in_a_file_stands_in_it() -> None:
    parts = [name.split("::") for name in NAMES]
    assert [f"{path}::{name}" for path, name in parts if name not in bound_in(ROOT / path)] == []


def rooms() -> Iterator[str]:
    """Every folder at the top, and every package directly in ``planner/``."""
    for path in sorted(path for path in ROOT.iterdir() if path.is_dir() and path.name not in BUILT):
        is_foreign = path.name.startswith(".") or path.suffix == ".egg-info" or (path / "pyvenv.cfg").exists()
        if not is_foreign and any(path.glob("**/*.[pm][yd]")):
            yield f"{path.name}/"
    for path in sorted((ROOT / "planner").glob("*/__init__.py")):
        if not path.parent.is_symlink():
            yield f"planner/{path.parent.name}/"


@pytest.mark.parametrize("room", list(rooms()))
def test_no_room_is_missing_from_the_page(room: str) -> None:
    rows = re.findall(r"^- (`[\w/]+`): ", TEXT, re.MULTILINE)
    named = {path for row in rows for name in quoted(row) for path in ROOT.glob(name.rstrip("/"))}
    assert ROOT / room in named, f"give {room} a line in docs/architecture.md, with what it holds"


def names_all_families(path: Path) -> bool:
    """Whether a literal of a module, a table or a list, names every family."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Dict | ast.Tuple | ast.List | ast.Set):
            parts = node.keys if isinstance(node, ast.Dict) else node.elts
            if FAMILIES.own.keys() <= {one.value for one in parts if isinstance(one, ast.Constant)}:
                return True
    return False


# Whatever else a family has of its own, it says by itself: see planner.families.Family.
LISTS = ["planner/names.py"]


def test_no_other_module_lists_all_families() -> None:
    found = [
        str(path.relative_to(ROOT)) for path in sorted((ROOT / "planner").rglob("*.py")) if names_all_families(path)
    ]
    assert found == LISTS


def test_the_modules_that_list_all_families_are_found() -> None:
    assert names_all_families(ROOT / "planner/names.py")
    assert not names_all_families(ROOT / "planner/units.py")


# -- the picture -----------------------------------------------------------------------------------------------------


def test_the_picture_names_what_exists_and_asks_for_nothing() -> None:
    tree = ElementTree.fromstring(PICTURE)
    files = [element.text or "" for element in tree.iter(f"{SVG}text") if "file" in element.get("class", "").split()]
    assert len(files) > 10
    for name in files:
        assert list(ROOT.glob(name.rstrip("/"))) or list((ROOT / "planner").glob(name.rstrip("/"))), name
    assert {element.tag.removeprefix(SVG) for element in tree.iter()} <= {
        *("svg", "title", "desc", "style", "rect", "text", "path")
    }
    assert not re.search(r"href|url\(|@import|@font-face", PICTURE)
    assert "(architecture.svg)" in TEXT


GROUNDS = ("page", "ends", "graphs", "family", "models", "solvers", "many")


@pytest.mark.parametrize("ground", GROUNDS)
@pytest.mark.parametrize("text", ["text", ".soft"])
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_every_text_of_the_picture_stands_out_from_every_ground(ground: str, text: str, is_dark: bool) -> None:
    light, dark = PICTURE.split("@media (prefers-color-scheme: dark)")
    fills = dict(re.findall(r"^([.\w]+) \{[^}]*?fill: (#[0-9a-f]{6})", dark if is_dark else light, re.MULTILINE))
    assert contrast(fills[text], fills[f".{ground}"]) >= 4.5  # WCAG's level AA


def test_every_ground_of_the_picture_is_held_to_that() -> None:
    grounds = {each for one in re.findall(r'<rect class="([\w ]+)"', PICTURE) for each in one.split()} - {"room"}
    assert grounds == set(GROUNDS)


# -- links -----------------------------------------------------------------------------------------------------------


def without_code(text: str) -> str:
    """A page without what stands in its blocks of code."""
    return re.sub(r"^( *)(```+|~~~+).*?^\1\2\s*$", "", text, flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(path: Path) -> frozenset[str]:
    """What a link into a page may end with: its headings, as GitHub writes them; the second of a name has ``-1``."""
    found: list[str] = []
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", without_code(path.read_text(encoding="utf-8")), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        twins = sum(re.fullmatch(rf"{re.escape(slug)}(-\d+)?", one) is not None for one in found)
        found.append(f"{slug}-{twins}" if twins else slug)
    return frozenset(found)


def links_of(path: Path) -> list[str]:
    """Where the links of a page lead, those to other sites left out."""
    text = re.sub(r"`[^`\n]*`", "", without_code(path.read_text(encoding="utf-8")))
    inline = re.findall(r"\]\(\s*<?([^)>\s]+)>?[^)]*\)", text)
    defined = re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, re.MULTILINE)
    return [link for link in (*inline, *defined) if not re.match(r"[a-z][a-z0-9+.-]*:", link)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    for link in links_of(page):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page.relative_to(ROOT)}: {link} leads to no file"
        if anchor:
            assert anchor in anchors(target), f"{page.relative_to(ROOT)}: {link}: there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_page_that_a_page_speaks_of_exists(page: Path) -> None:
    for name in re.findall(r"(?<![\w/.-])docs/[\w/-]+\.\w+", without_code(page.read_text(encoding="utf-8"))):
        assert (ROOT / name).exists(), f"{page.relative_to(ROOT)} speaks of {name}"


def test_every_page_that_the_code_speaks_of_exists() -> None:
    spoken_of = {
        name
        for path in (ROOT / "planner").rglob("*.py")
        for name in re.findall(r"(?<![\w/.-])docs/[a-z_]+\.md", path.read_text(encoding="utf-8"))
    }
    assert len(spoken_of) > 5
    assert [name for name in sorted(spoken_of) if not (ROOT / name).exists()] == []


def test_a_link_is_found_and_a_heading_is_written_as_github_does(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# The `all_reduce` family: *how*?\n## Twice\n## Twice\n```sh\n# no heading [no](link.md)\n```\n"
        '[a](b.md#c) `[no](link)` [far](https://example.org) ![picture](d.svg "title")\n[e]: f.md\n'
    )
    assert anchors(page) == {"the-all_reduce-family-how", "twice", "twice-1"}
    assert links_of(page) == ["b.md#c", "d.svg", "f.md"]
