"""Hybrid layouts: that degrees divide what they must, in plain whole numbers, and memory and time a second time.

Bytes: :mod:`second_physics.hybrid_memory`. Seconds: :mod:`second_physics.hybrid_time`.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from planner.checks import Finding
from planner.decisions import decided_by
from planner.plan import Prediction
from planner.problem import Problem
from planner.transformer import KINDS, Transformer
from tests.referee.second_physics import hybrid_mixed
from tests.referee.second_physics.facts import Facts, groups_of, holds
from tests.referee.second_physics.hybrid_folded import folded_cuts, folded_findings, is_folded
from tests.referee.second_physics.hybrid_layer import passes_of
from tests.referee.second_physics.hybrid_memory import cuts_of, fullest_bytes, memory_findings
from tests.referee.second_physics.hybrid_program import program_finding
from tests.referee.second_physics.hybrid_time import time_findings

__all__ = ["facts_of"]

_DEGREES = ("tensor", "context", "pipeline", "data")
_ROUNDING = 1e-9
_FLOP_PER_PASS = 2  # of a parameter and token: a multiply-add
_MATRICES = 0.9  # of a block's parameters at least; biases and norms are no products


def facts_of(problem: Problem, block: Mapping[str, Any], found: Prediction) -> Facts:
    """Return what a layout uses, by its block alone; the bytes of a device are the most that either count says."""
    if hybrid_mixed.is_mixed(block):
        return hybrid_mixed.facts_of(problem, block, found)
    network = problem.dnn.transformer
    assert network is not None, "a block that can be predicted has a transformer"
    devices = _devices(problem, block)
    groups = groups_of(problem)
    machines = {name: -(-count // groups[name].devices_per_machine) for name, count in devices.items()}
    kinds = list(dict.fromkeys(groups[name].device.name for name in devices))
    findings, held = [*_division(network, block), *_terms(found), _work(problem, network, block, found)], 0.0
    if is_folded(block):
        findings += folded_findings(problem, network, block, found)
    elif all(one.is_ok for one in findings[:-2]) and devices:  # nothing can be counted of layers that do not divide
        device = groups[next(iter(devices))].device
        held = fullest_bytes(problem, network, block, device)
        findings += memory_findings(problem, network, block, found, device)
        findings += time_findings(problem, network, block, found, device)
    findings.append(program_finding(problem, found))
    return Facts(
        family="hybrid",
        machines=machines,
        devices=devices,
        memory_bytes=dict.fromkeys(devices, max(held, found.memory_bytes["total"])),
        decisions={**_decisions(block), "device": kinds[0] if len(kinds) == 1 else kinds, **_counts(devices, machines)},
        global_batch_size=block["global_batch_size"],
        findings=tuple(findings),
    )


def _devices(problem: Problem, block: Mapping[str, Any]) -> dict[str, int]:
    """Return the devices of each group: those of the group that is named, or of equal groups one after the other."""
    left = 1
    for name in _DEGREES:
        left *= block[name]
    groups = groups_of(problem)
    named = block.get("machines")
    if named is not None:
        return {named: left} if named in groups else {}
    found = {}
    for name, group in groups.items():
        taken = min(left, group.count * group.devices_per_machine)
        if taken:
            found[name] = taken
        left -= taken
    if left:  # more than there are: the checker of limits says so
        found[next(iter(groups))] = found.get(next(iter(groups)), 0) + left
    return found


def _decisions(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the block says about each key of ``fix``."""
    number = block["global_batch_size"] // (block["data"] * block["microbatch"])
    return {**decided_by("hybrid", block), "num_microbatches": number}


def _counts(devices: Mapping[str, int], machines: Mapping[str, int]) -> dict[str, int]:
    return {"num_devices": sum(devices.values()), "num_machines": sum(machines.values())}


