"""Pages as they are written: well formed, without any request, with every name as text, and the same each time."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from answers import case_page, plan_page, prediction_page, procurement_page, sweep_page
from pages import Read, read
from purchases import asked, row

import planner
from planner.answer.plan import plan_blocks
from planner.api import predicted
from planner.case.run import run_case
from planner.networks import asked as open_question
from planner.networks import network_of
from planner.plan import Plan
from planner.planning import view_of
from planner.problem import Problem
from planner.sections import Text

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
GROUP = {"count": 4, "devices": 1, "device": "rtx-2080-ti", "network": "10 Gbit/s", "latency": "20 us"}
DNN = {"zoo": "alexnet", "global_batch": 256}


def machines(**changed: Any) -> dict[str, Any]:
    return {"machines": [{"name": "gpu", **GROUP, **changed}]}


QUESTIONS: Mapping[str, dict[str, Any]] = {
    "all_reduce": {"dnn": DNN, "cluster": machines(devices=2), "families": ["all_reduce"]},
    "parameter_server": {"dnn": DNN, "cluster": machines(), "families": ["parameter_server"]},
    "model_replicas": {"dnn": DNN, "cluster": machines(), "families": ["model_replicas"]},
    "pipeline": {"dnn": {"zoo": "alexnet", "global_batch": 64}, "cluster": machines(count=2, devices=2), "families": ["pipeline"]},
    "hybrid": {"dnn": {"zoo": "megatron-1.7b", "global_batch": 32}, "cluster": machines(count=2, devices=4, device="a100-sxm4-80gb", inside="nvlink-3")},
    "mixed": {"dnn": DNN, "cluster": {"machines": [{"name": "a", **GROUP}, {"name": "b", **GROUP, "device": "v100-sxm2-16gb"}]}, "families": ["all_reduce"]},
}  # fmt: skip


def planned(question: Mapping[str, Any], **how: Any) -> tuple[Plan, Problem]:
    """A plan, and its question with the network of it."""
    problem = planner.load(dict(question))
    found = planner.plan(problem, time_limit_s=10, **how)
    return found, network_of(open_question(problem), found.substitutions)


@pytest.fixture(scope="module")
def pages() -> Callable[[str], tuple[Plan, Problem, Read]]:
    """The page of each question, read."""
    known: dict[str, tuple[Plan, Problem, Read]] = {}

    def page_of(name: str) -> tuple[Plan, Problem, Read]:
        if name not in known:
            plan, problem = planned(QUESTIONS[name])
            known[name] = plan, problem, read(plan_page(plan, problem))
        return known[name]

    return page_of


def check_page(found: Read) -> None:
    levels = [level for level, _ in found.headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), found.headings
    assert found.all("html")[0]["lang"] == "en"
    assert found.title
    places = [one for one in found.all("div") if "data-plot" in one]
    assert [int(one["data-plot"] or "") for one in places] == list(range(len(found.plots)))
    assert all(one["role"] == "img" and one["aria-label"] for one in places)
    captions = len(found.all("caption"))
    assert captions == len(found.all("table"))
    assert all(
        one.get("tabindex") == "0" and one.get("aria-label") for one in found.all("div") if one.get("class") == "scroll"
    )
    names = [one["id"] for _, one in found.elements if "id" in one]
    assert len(names) == len(set(names))
    links = [one["href"] or "" for one in found.all("a")]
    assert all(link[0] == "#" and link[1:] in names for link in links)
    assert not [one for _, one in found.elements if one.get("src") or (one.get("href") or "#")[0] not in "#d"]


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_family_has_a_page_that_is_well_formed_and_asks_for_nothing(name: str, pages: Any) -> None:
    plan, problem, found = pages(name)
    check_page(found)
    assert problem.dnn.name in found.headings[0][1]
    assert plan.configuration.headline in found.text
    titles = [title for level, title in found.headings if level == 2]
    assert {"In short", "The plan", "Where the time goes", "Memory", "What is proven", "How wrong it may be"} <= set(
        titles
    )
    policy = next(one["content"] for one in found.all("meta") if one.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def cells(found: Read) -> list[str]:
    """The classes of the devices and servers of the drawing, without its legend."""
    start = next(index for index, (_, one) in enumerate(found.elements) if one.get("class") == "machines")
    return [
        one["class"] or ""
        for _, one in found.elements[start:]
        if (one.get("class") or "").startswith("cell") and "title" in one
    ]


def servers_and_workers(block: Mapping[str, int]) -> int:
    """Machines that model replicas use."""
    return block["num_parameter_servers"] + block["num_replicas"] * block["num_workers_per_replica"]


@pytest.mark.parametrize(
    ("name", "busy"),
    [
        ("all_reduce", lambda plan: plan.configuration.num_devices),
        ("mixed", lambda plan: plan.configuration.num_devices),
        ("pipeline", lambda plan: plan.configuration.num_devices),
        ("hybrid", lambda plan: plan.configuration.num_devices),
        ("parameter_server", lambda plan: sum(plan.configuration.workers.values()) + plan.configuration.num_parameter_servers),
        ("model_replicas", lambda plan: servers_and_workers(plan.configuration.to_document())),
    ],
)  # fmt: skip
def test_as_many_devices_are_drawn_at_work_as_the_plan_uses(name: str, busy: Callable[[Plan], int], pages: Any) -> None:
    plan, problem, found = pages(name)
    drawn = cells(found)
    assert sum("idle" not in one for one in drawn) == busy(plan)
    servers = plan.configuration.to_document()["num_parameter_servers"] if name == "parameter_server" else 0
    assert len(drawn) == problem.cluster.num_devices + servers


def test_every_stage_of_a_pipeline_is_drawn_as_often_as_it_has_replicas(pages: Any) -> None:
    plan, _, found = pages("pipeline")
    stages = plan.configuration.to_document()["stages"]
    for index, stage in enumerate(stages):
        assert (
            len(re.findall(rf"stage {index + 1}, replica \d+ of {stage['replicas']}\b", found.text))
            == stage["replicas"]
        )


def test_ranks_of_hybrid_parallelism_have_each_coordinate_once(pages: Any) -> None:
    plan, _, found = pages("hybrid")
    words = [one["title"] for _, one in found.elements if "title" in one]
    assert len(set(words)) == plan.configuration.num_devices


def test_the_plan_of_fusion_groups_shows_when_each_is_ready_and_sent(pages: Any) -> None:
    plan, _, found = pages("all_reduce")
    rows = plan.prediction.details["schedule"]
    plot = next(one for one in found.plots if any(trace.get("name") == "ready, waits" for trace in one["data"]))
    waits, sent, mark = plot["data"]
    assert len(sent["x"]) == len(rows)
    unit = rows[-1]["end_s"] / (sent["base"][-1] + sent["x"][-1])
    assert [base * unit for base in sent["base"]] == pytest.approx([one["start_s"] for one in rows], rel=1e-4, abs=1e-9)
    assert sum(waits["x"]) * unit == pytest.approx(
        sum(one["start_s"] - one["ready_s"] for one in rows), rel=1e-4, abs=1e-9
    )
    assert mark["x"][0] * unit == pytest.approx(plan.prediction.details["last_backward_s"], rel=1e-4)


def test_the_parts_of_an_iteration_that_are_drawn_add_up_to_it(pages: Any) -> None:
    for name in QUESTIONS:
        plan, _, found = pages(name)
        titles = [(one, one["layout"]["xaxis"]["title"]["text"]) for one in found.plots if "meta" in one["layout"]]
        bars, title = next((one, title) for one, title in titles if title.startswith("time ("))
        unit = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}[title.removeprefix("time (").removesuffix(")")]
        assert sum(bars["data"][0]["x"]) * unit == pytest.approx(plan.prediction.iteration_time_s, rel=1e-4)


# -- names from files ------------------------------------------------------------------------------------------------


def evil_question() -> dict[str, Any]:
    """A question whose every name is markup."""
    layers = [
        {"name": f"{EVIL}{index}", "multiply_adds": 1e9, "parameters": "4 MB", "output": "4 kB", **({"inputs": [f"{EVIL}{index - 1}"]} if index else {})}
        for index in range(4)
    ]  # fmt: skip
    return {
        "dnn": {"name": EVIL, "layers": layers, "batch_per_device": 8, "dataset_samples": 1000},
        "cluster": {"machines": [{**GROUP, "name": f"{EVIL}{name}", "devices": 2} for name in "ab"]},
    }


def no_markup(page: str, found: Read) -> None:
    """No name became an element, and the names are shown."""
    assert "<script>alert" not in page
    assert "<img" not in page
    assert len(found.all("script")) == 3
    assert not found.all("img")
    assert EVIL in found.text


def test_names_of_layers_and_machines_are_text(pages: Any) -> None:
    for families in (["all_reduce"], ["pipeline"], ["parameter_server"]):
        plan, problem = planned({**evil_question(), "families": families})
        page = plan_page(plan, problem, explanation=planner.explain(open_question(problem), plan, time_limit_s=1))
        found = read(page)
        check_page(found)
        no_markup(page, found)
        texts = str([one["layout"].get("yaxis", {}).get("ticktext") for one in found.plots])
        assert "<" not in texts


def test_reasons_warnings_and_names_of_alternatives_are_text() -> None:
    plan, problem = planned(QUESTIONS["all_reduce"])
    other = replace(plan.alternatives[0], name=EVIL, reason=EVIL, substitutions=(EVIL,))
    evil = replace(
        plan,
        explanation=(EVIL,),
        warnings=(EVIL,),
        assumptions=(EVIL,),
        domain=(EVIL,),
        not_modelled=(EVIL,),
        alternatives=(other,),
    )
    page = plan_page(evil, problem, commands=[("planner", EVIL)])
    no_markup(page, read(page))


def test_names_of_a_price_list_are_text(tmp_path: Path) -> None:
    rows = [row(f"<script>alert({index})<img src=x>", usd_per_h=index + 1.0, source=EVIL) for index in range(3)]
    found = planner.procure(asked(tmp_path / "prices.csv", rows), has_pareto=True, has_what_if=True, time_limit_s=20)
    page = procurement_page(found, history=[(1.0, 9.0, 1), (2.0, 4.0, 2), (3.0, 3.0, 3)])
    checked = read(page)
    check_page(checked)
    no_markup(page, checked)
    assert "How the search closed in" in checked.text
    assert "2026-11-01" in checked.text


def test_names_of_a_case_are_text() -> None:
    result = run_case("osf-table-2")
    rows = tuple(replace(one, quantity=EVIL, source=EVIL, reason=EVIL, ok=False) for one in result.rows)
    page = case_page([replace(result, name=EVIL, question=EVIL, rows=rows), replace(result, rows=(), skipped=EVIL)])
    found = read(page)
    check_page(found)
    no_markup(page, found)
    assert f"0 of {len(rows)} figures" in found.text


# -- size ------------------------------------------------------------------------------------------------------------


def test_thousands_of_layers_and_machines_are_thinned_with_a_note() -> None:
    layers = [
        {
            "name": f"layer {index}",
            "multiply_adds": 1e7,
            "parameters": "40 kB",
            "output": "400 B",
            **({"inputs": [f"layer {index - 1}"]} if index else {}),
        }
        for index in range(1500)
    ]
    plan, problem = planned(
        {
            "dnn": {"layers": layers, "batch_per_device": 8},
            "cluster": machines(count=500),
            "families": ["all_reduce"],
            "objective": "iteration_time",
        }
    )
    many = replace(plan, alternatives=plan.alternatives[:1] * 3000, explanation=("a",) * 10)
    page = plan_page(many, problem)
    found = read(page)
    check_page(found)
    assert "500 machines, each like this" in found.text
    assert "100 of 3,000 alternatives are shown" in found.text
    library = max(re.findall(r"<script>.*?</script>", page, re.DOTALL), key=len)
    assert len(page) - len(library) < 1_500_000


# -- other pages -----------------------------------------------------------------------------------------------------


def test_equal_plans_give_equal_bytes() -> None:
    first, second = (plan_page(*planned(QUESTIONS["all_reduce"])) for _ in range(2))
    assert first == second


def test_a_prediction_has_a_page_without_a_proof() -> None:
    plan, _ = planned(QUESTIONS["pipeline"])
    problem = planner.load({**QUESTIONS["pipeline"], "configuration": {"pipeline": plan.configuration.to_document()}})
    problem, predicted_one = predicted(problem)
    page = prediction_page(predicted_one, problem)
    found = read(page)
    check_page(found)
    assert "What is proven" not in found.text
    assert "What runs when" in found.text
    assert "configuration:" in found.text  # the question holds it


def test_sensitivities_stand_on_the_page_where_they_were_asked_for() -> None:
    plan, problem = planned(QUESTIONS["all_reduce"])
    explanation = planner.explain(open_question(problem), plan, time_limit_s=10)
    with_it, without = (read(plan_page(plan, problem, explanation=one)) for one in (explanation, None))
    assert all(one.words in with_it.text for one in explanation.sensitivities)
    assert "What other hardware would bring" not in without.text


def test_a_case_shows_theirs_ours_and_the_difference() -> None:
    result = run_case("osf-table-2")
    found = read(case_page([result]))
    check_page(found)
    for one in result.rows:
        assert one.quantity in found.text
        assert f"{one.ours:.5g}" in found.text


def sweep_rows() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A small sweep's document and rows, as ``planner.sweep/1`` has them."""
    rows: list[dict[str, Any]] = [
        {"position": index, "dnn": {"zoo": EVIL}, "cluster.machines.0.count": count, "outcome": "optimal", "objective_name": "epoch_time_s", "objective": 100.0 / count, "bound": 90.0 / count, "gap": 0.1, "family": "all_reduce", "headline": EVIL, "num_devices": count, "iteration_time_s": 1.0, "time_s": None, "cost_usd": None, "error": None, "key": "k", "wall_s": 1.0}
        for index, count in enumerate((1, 2, 4))
    ]  # fmt: skip
    summary = {
        "schema": "planner.sweep/1", "identity": "i", "fields": ["dnn", "cluster.machines.0.count"], "number": 5, "is_complete": False,
        "counts": {"optimal": 3, "infeasible": 1}, "wall_s": 4.0, "objective_name": "epoch_time_s", "num_other_objectives": 0,
        "best": rows[::-1], "pareto": {"columns": ["objective", "num_devices"], "rows": rows[::-1]},
        "effects": [{"fields": ["cluster.machines.0.count"], "values": [{"value": [one["num_devices"]], "ratio": one["objective"] / 100, "num_pairs": 1, "num_answered": 1, "best": one["objective"]} for one in rows]}],
        "failures": [{"outcome": "infeasible", "reason": EVIL, "number": 1, "position": 3, "example": EVIL}],
    }  # fmt: skip
    return summary, rows


