"""YAML in, plain data out: the one reader of YAML, whoever wrote it, and its limits.

A library takes the text apart into nodes; what a node means is decided here, by the core of YAML 1.2: mappings, lists,
texts, numbers, truth values, null, anchors and merge keys. Every other tag is refused, nothing of a type of another
program is ever made. So every way in which text can be no such document ends in one :class:`planner.errors.SpecError`
with file, line and column. Size, depth and the number of values, with what aliases repeat, are limited: a document of a
few hundred bytes can name 10**15 values.
"""

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

from planner.errors import Fault, SpecError

__all__ = [
    "MOST_LAUNCH_LETTERS",
    "MOST_LETTERS",
    "MOST_LEVELS",
    "MOST_VALUES",
    "Place",
    "Yaml",
    "plain_yaml",
    "read_yaml",
    "read_yaml_documents",
]

MOST_LETTERS = 4 * 2**20
MOST_LAUNCH_LETTERS = 2**20  # of a launch file that is read back
MOST_VALUES = 250_000  # aliases can multiply, and each value takes a tenth of a millisecond to parse
MOST_LEVELS = 64  # a plan's question, the deepest there is, has about ten
_MOST_DIGITS = 1000  # of a number; Python itself refuses to print one of 4,300
_MOST_DOCUMENTS = 1000