def _division(network: Transformer, block: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether heads, sequence, layers, batch and experts divide as the layout says."""
    tensor, context, pipeline, data = (block[name] for name in _DEGREES)
    heads, keys, length = network.num_heads, network.num_kv_heads, network.sequence_length
    is_even = heads % tensor == 0 and (keys % tensor == 0 or tensor % keys == 0)
    text = f"{heads} heads, {keys} of keys and values, over a tensor degree of {tensor}"
    yield holds("heads", is_even, text, f"{text} do not divide")
    if (encoder := network.encoder) is not None:
        text = f"{encoder.num_heads} heads of the encoder over a tensor degree of {tensor}"
        yield holds("encoder", encoder.num_heads % tensor == 0, text, f"{text} do not divide")
    is_split = length % context == 0 and (not block["sequence_parallel"] or length // context % tensor == 0)
    text = f"{length} tokens over a context degree of {context}"
    yield holds("sequence", is_split, text, f"{text} do not divide")
    method, here = block.get("context_method", "ring"), keys // tensor  # heads of keys on a device
    shared = math.gcd(context, max(here, 1))  # ranks that each get whole ones
    has_heads = {"ulysses": shared == context, "hierarchical": 1 < shared < context}.get(method, True)
    text = f"{here} heads of keys of a device over a context degree of {context}, {method}"
    yield holds("context heads", context == 1 or has_heads, text, f"{text}: these are not whole")
    chunks, layers = pipeline * block["interleave"], network.num_layers
    is_turned = is_folded(block)
    text = f"{layers} layers in {chunks} chunks"
    cuts = (folded_cuts if is_turned else cuts_of)(network, block)
    is_cut = pipeline <= layers and sum(cuts) == layers and len(cuts) == chunks and min(cuts[1:-1], default=1) >= 1
    yield holds("layers", is_cut, text, f"{text} are too few")
    batch, each = block["global_batch_size"], data * block["microbatch"]
    text = f"a batch of {batch} over {data} replicas in micro-batches of {block['microbatch']}"
    is_dealt = batch % each == 0 and (block["interleave"] == 1 or is_turned or batch // each % pipeline == 0)
    yield holds("micro-batches", is_dealt, text, f"{text} does not divide")
    number, expert = 1 if network.experts is None else network.experts.num_experts, block["expert"]
    parts = expert * block["expert_tensor"]
    text = f"{number} experts over an expert degree of {expert}, {parts} of {tensor * data * context} ranks"
    is_spread = number % expert == 0 and tensor * data * context % parts == 0 and tensor % block["expert_tensor"] == 0
    if network.experts is not None or expert > 1:
        yield holds("experts", is_spread, text, f"{text} do not divide")


def _terms(found: Prediction) -> Iterator[Finding]:
    """Yield whether the bytes of a device are the sum of their terms."""
    terms = [size for name, size in found.memory_bytes.items() if name not in ("total", "limit")]
    total, held = sum(terms), found.memory_bytes["total"]
    is_ok = abs(total - held) <= _ROUNDING * held
    yield holds("memory terms", is_ok, "they sum up", f"they sum up to {total:.9g} bytes, and {held:.9g} are stated")


def _work(problem: Problem, network: Transformer, block: Mapping[str, Any], found: Prediction) -> Finding:
    """Return whether the iteration is long enough for the products of the network's matrices at the devices' peak.

    A token meets every active parameter but those of the embedding in one multiply-add forward and two backward.
    """
    groups, devices = groups_of(problem), _devices(problem, block)
    dtype, peak = problem.training.dtype, 0.0
    for name, count in devices.items():
        peaks = groups[name].device.peak_flop_per_s
        peak += count * (peaks.get(dtype) or max(peaks.values(), default=float("inf")))
    experts, blocks = network.experts, 0
    for kind, count in network.kind_counts.items():  # three passes of two FLOP each; fewer of what is frozen
        idle = 0
        if experts is not None and KINDS[kind].feed_forward == "moe":
            idle = (experts.num_experts - experts.top_k) * network.expert_parameters
        blocks += passes_of(network, kind) * count * (network.block_parameters(kind) - idle)
    tokens = block["global_batch_size"] * network.sequence_length
    least_s = _FLOP_PER_PASS * tokens * blocks * _MATRICES / peak
    return holds(
        "work",
        found.iteration_time_s >= least_s * (1 - _ROUNDING),
        f"no less than {least_s:.6g} s, of all products at the devices' peak",
        f"all products at the devices' peak take {least_s:.9g} s, and {found.iteration_time_s:.9g} s are predicted",
    )
