import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.cli.run import run
from planner.errors import SpecError
from planner.importers import chrome_trace as trace_events
from planner.importers.chrome_trace import Timeline, read_chrome_trace, read_trace
from planner.importers.imported import MeasuredNetwork

DATA = Path(__file__).parent / "data"
REAL = DATA / "cnn.pt.trace.json.gz"
RANGES = DATA / "cnn_ranges.pt.trace.json.gz"
BATCH_SIZE = 16  # of benchmarks/make_traces.py

Json = dict[str, Any]


def write(folder: Path, events: Sequence[object], **others: object) -> Path:
    path = folder / "net.json"
    path.write_text(json.dumps({"schemaVersion": 1, **others, "traceEvents": events}), encoding="utf-8")
    return path


def event(cat: str, name: str, start: float, length: float, *, thread: int = 1, **args: object) -> Json:
    given = {key.replace("_", " ") if key[0].isupper() else key: value for key, value in args.items()}
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length, "args": given}


def module(name: str, start: float, length: float) -> Json:
    return event("python_function", f"nn.Module: {name}", start, length)


def operator(name: str, start: float, length: float, **args: Any) -> Json:
    return event("cpu_op", name, start, length, **args)


def backward(name: str, start: float, length: float, **args: Any) -> Json:
    return event("cpu_op", f"autograd::engine::evaluate_function: {name}", start, length, **args)


def step(number: int, start: float, length: float) -> Json:
    return event("user_annotation", f"ProfilerStep#{number}", start, length)


def iteration(number: int, start: float, *, scale: float = 1.0) -> list[Json]:
    """A step of a network of two linear layers in a module that adds something between them: 100 us."""
    at = [start + offset for offset in range(100)]
    seq = 10 * number
    return [
        step(number, start, 100),
        module("Net_0", at[1], 40),
        module("Linear_0", at[2], 10),
        operator("aten::linear", at[3], 4 * scale, Sequence_number=seq, Input_Dims=[[8, 4], [6, 4], [6]]),
        operator("aten::addmm", at[3] + 0.5, 2 * scale, Sequence_number=seq + 1),
        operator("aten::relu", at[15], 2 * scale, Sequence_number=seq + 2, Input_Dims=[[8, 6]]),
        module("Linear_1", at[20], 10),
        operator("aten::linear", at[21], 5 * scale, Sequence_number=seq + 3, Input_Dims=[[8, 6], [5, 6], []]),
        operator("aten::sum", at[45], 3),
        backward("AddmmBackward0", at[50], 7 * scale, thread=2, Sequence_number=seq + 3, Fwd_thread_id=1),
        operator("aten::mm", at[51], 2, thread=2),
        backward("torch::autograd::AccumulateGrad", at[60], 1, thread=2),
        backward("ReluBackward0", at[65], 1.5 * scale, thread=2, Sequence_number=seq + 2, Fwd_thread_id=1),
        backward("AddmmBackward0", at[70], 9 * scale, thread=2, Sequence_number=seq + 1, Fwd_thread_id=1),
        event("user_annotation", "Optimizer.step#SGD.step", at[85], 10),
        operator("aten::add_", at[86], 6),
    ]


def seconds(found: MeasuredNetwork, batch_size: int) -> dict[str, Any]:
    """Microseconds of a batch by layer, forward and backward; nearly equal numbers are equal to them."""
    pairs = zip(found.profile.forward_s, found.profile.backward_s, strict=True)
    return {
        layer.name: (pytest.approx(1e6 * batch_size * one), pytest.approx(1e6 * batch_size * two))
        for layer, (one, two) in zip(found.dnn.layers, pairs, strict=True)
    }


def problem_of(path: Path) -> str:
    with pytest.raises(SpecError) as caught:
        read_chrome_trace(path, batch_size=1)
    assert all(fault.file == str(path) and fault.problem for fault in caught.value.faults)
    return str(caught.value).replace(f"{path.parent}/", "")


# -- real traces -------------------------------------------------------------------------------------------------------