_TAG = "tag:yaml.org,2002:"
_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_BASES = (("0b", 2), ("0o", 8), ("0x", 16))
_SPECIAL = {".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}
_FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?")

Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Yaml:
    """Plain data, and line and column, from 1, of the keys and items that stand in the text themselves."""

    data: Any
    positions: Mapping[Place, tuple[int, int]]


def read_yaml(text: str, file: str = "", *, most_letters: int = MOST_LETTERS) -> Yaml:
    """Return what one document of YAML holds.

    Raises
    ------
    SpecError
        If it is no such document, or larger, deeper, or with more values than is read in bounded time.
    """
    found = list(_documents(text, file, most_letters))
    if len(found) > 1:
        mark = found[1][1]
        problem = "this is not valid YAML: expected a single document in the stream."
        raise _error(file, problem, "Give each document a file of its own.", mark)
    return found[0][0] if found else Yaml(None, {})


def read_yaml_documents(text: str, file: str = "", *, most_letters: int = MOST_LETTERS) -> list[Any]:
    """Return what every document of a stream of YAML holds; raise SpecError as :func:`read_yaml`."""
    return [one.data for one, _ in _documents(text, file, most_letters)]


def plain_yaml(text: str) -> Any:
    """Return what one document of YAML holds, less its places: of the files that ship."""
    return read_yaml(text).data


def _documents(text: str, file: str, most_letters: int) -> Iterator[tuple[Yaml, Any]]:
    """Yield every document with the mark of its beginning."""
    _refuse_large(text, file, most_letters)
    # Imported here: `planner --help` has no use for it.
    from ruamel.yaml import YAML  # noqa: PLC0415
    from ruamel.yaml.composer import MaxDepthExceededError  # noqa: PLC0415
    from ruamel.yaml.error import MarkedYAMLError  # noqa: PLC0415

    library = YAML(typ="safe", pure=True)
    library.max_depth = MOST_LEVELS
    values = _Values(file)
    try:
        constructor, _ = library.get_constructor_parser(StringIO(text))
        composer = constructor.composer
        composer.warn_double_anchors = False  # an anchor may be set anew, says YAML 1.2
        for _ in range(_MOST_DOCUMENTS):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                node = composer.get_node() if composer.check_node() else None
            if node is None:
                return
            positions: dict[Place, tuple[int, int]] = {}
            yield Yaml(values.of_document(node, positions), positions), node.start_mark
    except SpecError:
        raise
    except MaxDepthExceededError as error:
        raise _too_deep(file, error.problem_mark) from None
    except MarkedYAMLError as error:
        problem = f"this is not valid YAML: {error.problem or error.context}."
        raise _error(file, problem, "Mend it at or just above this place.", error.problem_mark) from None
    except MemoryError:
        raise
    except Exception as error:  # whatever the library makes of a text that is none, the text is at fault
        words = (str(error).splitlines() or [type(error).__name__])[0]
        raise _error(file, f"this is not valid YAML: {words}.", "Start from `planner init`.") from None
    raise _error(file, f"it holds more than {_MOST_DOCUMENTS} documents.", "Is it the right file?")


def _refuse_large(text: str, file: str, most_letters: int) -> None:
    """Refuse YAML that would take minutes to parse; the same as JSON is read a hundred times as fast."""
    num_values = text.count("\n") + text.count(",")
    problem = f"this YAML has more than {most_letters} letters." if len(text) > most_letters else ""
    if num_values > MOST_VALUES:
        problem = f"this YAML has {num_values} lines and commas, more than {MOST_VALUES}."
    if problem:
        raise _error(file, problem, "Is it the right file? If so, write it as JSON.")


def _error(file: str, problem: str, mend: str, mark: Any = None) -> SpecError:
    """Return the error of one fault at a mark of the library's."""
    line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
    return SpecError.of([Fault(file=file, line=line, column=column, problem=problem, mend=mend)])


def _too_deep(file: str, mark: Any) -> SpecError:
    """Return the error of a document that is nested too deeply."""
    return _error(
        file, f"it is nested more than {MOST_LEVELS} levels deep, as no spec is.", "Is it the right file?", mark
    )


@dataclass(slots=True)
class _Values:
    """Makes plain data of nodes, and counts them.

    ``_merged``: of a mapping, by its node, what it holds with all that it merges, so that merges do not multiply;
    ``_open``: the nodes around the one that is made.
    """

    file: str
    _num_values: int = 0
    _merged: dict[int, dict[Any, tuple[Any, Any]]] = field(default_factory=dict)
    _open: set[int] = field(default_factory=set)

    def of_document(self, node: Any, positions: dict[Place, tuple[int, int]]) -> Any:
        """Return the value of a document's node."""
        self._merged.clear()  # nodes of the last document are gone, and their numbers may come again
        return self.of(node, (), positions)

    def of(self, node: Any, place: Place, positions: dict[Place, tuple[int, int]]) -> Any:
        """Return the value of a node, noting where its parts stand."""
        self._count(1, node)
        if len(place) >= MOST_LEVELS:  # aliases nest deeper than the text
            raise _too_deep(self.file, node.start_mark)
        kind = _kind_of(node)
        if kind == "scalar":
            return self._scalar(node)
        if id(node) in self._open:
            raise self._fault(node, "an alias stands inside of what it names")
        self._open.add(id(node))
        found: Any
        if kind == "sequence":
            self._check_tag(node, "seq")
            found = []
            for index, item in enumerate(node.value):
                positions[(*place, index)] = (item.start_mark.line + 1, item.start_mark.column + 1)
                found.append(self.of(item, (*place, index), positions))
        else:
            found = {}
            for key, (key_node, value) in self._pairs(node).items():
                if key_node is not None:
                    positions[(*place, key)] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
                found[key] = self.of(value, (*place, key), positions)
        self._open.discard(id(node))
        return found

    def _pairs(self, node: Any) -> dict[Any, tuple[Any, Any]]:
        """Return the values of a mapping by their keys, its own before those that it merges.

        A key of its own comes with its node: what is merged stands elsewhere.
        """
        if (known := self._merged.get(id(node))) is not None:
            return known
        self._check_tag(node, "map")
        own: dict[Any, tuple[Any, Any]] = {}
        merged: dict[Any, tuple[Any, Any]] = {}
        for key_node, value in node.value:
            if _kind_of(key_node) != "scalar":
                raise self._fault(key_node, "a key must be text, not a mapping or a list")
            if key_node.tag == f"{_TAG}merge":
                for key, (_, part) in self._merges(node, value).items():
                    merged.setdefault(key, (None, part))
                continue
            key = self._scalar(key_node)
            if key in own:
                raise self._fault(key_node, f'found duplicate key "{key}"')
            own[key] = (key_node, value)
        found = {**own, **{key: part for key, part in merged.items() if key not in own}}
        self._merged[id(node)] = found
        return found

    def _merges(self, node: Any, value: Any) -> dict[Any, tuple[Any, Any]]:
        """Return what a merge key brings in: the pairs of a mapping, or of a list of them, the first ones first."""
        parts = value.value if _kind_of(value) == "sequence" else [value]
        found: dict[Any, tuple[Any, Any]] = {}
        around, self._open = self._open, self._open | {id(node)}
        for part in parts:
            if _kind_of(part) != "mapping":
                raise self._fault(part, "what is merged must be a mapping, or a list of them")
            if id(part) in self._open:
                raise self._fault(part, "an alias stands inside of what it names")
            pairs = self._pairs(part)
            self._count(1 + len(pairs), part)
            for key, pair in pairs.items():
                found.setdefault(key, pair)
        self._open = around
        return found

    def _count(self, number: int, node: Any) -> None:
        """Count values; refuse more than any document has."""
        self._num_values += number
        if self._num_values > MOST_VALUES:
            problem = f"with what its aliases repeat it has more than {MOST_VALUES} values."
            raise _error(self.file, problem, "Is it the right file?", node.start_mark)

    def _check_tag(self, node: Any, own: str) -> None:
        """Refuse a mapping or a list of a type of its own."""
        if str(node.tag) != f"{_TAG}{own}":
            raise self._fault(node, f"the tag {_shown(node.tag)} is not known here")

    def _scalar(self, node: Any) -> Any:
        """Return a text, number, truth value or null."""
        tag, text = str(node.tag).removeprefix(_TAG), str(node.value)
        if tag in ("str", "timestamp", "value", "merge"):
            return text
        if tag == "null":
            return None
        if tag == "bool" and text.lower() in _TRUTHS:
            return _TRUTHS[text.lower()]
        if tag in ("int", "float"):
            number = _whole(text) if tag == "int" else _real(text)
            if number is not None:
                return number
        known = {"bool": "true or false", "int": "a whole number", "float": "a number"}
        words = (
            f"{_shown(text)} is not {known[tag]}" if tag in known else f"the tag {_shown(node.tag)} is not known here"
        )
        raise self._fault(node, words)

    def _fault(self, node: Any, words: str) -> SpecError:
        """Return the error of a node."""
        problem = f"this is not valid YAML: {words}."
        return _error(self.file, problem, "Mend it at this place; put text in quotes.", node.start_mark)


def _kind_of(node: Any) -> str:
    """Return scalar, sequence or mapping."""
    return str(node.id)


def _whole(text: str) -> int | None:
    """Return the whole number that a text is, None where it is none, or has more digits than any."""
    digits = text.replace("_", "").lower()
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-") if digits[1:2] not in ("+", "-") else ""
    base = next((base for prefix, base in _BASES if digits.startswith(prefix)), 10)
    digits = digits if base == 10 else digits[2:]
    if not digits.isascii() or not digits.isalnum() or len(digits) > _MOST_DIGITS:
        return None
    try:
        return sign * int(digits, base)
    except ValueError:
        return None


def _real(text: str) -> float | None:
    """Return the number that a text is, None where it is none, or has more digits than any."""
    digits = text.replace("_", "").lower()
    if digits in _SPECIAL:
        return _SPECIAL[digits]
    if len(digits) > _MOST_DIGITS or _FLOAT.fullmatch(digits) is None:
        return None
    return float(digits)


def _shown(text: object) -> str:
    """Return a text in quotes, cut where it is long."""
    found = repr(str(text))
    return found if len(found) <= 80 else f"{found[:77]}..."
