"""Seconds of a hybrid layout's step, a second time: the schedule replayed, and what no device can go below.

The plan says what every stage takes for a micro-batch, chunk by chunk. From these seconds alone the step is replayed
task by task, up to :data:`MOST_TASKS` forwards and backwards: a stage does its tasks in the order of its schedule, each
as soon as what it reads has come, and computes nothing while it sends. The cost model's closed forms are lengths of
paths of that schedule; so they are no longer than the replay, and may stay :data:`BELOW` of it below. A zero-bubble
step is held between its busiest stage and a replay of 1F1B, which it improves on.

The seconds of the stages are held against multiply-adds at the device's peak, and weights at its memory's bandwidth.
Whether they are more than that by the right amount, only the cost model can say.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from planner.checks import SAME, Finding, agree, agreement
from planner.cluster import Device
from planner.plan import Prediction
from planner.problem import Problem
from planner.transformer import KINDS, Transformer
from tests.referee.second_physics.facts import holds
from tests.referee.second_physics.hybrid_encoder import ends_flop, still_of
from tests.referee.second_physics.hybrid_layer import away_of, layer_of, passes_of
from tests.referee.second_physics.hybrid_memory import counted, cuts_of, in_order, kinds_of, logits_are_frozen
from tests.referee.second_physics.hybrid_program import program_of, state_bytes
from tests.referee.second_physics.hybrid_scans import scan_multiply_adds, scan_parameters

__all__ = ["BELOW", "MOST_TASKS", "flop_per_token", "layers_flop", "replay_s", "time_findings"]

MOST_TASKS = 200_000
BELOW = 0.002
_DEVICE = ("compute", "recompute", "tensor", "expert", "context", "launch")
_BEHIND = (
    "data",
    "optimizer",
    "activation_offload",
    "input_stall",
)  # parts of a step that are outside the pipeline's schedule
_FLOP = 6  # of a multiply-add forward and two backward
_MASTER_BYTES = 4  # of a parameter, which is read and written like the optimiser's state


def flop_per_token(network: Transformer) -> float:
    """Return the FLOP of one token, both ways, logits included, causal attention by half.

    For a GPT that attends to all tokens, times ``B s``, it is ``72 B s L h^2 (1 + s / 6h + V / 12 L h)`` (D. Narayanan
    et al., arXiv 2104.04473, section 5.1).
    """
    layers = sum(_multiply_adds(network, kind) for kind in network.layer_kinds)
    words = network.vocabulary_size if network.head == "language" else 0
    whole = _FLOP * (layers + network.hidden_size * words) - _unchosen_flop(network)
    whole += (3 * _images_flop(network) - _still_images_flop(network)) / network.sequence_length
    if network.trained.has_frozen:
        return whole - _still_flop(network)
    if network.fine_tuning is None:
        return whole
    # No product gives a gradient of a frozen matrix; those of adapters are theirs six times.
    plain = {**_ALONE, "recompute": "none"}
    held = [layer_of(network, plain, kind) for kind in network.layer_kinds]
    still = sum(_matrix_multiply_adds(network, kind) for kind in network.layer_kinds) + network.hidden_size * words
    return whole - 2 * still + _FLOP * sum(one.adapters for one in held)


def _images_flop(network: Transformer) -> float:
    """Return the FLOP of a sample's images forward in an encoder."""
    encoder = network.encoder
    if encoder is None:
        return 0.0
    blocks = 2 * encoder.sequence_length * sum(_multiply_adds(encoder, kind) for kind in encoder.layer_kinds)
    return network.num_images * (blocks + sum(ends_flop(network)))


def _still_images_flop(network: Transformer) -> float:
    """Return the FLOP of a sample's images that a frozen encoder, or projector, does not have backward."""
    encoder = network.encoder
    if encoder is None:
        return 0.0
    is_still, is_projector_still = still_of(network)
    patches, projector = ends_flop(network)
    blocks = 2 * encoder.sequence_length * sum(_multiply_adds(encoder, kind) for kind in encoder.layer_kinds)
    found = 2 * (blocks + patches) * is_still
    return network.num_images * (found + projector * is_projector_still * (1 + is_still))