def test_a_real_trace_gives_every_module_and_what_stands_between_them() -> None:
    found = read_chrome_trace(REAL, batch_size=BATCH_SIZE)
    block = ["batch_norm", "convolution", "activation", "convolution", "add"]
    kinds = ["convolution", *block, *block, "pooling", "pooling", "flatten", "fully_connected"]
    assert [layer.kind for layer in found.dnn.layers] == kinds
    names = [layer.name for layer in found.dnn.layers]
    assert names[:6] == ["Conv2d_0", "BatchNorm2d_0", "Conv2d_1", "Block_0.relu", "Conv2d_2", "Block_0.add"]
    assert found.dnn.num_trainable == (3 * 9 + 1) * 8 + 2 * (16 + 8 * 73 + 8 * 72) + 330
    assert [layer.num_output_elements for layer in found.dnn.layers][-4:] == [8 * 8 * 8, 8 * 4, 32, 10]
    assert found.dnn.layers[1].num_output_elements == 8 * 16 * 16
    assert (found.profile.forward_s > 0).all()
    assert (found.profile.backward_s > 0).all()
    assert found.profile.is_measured
    assert found.warnings == ("a trace has no data flow: its layers are taken for a chain, in order of execution",)


def test_no_time_of_a_real_trace_is_lost() -> None:
    """Parts, what is outside of modules, and the update sum to all operators that stand in no other."""
    events = json.loads(gzip.decompress(REAL.read_bytes()))["traceEvents"]
    steps = sorted((one["ts"], one["ts"] + one["dur"]) for one in events if one["name"].startswith("ProfilerStep#"))
    operators = [one for one in events if one.get("cat") == "cpu_op"]
    outermost = [
        one
        for one in operators
        if not any(
            other is not one
            and other["tid"] == one["tid"]
            and other["ts"] <= one["ts"]
            and one["ts"] + one["dur"] <= other["ts"] + other["dur"]
            for other in operators
        )
    ]
    found = Timeline(read_trace(REAL)[0], scopes="module").steps()
    assert len(found) == len(steps) == 4
    ends = [start for start, _ in steps[1:]] + [steps[-1][1]]
    for one, (start, _), end in zip(found, steps, ends, strict=True):
        inside = sum(part.forward_s + part.backward_s for part in one.parts.values())
        total = sum(other["dur"] for other in outermost if start <= other["ts"] < end)
        assert 1e6 * (inside + one.outside_s + one.update_s) == pytest.approx(total)
        assert inside > one.outside_s


def test_ranges_of_record_function_are_modules_where_there_are_no_others() -> None:
    found = read_chrome_trace(RANGES, batch_size=BATCH_SIZE)
    assert [layer.name for layer in found.dnn.layers] == [f"part{index}" for index in range(7)]
    modules = read_chrome_trace(REAL, batch_size=BATCH_SIZE)
    assert found.dnn.num_trainable == modules.dnn.num_trainable
    assert (found.profile.backward_s > 0).all()


# -- what belongs where ------------------------------------------------------------------------------------------------


def test_backward_nodes_find_their_module_by_sequence_number(tmp_path: Path) -> None:
    found = read_chrome_trace(write(tmp_path, iteration(3, 1000)), batch_size=8)
    assert seconds(found, 8) == {"Linear_0": (4, 9), "Net_0.relu": (2, 1.5), "Linear_1": (5, 7 + 1)}
    assert found.profile.update_s == pytest.approx(6e-6)
    assert [layer.num_trainable for layer in found.dnn.layers] == [30, 0, 30]
    assert [layer.output_shape for layer in found.dnn.layers] == [(6,), (6,), (5,)]
    assert [found.dnn.inputs_of(layer.name) for layer in found.dnn.layers] == [(), ("Linear_0",), ("Net_0.relu",)]


def test_seconds_are_medians_over_the_steps_but_for_the_first_of_many(tmp_path: Path) -> None:
    few = [one for number, scale in enumerate([0.25, 0.5, 1]) for one in iteration(number, 100 * number, scale=scale)]
    assert seconds(read_chrome_trace(write(tmp_path, few), batch_size=1), 1)["Linear_0"] == (2, 4.5)
    many = [
        one for number, scale in enumerate([1, 0.25, 0.5, 0.25]) for one in iteration(number, 100 * number, scale=scale)
    ]
    assert seconds(read_chrome_trace(write(tmp_path, many), batch_size=1), 1)["Linear_0"] == (1, 2.25)


