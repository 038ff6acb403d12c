"""The gallery: the questions that take long, and the page of every one in a real browser, offline."""

from typing import Any

import gallery
import pytest

NAMES = gallery.names()


@pytest.mark.parametrize("name", NAMES)
def test_a_question_has_the_answer_that_stands_there_and_a_page(
    browser: Any, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    one = gallery.entry(name)
    page = tmp_path_factory.mktemp(name) / "page.html"
    assert gallery.printed(one, page) == one.report
    assert page.exists()
    said: list[str] = []
    requests: list[str] = []
    context = browser.new_context(offline=True, viewport={"width": 1200, "height": 800})
    tab = context.new_page()
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(page.as_uri())
    tab.wait_for_load_state("load")
    answer, _, _ = gallery.told(one.report)
    heading = tab.locator("h1").inner_text()
    tables = tab.locator("table").count()
    context.close()
    assert said == []
    assert requests == [page.as_uri()]
    assert heading, answer
    assert tables > 0
