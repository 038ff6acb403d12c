"""The limits of a search: time and memory that a test reads for it, an interruption, and what is broken off."""

import ctypes
import signal
import subprocess
import sys
import threading
import time
from itertools import count

import pytest
from made_families import only_searched

import planner
from planner.cli.output import limit_bytes
from planner.errors import NoAnswerError, SpecError
from planner.families import FAMILIES
from planner.memory import available_bytes, ceiling_kept, default_limit_bytes, lower_ceiling, resident_bytes
from planner.plan import Plan
from planner.problem import Problem
from planner.search import LateError, MemoryLimitError, Search

QUESTION = {
    "dnn": {"zoo": "alexnet"},
    "cluster": {"preset": "osf-testbed"},
    "families": ["all_reduce", "parameter_server"],
}


class Machine:
    """A clock and a memory that a test sets."""

    def __init__(self) -> None:
        self.now_s, self.held_bytes, self.num_readings = 0.0, 0, 0

    def clock(self) -> float:
        self.num_readings += 1
        return self.now_s

    def search(self, **limits: float) -> Search:
        return Search(clock=self.clock, resident=lambda: self.held_bytes, **limits)  # type: ignore[arg-type]


def test_a_search_ends_by_the_clock_that_it_was_given() -> None:
    machine = Machine()
    search = machine.search(time_limit_s=2.0)
    assert not search.is_over
    machine.now_s = 2.0
    assert search.is_over


def test_no_more_than_the_memory_limit_is_held_in_silence() -> None:
    machine = Machine()
    search = machine.search(memory_limit_bytes=2.0**31)
    assert not search.is_over
    machine.held_bytes, machine.now_s = 2**31, 1.0
    assert search.is_over
    machine.held_bytes, machine.now_s = 0, 2.0
    assert search.is_over  # it does not come back to life, or nobody knew what it left out
    assert not search.part(1.0).is_over  # another part may, where the memory is free again


def test_a_table_is_refused_before_it_is_made() -> None:
    machine = Machine()
    search = machine.search(memory_limit_bytes=2.0**31)
    assert search.fits(2**30)
    assert not search.fits(2**31)
    assert not search.is_over  # who asks may do with less
    with pytest.raises(MemoryLimitError, match=r"^A table of 3 x 4 would take 2 GiB, .* memory limit of 2 GiB. Raise"):
        search.reserve(2**31, "A table of 3 x 4")
    assert search.is_over


def test_what_is_watched_ends_between_two_readings_of_the_clock() -> None:
    machine = Machine()
    search, seen = machine.search(time_limit_s=5.0), 0
    for _ in search.watch(count(), every=10):
        seen += 1
        machine.now_s = seen / 8
    assert seen == 40
    assert search.is_over


def test_a_search_that_never_asks_is_broken_off() -> None:
    search = Search(time_limit_s=0.0)
    with pytest.raises(LateError), search.ended():
        while True:
            time.sleep(0.01)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    with search.ended():  # what ends by itself is left alone
        pass


def test_a_search_that_never_asks_is_broken_off_by_an_interruption() -> None:
    search = Search()
    with pytest.raises(LateError), search.ended():
        search.part(10.0).interrupt()
        while True:
            time.sleep(0.01)


def test_what_is_broken_off_while_a_class_is_made_is_broken_off() -> None:
    class Slow:
        def __set_name__(self, owner: type, name: str) -> None:
            while True:
                time.sleep(0.01)

    with pytest.raises(LateError), Search(time_limit_s=0.0).ended():
        type("Made", (), {"attribute": Slow()})
    with pytest.raises(RuntimeError, match="of its own"), Search().ended():
        raise RuntimeError("an error of its own")


def test_other_threads_are_not_broken_off() -> None:
    def ask() -> None:
        with Search(time_limit_s=0.0).ended():
            assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()


@pytest.mark.parametrize("fault", [LateError(), MemoryError(), MemoryLimitError("a table is too large.")])
def test_a_family_that_is_broken_off_takes_no_other_one_with_it(
    monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    def break_off(problem: Problem, search: Search) -> Plan:
        raise fault

    problem = planner.load(QUESTION)
    whole = planner.plan(problem)
    searches = {name: FAMILIES[name].search for name in FAMILIES.own}
    only_searched(monkeypatch, {**searches, "parameter_server": break_off})
    found = planner.plan(problem)
    assert found.family == "all_reduce"
    assert found.status.value == "feasible"
    assert found.bound <= whole.bound
    assert any("parameter_server gives no plan" in line for line in found.explanation)


@pytest.mark.parametrize("fault", [LateError(), MemoryError(), MemoryLimitError("a table is too large.")])
def test_what_a_family_kept_is_given_with_a_bound_that_holds(
    monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    problem = planner.load({**QUESTION, "families": ["all_reduce"]})
    whole = planner.plan(problem)

    def break_off(problem: Problem, search: Search) -> Plan:
        search.keep(lambda: whole)
        raise fault

    only_searched(monkeypatch, {"all_reduce": break_off})
    found = planner.plan(problem)
    assert found.configuration == whole.configuration
    assert found.status.value == "feasible"
    assert found.bound < whole.bound
    assert any("broken off" in line for line in found.warnings)


@pytest.mark.parametrize("fault", [LateError(), MemoryError(), MemoryLimitError("a table is too large.")])
def test_a_search_that_is_broken_off_without_an_answer_is_a_limit_and_no_bug(
    monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    def break_off(problem: Problem, search: Search) -> Plan:
        raise fault

    only_searched(monkeypatch, {"all_reduce": break_off, "parameter_server": break_off})
    with pytest.raises(NoAnswerError):
        planner.plan(planner.load(QUESTION))


def test_the_default_is_a_share_of_what_is_left() -> None:
    assert 0 < available_bytes() < float("inf")
    assert resident_bytes() < default_limit_bytes(2) < default_limit_bytes() < resident_bytes() + available_bytes()


def test_the_system_refuses_what_is_above_the_ceiling_and_only_then() -> None:
    with ceiling_kept():
        lower_ceiling(resident_bytes() + 2**28)
        with pytest.raises(MemoryError):
            bytearray(2**29)
        assert len(bytearray(2**26)) == 2**26
    assert len(bytearray(2**29)) == 2**29


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not the C library of GNU")
def test_what_a_process_frees_is_kept_and_comes_again_without_new_pages() -> None:
    lines = [
        "import resource, sys, numpy as np",
        "from planner.memory import keep_freed",
        "keep_freed(float(sys.argv[1]))",
        "def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt",
        "def work(): return [np.ones(2**17) for _ in range(8)]",  # of 256 pages each
        "before = faults()",
        "for _ in range(20): work()",
        "print(faults() - before)",
    ]

    def num_faults(limit_bytes: float) -> int:
        command = [sys.executable, "-c", "\n".join(lines), str(limit_bytes)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert num_faults(2.0**36) < 2 * 8 * 256
    assert num_faults(0.0) > 10 * 8 * 256  # nothing above a limit


def test_a_memory_limit_that_is_none_is_refused() -> None:
    with pytest.raises(SpecError, match="--memory-limit: '2 furlongs' is not a size"):
        limit_bytes("2 furlongs")
    with pytest.raises(NoAnswerError, match="--memory-limit: the program itself holds"):
        limit_bytes("1 MiB")


def test_what_comes_after_a_search_does_not_run_on_either() -> None:
    def endless() -> str:
        while True:
            time.sleep(0.001)

    assert Search(time_limit_s=0.0).bounded(endless, "nothing") == "nothing"
    assert Search(time_limit_s=60.0).bounded(lambda: "it", "nothing") == "it"
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
