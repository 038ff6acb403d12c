"""The parts of pages that commands write."""

import pytest

from research import page_with

PAGE = "head\n<!-- written by make accuracy: a table -->\nold\n<!-- end of what is written -->\ntail\n"


def test_a_written_part_takes_the_place_of_the_one_before_and_of_nothing_else() -> None:
    once = page_with(PAGE, "a table", "new\n")
    assert once == PAGE.replace("old\n", "\nnew\n\n")
    assert page_with(once, "a table", "new") == once


@pytest.mark.parametrize(("page", "part"), [(PAGE, "another"), (PAGE.replace("<!-- end", "<!--"), "a table")])
def test_a_page_without_the_marks_is_an_error(page: str, part: str) -> None:
    with pytest.raises(AssertionError, match="the page has lost"):
        page_with(page, part, "new")