def _still_flop(network: Transformer) -> float:
    """Return the FLOP of a token that frozen parts do not have backward."""
    parts, found = network.trained.frozen_parts, 0.0
    for kind in network.layer_kinds:
        learning = KINDS[kind].learning
        if learning == "front":
            found += 4 * _multiply_adds(network, kind)
            continue
        shape = {**_ALONE, "recompute": "none"}
        row = layer_of(network, shape, kind)
        # A matrix is multiplied once for each token, but those of experts, of which a token meets few.
        still = row.read - row.read_routed - row.own_read
        if (experts := network.experts) is not None and KINDS[kind].feed_forward == "moe":
            has_routed = learning == "trained" and not {"experts", "feed_forward"} & {*parts}
            still += row.read_routed * (has_routed + (not has_routed) * experts.top_k / experts.num_experts)
        found += 2 * still
        if KINDS[kind].is_prediction and logits_are_frozen(network):
            found += 2 * network.hidden_size * network.vocabulary_size
    words = network.vocabulary_size if network.head == "language" else 0
    return found + 2 * network.hidden_size * words * logits_are_frozen(network)


def _unchosen_flop(network: Transformer) -> float:
    """Return the FLOP of a token that an indexer has forward and not backward: pairs that it scores and leaves out."""
    sparse = network.sparse
    if sparse is None:
        return 0.0
    every = _attended(replace(network, sparse=None), "attention")
    left = sparse.heads * sparse.head_size * (every - _attended(network, "attention"))
    return 4 * left * sum(KINDS[kind].mixer == "attention" for kind in network.layer_kinds)


_ALONE = {"tensor": 1, "context": 1, "microbatch": 1, "expert": 1, "expert_tensor": 1, "sequence_parallel": False}


def _matrix_multiply_adds(network: Transformer, kind: str) -> float:
    """Return those of a token forward in the matrices of one layer, attention's scores and context left out."""
    value = network.head_size if network.latent is None else network.latent.value_size
    scores = network.sequence_length * network.num_heads * (network.head_size + value)
    return _multiply_adds(network, kind) - scores / (2 if network.is_causal else 1)


def layers_flop(network: Transformer, block: Mapping[str, Any], kinds: Sequence[str]) -> tuple[float, float]:
    """Return the FLOP of a token forward in some layers, and those that full recomputation repeats, at least.

    Some programs leave out the end.
    """
    once = 2 * sum(_multiply_adds(network, kind) for kind in kinds)
    if block["recompute"] != "full" or block.get("recompute_layers"):  # of some layers only: no less than none
        return once, 0.0
    return once, once - 2 * program_of(block).stops_early * sum(_last(network, kind) for kind in kinds)


def _last(network: Transformer, kind: str) -> float:
    """Return the multiply-adds of a token in a layer's last products, whose outputs no gradient reads."""
    experts = network.experts
    if KINDS[kind].feed_forward == "none":
        return sum(one for one in scan_parameters(network, KINDS[kind].mixer, 1)[0][-1:]) or float(
            network.num_heads * network.value_head_size * network.hidden_size
        )
    if KINDS[kind].feed_forward == "dense" or experts is None:
        return float(network.hidden_size * network.feed_forward_size)
    narrow, shared = experts.latent_size or network.hidden_size, experts.num_shared * experts.shared_size
    widened = narrow * (experts.latent_size is not None)
    return float(narrow * experts.top_k * experts.expert_size + network.hidden_size * (shared + widened))


