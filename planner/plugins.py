"""What other distributions add: a table of what is built in, and behind it the entry points of its group.

A name that is built in is found without a look at what is installed, so a question that names no plug-in costs nothing
and has the same answer with and without any. Entry points are read once in a process, when a table is asked for a name
that is not built in, or for all of its names; what one stands for is imported when its own name is asked for.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from planner.errors import Fault, SpecError
from planner.frozen import frozen

OWN = "training-planner"
GROUPS = {  # of entry points, and what one of them is
    "planner.families": "family",
    "planner.devices": "device",
    "planner.exporters": "target of exports",
    "planner.importers": "importer",
    "planner.cost_models": "cost model",
}
T = TypeVar("T")
_loaded: dict[tuple[str, str], "Plugin"] = {}


class PluginError(SpecError):
    """A plug-in that is asked for cannot be had: no other answer takes its place."""


@cache
def version_of(distribution: str) -> str:
    """Return the version of a distribution; ``not installed`` where a checkout runs that was never installed."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - takes a while

    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def planner_version() -> str:
    """Return the version of this program that answers depend on."""
    return version_of(OWN)


@frozen
class Plugin:
    """An entry point: ``place`` is ``module:object`` of the distribution that gives it.

    ``twin``: another distribution that gives the same name, so that neither can be had.
    """

    group: str
    name: str
    distribution: str
    version: str
    place: str
    load: Callable[[], Any]
    twin: str | None = None

    @property
    def origin(self) -> str:
        """The distribution with its version."""
        return f"{self.distribution} {self.version}"

    @property
    def words(self) -> str:
        """What it is, and of which distribution."""
        return f"{GROUPS[self.group]} {self.name!r} of {self.origin}"


@cache
def named(group: str) -> Mapping[str, Plugin]:
    """Return the plug-ins of a group by their name, without importing any."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - takes a while

    found: dict[str, Plugin] = {}
    for point in sorted(entry_points(group=group), key=lambda one: (one.name, one.value)):
        distribution, version = (point.dist.name, point.dist.version) if point.dist is not None else ("unknown", "")
        plugin = Plugin(
            group=group,
            name=point.name,
            distribution=distribution,
            version=version,
            place=point.value,
            load=point.load,
        )
        other = found.setdefault(point.name, plugin)
        if (other.origin, other.place) != (plugin.origin, plugin.place):
            found[point.name] = replace(other, twin=plugin.origin)
    return found


def _wrong(problem: str, mend: str) -> PluginError:
    """Return the error of a plug-in, with its fault: who reads a question lays it to the field that names it."""
    return PluginError.of([Fault(problem=f"plug-ins: {problem}", mend=mend)])


def loaded() -> list[Plugin]:
    """Return the plug-ins that this process has imported."""
    return [_loaded[key] for key in sorted(_loaded)]


def missing(needed: Mapping[str, str]) -> list[str]:
    """Return, in words, which plug-ins of a plan are not here: ``{"planner.families:name": "distribution 1.0"}``.

    Another version is the same plug-in: whether a plan holds with it, its figures show.
    """
    found = []
    for key, origin in needed.items():
        group, _, name = key.partition(":")
        here = named(group).get(name) if group in GROUPS else None
        what = f"{GROUPS.get(group, group)} {name!r} of {origin}"
        if here is None:
            found.append(f"{what}, which is not installed")
        elif here.distribution != str(origin).rpartition(" ")[0]:
            found.append(f"{what}, and here it is of {here.origin}")
    return found


def blamed(error: BaseException) -> Plugin | None:
    """Return the plug-in in whose code an error was raised, by the modules that its traceback passes; None: in ours."""
    packages = {plugin.place.partition(":")[0].partition(".")[0]: plugin for plugin in _loaded.values()}
    trace, found = error.__traceback__, None
    while trace is not None:
        found = packages.get(str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0], found)
        trace = trace.tb_next
    return found


class Registry(Mapping[str, T]):
    """Things by their name: those that are built in, in their order, and then those of plug-ins.

    Parameters
    ----------
    group
        Of entry points, one of :data:`GROUPS`.
    own
        What is built in.
    needs
        Attributes without which an object of a plug-in is none of these.
    made_of
        Makes a row of the object of a plug-in; None: it is one.
    """

    def __init__(
        self,
        group: str,
        own: Mapping[str, T],
        *,
        needs: Iterable[str] = (),
        made_of: Callable[[Any, Plugin], T] | None = None,
    ) -> None:
        self.group = group
        self.own = own
        self._needs = tuple(needs)
        self._made_of = made_of
        self._made: dict[str, T] = {}

    @property
    def plugins(self) -> Mapping[str, Plugin]:
        """The plug-ins by their name; not those that bear the name of what is built in, which stays."""
        return {name: plugin for name, plugin in named(self.group).items() if name not in self.own}

    def origin(self, name: str) -> str | None:
        """Return the distribution, with its version, that gives a name; None of what is built in or not there."""
        plugin = None if name in self.own else self.plugins.get(name)
        return None if plugin is None else plugin.origin

    def __getitem__(self, name: str) -> T:
        """Return what bears a name; raise KeyError where nothing does, and SpecError where its plug-in is broken."""
        if name in self.own:
            return self.own[name]
        if name not in self._made:
            self._made[name] = self._loaded(self.plugins[name])
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in self.plugins

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        yield from self.plugins

    def __len__(self) -> int:
        return len(self.own) + len(self.plugins)

    def usable(self) -> Iterator[str]:
        """Yield the names whose plug-ins can be loaded: a broken one is told to who names it, and hides no other."""
        yield from self.own
        for name in self.plugins:
            with suppress(PluginError):
                self[name]
                yield name

    def where(self, holds: Callable[[str], bool]) -> Iterator[str]:
        """Yield the usable names of which something holds; of a plug-in that fails when it is asked nothing does."""
        for name in self.usable():
            try:
                is_one = holds(name)
            except Exception:  # code of others raises anything
                if name in self.own:
                    raise
                continue
            if is_one:
                yield name

    def _loaded(self, plugin: Plugin) -> T:
        """Import a plug-in; whatever goes wrong in it is told with its name."""
        if plugin.twin is not None:
            both = f"{plugin.origin} and {plugin.twin}"
            text = f"two distributions give a {GROUPS[plugin.group]} {plugin.name!r}: {both}."
            raise _wrong(text, "Uninstall one of them.")
        try:
            found = plugin.load()
            lacking = [name for name in self._needs if not hasattr(found, name)]
            made = found if self._made_of is None or lacking else self._made_of(found, plugin)
        except (Exception, SystemExit) as error:  # a module that leaves is to end no command without a word
            why = f"{type(error).__name__}: {error}".replace("\n", " ")
            text = f"{plugin.words} ({plugin.place}) cannot be loaded: {why}."
            raise _wrong(text, "Repair it, or uninstall it.") from None
        if lacking:
            text = f"{plugin.words} ({plugin.place}) is none: it has no {', '.join(lacking)}."
            raise _wrong(text, "See docs/extend.md.")
        _loaded[plugin.group, plugin.name] = plugin
        return made
