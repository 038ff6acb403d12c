"""Fields of a configuration, read one by one: what is wrong with each is collected, so that one pass names it all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.errors import Fault
from planner.importers.huggingface.file import OTHER_WAYS, line_of
from planner.transformer_parts import MOST_INNER

__all__ = ["Fields", "shown"]

_PLACEHOLDER = 1  # of a size that is missing or wrong; nothing is built from it


def shown(value: object) -> str:
    """Return a value as a message shows it, not at any length."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(slots=True)
class Fields:
    """The keys of one configuration.

    A key that is ``null`` is left out. ``faults`` lists what was wrong with the keys that were read; where there is
    any, what the methods gave means nothing.

    Attributes
    ----------
    architecture
        Its ``model_type``, named by every message.
    notes, warnings
        What readers add for the user.
    """

    values: Mapping[str, Any]
    text: str
    file: Path
    architecture: str
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def get(self, *names: str) -> object:
        """Return the value of the first of these keys that has one; else None."""
        return next((self.values[name] for name in names if self.values.get(name) is not None), None)

    def count(self, *names: str, least: int = 1, most: int = MOST_INNER) -> int:
        """Return a size that must be given, under any of these keys."""
        name = self._name(names)
        if name is None:
            also = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
            self.fault(
                names[0],
                f"it is missing, and {self.architecture} needs it{also}.",
                "Add it, as the checkpoint's own config.json has it; a size is not guessed.",
            )
            return max(least, _PLACEHOLDER)
        return self._whole(name, least, most)

    def count_or(self, default: int, *names: str, least: int = 1, most: int = MOST_INNER) -> int:
        """Return a size that may be left out."""
        name = self._name(names)
        return default if name is None else self._whole(name, least, most)

    def flag(self, name: str, default: bool) -> bool:
        """Return whether something is so; may be left out."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fault(name, f"{shown(value)} is neither true nor false.", "Write true or false, without quotes.")
            return default
        return value

    def word(self, *names: str) -> str:
        """Return a word; empty where it is left out."""
        name = self._name(names)
        if name is None:
            return ""
        value = self.values[name]
        if not isinstance(value, str):
            self.fault(name, f"{shown(value)} is no text.", "Write a word in quotes.")
            return ""
        return value

    def words(self, name: str) -> tuple[str, ...]:
        """Return a list of words; empty where it is left out."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            self.fault(name, f"{shown(value)} is no list of words.", 'Write e.g. ["full_attention"].')
            return ()
        return tuple(value)

    def wholes(self, name: str) -> tuple[int, ...]:
        """Return a list of whole numbers of 0 or more; empty where it is left out."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(type(one) is int and one >= 0 for one in value):
            self.fault(name, f"{shown(value)} is no list of whole numbers.", "Write e.g. [0, 1].")
            return ()
        return tuple(value)

    def refuse(self, name: str, problem: str, mend: str = "") -> None:
        """Note a key that makes another network of this one than is counted here."""
        self.fault(name, problem, mend or OTHER_WAYS)

    def fault(self, name: str, problem: str, mend: str) -> None:
        """Note what is wrong with a key."""
        self.faults.append(
            Fault(
                file=str(self.file),
                line=line_of(self.text, name) if name in self.values else None,
                field=name,
                value=shown(self.values[name]) if name in self.values else "",
                problem=problem,
                mend=mend,
            )
        )

    def _name(self, names: Sequence[str]) -> str | None:
        """Return the first of these keys that has a value."""
        return next((name for name in names if self.values.get(name) is not None), None)

    def _whole(self, name: str, least: int, most: int) -> int:
        """Return the whole number of a key that is there."""
        value = self.values[name]
        if type(value) is int and least <= value <= most:
            return value
        what = "is text, not a number" if isinstance(value, str) else "is no whole number"
        problem = f"{value} is out of range" if type(value) is int and abs(value) < 10**60 else f"{shown(value)} {what}"
        if type(value) is int and abs(value) >= 10**60:
            problem = "this number is out of range"
        self.fault(name, f"{problem}.", f"Write a whole number from {least} to {most}.")
        return max(least, _PLACEHOLDER)
