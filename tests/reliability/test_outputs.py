"""Files that cannot be written: refused with where, what and how to mend it; what was there before stays whole."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fault_commands import QUICK, READERS, Writer
from faults import Server, can_mount, file_system, fill, make_read_only, temporary_of, wrong_of
from faults_tried import OLD, an_input, contents, link_to_itself, the_full_device

Fresh = Callable[[], Path]
needs_mount = pytest.mark.skipif(not can_mount(), reason="only root may mount a file system that is full or read-only")


@pytest.mark.parametrize("fault", [link_to_itself, the_full_device, an_input], ids=lambda one: one.__name__)
def test_an_impossible_output_is_refused_and_changes_nothing(server: Server, fresh: Fresh, fault) -> None:  # type: ignore[no-untyped-def]
    for writer in QUICK:
        folder = fresh()
        place = fault(folder, writer)
        before = contents(folder)
        ended = server.run(*writer.words(place.target), folder=folder)
        assert not wrong_of(ended, place.codes), writer.name
        assert not place.is_unchanged or contents(folder) == before, writer.name


@needs_mount
def test_a_full_disk_leaves_the_old_file_whole_and_no_part_of_a_new_one(server: Server, fresh: Fresh) -> None:
    for writer in QUICK:
        folder = fresh()
        with file_system(folder / "disk", 2**16) as disk:
            target = old_of(disk, writer)
            fill(disk)
            before = contents(disk)
            ended = server.run(*words(writer, target), folder=folder)
            assert not wrong_of(ended, (2,)), writer.name
            assert "No space left on device" in ended.err
            assert contents(disk) == before, writer.name


@needs_mount
def test_a_read_only_folder_is_refused_before_anything_is_searched(server: Server, fresh: Fresh) -> None:
    for writer in QUICK:
        folder = fresh()
        with file_system(folder / "disk", 2**20) as disk:
            target = old_of(disk, writer)
            make_read_only(disk)
            before = contents(folder)
            ended = server.run(*words(writer, target), folder=folder)
            assert not wrong_of(ended, (2,)), writer.name
            assert contents(folder) == before, writer.name


def test_a_name_of_255_bytes_can_be_written(server: Server, fresh: Fresh) -> None:
    folder = fresh()
    name = "ü" * 125 + ".json"
    assert len(os.fsencode(name)) == 255
    assert not wrong_of(server.run("plan", "q.yaml", "--out", name, folder=folder), (0,))
    assert not wrong_of(server.run("check", name, folder=folder), (0,))
    assert not temporary_of(folder)


def test_two_outputs_in_one_file_are_refused(server: Server, fresh: Fresh) -> None:
    folder = fresh()
    (folder / "link.json").symlink_to("one.json")
    ended = server.run("plan", "q.yaml", "--out", "one.json", "--trace", "link.json", folder=folder)
    assert not wrong_of(ended, (2,))
    assert "link.json: --trace: --out writes there, too. Name another file." in ended.err


def test_a_file_that_the_question_names_is_not_overwritten(server: Server, fresh: Fresh) -> None:
    folder = fresh()
    before = contents(folder)
    ended = server.run("procure", "buy.yaml", "--out", "prices.csv", folder=folder)
    assert not wrong_of(ended, (2,))
    assert "this is what the question names, which would be overwritten" in ended.err
    assert contents(folder) == before


def test_a_protected_file_keeps_what_it_holds_and_a_replaced_one_its_permissions(server: Server, fresh: Fresh) -> None:
    folder = fresh()
    folder.chmod(0o777)
    (folder / "plan.json").chmod(0o600)
    assert not wrong_of(server.run("plan", "q.yaml", "--out", "plan.json", folder=folder), (0,))
    assert (folder / "plan.json").stat().st_mode & 0o777 == 0o600
    if os.geteuid():
        pytest.skip("only root can run a command as another user")
    (folder / "old.json").write_bytes(OLD)
    (folder / "old.json").chmod(0o444)
    with passable(folder):
        ended = server.run("plan", "q.yaml", "--out", "old.json", folder=folder, user=65534)
    assert not wrong_of(ended, (2,))
    assert "it may not be written to" in ended.err
    assert (folder / "old.json").read_bytes() == OLD


def test_an_answer_that_cannot_be_printed_is_an_error_of_its_own(server: Server, fresh: Fresh) -> None:
    folder = fresh()
    for _, line in READERS[:2]:
        ended = server.run(*line.split(), folder=folder, streams={1: ("/dev/full", os.O_WRONLY)})
        assert not wrong_of(ended, (2,))
    ended = server.run("plan", "q.yaml", folder=folder, streams={1: ("/dev/full", os.O_WRONLY)})
    assert ended.err.startswith("stdout: the system refuses this: No space left on device.")
    ended = server.run("plan", "q.yaml", "--json", folder=folder, streams={1: ("/dev/full", os.O_WRONLY)})
    assert not wrong_of(ended, (2,))
    assert ended.err.startswith("stdout: the system refuses this: No space left on device.")
    ended = server.run("plan", "q.yaml", folder=folder, streams={2: ("/dev/full", os.O_WRONLY)})
    assert not wrong_of(ended, (0,))
    ended = server.run("plan", "none.yaml", folder=folder, streams={2: ("/dev/full", os.O_WRONLY)})
    assert not wrong_of(ended, (2,))


def test_files_and_memory_that_run_out_are_said(server: Server, fresh: Fresh) -> None:
    for limit in (3, 8):
        ended = server.run("case", "adam-arithmetic", folder=fresh(), limits={"RLIMIT_NOFILE": limit})
        assert not wrong_of(ended, (0, 2))
    ended = server.run("plan", "q.yaml", "--out", "t.json", folder=fresh(), limits={"RLIMIT_FSIZE": 100})
    assert not wrong_of(ended, (2,))


@contextmanager
def passable(folder: Path) -> Iterator[None]:
    """Let other users pass through the folders above, as far as they may not; put back what was changed."""
    closed = {parent: parent.stat().st_mode for parent in folder.parents if not parent.stat().st_mode & 0o001}
    try:
        for parent, mode in closed.items():
            parent.chmod(mode | 0o001)
        yield
    finally:
        for parent, mode in closed.items():
            parent.chmod(mode)


def words(writer: Writer, target: Path) -> list[str]:
    """The command line that writes over what is there."""
    return [*writer.words(target), *(["--force"] if writer.is_folder else [])]


def old_of(disk: Path, writer: Writer) -> Path:
    """Put something where the writer will write, and return where."""
    target = disk / f"t{writer.suffix}"
    if writer.is_folder:
        target.mkdir()
        (target / "launch.sh").write_bytes(OLD)
    else:
        target.write_bytes(OLD)
    return target
