"""The reference of the site, made when it is built: commands, keys of a question, documents, tables and the API.

A hook of MkDocs (``mkdocs.yml``). Every page comes from the program itself, by way of its command line, so it cannot be
stale. What the keys of a question mean stands in ``docs/keys.yaml``, and in the rows of decisions and constraints.
"""

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from planner import models, solvers
from planner.cli.run import run
from planner.constraints import CONSTRAINTS
from planner.decisions import DECISIONS, LAYOUT

KEYS = Path(__file__).with_name("keys.yaml")
TABLES = {"devices": "Devices", "links": "Links", "machines": "Machines", "dnn": "Networks", "prices": "Prices"}
INTERFACE = ("planner", "planner.api", "planner.plan", "planner.solution", "planner.search", "planner.errors")


def printed(*words: str) -> str:
    """Return what a command prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run(list(words))
    if code:
        raise RuntimeError(f"planner {' '.join(words)}: exit code {code}")
    return out.getvalue()


# -- commands ---------------------------------------------------------------------------------------------------------


def commands() -> list[str]:
    """Return the names of all commands."""
    lines = printed("--help").partition("Commands:")[2].splitlines()
    return [line.split()[0] for line in lines if line.startswith("  ") and line[2:3].strip() and "  " in line[2:]]


def commands_page() -> str:
    """Return the help of every command."""
    parts = [f"## planner {name}\n\n```text\n{printed(name, '--help')}```\n" for name in commands()]
    return "\n".join(["# Commands\n", f"```text\n{printed('--help')}```\n", *parts])


# -- keys of a question -----------------------------------------------------------------------------------------------


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a document."""
    found: dict[str, Any] = json.loads(printed("schema", name))
    return found


def references(node: object) -> Iterator[str]:
    """Give the definitions that a part of a schema names."""
    if isinstance(node, Mapping):
        if "$ref" in node:
            yield str(node["$ref"]).rpartition("/")[2]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def blocks_of(name: str) -> dict[str, dict[str, Any]]:
    """Return the blocks of a question by the path at which each stands first, with the schema of every key."""
    found: dict[str, dict[str, Any]] = {}
    root = schema(name)
    seen: set[str] = set()
    queue = [("", root)]
    while queue:
        path, node = queue.pop(0)
        for key, part in node.get("properties", {}).items():
            found.setdefault(path, {})[key] = part
            inner = f"{path}.{key}".lstrip(".")
            for reference in references(part):
                if reference not in seen and "properties" in root["$defs"][reference]:
                    seen.add(reference)
                    queue.append((inner, root["$defs"][reference]))
    return found


def phrase(words: str) -> str:
    """Return a phrase as a sentence."""
    return f"{words[:1].upper()}{words[1:]}."


def sentences() -> dict[str, dict[str, str]]:
    """Return what every key means, by block: of decisions and constraints as their rows have it."""
    told = YAML(typ="safe").load(KEYS)
    found = {
        "constraints": {row.key: row.description for row in CONSTRAINTS if row.description},
        "fix": {row.key: phrase(row.words) for row in DECISIONS},
        "configuration.hybrid": {key: phrase(row.words) for key, row in LAYOUT.items()},
    }
    for block, keys in told.items():
        whole = {"like": keys} if isinstance(keys, str) else dict(keys)
        like = whole.pop("like", None)
        found[block] = {**found.get(block, {}), **(found[like] if like in found else told.get(like, {})), **whole}
    return found


def type_of(part: Mapping[str, Any]) -> str:
    """Return the type of a value in words."""
    if "$ref" in part:
        return "block"
    if "enum" in part:
        return ", ".join(f"`{json.dumps(value) if not isinstance(value, str) else value}`" for value in part["enum"])
    if "const" in part:
        return f"`{part['const']}`"
    if options := part.get("anyOf") or part.get("oneOf"):
        return " or ".join(dict.fromkeys(type_of(one) for one in options if one.get("type") != "null"))
    if part.get("type") == "array":
        return "pair" if "prefixItems" in part else f"list of {type_of(part.get('items', {}))}"
    if part.get("type") == "object":
        return "mapping"
    if part.get("type") == "string" and (description := part.get("description")):
        return str(description)
    return {"integer": "whole number", "string": "text", "boolean": "true or false"}.get(part.get("type", ""), "number")


