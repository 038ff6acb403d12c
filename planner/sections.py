"""What an answer is made of: sections of text, tables, series and drawings, as plain data; nothing here knows HTML.

An answer is built once. Each of its sections holds what a terminal shows of it, as lines, and what a page shows, as
blocks, which are made only when a page asks. Families show their configurations with the same blocks: see
:class:`FamilyView`. All text is plain: names from files stand as they are, and a renderer escapes them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import ClassVar

from planner.cluster import Cluster
from planner.frozen import frozen
from planner.plan import Configuration, Prediction
from planner.problem import Problem
from planner.timeline import Timeline
from planner.words import many


@frozen
class Table:
    """Rows of text under a caption.

    ``numbers``: indices of the columns that are set to the right. ``marked``: indices of rows that stand out.
    """

    kind: ClassVar[str] = "table"
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()
    marked: Sequence[int] = ()
    note: str = ""

    @property
    def lean(self) -> "Table":
        """The table without the columns that say nothing in any row; the first one stays. The page's template asks."""
        kept = [
            index
            for index in range(len(self.columns))
            if not index or not self.rows or any(row[index] for row in self.rows)
        ]
        if len(kept) == len(self.columns):
            return self
        return replace(
            self,
            columns=[self.columns[index] for index in kept],
            rows=[[row[index] for index in kept] for row in self.rows],
            numbers=[place for place, index in enumerate(kept) if index in self.numbers],
        )


@frozen(kw_only=False)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@frozen(kw_only=False)
class Heading:
    """The title of a part of a section."""

    kind: ClassVar[str] = "heading"
    text: str


@frozen(kw_only=False)
class Bullets:
    """Lines of a list."""

    kind: ClassVar[str] = "bullets"
    lines: Sequence[str]


@frozen
class Code:
    """Text to copy, as it is."""

    kind: ClassVar[str] = "code"
    caption: str
    text: str
    note: str = ""


@frozen(kw_only=False)
class Tiles:
    """The figures that are read first, each with what it is: ``an iteration``, ``479 ms``."""

    kind: ClassVar[str] = "tiles"
    tiles: Sequence[tuple[str, str]]


# --- Series, which a page draws; ``alt`` says what is drawn in words, ``table`` has the same numbers. It is None where
# such a table follows anyway.


@frozen
class _Series:
    """What all series have in common."""

    kind: ClassVar[str] = "chart"
    caption: str
    alt: str
    table: Table | None = None
    note: str = ""


@frozen
class Bars(_Series):
    """Lying bars."""

    rows: Sequence[tuple[str, float, str]]  # name, value and the text at its end, top to bottom
    # title, unit: of the axis: ``s`` and ``B`` are scaled, any other unit stands as it is
    title: str
    unit: str = ""
    marked: int | None = None  # the row that stands out; None: all are alike


@frozen
class Stacked(_Series):
    """Lying bars made of parts, in bytes: a bar a name; ``limits``: of each bar, drawn as a line across it."""

    names: Sequence[str]
    parts: Mapping[str, Sequence[float]]
    title: str
    limits: Sequence[float] = ()


@frozen
class Gantt(_Series):
    """What is when on which row: of each kind row, start and end in seconds, and words; ``marks``: named moments."""

    names: Sequence[str]
    kinds: Mapping[str, Sequence[tuple[int, float, float, str]]]
    title: str
    marks: Mapping[str, float] = field(default_factory=dict)


@frozen
class Points(_Series):
    """Points with their words, by series; those of the series named in ``lines`` are joined, by ``steps`` or straight.

    ``is_log``: whether the axis of x, and that of y, is logarithmic.
    """

    series: Mapping[str, Sequence[tuple[float, float, str]]]
    titles: tuple[str, str]
    lines: Sequence[str] = ()
    is_log: tuple[bool, bool] = (False, False)
    has_steps: bool = False


Chart = Bars | Stacked | Gantt | Points


# --- Machines, and what runs where


@frozen
class Cell:
    """A device or a server of a machine: a short label, what it does in words, its colour (None: it does nothing)."""

    label: str
    words: str
    colour: int | None = None


@frozen
class Machine:
    """A machine with what runs on it."""

    name: str
    cells: Sequence[Cell]
    note: str = ""

    @property
    def num_columns(self) -> int:
        """How many of its cells stand side by side. The page's template asks."""
        longest = max((len(cell.label) for cell in self.cells), default=0)
        return min(len(self.cells), 8 if longest <= 3 else 4) or 1