def _multiply_adds(network: Transformer, kind: str) -> float:
    """Return those of a token forward in one layer."""
    hidden, heads, size, latent = network.hidden_size, network.num_heads, network.head_size, network.latent
    value = size if latent is None else latent.value_size
    found = float(heads * value * hidden * (1 + network.has_attention_gate))
    found += heads * (size + value) * _attended(network, KINDS[kind].mixer)
    if not KINDS[kind].has_attention:
        found = scan_multiply_adds(network, KINDS[kind].mixer)
    elif latent is None:
        found += hidden * (heads + 2 * network.num_kv_heads) * size
    else:
        rank = latent.query_rank
        found += heads * size * hidden if rank is None else rank * (hidden + heads * size)
        found += hidden * (latent.key_value_rank + latent.rope_size)
        found += latent.key_value_rank * heads * (latent.nope_size + latent.value_size)
    if (sparse := network.sparse) is not None and KINDS[kind].mixer == "attention":
        source = (latent.query_rank if latent is not None else None) or hidden
        found += source * sparse.heads * sparse.head_size + hidden * (sparse.head_size + sparse.heads)
        found += sparse.heads * sparse.head_size * _attended(replace(network, sparse=None), "attention")
    found += 6 * hidden * hidden / network.sequence_length * network.has_modulation
    matrices = 3 if network.is_gated else 2
    experts = network.experts
    if KINDS[kind].is_prediction:  # the product of both streams, and logits
        found += 2 * hidden * hidden + hidden * network.vocabulary_size
    if KINDS[kind].feed_forward == "none":
        return found
    if KINDS[kind].feed_forward == "dense" or experts is None:
        return found + matrices * hidden * network.feed_forward_size
    narrow, shared = experts.latent_size or hidden, experts.num_shared * experts.shared_size
    found += matrices * (narrow * experts.top_k * experts.expert_size + hidden * shared)
    found += 2 * hidden * narrow * (experts.latent_size is not None)
    return found + hidden * (experts.num_experts + experts.has_shared_gate)