def test_the_order_of_the_events_does_not_matter(tmp_path: Path) -> None:
    events = [*iteration(0, 0), *iteration(1, 100)]
    one = read_chrome_trace(write(tmp_path, events), batch_size=1)
    two = read_chrome_trace(write(tmp_path, events[::-1]), batch_size=1)
    assert [layer.name for layer in one.dnn.layers] == [layer.name for layer in two.dnn.layers]
    assert np.array_equal(one.profile.forward_s, two.profile.forward_s)
    assert np.array_equal(one.profile.backward_s, two.profile.backward_s)


@pytest.mark.parametrize("link", ["correlation", "External id"])
def test_kernels_count_with_their_own_seconds_where_there_are_any(tmp_path: Path, link: str) -> None:
    events = iteration(0, 0)
    launches = [(4.5, 1, 40.0), (22, 1, 30.0), (51.5, 2, 70.0), (72, 2, 90.0), (87, 1, 11.0), (46, 1, 13.0)]
    for number, (start, thread, length) in enumerate(launches):
        if link == "correlation":
            events.append(event("cuda_runtime", "cudaLaunchKernel", start, 0.2, thread=thread, correlation=number))
            args: Json = {"correlation": number}
        else:
            events.append(operator("aten::inner", start, 0.2, thread=thread, External_id=900 + number))
            args = {"External id": 900 + number}
        kernel = event("kernel", "gemm", 200 + 100 * number, length, thread=7)
        events.append({**kernel, "args": args})
    found = read_chrome_trace(write(tmp_path, events), batch_size=1)
    assert seconds(found, 1) == {"Linear_0": (40, 90), "Net_0.relu": (0, 0), "Linear_1": (30, 70)}
    assert found.profile.update_s == pytest.approx(11e-6)


def test_kernels_of_collectives_are_no_work_of_a_module(tmp_path: Path) -> None:
    events = iteration(0, 0)
    for number, (start, thread, name) in enumerate([(4.5, 1, "gemm"), (51.5, 2, "ncclDevKernel_AllReduce_Sum_f32")]):
        events.append(event("cuda_runtime", "cudaLaunchKernel", start, 0.2, thread=thread, correlation=number))
        events.append(event("kernel", name, 200, 40, thread=7 + number, correlation=number))
    found = read_chrome_trace(write(tmp_path, events), batch_size=1)
    assert seconds(found, 1) == {"Linear_0": (40, 0), "Net_0.relu": (0, 0), "Linear_1": (0, 0)}
    assert any("1 kernels of collectives are left out" in warning for warning in found.warnings)


def test_kernels_that_nobody_launched_are_told(tmp_path: Path) -> None:
    events = [*iteration(0, 0), event("kernel", "gemm", 5, 4, thread=7, correlation=1)]
    events.append(event("kernel", "gemm", 5, 4, thread=7, correlation=2))
    events.append(event("cuda_runtime", "cudaLaunchKernel", 4.5, 0.5, correlation=2))
    found = read_chrome_trace(write(tmp_path, events), batch_size=1)
    assert any("1 kernels were launched by no operator" in warning for warning in found.warnings)


def test_a_forward_pass_that_runs_again_counts_as_backward(tmp_path: Path) -> None:
    events = [
        step(0, 0, 100),
        module("Linear_0", 1, 10),
        operator("aten::linear", 2, 4),
        operator("CheckpointFunction", 12, 1, Sequence_number=5),
        backward("CheckpointFunctionBackward", 20, 50, Sequence_number=5, Fwd_thread_id=1),
        module("Linear_0", 22, 10),
        operator("aten::linear", 23, 6, Sequence_number=40, Fwd_thread_id=0),
        backward("AddmmBackward0", 40, 9, Sequence_number=40, Fwd_thread_id=1),
    ]
    events[3:4] = [module("Net_0", 11, 5), operator("CheckpointFunction", 12, 1, Sequence_number=5)]
    found = read_chrome_trace(write(tmp_path, events), batch_size=1)
    assert seconds(found, 1) == {"Linear_0": (4, 0), "Net_0": (1, 50)}


