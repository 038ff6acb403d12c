"""Faults of files that commands write: each breaks the place of a file in its own way, and says what must be left.

A fault is a function that breaks a folder and gives what the command is told to write, which exit codes are right, and
whether nothing at all may have changed.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fault_commands import Writer

OLD = b"what was there before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a command is told to write, and what must come of it."""

    target: str
    codes: tuple[int, ...] = (2,)
    is_unchanged: bool = True


def missing_folder(folder: Path, writer: Writer) -> Place:
    """A folder that is not there: only a command that writes a folder makes it."""
    return Place(
        target=f"no/such/t{writer.suffix}",
        codes=(0,) if writer.is_folder else (2,),
        is_unchanged=not writer.is_folder,
    )


def folder_in_place(folder: Path, writer: Writer) -> Place:
    (folder / f"t{writer.suffix}").mkdir()
    return Place(
        target=f"t{writer.suffix}", codes=(0,) if writer.is_folder else (2,), is_unchanged=not writer.is_folder
    )


def link_to_itself(folder: Path, writer: Writer) -> Place:
    (folder / f"t{writer.suffix}").symlink_to(f"t{writer.suffix}")
    return Place(target=f"t{writer.suffix}")


def under_a_file(folder: Path, writer: Writer) -> Place:
    """A file where a folder should be."""
    return Place(target=f"q.yaml/t{writer.suffix}")


def an_input(folder: Path, writer: Writer) -> Place:
    if not writer.inputs:
        return Place(target=".", is_unchanged=False)
    return Place(target=writer.inputs[-1])


def a_link_to_an_input(folder: Path, writer: Writer) -> Place:
    if not writer.inputs:
        return Place(target=".", is_unchanged=False)
    (folder / f"t{writer.suffix}").symlink_to(writer.inputs[0])
    return Place(target=f"t{writer.suffix}")


def the_full_device(folder: Path, writer: Writer) -> Place:
    (folder / f"t{writer.suffix}").symlink_to("/dev/full")
    return Place(target=f"t{writer.suffix}")


def a_link_to_an_old_file(folder: Path, writer: Writer) -> Place:
    """A link to a file elsewhere, which is replaced there."""
    (folder / "d").mkdir()
    (folder / f"t{writer.suffix}").symlink_to(f"d/real{writer.suffix}")
    return Place(target=f"t{writer.suffix}", codes=(2,) if writer.is_folder else (0,), is_unchanged=False)


FAULTS: tuple[Callable[[Path, Writer], Place], ...] = (
    missing_folder,
    folder_in_place,
    link_to_itself,
    under_a_file,
    an_input,
    a_link_to_an_input,
    the_full_device,
    a_link_to_an_old_file,
)


def contents(folder: Path) -> dict[str, bytes | str]:
    """All that lies in a folder: files with what they hold, links with where they lead, and the rest by kind.

    The store of a sweep that is not what a fault is tried on is left out: it may have been made before.
    """
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = os.fsdecode(path.relative_to(folder))
        if name.startswith("s.sqlite"):
            continue
        if path.is_symlink():
            found[name] = f"link to {os.readlink(path)}"  # noqa: PTH115  # as bytes that may be no text
        else:
            found[name] = path.read_bytes() if path.is_file() else "folder" if path.is_dir() else "other"
    return found
