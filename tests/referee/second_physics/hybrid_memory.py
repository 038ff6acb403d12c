"""Bytes of every stage of a hybrid layout, counted a second time: plain loops over stages, chunks and micro-batches.

Nothing is taken from the cost model.

* states (S. Rajbhandari et al., arXiv 1910.02054): bytes of a weight, a gradient, and of the optimiser, as the program
  has them (:mod:`second_physics.hybrid_program`); ZeRO 1, 2, 3 spreads the last, the last two, all over ``d c`` ranks;
* what layers keep (:mod:`second_physics.hybrid_layer`), times what is in flight: the stage's order of forwards and
  backwards, walked through; fullest moments of layers and of both ends are added;
* for a moment: what full recomputation brings back, gradients of the widest activation, and what ZeRO 2 and 3 gather.

Of images, poolers, heads other than a language model's, and of an embedding's norm the parameters and some bytes are
left out: for such networks the terms are compared from below; activations exceed the count by no more than
:data:`LOOSE`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from planner.checks import SAME, Finding
from planner.cluster import Device
from planner.plan import Prediction
from planner.problem import Problem
from planner.transformer import LayerKind, Transformer
from tests.referee.second_physics.facts import holds
from tests.referee.second_physics.hybrid_encoder import images_kept, images_layers, images_parameters
from tests.referee.second_physics.hybrid_layer import IMBALANCE, NUMBER_BYTES, Layer, away_of, layer_of, tokens_of
from tests.referee.second_physics.hybrid_program import GRADIENTS, OPTIMIZER, PROGRAM, program_of

__all__ = [
    "LOOSE",
    "counted",
    "cuts_of",
    "ends_of",
    "fullest_bytes",
    "in_order",
    "logits_are_frozen",
    "memory_findings",
    "reserve_of",
    "rows_of",
]

LOOSE = 0.05  # by which activations may exceed a count that leaves something out
_PADDING = 128
_RESERVE_BYTES = 3.0 * 1024**3  # of a device that trains a transformer, at most, where the question says nothing
_COPY_BYTES = 4.0  # of a logit that a loss which is not fused keeps, or needs for a moment
_TERMS = ("weights", "gradients", "optimizer", "activations", "temporary", "reserve")


# -- stages ------------------------------------------------------------------------------------------------------------


def cuts_of(network: Transformer, block: Mapping[str, Any]) -> list[int]:
    """Return the layers of every chunk in order.

    As listed; else as evenly as whole layers go: the last stage has a layer less than others first, then the first, then
    those from the end; and a stage's first chunks have one more, but for the very first.
    """
    if block.get("stages"):
        return [one["layers"] for one in block["stages"]]
    pipeline, chunks = block["pipeline"], block["interleave"]
    stages = [0] * pipeline
    for number in range(network.num_layers):
        order = [*range(1, pipeline - 1), 0, pipeline - 1][-pipeline:]
        stages[order[number % pipeline]] += 1
    cuts = [[0] * pipeline for _ in range(chunks)]
    for stage, layers in enumerate(stages):
        for number in range(layers):
            cuts[(number + (stage == 0)) % chunks][stage] += 1
    return [layers for row in cuts for layers in row]


def in_order(block: Mapping[str, Any], stage: int, more: int = 0) -> Iterator[tuple[str, int, int]]:
    """Yield what a stage does, in order: forward (F) or backward (B), chunk, micro-batch.

    ``more``: passes forward ahead of the first backward, beyond what the schedule has.
    """
    pipeline, chunks = block["pipeline"], block["interleave"]
    number = block["global_batch_size"] // (block["data"] * block["microbatch"])
    every, turn = number * chunks, pipeline * chunks
    if block["schedule"] == "gpipe":
        warm = every
    elif chunks > 1:
        warm = min(every, 2 * (pipeline - stage - 1) + (chunks - 1) * pipeline)
    else:
        warm = min(every, (pipeline - stage - 1) * (2 if block["schedule"] == "zb_h2" else 1))

    def task(name: str, index: int) -> tuple[str, int, int]:
        chunk = index % turn // pipeline
        return name, chunk if name == "F" else chunks - 1 - chunk, index // turn * pipeline + index % pipeline

    warm = min(every, warm + more)
    for index in range(warm):
        yield task("F", index)
    for index in range(every):
        if warm + index < every:
            yield task("F", warm + index)
        yield task("B", index)


def _more(block: Mapping[str, Any]) -> int:
    """Return the passes that wait where experts' exchange runs beside another micro-batch."""
    return int(block.get("overlap_expert", False))


