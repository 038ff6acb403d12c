"""Timelines read by the parser of Holistic Trace Analysis, which reads the traces of torch.profiler."""

import json
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.api import configuration_of, timeline

hta: Any = pytest.importorskip(
    "hta.common.trace_parser", reason="HolisticTraceAnalysis is not installed; run make test-heavy"
)
settings: Any = pytest.importorskip("hta.configs.parser_config", reason="HolisticTraceAnalysis is not installed")

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
MACHINES = {"machines": [{"name": "w", "count": 3, "device": "v100", "network": "10 Gbit/s"}]}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "all_reduce": {"num_devices": 3, "gradient_accumulation_steps": 2},
    "parameter_server": {"num_parameter_servers": 1},
    "pipeline": {"num_microbatches": 4},
}


@pytest.mark.parametrize("family", CONFIGURATIONS)
def test_every_slice_is_read_with_its_times(tmp_path: Path, family: str) -> None:
    network = {"zoo": "alexnet", "global_batch": 48}
    block = {family: CONFIGURATIONS[family]}
    if family == "pipeline":
        names = [layer.name for layer in planner.load({"dnn": network, "cluster": MACHINES}).dnn.layers]
        half = len(names) // 2
        stages = [{"first": names[0], "last": names[half - 1]}, {"first": names[half], "last": names[-1]}]
        block[family] = {**block[family], "stages": stages}
    problem = planner.load({"dnn": network, "cluster": MACHINES, "configuration": block})
    name, configuration = configuration_of(problem)
    document = timeline(problem, name, configuration, devices="all", has_parts=True)
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(document))
    told, rows, symbols = hta.parse_trace_dataframe(str(file), settings.ParserConfig.get_default_cfg())
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert told["otherData"]["family"] == family
    assert len(rows) == len(slices) > 20
    words = symbols.get_sym_table()
    assert [words[number] for number in rows["name"]] == [event["name"] for event in slices]
    assert rows[["pid", "tid"]].to_numpy().tolist() == [[event["pid"], event["tid"]] for event in slices]
    starts = [event["ts"] for event in slices]
    assert rows["ts"].tolist() == pytest.approx(starts, abs=1.0)  # the parser counts in whole microseconds
