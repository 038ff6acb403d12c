"""Small questions of all families, drawn the same every time; a few are wrong, or have no answer, on purpose.

Every question has a lot of its own, seeded by its name: new kinds, or more of a kind, leave the others as they are.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tests.equality.asking import Question

__all__ = ["drawn"]

Block = dict[str, Any]
T = TypeVar("T")

PLAN = ("plan", "question.yaml")
PREDICT = ("predict", "question.yaml")
ORDERS = (
    "tensor-context-data-pipeline",
    "tensor-context-pipeline-data",
    "tensor-pipeline-context-data",
    "context-data-tensor-pipeline",
    "pipeline-tensor-context-data",
)


class Lot:
    """Random choices that are the same in every version of Python."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def one(self, *options: T) -> T:
        """Return one of the options."""
        return options[int(self._random.random() * len(options))]

    def number(self, least: int, most: int) -> int:
        """Return a whole number of a range, both ends included."""
        return least + int(self._random.random() * (most - least + 1))

    def chance(self, share: float) -> bool:
        """Return whether something happens that does in a share of all cases."""
        return self._random.random() < share

    def some(self, options: Mapping[str, Sequence[Any]], share: float) -> Block:
        """Return each key with a chance, and one of its values."""
        return {key: self.one(*values) for key, values in options.items() if values and self.chance(share)}


def filled(**blocks: Any) -> Block:
    """Return a spec without the blocks that are empty."""
    return {key: block for key, block in blocks.items() if block not in ({}, None)}


# -- networks and machines -------------------------------------------------------------------------------------------


def chain(lot: Lot, least: int = 1, most: int = 5) -> list[Block]:
    """Return a few layers with skips."""
    layers: list[Block] = []
    is_measured = lot.chance(0.5)
    for index in range(lot.number(least, most)):
        inputs = [f"layer{index - 1}"] if index else []
        if index > 1 and lot.chance(0.25):
            inputs.append(f"layer{lot.number(0, index - 2)}")
        row: Block = {"name": f"layer{index}", "inputs": inputs}
        row |= {"parameters": f"{lot.one(0, 1, 4, 9, 40)} MB", "output": f"{lot.one(1, 2, 4)} MB"}
        if is_measured:
            row |= {"forward": f"{lot.number(1, 9)} ms", "backward": f"{lot.number(1, 20)} ms"}
        else:
            row["multiply_adds"] = lot.number(1, 90) * 10**8
        layers.append(row)
    layers[0]["parameters"] = "5 MB"
    return layers


def network(lot: Lot, *, device: str, least: int = 1, most: int = 5) -> Block:
    """Return a network of few layers, or one of the zoo."""
    if lot.chance(0.25):
        return {"zoo": lot.one("alexnet", "overfeat", "vgg11", "resnet18"), "dataset_samples": 10_000}
    layers = chain(lot, least, most)
    block: Block = {"layers": layers, "dataset_samples": lot.one(500, 1000, 4096)}
    if "forward" in layers[0]:
        block |= {"profile_batch": lot.one(1, 2), "profile_device": device}
    return block


def machine(lot: Lot, name: str, *, kind: int = 0, count: int = 0, devices: int = 0) -> Block:
    """Return a group of machines of made-up devices."""
    found: Block = {
        "name": name,
        "count": count or lot.number(1, 4),
        "devices": devices or lot.one(1, 1, 2, 4),
        "device": {
            "name": f"kind{kind}",
            "fp32": f"{1 + kind * lot.one(1, 2)} TFLOP/s",
            "memory": f"{lot.one(400, 2000, 16000)} MB",
            "memory_bandwidth": "100 GB/s",
        },
        "inside": {"bandwidth": f"{lot.one(2, 10)} GB/s", "latency": "3 us"},
        "network": f"{lot.one(1, 10, 25, 100)} Gbit/s",
        "latency": f"{lot.one(0, 20, 500, 3000)} us",
    }
    if lot.chance(0.3):
        found["storage"] = {"bandwidth": f"{lot.one(20, 200, 2000)} MB/s", "shared": lot.one(False, True, 2)}
    if lot.chance(0.15):
        found["nics"] = lot.one(1, 2)
    return found


def batch_of(lot: Lot) -> tuple[Block, str]:
    """Return a batch, and an objective that can be asked of it."""
    batch: Block = lot.one(
        {"global_batch": lot.one(4, 6, 7, 12, 16)},
        {"global_batch": lot.one(8, 24)},
        {"batch_per_device": lot.one(1, 2, 3)},
        {"max_global_batch": lot.one(5, 8)},
        {"batch_per_device": 2, "max_global_batch": lot.one(6, 9)},
    )
    objective = (
        "epoch_time" if "max_global_batch" in batch else lot.one("epoch_time", "iteration_time", "training_time")
    )
    if objective == "training_time":
        batch["epochs"] = lot.one(1, 3, 12)
    return batch, objective


def calibration(lot: Lot, share: float = 0.15) -> Block:
    """Return how a framework and its links behave."""
    options: dict[str, Sequence[Any]] = {
        "utilisation": (0.3, 0.5, 1.0),
        "bandwidth_efficiency": (0.6, 0.9),
        "inside_efficiency": (0.5, 0.8),
        "overhead": ("1 ms", "8 ms"),
        "negotiate": ("100 us",),
        "update": ("2 ms",),
        "aggregation": (True, False),
        "algorithms": (["ring"], ["tree", "ring"], ["two_level"]),
        "strategy": ("naive", "cntk", "mxnet", "caffe_mpi"),
        "prefetch": ("pipelined", "single"),
        "fusion_unit": ("layer", "tensor"),
        "split_tensors": (True, False),
        "memory_reserve": ("50 MB", "0 B"),
        "straggler_deviation": ("1 ms", "5 ms"),
        "queue": ({"switch": "10 GB/s", "packet": "1500 B", "hops": 2},),
        "known_error": ([{"of": "all_reduce", "mean": 0.05, "worst": 0.2}],),
    }
    found = lot.some(options, share)
    if lot.chance(share):
        found |= {"wait": lot.one("exact", "paper"), "timeout": lot.one("1 ms", "50 ms")}
    return found