def _most_in_flight(block: Mapping[str, Any], stage: int, chunk_bytes: Sequence[float], late: int = 0) -> float:
    """Return the most bytes that wait for their backward at any time; after some turns the order repeats itself.

    ``late``: backwards behind its own until a micro-batch's gradients of weights, which need the same bytes, are done.
    """
    pipeline, chunks = block["pipeline"], block["interleave"]
    number = block["global_batch_size"] // (block["data"] * block["microbatch"])
    if block["schedule"] == "gpipe":
        return float(number * sum(chunk_bytes))
    held = most = 0.0
    behind = late
    for left, (name, chunk, _) in zip(
        range(6 * pipeline * chunks + 6), in_order(block, stage, _more(block)), strict=False
    ):
        del left
        if name == "F" or behind <= 0:
            held += chunk_bytes[chunk] if name == "F" else -chunk_bytes[chunk]
        behind -= name == "B"
        most = max(most, held)
    return most


def _before_first_backward(block: Mapping[str, Any], stage: int) -> int:
    """Return how many micro-batches have passed a stage's first chunk when it begins to run backward."""
    found = 0
    for name, chunk, _ in in_order(block, stage, _more(block)):
        if name == "B":
            break
        found += chunk == 0
    return found


def kinds_of(network: Transformer, sizes: Sequence[int]) -> list[tuple[LayerKind, ...]]:
    """Return the kinds of the layers of chunks that follow one another."""
    left, found = network.layer_kinds, []
    for size in sizes:
        found.append(left[:size])
        left = left[size:]
    return found


def rows_of(network: Transformer, block: Mapping[str, Any]) -> list[dict[str, float]]:
    """Return the bytes of every stage by term, the caller's reserve left out."""
    layers = {kind: layer_of(network, block, kind) for kind in dict.fromkeys(network.layer_kinds)}
    chunks, pipeline = kinds_of(network, cuts_of(network, block)), block["pipeline"]
    return [_row(network, block, stage, chunks[stage::pipeline], layers) for stage in range(pipeline)]


