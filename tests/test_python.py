"""The package from Python: found by help and completion, typed, with questions as graphs and answers as rows."""

import inspect
import json
import pydoc
import re
import rlcompleter
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, assert_type

import networkx as nx
import numpy as np
import pytest

import planner
from planner.answer.documents import dump
from planner.errors import SpecError
from planner.plan import Plan, Prediction
from planner.problem import Problem
from planner.solution import Status
from planner.sweep.swept import Swept

DNN = {"zoo": "resnet50", "batch_per_device": 32}
MACHINES = [{"count": 4, "devices": 8, "device": "rtx-2080-ti", "inside": "pcie-3-x16", "network": "100 Gbit/s"}]
QUESTION = {"dnn": DNN, "cluster": {"machines": MACHINES}, "families": ["all_reduce"]}
SWEEP = {**QUESTION, "sweep": {"vary": {"cluster.machines.0.count": [1, 2]}}}


def tiny() -> "nx.DiGraph[str]":
    """A network as a graph: attributes are the keys of the block and of its layers."""
    graph: nx.DiGraph[str] = nx.DiGraph(name="tiny", batch_per_device=256, dataset_samples=50_000)
    graph.add_node("image", kind="input", output="600 kB")
    graph.add_node("conv", kind="convolution", multiply_adds=2e9, parameters="10 MB", output="3 MB")
    graph.add_node("fc", kind="fully_connected", multiply_adds=1e8, parameters="400 MB", output="4 kB")
    nx.add_path(graph, ["image", "conv", "fc"])
    return graph


# -- found -----------------------------------------------------------------------------------------------------------


def test_help_dir_and_completion_show_every_function() -> None:
    text = pydoc.plain(pydoc.render_doc(planner))
    complete = rlcompleter.Completer({"planner": planner}).complete
    offered = {(complete("planner.", number) or "").rstrip("()") for number in range(len(dir(planner)))}
    for name in planner.__all__:
        assert f"\n    {name}(" in text
        assert name in dir(planner)
        assert f"planner.{name}" in offered


def test_every_function_says_what_its_parameters_and_its_answer_are() -> None:
    for name in planner.__all__:
        function = getattr(planner, name)
        signature = inspect.signature(function)
        assert signature.return_annotation is not inspect.Signature.empty
        assert all(one.annotation is not inspect.Parameter.empty for one in signature.parameters.values())
        assert ">>> " in function.__doc__ or name in ("from_torch", "timeline")


def test_a_type_checker_knows_what_comes_back() -> None:
    problem = planner.load(QUESTION)
    assert_type(problem, Problem)
    found = planner.plan(problem)
    assert_type(found, Plan)
    assert_type(planner.predict(problem, found.configuration), Prediction)
    assert_type(planner.sweep(SWEEP), Swept)


def test_functions_stay_where_modules_of_their_names_are_imported() -> None:
    import planner.plan
    import planner.sweep
    import planner.timeline

    assert all(inspect.isfunction(getattr(planner, name)) for name in ("plan", "sweep", "timeline"))


def test_the_version_is_that_of_the_distribution() -> None:
    assert planner.__version__ == version("training-planner")