def _attended(network: Transformer, mixer: str) -> float:
    """Return the tokens that one attends to in the mean, each counted; of the causal ones half a diagonal is left out."""
    length, window = network.sequence_length, network.window
    if (document := network.document_length) is not None:  # each by itself, and what is left of a sample
        parts = [document] * (length // document) + [length % document] * (length % document > 0)
        fits = [min(one, window) if window else None for one in parts]
        each = [
            replace(network, sequence_length=one, document_length=None, window=own)
            for one, own in zip(parts, fits, strict=True)
        ]
        return sum(_attended(own, mixer) * own.sequence_length for own in each) / length
    if mixer == "attention" and network.sparse is not None:
        chosen = min(network.sparse.top_k, length)
        return chosen - network.is_causal * chosen**2 / 2 / length
    if mixer == "attention" or window is None:
        return length / (2 if network.is_causal else 1)
    if network.has_chunked_windows:
        return _in_chunks(length, window) / length * (1 if network.is_causal else 2)
    if network.is_causal:
        return (_in_windows(length, window) - window / 2) / length
    half = window / 2  # on each side, less at the ends of the sample
    return (2 * half * length - half**2) / length


@cache
def _in_chunks(length: int, window: int) -> float:
    """Return the tokens that all of a sample see of the chunk they stand in, each half of itself."""
    return sum(place % window + 0.5 for place in range(length))


@cache
def _in_windows(length: int, window: int) -> int:
    """Return the tokens that all of a sample see of the last ones, each itself, too."""
    return sum(min(place + 1, window) for place in range(length))


# -- the schedule ------------------------------------------------------------------------------------------------------


def replay_s(block: Mapping[str, Any], stages: Sequence[Mapping[str, Any]], transfer_s: float) -> float:
    """Return the seconds from the first forward to the end of the last backward."""
    pipeline, chunks = block["pipeline"], block["interleave"]
    orders = [list(in_order(block, stage)) for stage in range(pipeline)]
    at, clock = [0] * pipeline, [0.0] * pipeline
    ended: dict[tuple[str, int, int], float] = {}  # by place in the line of all chunks, and micro-batch
    is_moving = True
    while is_moving:
        is_moving = False
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                name, chunk, batch = order[at[stage]]
                place = chunk * pipeline + stage
                ready = _ready_s(ended, name, place, batch, pipeline * chunks)
                if ready is None:
                    break
                is_end = place == (pipeline * chunks - 1 if name == "F" else 0)
                took = stages[stage]["forward_s" if name == "F" else "backward_s"][chunk]
                clock[stage] = max(clock[stage], ready) + took + (0.0 if is_end else transfer_s)
                ended[name, place, batch] = clock[stage]
                at[stage] += 1
                is_moving = True
    if any(done < len(order) for done, order in zip(at, orders, strict=True)):
        return float("inf")  # stages wait for each other
    return max(clock)


def _ready_s(
    ended: Mapping[tuple[str, int, int], float], name: str, place: int, batch: int, places: int
) -> float | None:
    """Return when what a task reads has come, or None if it is not known yet."""
    if name == "F":
        return 0.0 if place == 0 else ended.get(("F", place - 1, batch))
    own = ended.get(("F", place, batch))
    return own if place == places - 1 else ended.get(("B", place + 1, batch))


# -- against a plan ----------------------------------------------------------------------------------------------------


def time_findings(
    problem: Problem, network: Transformer, block: Mapping[str, Any], found: Prediction, device: Device
) -> Iterator[Finding]:
    """Yield whether the step's parts follow from its stages, and whether these are no quicker than can be."""
    parts, stages = found.breakdown_s, found.details.get("stages", [])
    chunks, transfer_s = block["interleave"], found.details.get("transfer_s", 0.0)
    names = ("forward_s", "backward_s")
    if len(stages) != block["pipeline"] or any(len(row.get(name, ())) != chunks for row in stages for name in names):
        yield Finding(name="seconds by stage", is_ok=False, text="they are not stated for every stage and chunk")
        return
    number = block["global_batch_size"] // (block["data"] * block["microbatch"])
    works_s = [sum(row["forward_s"]) + sum(row["backward_s"]) for row in stages]
    sends_s = [times * transfer_s for times in _sends(len(stages), chunks)]
    busy_s = max(work_s + sent_s for work_s, sent_s in zip(works_s, sends_s, strict=True))
    stated_s = sum(parts[name] for name in _DEVICE)
    sums = [
        ("sum of all parts", found.iteration_time_s, sum(parts.values())),
        ("computing, exchange, launching and sending", stated_s + parts["pipeline"], number * busy_s),
    ]
    yield agreement("seconds by part", sums)
    # Stages that are as busy as one another may send differently often: any of them may be the one that is stated.
    pairs = [
        one
        for one in zip(works_s, sends_s, strict=True)
        if agree(stated_s, number * one[0]) and agree(parts["pipeline"], number * one[1])
    ]
    yield holds(
        "busiest stage",
        bool(pairs),
        "its work and its sending are those of one stage",
        f"no stage works {stated_s:.9g} s and sends {parts['pipeline']:.9g} s",
    )
    yield _replayed(block, found, number * busy_s)
    yield from _copies(problem, network, block, found)
    peak = device.peak_flop_per_s.get(problem.training.dtype) or max(device.peak_flop_per_s.values(), default=1.0)
    yield from _no_quicker(network, counted(problem, block), stages, peak, device.memory_bandwidth_bytes_per_s)
    yield _optimizer(network, counted(problem, block), parts["optimizer"], device.memory_bandwidth_bytes_per_s)
    yield from _figures(network, block, found, peak)
    # What is not hidden of a few micro-batches is no more than if all that all of them show were hidden of one each.
    filling_s, shown_s = found.details.get("filling_s", 0.0), parts["expert"] + parts["compute"]
    alone = min(number, len(stages)) + (len(stages) - 1) / chunks
    most_s = alone / number * shown_s if block.get("overlap_expert") else 0.0
    # Transfers beside computing show where one micro-batch passes all virtual stages, there and back.
    sent_s = found.details.get("filling_transfers_s", 0.0)
    passed_s = 2 * (len(stages) * chunks - 1) * found.details.get("hidden_transfer_s", 0.0)
    yield agreement("transfers that fill the pipeline", [("filling_transfers_s", sent_s, passed_s)])
    most_s += sent_s * (1 + SAME)
    yield holds("filling", 0 <= filling_s <= most_s, f"{filling_s:.6g} s", f"{filling_s:.9g} s, at most {most_s:.9g} s")
    imbalance = problem.calibration.expert_imbalance if network.experts is not None else 1.0
    stated = found.details.get("expert_imbalance", 1.0)
    yield agreement("tokens of the fullest rank's experts, over the mean", [("expert_imbalance", stated, imbalance)])


def _copies(problem: Problem, network: Transformer, block: Mapping[str, Any], found: Prediction) -> Iterator[Finding]:
    """Yield that waiting for copies to the host is no longer than the copies of all micro-batches one after another.

    Of one stage also that it is no less than if embedding and head, too, ran beside them.
    """
    each, kinds = counted(problem, block), network.layer_kinds
    share = block.get("offload_layers", 0) / network.num_layers
    copied = sum(share * layer_of(network, each, kind).kept + away_of(network, each, kind) for kind in kinds)
    link = problem.cluster.machine_groups[0].host_link_bytes_per_s
    if not copied or link == float("inf"):
        return
    number = block["global_batch_size"] // (block["data"] * block["microbatch"])
    one_s, pipeline, stages = copied / link, block["pipeline"], found.details["stages"]
    passes_s = [sum(stages[0][name]) for name in ("forward_s", "backward_s")]
    least_s = number * sum(max(0.0, one_s - pass_s) for pass_s in passes_s) if pipeline == 1 else 0.0
    most_s = 2 * one_s * (number * -(-network.num_layers // pipeline) / network.num_layers + 1)
    stated = found.breakdown_s["activation_offload"]
    is_ok = least_s * (1 - SAME) <= stated <= most_s * (1 + SAME)
    yield holds("activations on the host", is_ok, f"{stated:.6g} s", f"{stated:.9g} s, at least {least_s:.9g} s")


def _sends(stages: int, chunks: int) -> list[int]:
    """Return how often each stage sends for a micro-batch: outputs, and errors back; at the ends one goes nowhere."""
    if stages == 1:
        return [0]
    return [2 * chunks - (stage in (0, stages - 1)) for stage in range(stages)]


def _replayed(block: Mapping[str, Any], found: Prediction, busy_s: float) -> Finding:
    """Return whether the step without exchange of replicas, optimiser and input is what the schedule takes."""
    stages, transfer_s = found.details["stages"], found.details["transfer_s"]
    stated_s = found.iteration_time_s - sum(found.breakdown_s.get(name, 0.0) for name in _BEHIND)
    stated_s -= found.details.get("filling_s", 0.0)
    number = block["global_batch_size"] // (block["data"] * block["microbatch"])
    tasks = 2 * number * block["pipeline"] * block["interleave"]
    if tasks > MOST_TASKS:
        text = (
            f"{stated_s:.6g} s, no less than the busiest stage's {busy_s:.6g} s; {tasks} tasks are too many to replay"
        )
        return holds(
            "replay", stated_s >= busy_s * (1 - SAME), text, f"{stated_s:.9g} s, and a stage works {busy_s:.9g} s"
        )
    replayed_s = replay_s(block, stages, transfer_s)
    most_s = max(replayed_s, busy_s)
    least_s = busy_s if block["schedule"] in ("zb_h1", "zb_h2") else max(busy_s, replayed_s * (1 - BELOW))
    return holds(
        "replay",
        least_s * (1 - SAME) <= stated_s <= most_s * (1 + SAME),
        f"{stated_s:.6g} s of a schedule that replayed in plain loops takes {replayed_s:.6g} s",
        f"replayed in plain loops the schedule takes {replayed_s:.9g} s, and its parts make {stated_s:.9g} s",
        stated_s=stated_s,
        replayed_s=replayed_s,
    )


def _no_quicker(
    network: Transformer, block: Mapping[str, Any], stages: Sequence[Mapping[str, Any]], peak: float, bandwidth: float
) -> Iterator[Finding]:
    """Yield whether every stage takes as long as its FLOP at the peak, and as its weights to be read.

    The forward pass alone is looked at where a stage has as many layers as others.
    """
    tokens = block["microbatch"] * network.sequence_length / block["context"]
    chunks = kinds_of(network, cuts_of(network, block))
    words = network.vocabulary_size if network.head == "language" else 0
    logits = 2 * network.hidden_size * words * tokens / block["tensor"]
    of_logits = 2 if logits_are_frozen(network) else 3  # no product gives a gradient of a frozen matrix
    faults: dict[str, list[int]] = {"FLOP at the peak": [], "weights at the bandwidth": []}
    for stage, row in enumerate(stages):
        own = [kind for chunk in chunks[stage :: block["pipeline"]] for kind in chunk]
        both_s = sum(row["forward_s"]) + sum(row["backward_s"])
        again_of = [kind for kind in own if KINDS[kind].learning != "front"]
        once, _ = (flop * tokens / block["tensor"] for flop in layers_flop(network, block, own))
        _, again = (flop * tokens / block["tensor"] for flop in layers_flop(network, block, again_of))
        passed = sum(passes_of(network, kind) * layers_flop(network, block, [kind])[0] for kind in own)
        read = 2.0 * sum(passes_of(network, kind) * layer_of(network, block, kind).read for kind in own)
        least = passed * tokens / block["tensor"] + again + (of_logits * logits if stage == len(stages) - 1 else 0.0)
        least += 3 * _images_flop(network) * block["microbatch"] / block["tensor"] * (stage == 0)
        ahead = once if len(own) * block["pipeline"] >= network.num_layers else 0.0
        if both_s < least / peak * (1 - SAME) or sum(row["forward_s"]) < ahead / peak * (1 - SAME):
            faults["FLOP at the peak"].append(stage + 1)
        if both_s < read / bandwidth * (1 - SAME):
            faults["weights at the bandwidth"].append(stage + 1)
    for name, wrong in faults.items():
        yield holds(name, not wrong, "every stage takes as long", f"stages {wrong} would be quicker")


def _optimizer(network: Transformer, block: Mapping[str, Any], stated_s: float, bandwidth: float) -> Finding:
    """Return whether the optimiser's state can be read and written in its seconds; that of the layers alone."""
    kinds = network.layer_kinds
    plain = {**block, "tensor": 1, "expert": 1, "expert_tensor": 1}
    rows = {kind: layer_of(network, plain, kind) for kind in dict.fromkeys(kinds)}
    layers = sum((one.own_read + one.adapters) * kinds.count(kind) for kind, one in rows.items())
    ranks = block["tensor"] * block["pipeline"] * block["expert"]
    if block["zero"] > 0:
        ranks = block["tensor"] * block["pipeline"] * (block.get("shard") or block["data"]) * block["context"]
    moved = 2 * (_MASTER_BYTES + state_bytes(block))
    least_s = 0.0 if block["offload_optimizer"] else moved * layers / ranks / bandwidth
    text = f"no less than {least_s:.6g} s of its state's bytes"
    return holds("optimizer", stated_s >= least_s * (1 - SAME), text, f"{stated_s:.9g} s is less than {least_s:.9g} s")


def _figures(network: Transformer, block: Mapping[str, Any], found: Prediction, peak: float) -> Iterator[Finding]:
    """Yield whether what the plan says beside its parts follows from them, the share of the peak from closed forms."""
    details, whole_s, batch = found.details, found.iteration_time_s, block["global_batch_size"]
    devices = block["tensor"] * block["context"] * block["pipeline"] * block["data"]
    tokens, bubble_s = batch * network.sequence_length, found.breakdown_s["bubble"]
    rows = [
        ("num_devices", details["num_devices"], devices),
        ("num_microbatches", details["num_microbatches"], batch // (block["data"] * block["microbatch"])),
        ("global_batch_size", details["global_batch_size"], batch),
        ("tokens_per_s", details["tokens_per_s"], tokens / whole_s),
        ("bubble", details["bubble"], bubble_s / (whole_s - bubble_s)),
    ]
    yield agreement("figures", rows)
    share = flop_per_token(network) * tokens / whole_s / devices / peak
    stated = details["flop_utilisation"]
    if network.head == "language" and network.image is None and not network.has_pooler:
        is_ok, right = agree(stated, share), f"{share:.6g} of the peak by the closed formula"
    else:  # small products of other heads are left out
        is_ok, right = stated >= share * (1 - SAME), f"no less than {share:.6g} of the peak by the closed formula"
    yield holds("FLOP of the step", is_ok, right, f"{right}, and {stated:.9g} is stated")