def _row(
    network: Transformer,
    block: Mapping[str, Any],
    stage: int,
    chunks: Sequence[tuple[LayerKind, ...]],
    layers: Mapping[LayerKind, Layer],
) -> dict[str, float]:
    """Return the bytes of one stage, which holds chunks of kinds of layers."""
    if block["pipeline"] > 1:  # FSDP2 holds gradients and weights whole there
        block = {**block, "zero": min(block["zero"], 1)}
    is_last = stage == block["pipeline"] - 1
    held = [layers[kind] for chunk in chunks for kind in chunk]
    first, last = ends_of(network, block)
    ends = (first if stage == 0 else 0.0, last if is_last else 0.0)
    images = images_layers(network, block) if stage == 0 else []
    encoder = images_parameters(network, block) if images else 0.0
    shared, routed = sum(one.shared for one in held) + sum(ends), sum(one.routed for one in held)
    own_ends = _own_ends(network, block, ends)
    own, own_routed = sum(one.own_shared for one in held) + own_ends, sum(one.own_routed for one in held)
    frozen = _frozen_bytes(network, block, held, shared - own, routed - own_routed)
    shared, routed = own + sum(one.adapters for one in held), own_routed
    ranks, zero = (block.get("shard") or block["data"]) * block["context"], block["zero"]
    spread = (shared + routed * block["expert"] * block["expert_tensor"] / block["tensor"]) / ranks
    # Some layers of each chunk: as that share of all of the stage's layers.
    again = block.get("recompute_layers", 0) * len(chunks)
    share = min(1.0, again / max(1, len(held))) if again else 1.0
    kept = [sum(share * layers[kind].kept + (1 - share) * layers[kind].whole for kind in chunk) for chunk in chunks]
    away = block.get("offload_layers", 0) / max(1, len(held))  # on the host, and one layer's on its way
    kept = [(1 - away) * one for one in kept]
    moving = max(one.kept for one in held) if away else 0.0
    away_bytes = {kind: away_of(network, block, kind) for kind in layers}
    kept = [one - sum(away_bytes[kind] for kind in chunk) for one, chunk in zip(kept, chunks, strict=True)]
    moving = max([moving, *(away_bytes[kind] for chunk in chunks for kind in chunk)])
    nothing = [0.0] * (len(chunks) - 1)
    embedding = _embedding_kept(network, block) if stage == 0 else 0.0
    head = _head_kept(network, block) if is_last else 0.0
    waiting = (kept, [*nothing, head])  # their fullest moments may differ, and are added
    program = program_of(block)
    late = {"zb_h1": 1, "zb_h2": 2}.get(block["schedule"], 0) * stage  # gradients of weights are put off by so many
    ahead = _before_first_backward(block, stage) if embedding else 0
    is_gathered = program.gathers and ranks > 1
    state = program.state * (spread if zero >= 1 else shared + routed)
    if block.get(OPTIMIZER) == "muon":  # whole matrices; the ends keep a second moment
        state += 4 * own_ends / (ranks if zero >= 1 else 1)
        state = max(state, program.state * min(max(one.own_largest for one in layers.values()), shared + routed))
    return {
        "weights": program.weight * (spread if zero >= (1 if is_gathered else 3) else shared + routed)
        + (NUMBER_BYTES * (shared + routed) if is_gathered and 1 <= zero < 3 else 0.0)
        + frozen,
        "gradients": program.gradient * (spread if zero >= 2 else shared + routed),
        "optimizer": state * (1 - _host_share(block)),
        "activations": sum(_most_in_flight(block, stage, one, late * (one is kept)) for one in waiting if any(one))
        + ahead * embedding,
        "temporary": _temporary(network, block, [*held, *images], (ends[0] - encoder, ends[1]), head) + moving,
    }


def _host_share(block: Mapping[str, Any]) -> float:
    """Return how much of the optimiser's state is in host memory."""
    return block.get("offload_percent", 100) / 100 if block["offload_optimizer"] else 0.0


def _frozen_bytes(
    network: Transformer, block: Mapping[str, Any], held: Sequence[Layer], shared: float, routed: float
) -> float:
    """Return the bytes of frozen weights on one device: two each, and of QLoRA's matrices in layers half and scales."""
    tuning = network.fine_tuning
    ranks = (block.get("shard") or block["data"]) * block["context"]
    parts = block["expert"] * block["expert_tensor"] / block["tensor"] / ranks if block["zero"] >= 3 else 1.0
    whole = 1 / ranks if block["zero"] >= 3 else 1.0
    less = 2.0 - (0.5 + 1 / 64 + 1 / 4096) if tuning is not None and tuning.method == "qlora" else 0.0
    inside = sum(one.read_routed for one in held)
    outside = sum(one.read for one in held) - inside
    return whole * (2.0 * shared - less * outside) + parts * (2.0 * routed - less * inside)