def test_importing_the_package_loads_nothing_of_others() -> None:
    code = (
        "import sys, planner; print(sorted({'numpy', 'networkx', 'pydantic', 'scipy', 'ortools'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- questions -------------------------------------------------------------------------------------------------------


def test_a_function_takes_a_problem_a_mapping_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "question.json"
    path.write_text(json.dumps(QUESTION), encoding="utf-8")
    documents = [dump(planner.plan(one).to_dict()) for one in (planner.load(QUESTION), QUESTION, path, str(path))]
    assert len(set(documents)) == 1
    assert planner.check(QUESTION, json.loads(documents[0])).is_ok


def test_a_network_as_a_graph_is_the_block_of_its_layers() -> None:
    layers = [
        {"name": "image", "kind": "input", "output": "600 kB"},
        {"name": "conv", "kind": "convolution", "inputs": ["image"], "multiply_adds": 2e9, "parameters": "10 MB", "output": "3 MB"},
        {"name": "fc", "kind": "fully_connected", "inputs": ["conv"], "multiply_adds": 1e8, "parameters": "400 MB", "output": "4 kB"},
    ]  # fmt: skip
    block = {"name": "tiny", "batch_per_device": 256, "dataset_samples": 50_000, "layers": layers}
    drawn, listed = (planner.load({**QUESTION, "dnn": dnn}) for dnn in (tiny(), block))
    assert drawn.dnn.layers == listed.dnn.layers
    assert drawn.training == listed.training


def test_keys_beside_a_graph_win_and_the_graph_of_a_network_will_do() -> None:
    beside = planner.load({**QUESTION, "dnn": {"network": tiny(), "batch_per_device": 8}})
    assert beside.training.batch_per_device == 8
    again = planner.load({**QUESTION, "dnn": {"network": beside.dnn.graph, "batch_per_device": 8}})
    assert again.dnn.layers == beside.dnn.layers


def test_a_node_that_edges_alone_name_is_refused_and_no_layer_that_costs_nothing() -> None:
    graph = tiny()
    nx.add_path(graph, ["conv", "cnov", "fc"])
    with pytest.raises(SpecError, match=r"dnn: the node 'cnov' has no attributes.*graph\.add_node\('cnov'"):
        planner.load({**QUESTION, "dnn": graph})


def test_a_node_or_an_edge_of_a_cluster_that_says_nothing_is_named() -> None:
    cluster: nx.Graph[str] = nx.Graph()
    cluster.add_node("gpus", count=4, devices=2, device="rtx-3090", inside="pcie-4-x16")
    cluster.add_edge("gpus", "swicth", bandwidth="25 Gbit/s", latency="10 us")
    with pytest.raises(
        SpecError, match=r"the node 'swicth' has no attributes.*graph\.add_node\('swicth', type='switch'\)"
    ):
        planner.load({**QUESTION, "cluster": cluster})
    cluster.add_node("swicth", type="switch")
    assert planner.load({**QUESTION, "cluster": cluster}).cluster.num_machines == 4
    cluster.edges["gpus", "swicth"].clear()
    cluster.edges["gpus", "swicth"]["weight"] = 25e9
    with pytest.raises(SpecError, match=r"the edge from 'gpus' to 'swicth' has no bandwidth, only 'weight'\."):
        planner.load({**QUESTION, "cluster": cluster})


def test_ranges_series_and_paths_are_values_of_a_question(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    for batches in (range(8, 25, 8), pandas.Series([8, 16, 24]), pandas.Index([8, 16, 24])):
        swept = planner.sweep({**QUESTION, "sweep": {"vary": {"dnn.batch_per_device": batches}}})
        assert [row["dnn.batch_per_device"] for row in swept.to_records()] == [8, 16, 24]
        assert repr(swept) == "<Swept: 3 rows (3 optimal)>"
    with pytest.raises(SpecError, match=r"range\(0, 1000000000000\) holds more than 1,000,000"):
        planner.sweep({**QUESTION, "sweep": {"vary": {"dnn.batch_per_device": range(10**12)}}})
    with pytest.raises(SpecError, match=r"nothere\.csv: dnn\.profile: there is no such file"):
        planner.load({**QUESTION, "dnn": {"profile": tmp_path / "nothere.csv"}})


def test_a_prompt_shows_answers_in_a_line() -> None:
    problem = planner.load(QUESTION)
    plan = planner.plan(problem)
    late = replace(plan, status=Status.FEASIBLE, bound=plan.objective / 2)
    texts = [repr(one) for one in (problem, problem.dnn, problem.cluster, plan, late)]
    assert all(len(one) < 130 and "\n" not in one for one in texts), texts
    assert (
        texts[3]
        == f"<Plan: {plan.family} on {plan.configuration.headline}, epoch_time {plan.objective:.6g} s, optimal>"
    )
    assert "feasible, gap 50.0%" in texts[4]
    more = (
        plan.prediction,
        planner.check(problem, plan),
        planner.compare(plan, late),
        planner.explain(problem, plan, time_limit_s=5),
        planner.export(plan, "ddp"),
    )
    assert all(len(repr(one)) < 200 and "\n" not in repr(one) for one in more), more


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_alternatives": "3"}, "num_alternatives: '3' is no whole number"),
        ({"num_alternatives": 1.5}, "num_alternatives: 1.5 is no whole number"),
    ],
)
def test_alternatives_are_a_whole_number(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        planner.plan(QUESTION, **given)


def test_a_plan_in_place_of_its_configuration_is_told_what_to_give() -> None:
    given: Any = planner.plan(QUESTION)
    with pytest.raises(SpecError, match=r"Plan is no configuration of a family. Give plan\.configuration"):
        planner.predict(QUESTION, given)


def test_a_bare_number_of_si_units_is_offered_them() -> None:
    links = [{"ends": ["a", "b"], "bandwidth": 3.1e9, "latency": "1 us"}]
    nodes = [{"name": name, "device": "v100-16g", "devices": 1} for name in "ab"]
    with pytest.raises(SpecError, match=r"Write e\.g\. .3100000000 B/s."):
        planner.load({**QUESTION, "cluster": {"nodes": nodes, "links": links}})


def test_one_way_links_of_a_directed_graph_are_told() -> None:
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_node("gpus", count=4, devices=2, device="rtx-3090", inside="pcie-4-x16", nics=1)
    graph.add_node("switch", type="switch")
    graph.add_edge("gpus", "switch", bandwidth="25 Gbit/s", latency="10 us")
    with pytest.raises(SpecError, match=r"no network between them: its links are one-way\. Add one back"):
        planner.load({**QUESTION, "cluster": graph})


@pytest.mark.parametrize("stop", [10**9, 10**30])
def test_a_range_too_long_to_be_held_is_refused_where_a_list_may_stand(stop: int) -> None:
    with pytest.raises(SpecError, match="holds more than 1,000,000 numbers"):
        planner.load({**QUESTION, "families": range(stop)})


def test_a_cycle_is_closed_where_it_is_told() -> None:
    for count, words in ((3, r"l0 -> l1 -> l2 -> l0\. Remove"), (30, r"l6 -> l7 -> \.\.\.")):
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(
            (f"l{index}", {"kind": "matmul", "multiply_adds": 1e6, "output": "4 kB"}) for index in range(count)
        )
        nx.add_cycle(graph, graph.nodes)
        with pytest.raises(SpecError, match=words):
            planner.load({**QUESTION, "dnn": graph})


def test_numbers_of_numpy_are_numbers_of_a_question() -> None:
    graph = tiny()
    graph.nodes["conv"]["multiply_adds"] = np.float32(2**31)
    graph.graph["batch_per_device"] = np.int64(256)
    given = {**QUESTION, "dnn": graph, "constraints": {"devices": np.int64(4)}}
    graph_of_python = tiny()
    graph_of_python.nodes["conv"]["multiply_adds"] = float(2**31)
    same = planner.plan({**QUESTION, "dnn": graph_of_python, "constraints": {"devices": 4}})
    assert json.dumps(planner.plan(given).to_dict()) == json.dumps(same.to_dict())
    rates = np.array(["10 Gbit/s", "25 Gbit/s"])
    varied = {"dnn.batch_per_device": np.arange(8, 33, 8), "cluster.machines.0.network": rates}
    swept = planner.sweep({**QUESTION, "sweep": {"vary": varied}})
    assert [row["outcome"] for row in swept.to_records()] == ["optimal"] * 8
    purchase = {"deadline": "8 h", "budget": "500 USD", "providers": np.array(["lambda"]), "as_of": "any"}
    asked = {"dnn": {"zoo": "resnet50", "global_batch": np.int32(1024), "epochs": np.float64(90)}, "procure": purchase}
    assert json.dumps(planner.procure({**asked, "families": ["all_reduce"]}).to_dict())


def test_arrays_of_objects_sets_and_mappings_of_any_kind_are_plain_data_of_a_question() -> None:
    batches = np.array([np.int64(8), np.array(16)], dtype=object)
    families = {"pipeline", "all_reduce"}
    given = {
        **QUESTION,
        "dnn": MappingProxyType({"zoo": "resnet50", "batch_per_device": np.array(np.int64(8), object)}),
    }
    plain = {**QUESTION, "dnn": {"zoo": "resnet50", "batch_per_device": 8}, "families": sorted(families)}
    assert planner.plan({**given, "families": families}).to_dict() == planner.plan(plain).to_dict()
    swept = planner.sweep({**plain, "sweep": MappingProxyType({"vary": {"dnn.batch_per_device": batches}})})
    assert [row["dnn.batch_per_device"] for row in swept.to_records()] == [8, 16]


@pytest.mark.parametrize("batch", [(one for one in [8]), np.longdouble(8), np.float64("nan"), np.bool_(True)])
def test_what_is_no_number_of_a_question_is_refused_where_it_stands(batch: object) -> None:
    with pytest.raises(SpecError, match=r"dnn\.batch_per_device: .* is not a whole number"):
        planner.load({**QUESTION, "dnn": {"zoo": "resnet50", "batch_per_device": batch}})


def test_a_question_that_holds_itself_is_refused() -> None:
    array = np.empty(1, dtype=object)
    array[0] = array
    with pytest.raises(SpecError, match=r"dnn\.batch_per_device: .* is not a whole number"):
        planner.load({**QUESTION, "dnn": {"zoo": "alexnet", "batch_per_device": array}})
    question: dict[str, Any] = {**QUESTION, "dnn": {"zoo": "alexnet"}}
    question["dnn"]["more"] = question
    with pytest.raises(SpecError, match=r"dnn\.more: unknown key"):
        planner.load(question)


def test_a_graph_without_directions_or_with_keys_that_are_none_is_refused() -> None:
    with pytest.raises(SpecError, match=r"Give a networkx\.DiGraph"):
        planner.load({**QUESTION, "dnn": tiny().to_undirected()})
    graph = tiny()
    graph.nodes["conv"]["colour"] = "red"
    with pytest.raises(SpecError, match=r"dnn\.layers\.1\.colour"):
        planner.load({**QUESTION, "dnn": graph})
    graph = tiny()
    graph.edges["image", "conv"]["output"] = "1 MB"
    with pytest.raises(SpecError, match=r"the edge from 'image' to 'conv' has 'output'; edges only say who reads whom"):
        planner.load({**QUESTION, "dnn": graph})


# -- answers ---------------------------------------------------------------------------------------------------------


def test_a_plan_gives_its_document_and_rows_of_itself_and_its_alternatives() -> None:
    found = planner.plan(QUESTION, num_alternatives=2)
    assert json.loads(dump(found.to_dict()))["schema"] == "planner.plan/1"
    best, *others = found.to_records()
    assert (best["objective"], best["configuration.num_devices"]) == (found.objective, 32)
    assert [row["relative_loss"] for row in others] == [one.relative_loss for one in found.alternatives]
    assert not any(isinstance(value, dict | list) for row in (best, *others) for value in row.values())


def test_every_answer_gives_rows_of_one_value_a_column() -> None:
    slow, fast = (planner.plan({**QUESTION, "cluster": {"machines": [{**MACHINES[0], "network": rate}]}}) for rate in ("1 Gbit/s", "100 Gbit/s"))  # fmt: skip
    predicted = planner.predict(QUESTION, fast.configuration)
    compared, explained = planner.compare(slow, fast), planner.explain(QUESTION, fast)
    (row,) = predicted.to_records()
    assert row["breakdown_s.forward"] == predicted.breakdown_s["forward"]
    assert compared.to_records()[0] == {
        "kind": "objective", "name": "epoch_time_s", "first": slow.objective, "second": fast.objective,
    }  # fmt: skip
    assert {one["kind"] for one in compared.to_records()} >= {"objective", "question", "term"}
    changes = [one for one in explained.to_records() if one["kind"] == "sensitivities"]
    assert [one["saving"] for one in changes] == [one.saving for one in explained.sensitivities]
    assert len(planner.check(QUESTION, fast).to_records()) == len(planner.check(QUESTION, fast).findings)
    for one in (predicted, compared, explained):
        json.dumps(one.to_dict(), default=str)
        assert not any(isinstance(value, dict | list) for row in one.to_records() for value in row.values())


def test_a_sweep_gives_its_summary_and_a_row_of_each_question(tmp_path: Path) -> None:
    told: list[int] = []
    store = tmp_path / "sweep.sqlite"
    found = planner.sweep(SWEEP, store=store, on_progress=lambda done: told.append(done.num_answered))
    assert found.to_dict()["is_complete"]
    assert [(row["cluster.machines.0.count"], row["num_devices"]) for row in found.to_records()] == [(1, 8), (2, 16)]
    assert told[-1] == 2
    again = planner.sweep(SWEEP, store=store)  # nothing is asked twice: even wall times are the same
    assert again.rows == found.rows


def test_a_purchase_gives_its_document_and_a_row_of_each_fleet() -> None:
    found = planner.procure(
        {
            "dnn": {"zoo": "resnet50", "global_batch": 1024, "epochs": 90},
            "procure": {"deadline": "24 h", "providers": ["lambda"], "as_of": "any"},
            "families": ["all_reduce"],
        },
        today=date(2026, 11, 21),
    )
    assert found.to_dict()["schema"] == "planner.procurement/1"
    best, *others = found.to_records()
    assert (best["kind"], best["cost_usd"]) == ("choice", found.choice.cost_usd)
    assert [row["fleet"] for row in others] == [choice.fleet.headline for choice, _ in found.alternatives]


def test_rows_are_a_table_of_pandas_where_it_is_and_a_sentence_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found = planner.plan(QUESTION)
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = found.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["objective"].tolist() == [row["objective"] for row in found.to_records()]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SpecError, match=r"python -m pip install pandas.*to_records\(\)"):
        found.to_frame()