def test_a_module_that_runs_twice_in_a_step_is_one_layer(tmp_path: Path) -> None:
    shapes = [[8, 4], [6, 4], [6]]
    events = [step(0, 0, 100)]
    for start, length in ((1, 4), (21, 7)):
        events += [module("Linear_0", start, 10), operator("aten::linear", start + 1, length, Input_Dims=shapes)]
    found = read_chrome_trace(write(tmp_path, events), batch_size=1)
    assert seconds(found, 1) == {"Linear_0": (11, 0)}
    assert found.dnn.num_trainable == 30
    assert any("no backward pass" in warning for warning in found.warnings)


def test_without_marks_a_step_begins_with_each_call_of_the_outermost_module(tmp_path: Path) -> None:
    events = [one for number in range(3) for one in iteration(number, 100 * number) if "Profiler" not in one["name"]]
    found = read_chrome_trace(write(tmp_path, events), batch_size=1)
    assert seconds(found, 1)["Linear_1"] == (5, 8)
    assert any("no steps are marked" in warning for warning in found.warnings)


def test_shapes_that_are_missing_are_told(tmp_path: Path) -> None:
    events = iteration(0, 0)
    for one in events:
        one["args"].pop("Input Dims", None)
    found = read_chrome_trace(write(tmp_path, events), batch_size=1)
    assert any("record_shapes=True" in warning for warning in found.warnings)
    assert found.dnn.num_trainable == 0


def test_much_time_outside_of_modules_is_told(tmp_path: Path) -> None:
    events = [*iteration(0, 0), operator("aten::copy_", 96, 40)]
    found = read_chrome_trace(write(tmp_path, events), batch_size=1)
    assert any("of the time of operators is outside of modules" in warning for warning in found.warnings)


def test_ranges_that_overlap_are_told(tmp_path: Path) -> None:
    events = [*iteration(0, 0), operator("aten::add", 25, 20)]
    found = read_chrome_trace(write(tmp_path, events), batch_size=1)
    assert any("overlap without standing in one another" in warning for warning in found.warnings)


def test_a_list_of_events_is_a_trace_too(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    path.write_text(json.dumps(iteration(0, 0)), encoding="utf-8")
    assert len(read_chrome_trace(path, batch_size=1).dnn.layers) == 3


# -- what is wrong -----------------------------------------------------------------------------------------------------


def test_a_trace_without_modules_is_refused_with_the_options_to_use(tmp_path: Path) -> None:
    events = [one for one in iteration(0, 0) if "nn.Module" not in one["name"]]
    text = problem_of(write(tmp_path, events))
    assert "net.json: there are no modules among its 13 events." in text
    assert "with_stack=True, record_shapes=True" in text
    assert "record_function" in text


def test_the_command_line_refuses_it_with_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, [step(0, 0, 9), operator("aten::linear", 1, 4)])
    assert run(["import", str(path), "--profile-batch", "4"]) == 2
    assert "with_stack=True" in capsys.readouterr().err