def _rows_of_words(network: Transformer, tensor: int) -> int:
    """Return the rows of the padded vocabulary on one device."""
    return -(-network.vocabulary_size // (_PADDING * tensor)) * _PADDING


def ends_of(network: Transformer, block: Mapping[str, Any]) -> tuple[float, float]:
    """Return the parameters before the first block and behind the last one, on one device."""
    hidden, words = network.hidden_size, _rows_of_words(network, block["tensor"])
    shift = network.has_norm_scales + (network.norm == "layer_norm" and network.has_norm_biases)
    first = words * hidden + network.num_token_types * hidden + network.has_embedding_norm * hidden * shift
    first += network.num_positions * hidden if network.positions == "learned" else 0
    is_copied = not network.has_tied_embeddings or block["pipeline"] > 1
    last = network.has_final_norm * hidden * shift + (words * hidden if is_copied and network.head != "none" else 0)
    last += words if network.head == "language" and network.has_head_bias else 0
    if network.num_mtp_layers and not network.has_tied_embeddings and block["pipeline"] > 1:
        last += words * hidden  # a copy of the embedding, which depths of prediction read
    return first + images_parameters(network, block), float(last)


def _own_ends(network: Transformer, block: Mapping[str, Any], ends: tuple[float, float]) -> float:
    """Return those of both ends that are trained; a head whose matrix is the frozen embedding's trains the rest."""
    frozen, words = network.trained, _rows_of_words(network, block["tensor"]) * network.hidden_size
    if network.fine_tuning is not None:
        return 0.0
    has_embedding = not (frozen.frozen_layers or "embedding" in frozen.frozen_parts)
    first, last = ends
    is_copied = block["pipeline"] > 1 and last > 0
    copies = words * (is_copied and bool(network.has_tied_embeddings or network.num_mtp_layers))
    own = copies if "head" in frozen.frozen_parts else last
    own -= 0.0 if has_embedding else copies
    if network.has_tied_embeddings and not has_embedding and last:  # a bias of the logits goes with their matrix
        own -= _rows_of_words(network, block["tensor"]) * network.has_head_bias * ("head" not in frozen.frozen_parts)
    images = images_parameters(network, block) if first else 0.0
    own += images_parameters(network, block, is_trained=True) if images else 0.0
    return (first - images) * has_embedding + own


def logits_are_frozen(network: Transformer) -> bool:
    frozen = network.trained
    has_embedding = not (frozen.frozen_layers or "embedding" in frozen.frozen_parts)
    is_lent = network.has_tied_embeddings and not has_embedding
    return network.fine_tuning is not None or "head" in frozen.frozen_parts or is_lent


def _stream(network: Transformer, block: Mapping[str, Any]) -> float:
    """Return the bytes of a micro-batch between two layers, on one device."""
    split = block["tensor"] if block["sequence_parallel"] else 1
    return NUMBER_BYTES * tokens_of(network, block) * network.hidden_size / split


def _embedding_kept(network: Transformer, block: Mapping[str, Any]) -> float:
    """Return what the embedding keeps of a micro-batch: what its norm reads, a mask of dropout, images, an encoder."""
    images = images_kept(network, block)
    if network.trained.frozen_layers or "embedding" in network.trained.frozen_parts:
        return images
    found = network.has_embedding_norm * _stream(network, block) + images
    if program_of(block).keeps_masks:
        found += _stream(network, block) / NUMBER_BYTES
    if network.image is not None:
        pixels = network.image.num_patches * network.image.patch_elements
        split = block["context"] * (block["tensor"] if block["sequence_parallel"] else 1)
        found += NUMBER_BYTES * block["microbatch"] * pixels / split
    return found


def _head_kept(network: Transformer, block: Mapping[str, Any]) -> float:
    """Return what stands behind the last block keeps of a micro-batch: final norm, transformation, and logits.

    The loss overwrites the logits, or keeps a copy of them. What a pooler gives is of a single token, and kept once
    more where a classifier reads it; so is the mean of an image without a token of its class.
    """
    has_logits, is_masked = network.head in ("language", "masked_language"), network.head == "masked_language"
    is_read = has_logits or network.has_pooler or network.head == "classes"
    is_mean = network.image is not None and not network.image.has_class_token
    single = (is_read and is_mean) + network.has_pooler * (1 + is_masked)
    is_read_back = is_read and not is_mean and not logits_are_frozen(network)  # which give no gradient of weights
    streams = network.has_final_norm + is_read_back + 3 * is_masked + single / network.sequence_length
    streams += network.has_modulation * (2 + 1 / network.sequence_length)  # behind the norm, and behind the modulation
    if not has_logits:
        return streams * _stream(network, block)
    each = NUMBER_BYTES if program_of(block).fuses_loss else _COPY_BYTES
    logits = each * tokens_of(network, block) * _rows_of_words(network, block["tensor"])
    return streams * _stream(network, block) + logits


def _temporary(
    network: Transformer, block: Mapping[str, Any], held: Sequence[Layer], ends: tuple[float, float], head: float
) -> float:
    """Return what is there for a moment, and the empty gradients that Transformer Engine holds."""
    program = program_of(block)
    own = [0.0 if program.holds_gradients else NUMBER_BYTES * one.own_largest for one in held]  # a matrix's gradient
    moment = max([one.working + more for one, more in zip(held, own, strict=True)], default=0.0) - head
    is_shared = block["data"] * block["context"] > 1 and block["zero"] >= 1
    if is_shared and program.reduced:  # of a layer's gradients, or of the head's just before
        largest = max([one.adapters + one.own_shared + one.own_routed for one in held], default=0.0)
        moment += program.reduced * max(largest, _own_ends(network, block, (0.0, ends[1])))
    if head:
        whole = NUMBER_BYTES * tokens_of(network, block) * network.hidden_size
        is_gathered = block["sequence_parallel"] and block["tensor"] > 1
        matrix = NUMBER_BYTES * _rows_of_words(network, block["tensor"]) * network.hidden_size
        copies = 0.0
        if not program.fuses_loss and network.head in ("language", "masked_language"):  # a gradient, and another copy
            logits = tokens_of(network, block) * _rows_of_words(network, block["tensor"])
            copies = (_COPY_BYTES if program.more_copies else NUMBER_BYTES) * logits + _COPY_BYTES * logits
        moment = max(moment, matrix * (not logits_are_frozen(network)) + whole * (2 if is_gathered else 1) + copies)
    found = max(moment, 0.0)
    if block["expert"] > 1 and any(one.routed for one in held):
        split = block["tensor"] if block["sequence_parallel"] else 1
        found += program.sent * tokens_of(network, block) / split * block["expert"] * network.routed_width
    if program.holds_gradients:
        found += NUMBER_BYTES * max([one.adapters + one.own_matrices for one in held], default=0.0)
    if block["data"] * block["context"] > 1:
        layer = max([one.shared + one.routed for one in held], default=0.0)
        trained = max([one.adapters + one.own_shared + one.own_routed for one in held], default=0.0)
        found += NUMBER_BYTES * trained if block["zero"] >= 2 else 0.0
        found += program.buffers if block["zero"] >= 1 else 0.0
        ahead = layer if block["overlap_data"] else 0.0
        found += NUMBER_BYTES * (max(layer, *ends) + ahead) if block["zero"] >= 3 else 0.0
    return found


# -- against a plan ----------------------------------------------------------------------------------------------------


def _is_counted_whole(network: Transformer) -> bool:
    """Whether nothing of the network is left out here."""
    return (
        network.head == "language"
        and network.image is None
        and not network.has_pooler
        and not network.has_embedding_norm
    )


def counted(problem: Problem, block: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block with what the question says of experts and of the program."""
    given = problem.calibration
    asked = {IMBALANCE: given.expert_imbalance, PROGRAM: given.program, GRADIENTS: given.gradients}
    return {**block, **asked, OPTIMIZER: problem.training.optimizer}


def reserve_of(problem: Problem, devices: Iterable[Device]) -> float:
    """Return what every device keeps for itself: as given, else 3 GiB or a 20th of the largest device, the lesser.

    With experts 4.2 % of that device more.
    """
    given, network = problem.calibration, problem.dnn.transformer
    if given.transformer_reserve_share == float("inf"):
        return given.transformer_reserve_bytes
    largest = max(one.memory_bytes for one in devices)
    is_in_pieces = network is not None and network.experts is not None and largest < float("inf")
    return min(_RESERVE_BYTES, largest / 20) + (0.042 * largest if is_in_pieces else 0.0)


def fullest_bytes(problem: Problem, network: Transformer, block: Mapping[str, Any], device: Device) -> float:
    """Return the bytes of the fullest stage, of layers cut as the layout is launched."""
    return max(sum(row.values()) for row in rows_of(network, counted(problem, block))) + reserve_of(problem, [device])


def memory_findings(
    problem: Problem, network: Transformer, block: Mapping[str, Any], found: Prediction, device: Device
) -> Iterator[Finding]:
    """Yield whether every term of every stage, and the fullest stage, are what is counted here."""
    stated = found.details.get("stages", [])
    rows = rows_of(network, counted(problem, block))
    if len(stated) != len(rows):
        yield Finding(
            name="memory stages", is_ok=False, text=f"{len(stated)} stages are stated, and there are {len(rows)}"
        )
        return
    for row in rows:
        row["reserve"] = reserve_of(problem, [device])
    for term in _TERMS:
        yield _term(network, term, [row["terms_bytes"][term] for row in stated], [row[term] for row in rows])
    sums = [sum(row["terms_bytes"].values()) for row in stated]
    is_sum = all(_same(row["memory_bytes"], whole) for row, whole in zip(stated, sums, strict=True))
    yield holds("memory by stage", is_sum, "terms sum up on every stage", "the terms of a stage do not sum up")
    limit = found.memory_bytes["limit"]
    rooms = [(row["room_bytes"], limit - row["memory_bytes"]) for row in stated]
    is_room = all(one is None if limit == float("inf") else _near(one, other, limit) for one, other in rooms)
    yield holds("room by stage", is_room, "the limit less the bytes", "a stage's room is not the limit less its bytes")
    yield _fullest(stated, sums, found)
    launched, total = fullest_bytes(problem, network, block, device), found.memory_bytes["total"]
    text = f"{launched:.9g} bytes on the fullest stage as it is launched"
    yield holds(
        "memory as launched",
        launched <= total * (1 + SAME),
        text,
        f"{text}, and no more than {total:.9g} are stated",
    )


def _term(network: Transformer, term: str, stated: Sequence[float], counted: Sequence[float]) -> Finding:
    is_whole, least, most = _is_counted_whole(network), 1 - SAME, 1 + SAME
    if not is_whole and term != "reserve":
        most = 1 + LOOSE if term == "activations" else float("inf")
    for stage, (one, other) in enumerate(zip(stated, counted, strict=True)):
        if not (other * least - 1 <= one and (most == float("inf") or one <= other * most + 1)):  # a byte of rounding
            text = f"on stage {stage + 1} {one:.9g} bytes are stated, and {other:.9g} counted"
            return Finding(name=f"memory {term}", is_ok=False, text=text)
    text = "as counted on every stage" if is_whole else "no less than counted on every stage"
    return Finding(name=f"memory {term}", is_ok=True, text=text)


def _fullest(stated: Sequence[Mapping[str, Any]], sums: Sequence[float], found: Prediction) -> Finding:
    """Return whether the bytes of a device are those of the stage with most."""
    fullest = max(range(len(sums)), key=lambda index: sums[index])
    wanted = {**stated[fullest]["terms_bytes"], "total": sums[fullest]}
    wrong = [name for name in wanted if not _near(found.memory_bytes.get(name), wanted[name], sums[fullest])]
    text = f"stage {fullest + 1} is the fullest"
    return holds("memory of the fullest stage", not wrong, text, f"{text}; not as stated: {', '.join(wrong)}")


def _same(one: float, other: float) -> bool:
    """Whether two figures are the same but for rounding."""
    return abs(one - other) <= SAME * max(abs(one), abs(other))


def _near(one: float | None, other: float, size: float) -> bool:
    """Whether two figures are the same but for rounding of figures of a size."""
    return one is not None and abs(one - other) <= SAME * size
