"""Pages in a real browser, offline: no request, no error; plots drawn, keyboard, themes, paper and narrow windows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from answers import case_page, comparison_page, plan_page, refusal_page

import planner
from planner.case.run import run_case
from planner.errors import InfeasibleError
from planner.networks import asked, network_of

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
WIDTHS = {"wide": 1200, "narrow": 360, "zoomed": 640}
AUDIT = (Path(__file__).parents[1] / "support/accessibility.js").read_text(encoding="utf-8")
TIGHT = {"constraints": {"memory_per_device": "100 MiB"}, "families": ["all_reduce"]}


NAMES = ("all_reduce", "parameter_server", "pipeline", "evil", "case", "refusal", "comparison")


def page_of(name: str) -> str:
    machines: dict[str, Any] = {
        "name": "gpu",
        "count": 2,
        "devices": 4,
        "device": "rtx-2080-ti",
        "network": "10 Gbit/s",
        "latency": "20 us",
        "inside": "pcie-3-x16",
    }
    question: dict[str, Any] = {
        "dnn": {"zoo": "vgg16", "global_batch": 64},
        "cluster": {"machines": [machines]},
        "families": [name],
    }
    if name == "evil":
        layers = [
            {
                "name": f"{EVIL}{index}",
                "multiply_adds": 1e9,
                "parameters": "4 MB",
                "output": "4 kB",
                **({"inputs": [f"{EVIL}{index - 1}"]} if index else {}),
            }
            for index in range(4)
        ]
        question = {
            "dnn": {"name": EVIL, "layers": layers, "batch_per_device": 8, "dataset_samples": 1000},
            "cluster": {"machines": [{**machines, "name": EVIL}]},
            "families": ["all_reduce"],
        }
    if name == "case":
        return case_page([run_case("osf-table-2")])
    if name == "refusal":
        tight = planner.load({**question, **TIGHT})
        with pytest.raises(InfeasibleError) as caught:
            planner.plan(tight)
        return refusal_page(
            caught.value, tight.resolved, subject="vgg16", commands=[("planner", "plan", "question.yaml")]
        )
    if name == "comparison":
        plans = [planner.plan(planner.load({**question, "families": [one]})) for one in ("all_reduce", "pipeline")]
        return comparison_page(planner.compare(*plans), ("one.json", "other.json"))
    problem, history = planner.load(question), []
    plan = planner.plan(
        problem, time_limit_s=20, on_progress=lambda bound, best: history.append((bound, best, len(history)))
    )
    if name == "evil":
        plan = replace(plan, explanation=(EVIL,), warnings=(EVIL,))
    explanation = planner.explain(asked(problem), plan, time_limit_s=5)
    network = network_of(asked(problem), plan.substitutions)
    return plan_page(plan, network, explanation=explanation, history=history)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages, written."""
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name in NAMES:
        found[name] = folder / f"{name}.html"
        found[name].write_text(page_of(name), encoding="utf-8")
    return found


class Shown:
    """A page in a tab, with all that it said and asked for."""

    def __init__(self, browser: Any, path: Path, *, width: int = 1200, scheme: str = "light", **context: Any) -> None:
        self.context = browser.new_context(
            offline=True, color_scheme=scheme, viewport={"width": width, "height": 800}, **context
        )
        self.tab = self.context.new_page()
        self.said: list[str] = []
        self.requests: list[str] = []
        self.tab.on("console", lambda one: self.said.append(one.text))
        self.tab.on("pageerror", lambda one: self.said.append(str(one)))
        self.tab.on("dialog", self.dismiss)
        self.tab.on("request", lambda one: self.requests.append(one.url))
        self.tab.goto(path.as_uri())
        self.tab.wait_for_load_state("load")

    def dismiss(self, dialog: Any) -> None:
        self.said.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def __enter__(self) -> "Shown":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", "wide"), ("dark", "narrow"), ("light", "zoomed")])
@pytest.mark.parametrize("name", NAMES)
def test_a_page_draws_its_plots_says_nothing_and_asks_for_nothing(
    browser: Any, files: dict[str, Path], name: str, scheme: str, width: str
) -> None:
    with Shown(browser, files[name], width=WIDTHS[width], scheme=scheme) as shown:
        assert shown.tab.locator("[data-plot]").count() > 0
        drawn = shown.tab.evaluate(
            "[...document.querySelectorAll('[data-plot]')].map(one => one.querySelectorAll('.main-svg').length)"
        )
        assert all(drawn)
        inside = shown.tab.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert inside, "the page is wider than the window"
        spills = shown.tab.evaluate(
            "[...document.querySelectorAll('[data-plot]')].filter(one => one.scrollWidth > one.clientWidth + 1).length"
        )
        assert spills == 0
        assert shown.tab.locator("table").count() > 0
        assert shown.said == []
        assert shown.requests == [files[name].as_uri()]


@pytest.mark.parametrize("width", WIDTHS)
def test_texts_of_bars_stay_inside_their_plot(browser: Any, files: dict[str, Path], width: str) -> None:
    with Shown(browser, files["all_reduce"], width=WIDTHS[width]) as shown:
        outside = shown.tab.evaluate(
            """[...document.querySelectorAll('[data-plot]')].flatMap(plot => {
                const box = plot.getBoundingClientRect();
                return [...plot.querySelectorAll('.bartext, .ytick text')].filter(one => {
                    const at = one.getBoundingClientRect();
                    return at.left < box.left - 1 || at.right > box.right + 1;
                }).map(one => one.textContent);
            })"""
        )
        assert outside == []