# -- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (lambda: planner.plan(None), "not NoneType"),  # type: ignore[arg-type]
        (lambda: planner.procure(3), "not int"),  # type: ignore[arg-type]
        (lambda: planner.sweep([]), "not list"),  # type: ignore[arg-type]
        (lambda: planner.plan(QUESTION, time_limit_s="60 s"), "time_limit_s: '60 s'"),  # type: ignore[arg-type]
        (lambda: planner.plan(QUESTION, memory_limit_bytes="2 GiB"), "memory_limit_bytes: '2 GiB'"),  # type: ignore[arg-type]
        (lambda: planner.plan(QUESTION, num_alternatives=-1), "num_alternatives: -1"),
        (lambda: planner.plan(QUESTION, time_limit_s=-1), "time_limit_s: -1 is no limit"),
        (lambda: planner.plan(QUESTION, memory_limit_bytes=float("nan")), "memory_limit_bytes: nan is no limit"),
        (lambda: planner.sweep(SWEEP, num_workers=0), "num_workers: 0"),
        (lambda: planner.sweep(SWEEP, num_workers=100_000), "num_workers: 100000 are too many for this machine"),
        (lambda: planner.explain(QUESTION, {}), "not dict"),  # type: ignore[arg-type]
        (lambda: planner.check(QUESTION, None), "not NoneType"),  # type: ignore[arg-type]
        (lambda: planner.compare({}, {}), "no schema"),
        (lambda: planner.export(3, "ddp"), "not int"),  # type: ignore[arg-type]
        (lambda: planner.timeline(QUESTION, "none", None), "'none' is no family"),
    ],
)
def test_a_wrong_argument_is_told_in_a_sentence(asked: Callable[[], object], words: str) -> None:
    with pytest.raises(SpecError, match=re.escape(words)):
        asked()


def test_a_plan_has_a_timeline_as_its_family_and_configuration_have() -> None:
    found = planner.plan(QUESTION)
    assert planner.timeline(QUESTION, found) == planner.timeline(QUESTION, found.family, found.configuration)
    with pytest.raises(SpecError, match="stands without a configuration"):
        planner.timeline(QUESTION, found.family)


def test_a_timeline_of_another_family_s_configuration_is_refused() -> None:
    found = planner.plan(QUESTION)
    with pytest.raises(SpecError, match=r"a configuration of all_reduce, not of hybrid"):
        planner.timeline(QUESTION, "hybrid", found.configuration)