def test_a_sweep_shows_the_best_the_trade_off_effects_and_failures() -> None:
    summary, rows = sweep_rows()
    page = sweep_page(
        summary,
        rows,
        title="a sweep",
        question={"sweep": {"dnn": [EVIL]}},
        commands=[("planner", "sweep", "question.yaml")],
    )
    found = read(page)
    check_page(found)
    no_markup(page, found)
    assert "The best of 5 questions is" in found.text
    assert "4 of 5 questions are answered" in found.text
    assert {"The best", "What each field does", "Questions without a plan"} <= {title for _, title in found.headings}
    assert len(found.plots) == 2


def test_a_sweep_without_any_plan_says_so() -> None:
    summary, _ = sweep_rows()
    empty = {**summary, "objective_name": None, "best": [], "pareto": None, "effects": []}
    found = read(sweep_page(empty, []))
    assert "None of 5 questions has a plan." in found.text


def test_a_step_of_too_many_tasks_is_not_drawn_but_told() -> None:
    """Thirty seconds of drawing, which stood between the answer and its page, for bars narrower than a pixel."""
    question = {
        "dnn": {"zoo": "llama3.1-405b", "global_batch": 1024},
        "cluster": {"machines": [{"count": 64, "machine": "hgx-h100"}]},
        "configuration": {"hybrid": {"tensor": 8, "pipeline": 32, "data": 2, "interleave": 4, "microbatch": 1}},
    }
    problem, found = predicted(planner.load(question))
    drawn: list[int] = []
    view = replace(view_of(problem, found), timeline=lambda: drawn.append(1))  # type: ignore[arg-type,return-value]
    told = [block.text for block in plan_blocks(found, view) if isinstance(block, Text)]
    assert any("The step has 131,072 tasks, too many to draw what runs when" in text for text in told)
    assert not drawn