@frozen
class Group:
    """Machines of one kind; ``note`` says which of them are not drawn."""

    title: str
    words: str
    machines: Sequence[Machine]
    note: str = ""


@frozen
class Role:
    """What a label and a colour of a drawing mean."""

    label: str
    words: str
    colour: int | None = None


@frozen
class Drawing:
    """Machines, and what runs where."""

    kind: ClassVar[str] = "drawing"
    caption: str
    groups: Sequence[Group]
    roles: Sequence[Role]
    note: str = ""


Block = Table | Bars | Stacked | Gantt | Points | Text | Heading | Bullets | Code | Tiles | Drawing


def _nothing() -> Sequence[Block]:
    return ()


@frozen
class Section:
    """A part of an answer."""

    name: str  # its address on a page, of letters and hyphens
    title: str
    lines: Sequence[str] = ()  # what a terminal shows of it; nothing: it is not shown there
    blocks: Callable[[], Sequence[Block]] = _nothing  # gives what a page shows of it; nothing: it is not shown there


@frozen
class Answer:
    """An answer of any kind."""

    # title, answer, verdict: of the page: what it is about, the answer in one sentence, and what is proven of it
    title: str
    answer: str
    verdict: str = ""
    mark: str = "plain"  # how the verdict is set: ``proven``, ``open`` or ``plain``
    opening: Sequence[str] = ()  # what a terminal shows first
    minded: Sequence[tuple[str, str]] = ()  # what to know beside the figures before acting, each with what it is
    sections: Sequence[Section] = ()


# --- What a family shows of a configuration


@frozen
class Placement:
    """Who does what."""

    # of a group by its name: what each of its devices does, machine after machine; those beyond the end do nothing
    devices: Mapping[str, Sequence[Cell]]
    roles: Sequence[Role]  # what labels and colours mean
    # of a group: the servers on each of its machines, by the machine's index
    servers: Mapping[str, Mapping[int, Sequence[Cell]]] = field(default_factory=dict)
    # of a group: devices of each of its machines that count in ``devices``, where not all of them are used
    per_machine: Mapping[str, int] = field(default_factory=dict)


Memory = tuple[str, Mapping[str, float], float | None]  # where, what it holds in bytes, and the limit if it has its own


@frozen
class FamilyView:
    """What a family shows of one of its configurations."""

    # placement, blocks: give what runs where, and the family's own tables and series (stages, fusion groups, servers),
    # for a page
    placement: Callable[[], Placement]
    blocks: Callable[[], Sequence[Block]] = _nothing
    lines: Sequence[str] = ()  # what a terminal shows of the decisions before those that are plain values
    told: frozenset[str] | None = frozenset()  # decisions that ``lines`` tell; None: they tell all
    memory: Sequence[Memory] = ()  # what the memory holds, where the family tells several kinds of devices apart
    num_tasks: int = 0  # of a step's timeline, where they may be too many for a page


@frozen
class PlanView:
    """What the families show of one plan or prediction: an answer is handed it, and asks no family itself."""

    problem: Problem  # with the network that the configuration trains
    words: str  # how the family trains: ``pipeline parallelism``
    family: FamilyView  # what it shows of the configuration
    # gives what runs when; raises ModelError or SpecError where there is no schedule, or one of too many tasks
    timeline: Callable[[], Timeline]
    # predicts another configuration of any family on this network; raises PlannerError where it means none here
    predict: Callable[[Configuration], Prediction]


_MOST_ROLES = 24


def few_roles(roles: Sequence[Role]) -> list[Role]:
    """Return the roles of stages, the last of too many as one."""
    if len(roles) <= _MOST_ROLES:
        return list(roles)
    rest = Role(label="...", words=f"{many(len(roles) - _MOST_ROLES, 'stage')} more, in the table of stages")
    return [*roles[:_MOST_ROLES], rest]


def replicas_on(cluster: Cluster, machines: Mapping[str, tuple[int, int, str]], role: Role) -> Placement:
    """Return equal devices: of each group so many machines with so many devices, and what each does in words."""
    devices, per_machine = {}, {}
    for group in cluster.machine_groups:
        if group.name in machines:
            count, each, words = machines[group.name]
            devices[group.name] = [Cell(label=role.label, words=words, colour=role.colour)] * (count * each)
            per_machine[group.name] = each
    return Placement(devices=devices, roles=(role,), per_machine=per_machine)
