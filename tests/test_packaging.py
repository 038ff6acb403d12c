"""What stands about the package outside pyproject.toml says the same: recipe, citation, release workflow, pages."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONDA_NAMES = {"ortools": "ortools-python"}
PYTHONS = [
    name.rpartition(" ")[2]
    for name in PROJECT["classifiers"]
    if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", name)
]


def read(name: str) -> Any:
    return YAML(typ="safe", pure=True).load((ROOT / name).read_text(encoding="utf-8"))


def requirement(text: str) -> tuple[str, str]:
    name, versions = re.fullmatch(r"([\w.-]+?)\s*([<>=!~].*)?", text).groups()  # type: ignore[union-attr]
    return name, versions or ""


def test_the_recipe_asks_for_what_the_package_asks_for() -> None:
    recipe = read("conda/recipe.yaml")
    context = recipe["context"]
    assert (context["name"], context["version"]) == (PROJECT["name"], PROJECT["version"])
    assert PROJECT["requires-python"] == f">={context['python_min']}"
    own = {CONDA_NAMES.get(name, name): versions for name, versions in map(requirement, PROJECT["dependencies"])}
    run = dict(map(requirement, recipe["requirements"]["run"]))
    assert run.pop("python") == ">=${{ python_min }}"
    assert run == own
    scripts = [f"{name} = {function}" for name, function in PROJECT["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts
    assert recipe["about"]["license"] == PROJECT["license"]
    assert (ROOT / recipe["about"]["license_file"]).is_file()
    assert recipe["about"]["summary"] == PROJECT["description"]
    assert (ROOT / "conda" / recipe["source"]["path"] / "pyproject.toml").is_file()


def test_the_citation_has_what_its_format_requires() -> None:
    """Citation File Format 1.2.0, schema-guide.md: required keys, the kinds of work, what an author may be."""
    citation = read("CITATION.cff")
    assert {"authors", "cff-version", "message", "title"} <= set(citation)
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] in ("software", "dataset")
    assert citation["authors"]
    assert all("name" in author or {"family-names", "given-names"} & set(author) for author in citation["authors"])
    assert citation["abstract"] == PROJECT["description"]
    assert (str(citation["version"]), citation["license"]) == (PROJECT["version"], PROJECT["license"])


def test_a_release_is_published_only_after_its_wheel_was_tried_on_every_python() -> None:
    workflow = read(".github/workflows/release.yml")
    jobs = workflow["jobs"]
    assert (jobs["test"]["needs"], jobs["publish"]["needs"]) == ("build", "test")
    assert jobs["test"]["strategy"]["matrix"]["python-version"] == PYTHONS
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert workflow["permissions"] == {"contents": "read"}
    uses = [step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step]
    assert uses
    for action in uses:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), f"{action} is not pinned"
    assert "password" not in str(jobs["publish"])


@pytest.mark.parametrize("python", PYTHONS)
def test_the_pages_name_every_python_that_the_package_does(python: str) -> None:
    assert python in (ROOT / "docs/install.md").read_text(encoding="utf-8")
    assert f">={min(PYTHONS, key=lambda one: int(one[2:]))}" == PROJECT["requires-python"]


def test_the_page_of_the_installation_names_every_extra_that_users_have() -> None:
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    extras = set(PROJECT["optional-dependencies"]) - {"docs", "test", "dev"}
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == extras
