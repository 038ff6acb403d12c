"""The page of ``planner serve`` in a real browser: asking, changing, comparing, stopping, by mouse and by keyboard."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="uvicorn is not installed; run make test-heavy")

AUDIT = (Path(__file__).parents[1] / "support/accessibility.js").read_text(encoding="utf-8")
WAIT_MS = 120_000
LONG = ("deepseek-v3", "61440", "12500", "hgx-h100")  # some ten seconds, of which a test waits for the first plan
FORM = "Array.from(document.querySelectorAll('#form input, #form select'), one => one.value + one.checked)"
QUICK = ("resnet50", "256", "1", "hgx-h100")


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, int]]:
    """The address and the process of the command."""
    command = [sys.executable, "-m", "planner", "serve", "--no-open", "--port", "0", "--time-limit", "60 s"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        found = re.search(r"http://\S+/", running.stdout.readline())
        assert found is not None
        yield found[0], running.pid
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 0


@pytest.fixture(scope="module")
def address(server: tuple[str, int]) -> str:
    return server[0]


class Tab:
    """The page in a tab of a browser of its own, with all errors and all requests that leave this server."""

    def __init__(self, browser: Any, address: str, *, width: int = 1200, scheme: str = "light") -> None:
        self.context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.errors: list[str] = []
        self.strangers: list[str] = []
        self.page.on("pageerror", lambda one: self.errors.append(str(one)))
        self.page.on("console", lambda one: self.errors.append(one.text) if "status of 422" not in one.text else None)
        self.page.on("request", lambda one: None if one.url.startswith((address, "data:", "blob:")) else self.strangers.append(one.url))  # fmt: skip
        self.page.goto(address)

    def fill(self, dnn: str, batch: str, count: str, machine: str) -> None:
        self.page.get_by_label("Network (").fill(dnn)
        self.page.get_by_label("Samples of a batch", exact=True).fill(batch)
        self.page.get_by_label("How many").fill(count)
        self.page.get_by_label("Machine or device").fill(machine)

    def ask(self, *question: str) -> None:
        self.fill(*question)
        self.page.get_by_role("button", name="Ask").click()

    def answered(self) -> None:
        self.page.wait_for_selector("#answer:not([hidden])")

    def is_inside(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))

    def __enter__(self) -> "Tab":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()
        assert self.errors == []
        assert self.strangers == []


def children(process: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (400, "dark")])
def test_an_answer_moves_with_what_is_assumed_and_two_are_compared(
    browser: Any, address: str, width: int, scheme: str
) -> None:
    with Tab(browser, address, width=width, scheme=scheme) as tab:
        assert tab.page.evaluate(AUDIT) == []
        assert tab.is_inside()
        tab.ask(*QUICK)
        tab.answered()
        report = tab.page.frame_locator("#report")
        report.locator("h1").wait_for()
        report.locator("[data-plot] svg").first.wait_for()
        assert report.locator("h1").inner_text() == tab.page.locator("#title").inner_text()
        assert tab.page.evaluate(AUDIT) == []
        field = tab.page.locator("[data-field='dnn.dtype'][id^=assumption]")
        field.fill("bf16")
        field.press("Enter")
        tab.page.wait_for_selector("#moved:not([hidden])")
        assert re.search(r"epoch time: .+ \N{RIGHTWARDS ARROW} .+ \(.+ %\)", tab.page.locator("#moved").inner_text())
        assert "precision, as you say" in tab.page.locator("#assumptions").inner_text()
        assert tab.page.evaluate("document.activeElement.id").startswith("assumption-")
        for mark in tab.page.get_by_label("Mark for comparing").all():
            mark.check()
        tab.page.get_by_role("button", name="Compare").click()
        tab.page.wait_for_selector("#sides:not([hidden])")
        assert tab.page.locator("#sides tbody tr").count() > 3
        assert tab.page.evaluate(AUDIT) == []
        assert tab.is_inside()
        before = tab.page.locator("#title").inner_text()
        tab.ask("alexnet", *QUICK[1:])
        tab.page.wait_for_function("before => document.getElementById('title').textContent !== before", arg=before)
        assert tab.page.locator("#moved").is_hidden()  # another network's time is no change of the first one's


def test_by_keyboard_alone_a_question_is_asked_and_its_answer_shown(browser: Any, address: str) -> None:
    with Tab(browser, address) as tab:
        keys = tab.page.keyboard
        keys.press("Tab")
        assert tab.page.evaluate("document.activeElement.className") == "skip"
        keys.press("Enter")
        reached = []
        for _ in range(40):
            keys.press("Tab")
            name = tab.page.evaluate("document.activeElement.dataset.field || document.activeElement.name || document.activeElement.className")  # fmt: skip
            reached.append(name)
            assert tab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            text = {"dnn.zoo": "resnet50", "dnn.batch": "256", "cluster.machines.0.machine": "hgx-h100"}.get(name)
            if text:
                keys.type(text)
            if name == "main":
                break
        assert reached[-1] == "main", reached
        keys.press("Enter")
        tab.answered()
        assert "resnet50" in tab.page.get_by_role("status").inner_text()


def test_what_is_wrong_stands_beside_its_field_which_gets_the_focus(browser: Any, address: str) -> None:
    with Tab(browser, address) as tab:
        tab.ask("resnet51", "256", "1", "hgx-h100")
        fault = tab.page.locator(".fault")
        fault.wait_for()
        assert "resnet50" in fault.inner_text()
        assert tab.page.evaluate("document.activeElement.name") == "dnn.zoo"
        assert tab.page.evaluate("document.activeElement.getAttribute('aria-invalid')") == "true"
        name = re.compile(r"^Network \(\d+ to search in\)$")  # what is wrong describes the field, and does not name it
        assert tab.page.get_by_role("combobox", name=name).count() == 1
        assert tab.page.evaluate(AUDIT) == []
        tab.ask(*QUICK)
        tab.answered()
        assert tab.page.locator(".fault").count() == 0


def test_a_limit_and_a_pin_are_rows_whose_faults_stand_beside_them(browser: Any, address: str) -> None:
    with Tab(browser, address, width=400) as tab:
        tab.fill(*QUICK)
        tab.page.get_by_text("Limits and fixed decisions").click()
        for place, value in (("fix.num_machines", "1"), ("constraints.devices.at_most", "lots")):
            tab.page.get_by_role("button", name="Add one").click()
            tab.page.locator("#limits select").last.select_option(place)
            tab.page.locator("#limits .value").last.fill(value)
        assert tab.page.evaluate(AUDIT) == []
        assert tab.is_inside()
        tab.page.get_by_role("button", name="Ask").click()
        tab.page.locator(".fault").wait_for()
        assert tab.page.evaluate("document.activeElement.dataset.field") == "constraints.devices.at_most"
        tab.page.locator("#limits .value").last.fill("4")
        tab.page.get_by_role("button", name="Ask").click()
        tab.answered()
        assert "devices: {at_most: 4}" in tab.page.locator("#spec").text_content()


def test_money_and_a_file_are_asked_with(browser: Any, address: str, tmp_path: Path) -> None:
    with Tab(browser, address, width=400) as tab:
        tab.page.get_by_label("What money buys or rents").check()
        tab.page.get_by_label("Network (").fill("resnet50")
        tab.page.get_by_label("Samples of a batch", exact=True).fill("1024")
        tab.page.get_by_role("button", name="Ask").click()
        tab.page.locator(".field", has_text="or epochs").get_by_text("how long the training is").wait_for()
        tab.page.get_by_label("or epochs").fill("2")
        tab.page.get_by_label("Deadline", exact=True).fill("1")
        tab.page.get_by_label("Deadline: unit").select_option("d")
        tab.page.get_by_label("Providers").fill("aws")
        tab.page.get_by_label("Devices", exact=True).fill("v100-sxm2-16g")
        assert tab.page.evaluate(AUDIT) == []
        tab.page.get_by_role("button", name="Ask").click()
        tab.answered()
        assert tab.page.locator("#sentence").inner_text().startswith("Rent")
        assert "deadline: 1 d" in tab.page.locator("#spec").text_content()
        minded = tab.page.locator("#minded")
        assert "before the deadline of 1 d" in minded.inner_text()
        assert {"margin", "at worst"} <= set(minded.locator("dt").all_inner_texts())
        assert tab.is_inside()
        file = tmp_path / "model.pt"
        file.write_bytes(b"\x80\x04 a pickle")
        tab.page.get_by_label("A file of mine").check()
        tab.page.locator("#file").set_input_files(str(file))
        tab.page.get_by_role("button", name="Ask").click()
        tab.page.locator(".fault").wait_for()
        assert "nothing that has to be run is taken" in tab.page.locator(".fault").inner_text()


def test_a_search_is_stopped_and_one_that_is_killed_is_told(browser: Any, server: tuple[str, int]) -> None:
    with Tab(browser, server[0]) as tab:
        tab.ask(*LONG)
        tab.page.get_by_text("best so far").wait_for()
        tab.page.get_by_role("button", name="Stop").click()
        tab.page.get_by_role("button", name="Remove").wait_for()
        tab.page.get_by_role("button", name="Remove").click()
        tab.ask(*LONG)
        tab.page.get_by_text("searching for").wait_for()
        tab.page.get_by_text("no plan so far").or_(tab.page.get_by_text("best so far")).wait_for()
        (child,) = [
            one for parent in children(server[1]) for one in children(parent)
        ]  # of what searches are forked from
        os.kill(child, signal.SIGKILL)
        tab.page.locator("#list").get_by_text("process was killed").wait_for()
        tab.ask(*QUICK)
        tab.answered()


def test_stop_pressed_twice_leaves_what_was_found(browser: Any, address: str) -> None:
    with Tab(browser, address) as tab:
        tab.ask(*LONG)
        tab.page.get_by_text("best so far").wait_for()
        tab.page.get_by_role("button", name="Stop").press("Enter")
        remove = tab.page.get_by_role("button", name="Remove")
        remove.wait_for()
        assert tab.page.evaluate("document.activeElement.textContent") == "Show"
        remove.dispatch_event("click", {"detail": 2})
        assert tab.page.locator("#list li").count() == 1


def test_a_page_that_is_loaded_again_has_its_form_as_it_was(browser: Any, address: str) -> None:
    with Tab(browser, address) as tab:
        tab.fill(*QUICK)
        tab.page.get_by_role("button", name="Add other machines").click()
        tab.page.get_by_label("Machine or device").nth(1).fill("a100-sxm-80g")
        tab.page.get_by_text("Limits and fixed decisions").click()
        tab.page.get_by_role("button", name="Add one").click()
        tab.page.locator("#limits .place").select_option("fix.tensor_parallel_size")
        tab.page.locator("#limits .value").fill("2")
        tab.page.get_by_label("also tell what other").check()
        tab.page.get_by_label("Samples of a batch are").select_option("batch_per_device")
        before = tab.page.evaluate(FORM)
        assert "a100-sxm-80gfalse" in before
        tab.page.reload()
        tab.page.get_by_label("Machine or device").nth(1).wait_for()
        assert tab.page.evaluate(FORM) == before
        tab.page.get_by_label("What money buys or rents").check()
        tab.page.get_by_label("Budget", exact=True).fill("500")
        tab.page.goto("about:blank")
        tab.page.go_back()
        tab.page.get_by_label("Budget", exact=True).wait_for()
        assert tab.page.get_by_label("Budget", exact=True).input_value() == "500"


def test_ten_pages_ask_at_once_and_each_sees_its_own_answer(browser: Any, address: str) -> None:
    tabs = [Tab(browser, address) for _ in range(10)]
    for index, tab in enumerate(tabs):
        tab.ask("resnet50", str(64 * (index + 1)), "1", "hgx-h100")
    for index, tab in enumerate(tabs):
        tab.answered()
        assert tab.page.locator("#list li").count() == 1
        assert f"global_batch: {64 * (index + 1)}}}" in tab.page.locator("#spec").text_content()
    tabs[0].page.reload()
    tabs[0].answered()
    tabs[0].page.get_by_role("button", name="Remove").click()
    tabs[0].page.wait_for_selector("#answer", state="hidden")
    for tab in tabs:
        with tab:
            pass