def default_of(part: Mapping[str, Any]) -> str:
    """Return the default of a key, empty where there is none or it is a block."""
    default = part.get("default")
    return "" if default in (None, [], {}, "") or isinstance(default, Mapping) else f"`{json.dumps(default)}`"


def keys_page(name: str, title: str, skipped: set[str]) -> str:
    """Return the keys of a question; the blocks of ``skipped`` stand on another page."""
    told, blocks, lines = sentences(), blocks_of(name), [f"# {title}\n"]
    for block, keys in blocks.items():
        if block.partition(".")[0] in skipped:
            continue
        lines += [
            f"## {block} {{ #{block} }}\n" if block else "",
            "| key | what | type | default |",
            "| --- | --- | --- | --- |",
        ]
        for key, part in keys.items():
            path = f"{block}.{key}".lstrip(".")
            is_here = path in blocks and path.partition(".")[0] not in skipped
            shown = f"[`{key}`](#{path})" if is_here else f"`{key}`"
            lines += [f"| {shown} | {told.get(block, {}).get(key, '')} | {type_of(part)} | {default_of(part)} |"]
        lines += [""]
    return "\n".join(lines)


# -- documents, tables, API -------------------------------------------------------------------------------------------


def first_line(part: Mapping[str, Any]) -> str:
    """Return the first line of a schema's description."""
    return str(part.get("description", "")).partition("\n")[0]


def documents_page() -> str:
    """Return the fields of every answer."""
    line = next(line for line in printed("schema", "--help").splitlines() if "<" in line and "|" in line)
    names = line[line.index("<") + 1 : line.rindex(">")].split("|")
    parts = ["# Documents\n"]
    for name in names:
        if name not in ("spec", "procure"):
            found = schema(name)
            parts += [f"## {name}\n", f"{first_line(found)}\n", "| field | type | what |", "| --- | --- | --- |"]
            parts += [
                f"| `{key}` | {type_of(part)} | {first_line(part)} |" for key, part in found["properties"].items()
            ]
            parts += [""]
    return "\n".join(parts)


def table_page(what: str, title: str) -> str:
    """Return a table of what is built in."""
    rows = json.loads(printed("show", what, "--json"))["rows"]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [f"# {title}\n", f"`planner show {what}` prints this table.\n"]
    lines += [f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |"]
    cells = (["" if row.get(key) is None else str(row[key]).replace("|", "/") for key in columns] for row in rows)
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in cells)]) + "\n"


def api_page(title: str, modules: list[str]) -> str:
    """Return a page on which mkdocstrings puts the modules' docstrings."""
    return "\n".join([f"# {title}\n", *(f"::: {name}\n" for name in modules)])


def pages() -> dict[str, str]:
    """Return every page of the reference, by the path of its file."""
    spec = keys_page("spec", "Keys of a spec", set())
    procure = keys_page("procure", "Keys of a purchase", set(blocks_of("spec")) - {""})
    found = {"commands.md": commands_page(), "spec.md": spec, "procure.md": procure, "documents.md": documents_page()}
    found |= {f"{what}.md": table_page(what, title) for what, title in TABLES.items()}
    found["api.md"] = api_page("Python: the package", list(INTERFACE))
    found["models.md"] = api_page("Python: models", [f"planner.models.{name}" for name in models.__all__])
    found["solvers.md"] = api_page("Python: solvers", [f"planner.solvers.{name}" for name in solvers.__all__])
    return {f"reference/{name}": text for name, text in found.items()}


def on_files(files: Any, config: Any) -> Any:
    """Add the reference to the pages of the site."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - tests read this module without mkdocs

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files