def test_names_from_files_are_shown_and_never_run(browser: Any, files: dict[str, Path]) -> None:
    with Shown(browser, files["evil"]) as shown:
        assert EVIL in shown.tab.locator("h1").inner_text()
        assert shown.tab.locator("img").count() == 0
        labels = shown.tab.evaluate("[...document.querySelectorAll('.ytick text')].map(one => one.textContent)")
        assert any(label.startswith("</script>") for label in labels), labels


def colours(shown: Shown) -> tuple[str, str]:
    """Of the ground, and of a plot's labels."""
    found: list[str] = shown.tab.evaluate(
        "[getComputedStyle(document.documentElement).backgroundColor, getComputedStyle(document.querySelector('.xtick text')).fill]"
    )
    return found[0], found[1]


def test_the_switch_changes_the_theme_by_keyboard(browser: Any, files: dict[str, Path]) -> None:
    with Shown(browser, files["all_reduce"]) as shown, Shown(browser, files["all_reduce"], scheme="dark") as dark:
        light = colours(shown)
        shown.tab.locator("#theme").focus()
        shown.tab.keyboard.press("Enter")
        assert colours(shown) == colours(dark) != light
        shown.tab.keyboard.press("Enter")
        assert colours(shown) == light


def test_everything_that_scrolls_or_opens_is_reached_by_tab_and_the_focus_is_seen(
    browser: Any, files: dict[str, Path]
) -> None:
    with Shown(browser, files["all_reduce"]) as shown:
        shown.tab.keyboard.press("Tab")
        assert shown.tab.evaluate("document.activeElement.className") == "skip"
        box = shown.tab.locator(".skip").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        shown.tab.keyboard.press("Enter")
        assert shown.tab.evaluate("document.activeElement.id") == "answer"
        wanted = shown.tab.evaluate(
            "[...document.querySelectorAll('main [tabindex=\"0\"], main summary')].filter(one => one.tagName == 'SUMMARY' || !one.closest('details:not([open])')).length"
        )
        reached, seen = set(), []
        for _ in range(wanted):
            shown.tab.keyboard.press("Tab")
            reached.add(shown.tab.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
            seen.append(shown.tab.evaluate("getComputedStyle(document.activeElement).outlineStyle"))
        assert len(reached) == wanted
        assert set(seen) == {"solid"}


def test_a_table_below_a_plot_opens_by_keyboard(browser: Any, files: dict[str, Path]) -> None:
    with Shown(browser, files["all_reduce"]) as shown:
        first = shown.tab.locator("details.numbers").first
        first.locator("summary").focus()
        shown.tab.keyboard.press("Enter")
        assert first.locator("table").is_visible()


def test_on_paper_a_dark_page_is_light_and_plots_fit(browser: Any, files: dict[str, Path], tmp_path: Path) -> None:
    with Shown(browser, files["all_reduce"], scheme="dark") as shown:
        content = shown.tab.pdf(path=str(tmp_path / "page.pdf"), format="A4")
        assert content[:5] == b"%PDF-"
        shown.tab.emulate_media(media="print")
        shown.tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        ground, ink = colours(shown)
        assert ground == "rgb(255, 255, 255)"
        assert ink == "rgb(0, 0, 0)"
        widths = shown.tab.evaluate(
            "[...document.querySelectorAll('.main-svg')].map(one => one.getBoundingClientRect().width)"
        )
        assert max(widths) <= 690
        overlaps = shown.tab.evaluate(
            """[...document.querySelectorAll('[data-plot]')].filter((plot) => {
                const legend = plot.querySelector('.legend'), grid = plot.querySelector('.gridlayer');
                return legend && legend.getBoundingClientRect().bottom > grid.getBoundingClientRect().top + 2;
            }).length"""
        )
        assert overlaps == 0
        assert not shown.tab.locator("header").is_visible()


def test_without_scripts_the_answer_and_the_tables_are_there(browser: Any, files: dict[str, Path]) -> None:
    with Shown(browser, files["all_reduce"], java_script_enabled=False) as shown:
        assert shown.tab.locator(".answer").is_visible()
        assert shown.tab.locator("noscript").inner_text().startswith("Plots need JavaScript")
        assert shown.tab.locator("table").count() > 5
        assert not shown.tab.locator("[data-plot]").first.is_visible()  # no blank room either


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wrong_by_an_audit_of_accessibility(
    browser: Any, files: dict[str, Path], name: str, scheme: str
) -> None:
    with Shown(browser, files[name], scheme=scheme) as shown:
        shown.tab.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert shown.tab.evaluate(AUDIT) == []


def test_the_audit_finds_what_is_wrong(browser: Any, files: dict[str, Path]) -> None:
    with Shown(browser, files["all_reduce"]) as shown:
        shown.tab.evaluate("document.documentElement.style.setProperty('--soft', '#cccccc')")
        shown.tab.evaluate("document.querySelector('h3').outerHTML = '<h4>deep</h4>'")
        shown.tab.evaluate("document.querySelector('caption').remove()")
        found = " ".join(shown.tab.evaluate(AUDIT))
        assert "contrast" in found
        assert "a heading jumps: deep" in found
        assert "a table without a caption" in found


def test_nothing_on_a_page_moves(browser: Any, files: dict[str, Path]) -> None:
    with Shown(browser, files["all_reduce"], reduced_motion="reduce") as shown:
        styles = shown.tab.evaluate(
            "[...document.querySelectorAll('*')].filter((one) => getComputedStyle(one).transitionDuration.split(', ').some((s) => s !== '0s') && !one.closest('.plotted')).length"
        )
        assert styles == 0
