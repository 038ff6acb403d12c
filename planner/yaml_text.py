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
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

from planner.errors import SpecError
from planner.frozen import frozen

MOST_LETTERS = 4 * 2**20
MOST_LAUNCH_LETTERS = 2**20  # of a launch file that is read back
MOST_VALUES = 250_000  # aliases can multiply, and each value takes a tenth of a millisecond to parse
MOST_LEVELS = 64  # a plan's question, the deepest there is, has about ten
_MOST_DIGITS = 1000  # of a number; Python itself refuses to print one of 4,300
_MOST_DOCUMENTS = 1000

_NO_YAML = "this is not valid YAML: "
_RIGHT_FILE = "Is it the right file?"

_TAG = "tag:yaml.org,2002:"
_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_BASES = (("0b", 2), ("0o", 8), ("0x", 16))
_SPECIAL = {".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}
_FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?")

Place = tuple[str | int, ...]


@frozen(kw_only=False)
class Yaml:
    """Plain data, and line and column, from 1, of the keys and items that stand in the text themselves."""

    data: Any
    positions: Mapping[Place, tuple[int, int]]


def read_yaml(text: str, file: str = "") -> Yaml:
    """Return what one document of YAML holds.

    Raises
    ------
    SpecError
        If it is no such document, or larger, deeper, or with more values than is read in bounded time.
    """
    documents = list(_documents(text, file, MOST_LETTERS))
    if len(documents) > 1:
        problem = f"{_NO_YAML}expected a single document in the stream."
        raise _error(file, problem, "Give each document a file of its own.", documents[1][1])
    return documents[0][0] if documents else Yaml(None, {})


def read_yaml_documents(text: str, file: str = "", *, most_letters: int = MOST_LETTERS) -> list[object]:
    """Return what every document of a stream of YAML holds; raise SpecError as :func:`read_yaml`."""
    return [document.data for document, _ in _documents(text, file, most_letters)]


def plain_yaml(text: str) -> Any:
    """Return what one document of YAML holds, less its places: of the files that ship."""
    return read_yaml(text).data


def blocks_of(text: str) -> dict[str, str]:
    r"""Return the text of every block of a file that ships by its key, as only what is asked for is worth parsing.

    >>> blocks_of("# Two.\none: {a: 1}\ntwo:\n  b: 2\n")
    {'one': 'one: {a: 1}\n', 'two': 'two:\n  b: 2\n'}
    """
    return {block.partition(":")[0]: block for block in re.split(r"^(?=[^\s#])", text, flags=re.MULTILINE)[1:]}


def _documents(text: str, file: str, most_letters: int) -> Iterator[tuple[Yaml, Any]]:
    """Yield every document with the mark of its beginning."""
    # What would take minutes to parse; the same as JSON is read a hundred times as fast.
    num_values = text.count("\n") + text.count(",")
    problem = f"this YAML has more than {most_letters} letters." if len(text) > most_letters else ""
    if num_values > MOST_VALUES:
        problem = f"this YAML has {num_values} lines and commas, more than {MOST_VALUES}."
    if problem:
        raise _error(file, problem, f"{_RIGHT_FILE} If so, write it as JSON.")
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
            values.merged.clear()  # nodes of the last document are gone, and their numbers may come again
            positions: dict[Place, tuple[int, int]] = {}
            yield Yaml(values.value(node, (), positions), positions), node.start_mark
    except SpecError:
        raise
    except MaxDepthExceededError as error:
        raise _too_deep(file, error.problem_mark) from None
    except MarkedYAMLError as error:
        words = error.problem or error.context or ""
        mend = "Indent with blanks, not with tabs." if "'\\t'" in words else "Mend it at or just above this place."
        raise _error(file, f"{_NO_YAML}{words}.", mend, error.problem_mark) from None
    except MemoryError:
        raise
    except Exception as error:  # whatever the library makes of a text that is none, the text is at fault
        words = (str(error).splitlines() or [type(error).__name__])[0]
        raise _error(file, f"{_NO_YAML}{words}.", "Start from `planner init`.") from None
    raise _error(file, f"it holds more than {_MOST_DOCUMENTS} documents.", _RIGHT_FILE)


def _error(file: str, problem: str, mend: str, mark: Any = None) -> SpecError:
    """Return the error of one fault at a mark of the library's."""
    line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
    return SpecError.one(problem, mend, file=file, line=line, column=column)


def _too_deep(file: str, mark: Any) -> SpecError:
    """Return the error of a document that is nested too deeply."""
    return _error(file, f"it is nested more than {MOST_LEVELS} levels deep, as no spec is.", _RIGHT_FILE, mark)


@dataclass(slots=True)
class _Values:
    """Makes plain data of nodes, and counts them.

    ``merged``: of a mapping, by its node, the values by their keys with all that it merges, so that merges of merges
    are put together once and do not multiply; ``open``: the nodes around the one that is made.
    """

    file: str
    num_values: int = 0
    merged: dict[int, dict[Any, tuple[Any, Any]]] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)

    def value(self, node: Any, place: Place, positions: dict[Place, tuple[int, int]]) -> Any:
        """Return the value of a node, noting where its parts stand."""
        self._count(1, node)
        if len(place) >= MOST_LEVELS:  # aliases nest deeper than the text
            raise _too_deep(self.file, node.start_mark)
        if node.id == "scalar":
            return self._scalar(node)
        with self._inside(node):
            if node.id == "mapping":
                mapping = {}
                for key, (key_node, value) in self._pairs(node).items():
                    if key_node is not None:
                        positions[(*place, key)] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
                    mapping[key] = self.value(value, (*place, key), positions)
                return mapping
            self._check_tag(node, "seq")
            items = []
            for index, item in enumerate(node.value):
                positions[(*place, index)] = (item.start_mark.line + 1, item.start_mark.column + 1)
                items.append(self.value(item, (*place, index), positions))
            return items

    def _pairs(self, node: Any) -> dict[Any, tuple[Any, Any]]:
        """Return the values of a mapping by their keys: its own, then those of a merge key, the first ones first.

        A key of its own comes with its node: what is merged stands elsewhere.
        """
        if (pairs := self.merged.get(id(node))) is not None:
            return pairs
        self._check_tag(node, "map")
        own: dict[Any, tuple[Any, Any]] = {}
        merged: dict[Any, tuple[Any, Any]] = {}
        for key_node, value in node.value:
            if key_node.id != "scalar":
                raise self._fault(key_node, "a key must be text, not a mapping or a list")
            if key_node.tag == f"{_TAG}merge":
                for part in value.value if value.id == "sequence" else [value]:
                    if part.id != "mapping":
                        raise self._fault(part, "what is merged must be a mapping, or a list of them")
                    if len(self.open) >= MOST_LEVELS:
                        raise _too_deep(self.file, part.start_mark)
                    with self._inside(part):
                        pairs = self._pairs(part)
                    self._count(1 + len(pairs), part)
                    for key, (_, inner) in pairs.items():
                        merged.setdefault(key, (None, inner))
                continue
            key = self._scalar(key_node)
            if key in own:
                raise self._fault(key_node, f'found duplicate key "{key}"', "Keep one of them.")
            own[key] = (key_node, value)
        pairs = {**own, **{key: part for key, part in merged.items() if key not in own}}
        self.merged[id(node)] = pairs
        return pairs

    @contextmanager
    def _inside(self, node: Any) -> Iterator[None]:
        """Refuse a node that stands inside of itself."""
        if id(node) in self.open:
            raise self._fault(node, "an alias stands inside of what it names")
        self.open.add(id(node))
        yield
        self.open.discard(id(node))

    def _count(self, number: int, node: Any) -> None:
        """Count values; refuse more than any document has."""
        self.num_values += number
        if self.num_values > MOST_VALUES:
            problem = f"with what its aliases repeat it has more than {MOST_VALUES} values."
            raise _error(self.file, problem, _RIGHT_FILE, node.start_mark)

    def _check_tag(self, node: Any, own: str) -> None:
        """Refuse a mapping or a list of a type of its own."""
        if node.tag != f"{_TAG}{own}":
            raise self._fault(node, f"the tag {_quoted(node.tag)} is not known here")

    def _scalar(self, node: Any) -> Any:
        """Return a text, number, truth value or null."""
        tag, text = str(node.tag).removeprefix(_TAG), str(node.value)
        kinds = {"bool": "true or false", "int": "a whole number", "float": "a number"}
        if tag in ("str", "timestamp", "value", "merge"):
            return text
        if tag == "null":
            return None
        if tag not in kinds:
            raise self._fault(node, f"the tag {_quoted(node.tag)} is not known here")
        value = _TRUTHS.get(text.lower()) if tag == "bool" else _whole(text) if tag == "int" else _real(text)
        if value is None:
            raise self._fault(node, f"{_quoted(text)} is not {kinds[tag]}")
        return value

    def _fault(self, node: Any, words: str, mend: str = "Mend it at this place; put text in quotes.") -> SpecError:
        """Return the error of a node."""
        return _error(self.file, f"{_NO_YAML}{words}.", mend, node.start_mark)


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


def _quoted(text: object) -> str:
    """Return a text in quotes, cut where it is long."""
    quoted = repr(str(text))
    return quoted if len(quoted) <= 80 else f"{quoted[:77]}..."
