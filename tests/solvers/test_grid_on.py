"""A search of a grid that was stopped goes on where it was."""

from functools import partial

from grids import Case, cases, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.search import Search
from planner.solution import Status
from planner.solvers.grid import Wanted, solve


@settings(deadline=None)
@given(case=cases(), number=st.integers(1, 3), most=st.sampled_from([1, 2, 7]), questions=st.integers(0, 20))
def test_pieces_of_a_search_find_what_one_search_finds(case: Case, number: int, most: int, questions: int) -> None:
    asked = partial(solve, case.grid(), case.cost, wanted=Wanted(num_answers=number, most_at_once=most))
    whole, found = asked(Search()), asked(Search(questions_left=questions))
    while found.rest:
        assert found.solution.bound <= whole.solution.objective
        found = asked(Search(questions_left=questions + 1), before=found)
        questions += 1
    assert rows_of(found, case) == rows_of(whole, case)
    assert found.solution.status is (Status.OPTIMAL if found.solution.value is not None else Status.INFEASIBLE)