def limits(lot: Lot, most: int, share: float = 0.2) -> Block:
    """Return constraints; some leave nothing."""
    return lot.some(
        {
            "devices": (1, 2, {"at_least": 2}, {"at_most": max(1, most // 2)}, most),
            "machines": ({"at_most": 1}, {"at_most": 2}, 2, {"at_least": 2}),
            "memory_per_device": ("60 MB", "150 MB", "500 MB", "4 GB"),
            "deadline": ("1 ms", "2 s", "1 min", "10 min", "1 h", "10 h"),
        },
        share * 0.6,
    )


def num_devices(groups: Sequence[Block]) -> int:
    return sum(int(one["count"]) * int(one.get("devices", 1)) for one in groups)


# -- data parallelism by all-reduce ----------------------------------------------------------------------------------


def all_reduce(lot: Lot, *, is_mixed: bool) -> Block:
    if is_mixed:
        groups = [
            machine(lot, "a", count=lot.one(1, 2), devices=lot.one(1, 2)),
            machine(lot, "b", kind=1, count=lot.one(1, 2), devices=lot.one(1, 2)),
        ]
    else:
        groups = [machine(lot, "a")]
    batch, objective = batch_of(lot)
    fix = lot.some(
        {
            "num_devices": (1, 2, num_devices(groups)),
            "num_machines": (1, 2),
            "devices_per_machine": (1, 2),
            "gradient_accumulation_steps": (1, 2, 3),
            "algorithm": ("ring", "tree", "two_level"),
            "batch_shares": ("equal",),
            "device": ("kind0",),
        },
        0.08,
    )
    return filled(
        dnn={
            **network(lot, device="kind0"),
            **batch,
            **lot.some({"sample_bytes": ("100 kB", "1 MB"), "optimizer": ("sgd", "momentum", "adam")}, 0.3),
        },
        cluster={"machines": groups},
        calibration=calibration(lot),
        objective=objective,
        constraints=limits(lot, num_devices(groups)),
        families=["all_reduce"],
        compression={"time": f"{lot.one(0, 2, 20)} ms", "at_most": lot.one(0.5, 0.75, 0.99)}
        if lot.chance(0.12)
        else None,
        fix=fix,
    )


def measured_curves(lot: Lot) -> Block:
    """Return a question whose links are measured, or follow a law by pieces."""
    found = all_reduce(lot, is_mixed=False)
    number = lot.one(2, 4)
    found["cluster"] = {"machines": [machine(lot, "a", count=number, devices=1)]}
    points = [["0 B", f"{lot.one(10, 90)} us"], ["1 MB", f"{lot.one(1, 3)} ms"], ["100 MB", f"{lot.one(60, 200)} ms"]]
    piecewise = {
        "num_devices": number,
        "log_slope": "20 us",
        "log_offset": "-100 us",
        "bandwidth": f"{lot.one(1, 4)} GB/s",
        "threshold": "64 kB",
    }
    one = lot.one({"curves": [{"num_devices": number, "points": points}]}, {"piecewise": [piecewise]})
    found |= {"calibration": {"utilisation": 0.5, **one}, "fix": {"num_devices": number}}
    found.pop("constraints", None)
    return found


def testbed(lot: Lot) -> Block:
    """Return a question on machines that are built in, some with layers that may be replaced."""
    zoo = lot.one("alexnet", "vgg16", "resnet50", "googlenet", "vgg11", "resnet34")
    dnn: Block = {"zoo": zoo, "batch_per_device": lot.one(16, 32, 64)}
    if zoo == "vgg16" and lot.chance(0.7):
        dnn["substitutions"] = [{"name": "head", "layers": ["fc6", "...", "fc8"], "by": "vgg16-conv-head"}]
    return filled(
        dnn=dnn,
        cluster={"preset": lot.one("osf-testbed", "dag-k80", "dag-v100", "het-gpu", "gst-1g")},
        families=["all_reduce"],
        calibration=calibration(lot, 0.1),
        constraints=lot.some({"devices": (4, 8, {"at_most": 16}), "machines": (2,)}, 0.2),
    )


def drawn_network(lot: Lot) -> Block:
    """Return machines on switches, link by link."""
    nodes: list[Block] = []
    for index in range(lot.number(1, 2)):
        group = machine(lot, f"g{index}", kind=index, devices=lot.one(1, 2), count=lot.one(1, 2))
        nodes.append({key: value for key, value in group.items() if key not in ("network", "latency", "nics")})
    nodes += [{"name": "leaf", "type": "switch"}, {"name": "spine", "type": "switch"}]
    links = [
        {
            "ends": [node["name"], lot.one("leaf", "spine")],
            "bandwidth": f"{lot.one(1, 10, 25)} Gbit/s",
            "latency": "5 us",
        }
        for node in nodes[:-2]
    ]
    links.append({"ends": ["leaf", "spine"], "bandwidth": f"{lot.one(1, 5, 40)} Gbit/s", "latency": "1 us"})
    batch, objective = batch_of(lot)
    return filled(
        dnn={**network(lot, device="kind0", most=4), **batch},
        cluster={"nodes": nodes, "links": links},
        objective=objective,
        families=[lot.one("all_reduce", "all_reduce", "all_reduce", "parameter_server", "pipeline")],
    )


# -- parameter servers -----------------------------------------------------------------------------------------------

HOSTS = ("dual-xeon-gold-6126", "xeon-e5-2660")


def servers(lot: Lot, *, is_mixed: bool, is_loose: bool) -> Block:
    groups = [machine(lot, "fast", count=lot.one(1, 2, 3), devices=lot.one(1, 1, 2))]
    if is_mixed:
        groups.append(machine(lot, "slow", kind=1, count=lot.one(1, 2), devices=1))
    if lot.chance(0.6):
        groups.append(
            {
                "name": "hosts",
                "count": lot.one(1, 2),
                "device": lot.one(*HOSTS),
                "network": f"{lot.one(10, 25)} Gbit/s",
                "latency": "20 us",
            }
        )
    batch, objective = batch_of(lot)
    pins: dict[str, Sequence[Any]] = {
        "num_parameter_servers": (1, 2, 3),
        "servers": (groups[-1]["name"], "fast"),
        "co_located": (True, False),
        "batch_shares": ("equal",),
        "num_devices": (1, 2),
        "num_machines": (2, 3),
    }
    constraints = limits(lot, num_devices(groups), 0.02 if is_loose else 0.12)
    fix = lot.some(pins, 0.03 if is_loose else 0.12)
    if is_loose:
        batch = {"batch_per_device": lot.one(1, 2, 4)} if lot.chance(0.8) else batch
        objective = lot.one("epoch_time", "training_time") if lot.chance(0.9) else objective
        if objective == "training_time":
            batch["epochs"] = 2
        constraints["max_staleness"] = lot.one(0, 1, 4, "unbounded")
        if lot.chance(0.5):
            fix["synchronisation"] = lot.one("bsp", "ssp", "asp", "local_sgd")
    return filled(
        dnn={**network(lot, device="kind0", most=4), **batch},
        cluster={"machines": groups},
        calibration=calibration(lot, 0.12),
        objective=objective,
        constraints=constraints,
        families=["parameter_server"],
        compression={"time": "2 ms", "at_most": 0.9} if lot.chance(0.1) else None,
        fix=fix,
    )


def servers_alone(lot: Lot) -> Block:
    """Return a question in which sums of gradients may go on their own."""
    spec = servers(lot, is_mixed=lot.chance(0.3), is_loose=False)
    spec.pop("compression", None)
    allowed = {"max_overlap": lot.one("push_pull", "push_pull_forward", "push_pull_forward")}
    pins = lot.some({"priority": (True, False), "overlap": ("push", "push_pull"), "barrier": (True, False)}, 0.1)
    return spec | {"calibration": spec.get("calibration", {}) | allowed, "fix": spec.get("fix", {}) | pins}


# -- replicas of a model, whose layers are cut ------------------------------------------------------------------------


def replicas(lot: Lot) -> Block:
    batch: Block = lot.one(
        {"global_batch": lot.one(7, 12, 120)}, {"max_global_batch": 12}, {"batch_per_device": 3, "max_global_batch": 9}
    )
    group = {
        "name": "w",
        "count": lot.number(2, 5),
        "device": "xeon-e5-2660",
        "network": f"{lot.one(1, 40, 10_000)} Mbit/s",
        "latency": f"{lot.one(0, 20)} us",
    }
    cores = lot.one(1, 2, 3)
    constants = {
        "cores": cores,
        "utilisation": lot.one(0.1, 0.5),
        **lot.some({"activation": ("1 ns",), "error": ("2 ns",)}, 0.4),
    }
    if lot.chance(0.4):
        constants["interference"] = [[number, 1 + 0.4 * (number - 1)] for number in range(1, cores + 1)]
    if lot.chance(0.6):
        size = lot.one(64, 256)
        rows = range(lot.number(1, 3))
        layers = [
            {"name": f"fc{index}", "kind": "fully_connected", "inputs": [f"fc{index - 1}" if index else "in"], "shape": [size],
             "multiply_adds": size * size, "tensors": [{"name": f"fc{index}.w", "elements": size * size}]}
            for index in rows
        ]  # fmt: skip
        dnn: Block = {"layers": [{"name": "in", "kind": "input", "shape": [size]}, *layers], "dataset_samples": 1000}
    else:
        dnn = {"zoo": "adam-mnist"}
    objective = "epoch_time" if "max_global_batch" in batch else lot.one("epoch_time", "iteration_time")
    pins = {
        "num_replicas": (1, 2),
        "num_parameter_servers": (1,),
        "num_workers_per_replica": (1, 2),
        "num_machines": (3,),
        "num_devices": (2,),
    }
    bounds = {
        "machines": (4, {"at_most": 3}),
        "devices": ({"at_least": 2},),
        "memory_per_device": ("1 MB", "6 MB"),
        "deadline": ("1 ms", "1 h"),
    }
    return filled(
        dnn={**dnn, **batch},
        cluster={"machines": [group]},
        calibration=constants,
        objective=objective,
        constraints=lot.some(bounds, 0.12),
        families=["model_replicas"],
        fix=lot.some(pins, 0.12),
    )


# -- pipelines -------------------------------------------------------------------------------------------------------


def pipeline(lot: Lot, *, is_mixed: bool) -> Block:
    groups = [
        machine(lot, f"g{index}", kind=index, count=lot.one(1, 2), devices=lot.one(1, 2))
        for index in range(1 + is_mixed)
    ]
    batch, objective = batch_of(lot)
    if batch.get("batch_per_device"):
        batch["batch_per_device"] = 1
    pins = {
        "num_stages": (1, 2, 3),
        "num_microbatches": (1, 2, 3),
        "schedule": ("1f1b", "gpipe", "interleaved"),
        "num_devices": (1, 2, num_devices(groups)),
        "chunks_per_device": (1, 2),
    }
    return filled(
        dnn={**network(lot, device="kind0", least=2, most=5), **batch},
        cluster={"machines": groups},
        calibration=calibration(lot, 0.08),
        objective=objective,
        constraints=limits(lot, num_devices(groups), 0.15),
        families=["pipeline"],
        fix=lot.some(pins, 0.1),
    )


# -- layouts of transformers -----------------------------------------------------------------------------------------

EXCLUDED: dict[str, Sequence[Any]] = {
    "schedule": (["gpipe"], ["interleaved"], ["1f1b"]),
    "tensor_parallel_size": ([2], [4, 8]),
    "context_parallel_size": ([1], [2]),
    "pipeline_parallel_size": ([1], [2]),
    "data_parallel_size": ([2], [4], [8]),
    "expert_parallel_size": ([2],),
    "chunks_per_device": ([2],),
    "microbatch_size": ([1], [2, 4]),
    "zero_stage": ([1], [2, 3], [0]),
    "recompute": (["full"], ["none"]),
    "sequence_parallel": ([True], [False]),
    "overlap_data": ([True],),
    "overlap_tensor": ([True],),
    "offload_optimizer": ([True],),
    "rank_order": ([ORDERS[0]], [ORDERS[1], ORDERS[2]]),
}
PINNED: dict[str, Sequence[Any]] = {
    "num_devices": (4, 8),
    "num_machines": (1, 2),
    "tensor_parallel_size": (1, 2, 4),
    "context_parallel_size": (1, 2),
    "pipeline_parallel_size": (1, 2, 4),
    "num_stages": (2,),
    "data_parallel_size": (1, 2, 4),
    "expert_parallel_size": (1, 2),
    "chunks_per_device": (1, 2),
    "microbatch_size": (1, 2),
    "num_microbatches": (2, 4, 8),
    "zero_stage": (0, 1, 2, 3),
    "recompute": ("none", "selective", "full"),
    "schedule": ("gpipe", "1f1b", "interleaved"),
    "zero_bubble": (True, False),
    "sequence_parallel": (True, False),
    "overlap_data": (True, False),
    "overlap_tensor": (True, False),
    "offload_optimizer": (True, False),
    "rank_order": ORDERS,
}


def transformer(lot: Lot, *, has_experts: bool) -> Block:
    """Return the sizes of a small transformer, of any make."""
    heads = lot.one(8, 16)
    block: Block = {
        "layers": lot.one(2, 4, 4, 6, 8),
        "hidden": lot.one(512, 1024),
        "heads": heads,
        "vocabulary": lot.one(8000, 32000),
        "sequence_length": lot.one(512, 1024, 2048),
    }
    block |= lot.some(
        {
            "kv_heads": (heads // 2,),
            "feed_forward": (2048,),
            "gated": (True, False),
            "tied_embeddings": (True, False),
            "causal": (True, False),
            "positions": ("learned", "rotary", "alibi", "none"),
            "norm": ("layer_norm", "rms_norm"),
            "norm_position": ("before", "after", "parallel"),
            "biases": (True, False),
            "qkv_biases": (True,),
            "head": ("language", "masked_language", "none"),
        },
        0.15,
    )
    if has_experts:
        count = lot.one(4, 8)
        block["experts"] = {
            "count": count,
            "top_k": lot.one(1, 2),
            "size": lot.one(512, 1024),
            **lot.some({"shared": (1,), "every": (2,), "dense_first": (1,), "router_bias": (True,)}, 0.2),
        }
    elif lot.chance(0.06):
        block["latent_attention"] = {
            "query_rank": 256,
            "key_value_rank": 128,
            "rope_size": 32,
            "nope_size": 64,
            "value_size": 64,
        }
        block.pop("kv_heads", None)
    return block


def accelerators(lot: Lot, name: str, device: str, *, count: int = 0, devices: int = 0) -> Block:
    inside = {
        "a100-sxm4-80gb": "nvlink-3",
        "h100-sxm": "nvlink-4",
        "v100-sxm2-32g": "nvlink-2",
        "l40s": "pcie-4-x16",
        "rtx-4090": "pcie-4-x16",
    }
    group: Block = {
        "name": name,
        "count": count or lot.one(1, 2, 2, 4),
        "device": device,
        "devices": devices or lot.one(2, 4, 8),
        "inside": inside[device],
        "network": f"{lot.one(25, 100, 200, 400)} Gbit/s",
        "nics": lot.one(1, 2, 4),
        "latency": "5 us",
    }
    return group


def hybrid_dnn(lot: Lot, *, has_experts: bool, has_bf16: bool) -> tuple[Block, str]:
    dnn: Block = {
        "transformer": transformer(lot, has_experts=has_experts),
        "dtype": lot.one("bf16", "bf16", "fp16") if has_bf16 else "fp16",
        "optimizer": "sgd" if lot.chance(0.04) else "adam",
    }
    objective = lot.one("iteration_time", "iteration_time", "epoch_time", "training_time")
    if lot.chance(0.1):
        dnn["max_global_batch"] = 16
        objective = "epoch_time"
    else:
        dnn["global_batch"] = lot.one(8, 16, 32, 12)
    if objective != "iteration_time":
        dnn |= {"dataset_samples": 10_000, "epochs": lot.one(1, 2)}
    return dnn, objective


def hybrid(lot: Lot, *, has_experts: bool, is_mixed: bool) -> Block:
    if is_mixed:
        first, second = lot.one(("a100-sxm4-80gb", "h100-sxm"), ("v100-sxm2-32g", "a100-sxm4-80gb"))
        groups = [
            accelerators(lot, "old", first, count=1, devices=lot.one(2, 4)),
            accelerators(lot, "new", second, count=lot.one(1, 2), devices=lot.one(2, 4)),
        ]
    else:
        groups = [accelerators(lot, "a", lot.one("a100-sxm4-80gb", "a100-sxm4-80gb", "h100-sxm", "l40s", "rtx-4090"))]
    dnn, objective = hybrid_dnn(
        lot, has_experts=has_experts, has_bf16=all(one["device"] != "v100-sxm2-32g" for one in groups)
    )
    fix = lot.some(PINNED, 0.04)
    if objective == "iteration_time" and lot.chance(0.3):
        dnn["dataset_samples"] = 10_000  # what a deadline needs
    constraints = lot.some(
        {
            "memory_per_device": ("2 GiB", "4 GiB", "6 GiB", "12 GiB"),
            "deadline": ("10 s", "1 min", "10 min", "1 h") if "dataset_samples" in dnn else (),
            "devices": (4, {"at_most": 4}, {"at_least": 4}),
            "machines": (1, {"at_most": 2}),
        },
        0.1,
    )
    if lot.chance(0.4):
        constraints["exclude"] = lot.some({key: values for key, values in EXCLUDED.items() if key not in fix}, 0.12)
    settings = lot.some(
        {
            "memory_reserve": ("0 B", "2 GiB"),
            "program": ("megatron-core", "megatron-deepspeed", "megatron-lm"),
            "bandwidth_efficiency": (0.7,),
            "overhead": ("1 ms",),
        },
        0.12,
    )
    if has_experts and lot.chance(0.3):
        settings["expert_imbalance"] = lot.one(1.2, 2.0)
    return filled(
        dnn=dnn,
        cluster={"machines": groups},
        calibration=settings,
        objective=objective,
        constraints=constraints,
        families=["hybrid"],
        fix=fix,
    )


# -- all families at once ----------------------------------------------------------------------------------------------


def any_family(lot: Lot) -> Block:
    """Return a question that leaves the family open, or allows several."""
    if lot.chance(0.3):
        found = hybrid(lot, has_experts=False, is_mixed=False)
        found["families"] = lot.one(
            ["hybrid", "pipeline"], ["hybrid", "all_reduce"], ["hybrid", "parameter_server", "all_reduce"]
        )
    else:
        found = lot.one(all_reduce, pipeline)(lot, is_mixed=lot.chance(0.4))
        found.pop("fix", None)
        if lot.chance(0.3):
            found["constraints"] = {"forbidden_families": lot.one(["pipeline"], ["parameter_server", "model_replicas"])}
        found["families"] = lot.one(
            None,
            ["all_reduce", "pipeline"],
            ["all_reduce", "parameter_server"],
            ["pipeline", "parameter_server", "model_replicas"],
        )
    return filled(**found)


# -- given configurations ----------------------------------------------------------------------------------------------


def given_all_reduce(lot: Lot) -> Block:
    found = all_reduce(lot, is_mixed=False)
    group = found["cluster"]["machines"][0]
    batch = lot.one(8, 16)
    found["dnn"] = {
        key: value for key, value in found["dnn"].items() if key not in ("batch_per_device", "max_global_batch")
    } | {"global_batch": batch}
    number = lot.one(1, group["count"] * group["devices"])
    block: Block = {
        "num_devices": number,
        "global_batch_size": batch,
        "fusion_groups": lot.one(
            "none", "one", "optimal", "mg_wfbp", "ada_fusion", "ada_fusion_idle", {"buffer": "8 MB"}
        ),
    }
    block |= lot.some({"gradient_accumulation_steps": (1, 2), "compression": ({"removed": 0.5, "time": "1 ms"},)}, 0.2)
    found["configuration"] = {"all_reduce": block}
    return filled(
        **{key: block for key, block in found.items() if key not in ("fix", "constraints", "compression")},
        variant="printed" if isinstance(block["fusion_groups"], dict) and lot.chance(0.5) else None,
    )


def given_servers(lot: Lot) -> Block:
    found = servers(lot, is_mixed=lot.chance(0.4), is_loose=False)
    workers = [group for group in found["cluster"]["machines"] if group["name"] != "hosts"]
    numbers = {group["name"]: lot.number(1, group["count"] * group["devices"]) for group in workers}
    is_alone = "hosts" in [group["name"] for group in found["cluster"]["machines"]]
    dnn = {
        key: value
        for key, value in found["dnn"].items()
        if key not in ("batch_per_device", "max_global_batch", "global_batch")
    }
    each = lot.one(2, 4)
    block: Block = {
        "num_parameter_servers": lot.one(1, 2) if is_alone else 1,
        "workers": numbers,
        "servers": "hosts" if is_alone else "fast",
        "co_located": not is_alone,
        "placement": lot.one("round_robin", "largest_first", "sliced"),
    }
    block |= {"batch_shares": dict.fromkeys(numbers, each), "global_batch_size": each * sum(numbers.values())}
    kind = lot.one("bsp", "bsp", "ssp", "asp", "local_sgd")
    if kind != "bsp":
        block |= {
            "synchronisation": kind,
            **({"max_staleness": lot.one(0, 2, 5)} if kind == "ssp" else {}),
            **({"local_steps": lot.one(2, 4)} if kind == "local_sgd" else {}),
        }
    found |= {"dnn": {**dnn, "global_batch": block["global_batch_size"]}, "configuration": {"parameter_server": block}}
    return filled(**{key: part for key, part in found.items() if key not in ("fix", "constraints", "compression")})


def given_pipeline(lot: Lot) -> Block:
    found = pipeline(lot, is_mixed=lot.chance(0.5))
    names = [f"layer{index}" for index in range(lot.number(2, 6))]
    layers = [
        {
            "name": name,
            "inputs": names[max(0, index - 1) : index],
            "multiply_adds": lot.number(1, 90) * 10**8,
            "parameters": f"{lot.one(1, 4, 9)} MB",
            "output": "1 MB",
        }
        for index, name in enumerate(names)
    ]
    groups = found["cluster"]["machines"]
    cut = lot.number(1, len(names) - 1)
    ends = [(names[0], names[cut - 1]), (names[cut], names[-1])] if lot.chance(0.8) else [(names[0], names[-1])]
    stages = [
        {"first": first, "last": last, "machines": groups[min(index, len(groups) - 1)]["name"], "replicas": 1}
        for index, (first, last) in enumerate(ends)
    ]
    stages[0]["replicas"] = lot.one(1, 1, 2)
    number = lot.one(2, 4, 8)
    groups[0]["count"] += 1
    found |= {
        "dnn": {"layers": layers, "global_batch": number * lot.one(1, 2, 2, 4), "dataset_samples": 800},
        "configuration": {
            "pipeline": {"stages": stages, "num_microbatches": number, "schedule": lot.one("gpipe", "1f1b")}
        },
        "objective": lot.one("epoch_time", "iteration_time"),
    }
    return filled(**{key: part for key, part in found.items() if key not in ("fix", "constraints")})


def given_hybrid(lot: Lot, *, has_experts: bool) -> Block:
    """Return a layout with every decision drawn; many of them break a rule, and are refused."""
    tensor, line, data = lot.one(1, 2, 4), lot.one(1, 2, 4), lot.one(1, 2, 3, 4)
    context = lot.one(1, 1, 1, 2)
    microbatch, number = lot.one(1, 2), lot.one(1, 2, 4, 8)
    is_even = lot.chance(0.75)
    block: Block = {
        "tensor": tensor,
        "pipeline": line,
        "data": data,
        "context": context,
        "microbatch": microbatch,
        "global_batch_size": data * microbatch * number,
    }
    if has_experts:
        block["expert"] = lot.one(*(one for one in (1, 2, 4) if data * context % one == 0))
        if tensor > 1 and lot.chance(0.9):
            block["sequence_parallel"] = True
    block |= lot.some(
        {
            "recompute": ("none", "selective", "full"),
            "overlap_data": (True, False),
            "overlap_tensor": (True, False),
            "order": ORDERS,
        },
        0.4,
    )
    if tensor > 1 and not has_experts:
        block |= lot.some({"sequence_parallel": (True, False)}, 0.6)
    if tensor == 1 or not block.get("sequence_parallel", True):
        block.pop("overlap_tensor", None)
    block |= {
        "zero": lot.one(0, 1, 2, 3)
        if data * context > 1 and is_even and line == 1
        else lot.one(0, 1)
        if data * context > 1
        else 0
    }
    sizes = {**transformer(lot, has_experts=has_experts), "layers": 8}
    machines = -(-tensor * line * data * context // 4)
    groups = [accelerators(lot, "a", lot.one("a100-sxm4-80gb", "h100-sxm"), count=machines, devices=4)]
    if is_even:
        if line > 1 and lot.chance(0.5):
            block |= lot.one(
                {"schedule": "gpipe"},
                {"schedule": "zero_bubble"},
                *([{"interleave": 2}] * 2 if number % line == 0 else []),
            )
        block |= lot.some({"offload_optimizer": (True,)}, 0.12)
    elif line > 1:
        first = lot.number(1, 8 - line + 1)
        layers = [first, *([1] * (line - 2)), 8 - first - (line - 2)]
        groups.append(accelerators(lot, "b", "v100-sxm2-32g", count=machines, devices=4))
        split = lot.number(1, line)
        block["stages"] = [
            {"layers": one, **({"machines": "a" if index < split else "b"})} for index, one in enumerate(layers)
        ]
    else:
        groups.append(accelerators(lot, "b", "v100-sxm2-32g", count=machines, devices=4))
        block |= {
            "data": data * 2,
            "stages": [{"layers": 8}],
            "replicas": [
                {"machines": "a", "data": data, "num_microbatches": number},
                {"machines": "b", "data": data, "num_microbatches": 2},
            ],
        }
        block["global_batch_size"] = data * microbatch * (number + 2)
    dnn = {
        "transformer": sizes,
        "global_batch": block["global_batch_size"],
        "dtype": lot.one("bf16", "fp16"),
        "optimizer": "adam",
    }
    if is_even:
        groups = groups[:1]
    if len(groups) > 1:
        dnn["dtype"] = "fp16"
    return filled(
        dnn=dnn,
        cluster={"machines": groups},
        objective="iteration_time",
        configuration={"hybrid": block},
        calibration=lot.some({"program": ("megatron-deepspeed", "megatron-lm"), "expert_imbalance": (1.5,)}, 0.15),
    )


# -- purchases ---------------------------------------------------------------------------------------------------------

COLUMNS = (
    "provider", "instance", "region", "term", "device", "devices", "inside", "usd_per_h", "billing_s", "network_gbit_per_s",
    "least_billed_s", "interruptions_per_h", "purchase_usd", "useful_life_years", "hosting_usd_per_month", "power_w", "most",
    "date", "source",
)  # fmt: skip


def price_list(lot: Lot) -> str:
    """Return two to five offers on every term, some of equal hardware."""
    lines = [",".join(COLUMNS)]
    for index in range(lot.number(2, 5)):
        one, term = lot.number(0, 2), lot.one("on-demand", "on-demand", "spot", "bought")
        row: Block = {
            "provider": lot.one("acme", "acme", "acme", "bolt"),
            "instance": f"m{index}",
            "region": "east",
            "term": term,
            "device": ("t4", "v100-sxm2-16g", "a10g")[one],
            "devices": one + 1,
            "inside": "" if one == 0 else "pcie-3-x16",
            "network_gbit_per_s": lot.one(25, 25, 25, ""),
            "most": lot.one(1, 2, 3, "", ""),
            "power_w": lot.one(200, 450, 1000),
            "date": "2026-11-01",
            "source": "made up",
        }
        if term == "bought":
            row |= {
                "purchase_usd": lot.one(4000, 20000),
                "useful_life_years": 3,
                "hosting_usd_per_month": lot.one(0, 200),
            }
        else:
            row |= {
                "usd_per_h": lot.one(0.5, 1, 2.5, 4),
                "billing_s": lot.one(1, 60, 3600),
                "least_billed_s": lot.one(0, 60, 7200),
            }
        if term == "spot":
            row["interruptions_per_h"] = lot.one(0, 0.1, 0.6)
        lines.append(",".join(str(row.get(name, "")) for name in COLUMNS))
    return "\n".join(lines) + "\n"


def purchase(lot: Lot) -> Block:
    objective = lot.one("cost", "cost", "time", "energy", "value_of_time")
    terms = ["on-demand", "spot", "bought"]
    block: Block = {
        "prices": "prices.csv",
        "terms": terms,
        "most_types": lot.one(1, 1, 2, 2, 3),
        "machines": {"at_most": lot.one(2, 4)},
        "objective": objective,
    }
    if objective == "value_of_time":
        block["usd_per_hour_saved"] = lot.one(0.5, 5, 60)
    block |= lot.some(
        {
            "deadline": ("20 min", "1 h", "5 h"),
            "budget": ("3 USD", "10 USD", "9000 USD"),
            "capital": ("4500 USD", "9000 USD"),
            "power": ("600 W", "2 kW"),
            "machines": ({"at_most": 3}, 3, 2, {"at_least": 2, "at_most": 4}),
            "quotas": ({"m0": 1}, {"t4": 2}, {"m*": 3}, {"*": 4, "m1": 0}),
            "electricity": ({"usd_per_kwh": 0.3, "pue": 1.3},),
            "storage": ({"size": "500 GB", "usd_per_gb_month": 0.1},),
            "egress": ({"size": "10 GB", "usd_per_gb": 0.09},),
            "reserved": ({"discount": 0.4, "commitment": "2 h"},),
            "discounts": ({"acme": 0.2},),
            "devices": (["t4", "a10g"], "v100*"),
            "exclude": ("m0",),
            "providers": ("acme",),
            "networks": ([{"name": "fast", "bandwidth": "100 Gbit/s", "usd_per_machine": "900 USD"}],),
            "error": (0.25,),
            "most_devices": (4,),
            "run": (
                {"start_up": "5 min", "evaluation": "3 min"},
                {"mean_time_between_failures": "30 h", "restart": "4 min", "start_up": "2 min"},
                {
                    "checkpoint": "20 s",
                    "checkpoint_interval": "10 min",
                    "restart": "3 min",
                    "mean_time_between_failures": "8 h",
                },
            ),
        },
        0.14,
    )
    if "reserved" in block:
        block["terms"] = [*terms, "reserved"]
    dnn: Block = {
        "zoo": lot.one("alexnet", "alexnet", "resnet18", "vgg11"),
        "global_batch": lot.one(128, 256),
        "epochs": lot.one(1, 2),
        "dataset_samples": lot.one(20_000, 100_000),
    }
    found: Block = {
        "procure": block,
        "families": lot.one(["all_reduce"], ["all_reduce"], ["all_reduce", "parameter_server"]),
    }
    if lot.chance(0.15):
        dnn.pop("epochs")
        jobs = [
            {
                "name": name,
                "dnn": {**dnn, "epochs": 1, "zoo": zoo},
                "runs_per_month": lot.one(3, 40),
                **lot.some({"share": (0.5,), "deadline": ("2 h",)}, 0.3),
            }
            for name, zoo in (("one", "alexnet"), ("two", "resnet18"))
        ]
        block["jobs"] = jobs
        block.pop("deadline", None)
        return filled(**found)
    return filled(dnn=dnn, **found, constraints=lot.some({"memory_per_device": ("8 GiB",)}, 0.08))


def robust_purchase(lot: Lot) -> Block:
    found = purchase(lot)
    found["procure"] |= {"error": lot.one(0.1, 0.25)}
    return found


# -- sweeps, and questions that are wrong ------------------------------------------------------------------------------


def sweep(lot: Lot) -> Block:
    found = all_reduce(lot, is_mixed=False) if lot.chance(0.6) else pipeline(lot, is_mixed=False)
    found["dnn"] = {
        key: value for key, value in found["dnn"].items() if key not in ("batch_per_device", "max_global_batch")
    } | {"global_batch": 8}
    found["objective"] = "epoch_time"
    vary = lot.one(
        {"cluster.machines.0.network": ["1 Gbit/s", "10 Gbit/s", "100 Gbit/s"]},
        {"dnn.global_batch": {"from": 2, "to": 16, "factor": 2}},
        {"cluster.machines.0.count": [1, 2, 3], "constraints.memory_per_device": ["30 MB", "4 GB"]},
    )
    return {**filled(**found), "sweep": {"vary": vary}}


def wrong(lot: Lot) -> Block:
    """Return a question with a slip."""
    found = all_reduce(lot, is_mixed=False)
    slip: Block = lot.one(
        {"objective": "fastest"},
        {"families": ["all_reduced"]},
        {"constraints": {"memory_per_device": "12 parsecs"}},
        {"constraints": {"devices": {"at_least": 5, "at_most": 2}}},
        {"cluster": {"machines": []}},
        {"cluster": {"preset": "no-such-testbed"}},
        {"dnn": {"zoo": "alexnet", "global_batch": 8, "batch_per_device": 8}},
        {"dnn": {"zoo": "alexnet", "layers": []}},
        {"fix": {"zero_stage": 7}},
        {"fixed": {}},
        {"calibration": {"utilisation": -1}},
        {"objective": "training_time"},
    )
    return filled(**{**found, **slip})


# -- all of them -------------------------------------------------------------------------------------------------------

# A kind of question: how many, the command, and how one is drawn.
KINDS: dict[str, tuple[int, tuple[str, ...], Callable[[Lot], Block]]] = {
    "all_reduce": (90, PLAN, lambda lot: all_reduce(lot, is_mixed=False)),
    "all_reduce-mixed": (50, PLAN, lambda lot: all_reduce(lot, is_mixed=True)),
    "all_reduce-measured": (8, PLAN, measured_curves),
    "testbed": (20, PLAN, testbed),
    "drawn-network": (14, PLAN, drawn_network),
    "servers": (40, PLAN, lambda lot: servers(lot, is_mixed=False, is_loose=False)),
    "servers-mixed": (30, PLAN, lambda lot: servers(lot, is_mixed=True, is_loose=False)),
    "servers-loose": (50, PLAN, lambda lot: servers(lot, is_mixed=lot.chance(0.5), is_loose=True)),
    "servers-alone": (24, PLAN, servers_alone),
    "replicas": (40, PLAN, replicas),
    "pipeline": (50, PLAN, lambda lot: pipeline(lot, is_mixed=False)),
    "pipeline-mixed": (40, PLAN, lambda lot: pipeline(lot, is_mixed=True)),
    "hybrid": (70, PLAN, lambda lot: hybrid(lot, has_experts=False, is_mixed=False)),
    "hybrid-experts": (40, PLAN, lambda lot: hybrid(lot, has_experts=True, is_mixed=False)),
    "hybrid-mixed": (30, PLAN, lambda lot: hybrid(lot, has_experts=lot.chance(0.3), is_mixed=True)),
    "hybrid-frontier": (6, (*PLAN, "--frontier"), lambda lot: hybrid(lot, has_experts=False, is_mixed=False)),
    "runners-up": (24, (*PLAN, "--top", "3"), any_family),
    "any-family": (24, PLAN, any_family),
    "wrong": (16, PLAN, wrong),
    "given-all_reduce": (40, PREDICT, given_all_reduce),
    "given-servers": (40, PREDICT, given_servers),
    "given-pipeline": (30, PREDICT, given_pipeline),
    "given-hybrid": (80, PREDICT, lambda lot: given_hybrid(lot, has_experts=False)),
    "given-experts": (40, PREDICT, lambda lot: given_hybrid(lot, has_experts=True)),
    "purchase": (70, ("procure", "question.yaml"), purchase),
    "purchase-pareto": (10, ("procure", "question.yaml", "--pareto"), purchase),
    "purchase-robust": (8, ("procure", "question.yaml", "--robust"), robust_purchase),
    "sweep": (8, ("sweep", "question.yaml", "--export", "rows.json"), sweep),
}
# Drawn, but too long to be asked again and again: a second and a half or more, mostly to say why nothing fits.
TOO_LONG = frozenset(
    {"any-family-002", "any-family-008", "any-family-023", "hybrid-036", "hybrid-062", "hybrid-067", "hybrid-068"}
    | {"hybrid-experts-004", "hybrid-mixed-002", "hybrid-mixed-012", "hybrid-mixed-016", "pipeline-mixed-020"}
    | {
        "replicas-032",
        "runners-up-019",
        "servers-loose-027",
        "servers-loose-028",
        "servers-loose-029",
        "servers-loose-038",
    }
)
BROKEN = frozenset(
    {"hybrid-frontier-002"}
)  # ends with a bug of ours, an empty stage of interleaved chunks: to be mended


def drawn() -> Iterator[Question]:
    """Yield all of them, kind by kind."""
    for kind, (number, words, draw) in KINDS.items():
        for index in range(number):
            name = f"{kind}-{index:03}"
            if name in TOO_LONG | BROKEN:
                continue
            lot = Lot(name)
            spec = draw(lot)
            files = {"prices.csv": price_list(lot)} if "procure" in spec else {}
            yield Question(name=name, words=words, spec=spec, files=files)