def test_modules_without_operators_are_refused(tmp_path: Path) -> None:
    assert "its modules hold no operators" in problem_of(write(tmp_path, [step(0, 0, 9), module("Linear_0", 1, 4)]))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file ends in the middle, behind 0 whole events, or is no JSON"),
        (b"{", "the file ends in the middle"),
        (b"hello", "this is no JSON object"),
        (b"3", "this is no JSON object"),
        (b"{}", "there is no list traceEvents in it"),
        (b'{"a": [1, 2], "b": {"c": "traceEvents"}}', "there is no list traceEvents in it"),
        (b'{"traceEvents": {}}', "traceEvents is no list"),
        (b'{"traceEvents": []}', "there are no modules among its 0 events"),
        (b'{"traceEvents": [1, null, "x", [], {}]}', "there are no modules among its 0 events"),
        (b'{"traceEvents": [{} {}]}', "event 1 is followed by '{'"),
        (b'{"traceEvents": [{"ph": }]}', "the file ends in the middle"),
        (b'{"a" 3}', "this is no JSON object"),
        (b'{1: 3}', "this is no JSON object"),
        (b"\xff\xfe\x00", "this is not UTF-8 text"),
        (b"\x1f\x8bgarbage", "the compressed file is damaged or cut off"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-12], "the compressed file is damaged or cut off"),
        (b'{"traceEvents": [' + b"[" * 100_000, "event 1 is nested too deeply"),
        (b'{"traceEvents": [' + b"9" * 5000 + b"]}", "event 1 is no JSON"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "net.json"
    path.write_bytes(content)
    assert f"net.json: {problem}" in problem_of(path)


@pytest.mark.parametrize(("key", "value"), [("dur", -1), ("dur", "3"), ("dur", None), ("ts", 1e300), ("ts", True)])
def test_times_that_cannot_be_are_told_all_in_one_pass(tmp_path: Path, key: str, value: object) -> None:
    events = iteration(0, 0)
    events[3][key] = events[5][key] = value
    text = problem_of(write(tmp_path, events))
    assert f"net.json: {key}: event 4 ('aten::linear'): {value!r} is no time" in text
    assert "event 6 ('aten::relu')" in text


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_told(tmp_path: Path, number: str) -> None:
    path = write(tmp_path, iteration(0, 0))
    path.write_text(path.read_text().replace('"ts": 3,', f'"ts": {number},', 1))
    assert "event 4 ('aten::linear')" in problem_of(path)


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_events, "MOST_TRACE_BYTES", 5 * 2**20)
    bomb = tmp_path / "net.json.gz"
    bomb.write_bytes(gzip.compress(b'{"traceEvents": [' + b"0,     " * 2**23, mtime=0))
    assert bomb.stat().st_size < 2**17
    assert "it holds more than 5242880 bytes of text. Profile fewer steps." in problem_of(bomb)
    bomb.write_bytes(gzip.compress(b'{"traceEvents": ["' + b"a" * 2**26, mtime=0))
    assert "event 1 is no JSON, or is longer than 4194304" in problem_of(bomb)


def test_too_many_events_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_events, "MOST_EVENTS", 10)
    assert "it holds more than 10 events. Profile fewer steps." in problem_of(write(tmp_path, iteration(0, 0)))


def test_folders_and_missing_files_are_refused(tmp_path: Path) -> None:
    assert "this is not a regular file" in problem_of(tmp_path)
    assert "there is no such file" in problem_of(tmp_path / "nowhere.json")


@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_trace_that_is_cut_off_anywhere_is_refused(tmp_path: Path, is_compressed: bool) -> None:
    text = write(tmp_path, iteration(0, 0)).read_bytes()
    whole = gzip.compress(text, mtime=0) if is_compressed else text
    path = tmp_path / "cut.json"
    # What stands behind the list of events is of no use, so that it may be missing.
    for size in range(0, len(whole) - 10 * is_compressed - 2, 37):
        path.write_bytes(whole[:size])
        problem_of(path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_stands_in_the_events_gives_a_network_or_a_fault(tmp_path: Path, data: st.DataObject) -> None:
    events: list[Any] = [*iteration(0, 0), *iteration(1, 100)]
    odd = st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=3))
    odd = st.one_of(odd, st.lists(odd, max_size=3), st.dictionaries(st.text(max_size=3), odd, max_size=2))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(events) - 1))
        if not isinstance(events[at], dict) or data.draw(st.booleans()):
            events[at] = data.draw(odd)
            continue
        key = data.draw(
            st.sampled_from([*events[at], "Input Dims", "Sequence number", "Concrete Inputs", "correlation"])
        )
        target = events[at] if key in events[at] else events[at].get("args")
        if isinstance(target, dict):
            target[key] = data.draw(odd)
    try:
        found = read_chrome_trace(write(tmp_path, events), batch_size=2)
    except SpecError as error:
        assert error.faults  # either way is right
    else:
        assert (found.profile.forward_s >= 0).all()
        assert (found.profile.backward_s >= 0).all()
