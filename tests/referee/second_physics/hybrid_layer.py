"""One layer of a transformer on one device, counted a second time: its parameters, and the bytes that it keeps.

The forms, for the ``T = b s / c`` tokens of a micro-batch on a rank, 2 bytes a number: matrices are split by columns or
rows (M. Shoeybi et al., arXiv 1909.08053, section 3); a layer keeps the inputs of norms and products, queries, keys,
values, and 4 bytes a token and head of flash attention (V. Korthikanti et al., arXiv 2205.05198, section 4, without
dropout and without scores); programs without such attention keep scores, and masks (:mod:`.hybrid_program`); under full
recomputation its input alone. Nothing is taken from the cost model.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.transformer import KINDS, SCANS, Transformer
from tests.referee.second_physics.hybrid_program import program_of
from tests.referee.second_physics.hybrid_scans import scan_kept, scan_parameters, scan_products

__all__ = ["IMBALANCE", "NUMBER_BYTES", "Layer", "layer_of", "passes_of", "tokens_of"]

NUMBER_BYTES = 2.0
IMBALANCE = "expert_imbalance"  # a block's key for tokens of the rank whose experts have most, over the mean; 1 without
_LOG_SUM_BYTES = 4.0
_PADDING, _COPY_BYTES = 128, 4.0  # of the vocabulary; of a logit that a loss which is not fused keeps
# Inputs of norms and first products, of full width.
_STREAMS = {"before": 4, "after": 4, "both": 6, "output": 4, "shared": 2, "parallel": 3}
_NORMS = {"before": 2, "after": 2, "both": 4, "output": 2, "shared": 1, "parallel": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer on one device.

    ``shared``, ``routed``: parameters, those of experts apart. ``read``: of all matrices, every expert counted.
    ``matrices``: the same with one expert. ``largest``: of one matrix. ``kept``, ``working``: bytes of a micro-batch
    until its backward pass, and more of them during it. ``whole``: bytes until then of a layer of which nothing is
    computed again. ``own_...``: the same of what is trained of it, adapters left out.
    """

    shared: float
    routed: float
    read: float
    matrices: float
    largest: float
    kept: float
    working: float
    whole: float
    read_routed: float
    adapters: float
    own_shared: float
    own_routed: float
    own_read: float
    own_matrices: float
    own_largest: float


def passes_of(network: Transformer, kind: str) -> int:
    """Return how often each matrix of a layer is multiplied for a micro-batch, at least."""
    whole = {"front": 1, "frozen": 2, "trained": 3}[KINDS[kind].learning]
    return min(whole, 2) if network.fine_tuning is not None or network.trained.frozen_parts else whole


# Where an adapter's matrix stands, and its columns, by the names of a question: rows are the width of what is read.
def _adapters(network: Transformer) -> dict[str, list[int]]:
    """Return the columns of the adapters beside each matrix of a dense layer."""
    tuning = network.fine_tuning
    assert tuning is not None, "asked of networks with adapters"
    queries, keys = network.num_heads * network.head_size, network.num_kv_heads * network.head_size
    inner, hidden = network.feed_forward_size, network.hidden_size
    first = {"qkv": queries + 2 * keys, "query": queries, "key": keys, "value": keys}
    up = {"gate_up": 2 * inner, "gate": inner, "up": inner}
    by_matrix = {"first": first, "output": {"output": hidden}, "up": up, "down": {"down": hidden}}
    return {at: [sizes[one] for one in tuning.targets if one in sizes] for at, sizes in by_matrix.items()}


def _tuned(network: Transformer, block: Mapping[str, Any], kind: str, split: int) -> tuple[float, float]:
    """Return the parameters of a layer's adapters on a device, and the bytes of a micro-batch that it keeps more.

    Less are the inputs of frozen matrices without an adapter, but attention's output; more the numbers between both
    matrices of one.
    """
    tuning, columns, tensor = network.fine_tuning, _adapters(network), block["tensor"]
    assert tuning is not None, "asked of networks with adapters"
    hidden, inner, attended = (
        network.hidden_size,
        network.feed_forward_size,
        network.num_heads * network.value_head_size,
    )
    widths = {"first": hidden, "output": attended, "up": hidden, "down": inner}
    parameters = sum(tuning.rank * (widths[at] + one) for at, sizes in columns.items() for one in sizes) / tensor
    more = float(tuning.rank * sum(len(sizes) for sizes in columns.values()))
    more -= 0.0 if columns["first"] else hidden / split
    if kind == "dense":
        more -= (0.0 if columns["up"] else hidden / split) + (0.0 if columns["down"] else inner / tensor)
    elif network.experts is not None:  # what the router, the experts' first and their second matrices read
        experts, chosen = network.experts, network.experts.top_k * block.get(IMBALANCE, 1.0)
        sent = chosen * hidden * block["expert_tensor"] / tensor
        more -= hidden / split + sent + chosen * experts.expert_size / tensor
        more -= experts.num_shared * experts.shared_size / tensor
    return parameters, tokens_of(network, block) * NUMBER_BYTES * more


def _unread(network: Transformer, block: Mapping[str, Any], kind: str, parts: Collection[str]) -> float:
    """Return the bytes of a micro-batch that a layer with norms before its parts keeps less for frozen ones.

    These are the inputs of frozen matrices: norms' outputs, what the activation function gives, tokens sent to experts.
    """
    hidden, tensor = network.hidden_size, block["tensor"]
    stream = hidden / (tensor if block["sequence_parallel"] else 1)
    less = stream * (KINDS[kind].has_attention and "attention" in parts)
    if KINDS[kind].feed_forward == "dense" and "feed_forward" in parts:
        less += stream + network.feed_forward_size / tensor
    if KINDS[kind].feed_forward == "moe" and network.experts is not None:
        experts, chosen = network.experts, network.experts.top_k * block.get(IMBALANCE, 1.0)
        has_shared = experts.num_shared and "feed_forward" not in parts
        less += stream * (bool({"router", "feed_forward"} & {*parts}) and not has_shared)
        less += experts.num_shared * experts.shared_size / tensor * ("feed_forward" in parts)
        if {"experts", "feed_forward"} & {*parts}:
            less += chosen * hidden * block["expert_tensor"] / tensor + chosen * experts.expert_size / tensor
    return tokens_of(network, block) * NUMBER_BYTES * less


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    """A layer's matrices on one device and its other parameters; those of experts, one's, by themselves.

    ``still``, ``still_rest``: of the former those that are not trained for they are of a frozen part.
    """

    matrices: list[float]
    rest: float
    routed: list[float]
    routed_biases: float
    number: float
    still: list[float]
    still_rest: float


def _weights(network: Transformer, block: Mapping[str, Any], kind: str, frozen: Collection[str]) -> _Weights:
    """Return the parameters of a layer, and which of them are of frozen parts."""
    tensor, parts = block["tensor"], KINDS[kind]
    shift = network.has_norm_scales + (network.norm == "layer_norm" and network.has_norm_biases)
    mixing: tuple[list[float], float] = ([], 0.0)
    if parts.has_attention:
        mixing = _attention(network, tensor, shift)
        if parts.mixer == "attention" and network.sparse is not None:  # whole, and a layer norm with a shift
            mixing = [*mixing[0], *_indexer(network)], mixing[1] + 2 * network.sparse.head_size
    elif parts.mixer != "none":
        mixing = scan_parameters(network, parts.mixer, tensor)
    routed: list[float] = []
    routed_biases, number = 0.0, 0.0
    fed: tuple[list[float], float] = ([], 0.0)
    router: tuple[list[float], float] = ([], 0.0)
    if parts.feed_forward == "dense":
        fed = _two(network, network.feed_forward_size, tensor)
    elif parts.feed_forward == "moe":
        experts = network.experts
        assert experts is not None, "a layer of the kind moe has experts"
        number = experts.num_experts / block["expert"]
        narrow = experts.latent_size or network.hidden_size
        routed, routed_biases = _two(network, experts.expert_size, block["expert_tensor"], narrow)
        router = [float(network.hidden_size * experts.num_experts)], experts.num_experts * experts.has_router_bias
        fed = [float(network.hidden_size * narrow)] * (2 * (experts.latent_size is not None)), 0.0
        if experts.num_shared:
            more = _two(network, experts.num_shared * experts.shared_size, tensor)
            fed = fed[0] + more[0], fed[1] + more[1]
        fed = [*fed[0], *[float(network.hidden_size)] * experts.has_shared_gate], fed[1]
    matrices, rest = mixing[0] + fed[0] + router[0], mixing[1] + fed[1] + router[1]
    rest += _of_parts(network, _NORMS, kind) * network.hidden_size * shift
    if network.has_modulation:  # two shifts, scales and gates from a sample's condition
        matrices, rest = [*matrices, 6.0 * network.hidden_size**2 / tensor], rest + 6 * network.hidden_size / tensor
    if parts.is_prediction:  # three norms, and a product of the stream and the embedding of the next token
        matrices, rest = [*matrices, 2.0 * network.hidden_size**2 / tensor], rest + 3 * network.hidden_size * shift
    held = {"attention": mixing if parts.has_attention else ([], 0.0), "feed_forward": fed, "router": router}
    if "feed_forward" in frozen:
        frozen = {*frozen, "router"}
    still = [held[part] for part in held if part in frozen]
    return _Weights(
        matrices=matrices,
        rest=rest,
        routed=routed,
        routed_biases=routed_biases,
        number=number,
        still=[one for each, _ in still for one in each],
        still_rest=sum(more for _, more in still),
    )


def layer_of(network: Transformer, block: Mapping[str, Any], kind: str) -> Layer:
    """Return a layer of a kind, such as ``dense`` or ``moe``, on one device."""
    frozen, tensor, parts = _frozen(network, kind), block["tensor"], KINDS[kind]
    weights = _weights(network, block, kind, frozen)
    matrices, routed, number = weights.matrices, weights.routed, weights.number
    kept, working = _kept(network, block, kind)
    if parts.is_prediction:  # its loss
        program, words = program_of(block), -(-network.vocabulary_size // (_PADDING * tensor)) * _PADDING
        logits = tokens_of(network, block) * words
        kept += logits * (NUMBER_BYTES if program.fuses_loss else _COPY_BYTES)
        working += 0.0 if program.fuses_loss else logits * (NUMBER_BYTES + _COPY_BYTES)
    adapters = beside = 0.0
    if network.fine_tuning is not None:
        split = tensor if block["sequence_parallel"] else 1
        adapters, beside = _tuned(network, block, kind, split)
    elif frozen and parts.learning != "front":
        beside = -_unread(network, block, kind, frozen)
    kept, working = (kept, working + beside) if block["recompute"] == "full" else (kept + beside, working)
    whole, gradients = _kept(network, {**block, "recompute": "none"}, kind)
    whole += beside
    if parts.learning == "front":  # nothing is kept for a pass that does not run
        kept, working, whole = 0.0, gradients, 0.0
    is_trained = parts.learning == "trained" and network.fine_tuning is None
    has_routed = is_trained and not {"experts", "feed_forward"} & {*frozen}
    own = list(matrices) if is_trained else []
    for one in weights.still if is_trained else []:
        own.remove(one)
    return Layer(
        adapters=adapters,
        read_routed=number * sum(routed),
        shared=sum(matrices) + weights.rest,
        routed=number * (sum(routed) + weights.routed_biases),
        read=sum(matrices) + number * sum(routed),
        matrices=sum(matrices) + sum(routed),
        largest=max(*matrices, *routed),
        kept=kept,
        working=working,
        whole=whole,
        own_shared=(sum(own) + weights.rest - weights.still_rest) * is_trained,
        own_routed=number * (sum(routed) + weights.routed_biases) * has_routed,
        own_read=sum(own) + number * sum(routed) * has_routed,
        own_matrices=sum(own) + sum(routed) * has_routed,
        own_largest=max([*own, *(routed if has_routed else [])], default=0.0),
    )


def _frozen(network: Transformer, kind: str) -> tuple[str, ...]:
    """Return the parts of a layer that are not trained, as a question names them; adapters are told apart."""
    if KINDS[kind].learning != "trained":
        return ("attention", "feed_forward", "experts", "router")
    return network.trained.frozen_parts


def _indexer(network: Transformer) -> list[float]:
    """Return the matrices of an indexer: of its queries, its key, and its heads' weights."""
    sparse, latent, hidden = network.sparse, network.latent, network.hidden_size
    assert sparse is not None, "asked of networks with an indexer"
    source = (latent.query_rank if latent is not None else None) or hidden
    return [float(source * sparse.heads * sparse.head_size), float(hidden * sparse.head_size), hidden * sparse.heads]


def _shift(network: Transformer) -> float:
    """Return the numbers a token of one of the vectors that a sample's condition gives, where there are any."""
    return network.has_modulation * network.hidden_size / network.sequence_length


def _index_kept(network: Transformer, kind: str) -> float:
    """Return the numbers a token that an indexer keeps.

    Its key before and behind a norm, queries, weights, and four bytes for each token that is chosen.
    """
    sparse = network.sparse
    if sparse is None or KINDS[kind].mixer != "attention":
        return 0.0
    chosen = 2.0 * min(sparse.top_k, network.sequence_length)
    return (sparse.heads + 2) * sparse.head_size + sparse.heads + chosen


def _of_parts(network: Transformer, table: Mapping[str, int], kind: str) -> float:
    """Return a number of a layer of two parts, or half of it where each layer is one."""
    both = table[network.norm_position]
    return both / 2 if KINDS[kind].number == 1 and network.norm_position not in ("shared", "parallel") else both


def _attention(network: Transformer, tensor: int, shift: int) -> tuple[list[float], float]:
    """Return the matrices of attention on one device, and its other parameters."""
    hidden, heads, keys, size = network.hidden_size, network.num_heads, network.num_kv_heads, network.head_size
    has_bias, latent = network.has_qkv_biases, network.latent
    value = size if latent is None else latent.value_size
    output, rest = heads * value * hidden / tensor, float(hidden * network.has_output_bias)
    rest += network.has_sinks * heads / tensor
    gate = [output] * network.has_attention_gate
    rest += network.has_attention_gate * has_bias * heads * value / tensor
    if latent is None:
        columns = (heads / tensor + 2 * keys / min(tensor, keys)) * size
        normed = (heads + keys if network.query_key_norm_span == "all_heads" else 2) * network.has_query_key_norms
        rest += columns * has_bias + normed * size * shift
        return [hidden * columns, output, *gate], rest
    queries, narrow = heads * size, latent.key_value_rank + latent.rope_size
    wide = heads * (latent.nope_size + latent.value_size)
    found = [hidden * float(narrow), latent.key_value_rank * wide / tensor, output, *gate]
    rest += has_bias * (narrow + wide / tensor + queries / tensor) + latent.key_value_rank * shift
    if latent.query_rank is None:
        return [*found, hidden * queries / tensor], rest
    rest += latent.query_rank * (has_bias + shift)
    return [*found, float(hidden * latent.query_rank), latent.query_rank * queries / tensor], rest


def _two(network: Transformer, inner: int, tensor: int, outer: int | None = None) -> tuple[list[float], float]:
    """Return both matrices of a feed-forward part on one device, and their biases: the second one's is whole."""
    wide = 2 * inner if network.is_gated else inner
    hidden = network.hidden_size if outer is None else outer
    return [hidden * wide / tensor, inner * hidden / tensor], network.has_biases * (wide / tensor + hidden)


def tokens_of(network: Transformer, block: Mapping[str, Any]) -> float:
    """Return the tokens of a micro-batch on one rank."""
    return float(block["microbatch"] * network.sequence_length / block["context"])


def _kept(network: Transformer, block: Mapping[str, Any], kind: str) -> tuple[float, float]:
    """Return the bytes that a layer keeps of a micro-batch, and what its backward pass needs besides."""
    hidden, heads, size, tensor = network.hidden_size, network.num_heads, network.head_size, block["tensor"]
    tokens, split = tokens_of(network, block), tensor if block["sequence_parallel"] else 1
    latent = network.latent
    value = size if latent is None else latent.value_size
    heads *= KINDS[kind].has_attention
    # Of a depth of prediction both streams, both normed, what leaves the block, and its norm's output, too.
    # Of modulated parts both norms' outputs, what both parts give, and a sample's vectors.
    stream = (_of_parts(network, _STREAMS, kind) + 6 * KINDS[kind].is_prediction + 4 * network.has_modulation) * hidden
    parted = heads * value / tensor + 6 * _shift(network) / tensor
    widest_mixer = 0.0
    if not heads:
        more, widest_mixer = scan_kept(network, KINDS[kind].mixer)
        parted += more / tensor
    elif latent is None:
        times = 2 if network.has_query_key_norms else 1
        parted += times * size * (heads / tensor + 2 * network.num_kv_heads / min(tensor, network.num_kv_heads))
    else:
        stream += 2 * (latent.query_rank or 0) + 2 * latent.key_value_rank + latent.rope_size
        parted += heads * (2 * size + value) / tensor
    if heads and network.has_attention_gate:  # the product that gates, and what comes out
        parted += 2 * heads * value / tensor
        widest_mixer = 3.0 * heads * value
    fed, widest, chosen = _fed(network, block, kind, block.get(IMBALANCE, 1.0))
    widest = max(widest, widest_mixer / tensor)
    numbers = (stream + _shift(network) + chosen) / split + parted + fed + _index_kept(network, kind)
    plain = tokens * NUMBER_BYTES * numbers
    program, scores = program_of(block), 0.0
    if program.keeps_scores:  # softmax; its mask, and what passes it
        each = NUMBER_BYTES + (1 + NUMBER_BYTES if program.keeps_masks else 0)
        scores = each * tokens * network.sequence_length * heads / tensor
    else:
        plain += tokens * _LOG_SUM_BYTES * heads / tensor
    if program.keeps_masks:  # of both residual branches
        plain += KINDS[kind].number * tokens * hidden / split
    if block["context"] > 1 and program.copies_context:  # the all-to-all exchange of heads keeps its output twice
        plain += tokens * NUMBER_BYTES * heads * value / tensor
    gradients = tokens * NUMBER_BYTES * widest
    if block["context"] > 1 and block.get("context_method") == "all_gather":  # keys and values of all, and gradients
        whole = tokens * block["context"] * max(network.num_kv_heads / tensor, 1.0) * (size + value)
        gradients += 2 * NUMBER_BYTES * whole
    if block["recompute"] == "none":
        return plain + scores, gradients
    entry = tokens * NUMBER_BYTES * hidden / split
    if block["recompute"] == "selective" and program.keeps_every_second:
        is_read = program.keeps_last or network.norm_position not in ("before", "shared", "parallel")
        given = [share for share, is_last in _given(network, block, kind)[::2] if is_read or not is_last]
        kept = entry + tokens * (NUMBER_BYTES * (sum(given) + heads * value / tensor) + _LOG_SUM_BYTES * heads / tensor)
        kept = min(kept, plain)
        return kept, plain - kept + gradients
    if block["recompute"] == "selective":
        modules = block.get("recompute_modules", "core_attn").split()
        saved = tokens * NUMBER_BYTES * _saved(network, block, kind, modules)
        kept = plain - saved + scores * ("core_attn" not in modules)
        return kept, plain + scores - kept + gradients
    return entry, plain + scores - entry + gradients


def _saved(network: Transformer, block: Mapping[str, Any], kind: str, modules: Sequence[str]) -> float:
    """Return the numbers a token that modules which are computed again do not keep, scores apart.

    As the options of Megatron-Core 0.16 say: norms that are no part of a product, latent attention's wide queries, keys
    and values with the norms before them, a dense part with its norm, all that is inside of the part of experts.
    """
    tensor, split = block["tensor"], block["tensor"] if block["sequence_parallel"] else 1
    parts, experts = KINDS[kind], network.experts
    latent, is_moe = network.latent if parts.mixer == "attention" else None, parts.feed_forward == "moe"
    is_before, found = network.norm_position in ("before", "both"), 0.0
    if "layernorm" in modules and is_before:
        found += network.hidden_size / split * ((latent is not None) + is_moe)
    if "mla_up_proj" in modules and latent is not None:
        value = latent.value_size
        found += network.num_heads * (2 * network.head_size + value) / tensor
        found += ((latent.query_rank or 0) + latent.key_value_rank) / split
    if not is_moe or experts is None:
        fed, _, _ = _fed(network, block, kind, 1.0)
        has_part = parts.feed_forward == "dense" and "mlp" in modules
        return found + has_part * (fed + is_before * network.hidden_size / split)
    fed, _, chosen = _fed(network, block, kind, block.get(IMBALANCE, 1.0))
    if "moe" in modules:
        return found + fed + chosen / split
    if "moe_act" in modules:
        found += experts.expert_size * experts.top_k * block.get(IMBALANCE, 1.0) / tensor
    if "shared_experts" in modules:
        found += (3 if network.is_gated else 2) * experts.num_shared * experts.shared_size / tensor
        found += (network.hidden_size + 1) * experts.has_shared_gate / split
    return found


def away_of(network: Transformer, block: Mapping[str, Any], kind: str) -> float:
    """Return the bytes of a micro-batch that a layer has on the host: what its modules listed in the block read.

    As the options of Megatron-Core 0.16 say. What is computed again is not there.
    """
    modules = set(block.get("offload_modules", "none").split()) - {"none"}
    if KINDS[kind].learning == "front":  # which keeps nothing
        return 0.0
    is_partly = block["recompute"] == "selective"
    again = set(block.get("recompute_modules", "core_attn").split()) if is_partly else set()
    parts, experts, latent = KINDS[kind], network.experts, network.latent
    tensor, split = block["tensor"], block["tensor"] if block["sequence_parallel"] else 1
    hidden, heads, size = network.hidden_size / split, network.num_heads, network.head_size
    has_norm, is_moe = network.norm_position in ("before", "both"), parts.feed_forward == "moe"
    numbers = dict.fromkeys(modules, 0.0)
    if parts.has_attention:
        value = size if latent is None else latent.value_size
        numbers["attn_proj"] = heads * value / tensor
        if latent is None:
            numbers["core_attn"] = size * (
                heads / tensor + 2 * network.num_kv_heads / min(tensor, network.num_kv_heads)
            )
            numbers["qkv_linear"] = (1 + has_norm) * hidden
        else:
            wide, ranks = heads * (2 * size + value) / tensor, (latent.query_rank or 0) + latent.key_value_rank
            numbers["core_attn"] = 0.0 if "mla_up_proj" in again else wide
            normed = 0 if "mla_up_proj" in again else ranks
            numbers["qkv_linear"] = (ranks + latent.rope_size + normed) / split
            numbers["qkv_linear"] += 0.0 if has_norm and "layernorm" in again else hidden
            numbers["attn_norm"] = has_norm * hidden
    if is_moe and experts is not None:
        tokens = experts.top_k * block.get(IMBALANCE, 1.0) / tensor
        narrow = experts.latent_size or network.hidden_size
        numbers["mlp_norm"] = has_norm * hidden
        numbers["expert_fc1"] = tokens * block["expert_tensor"] * narrow
        numbers["moe_act"] = tokens * experts.expert_size * (2 if network.is_gated else 1)
    return NUMBER_BYTES * tokens_of(network, block) * sum(numbers[name] for name in modules if name in numbers)


def _given(network: Transformer, block: Mapping[str, Any], kind: str) -> list[tuple[float, bool]]:
    """Return the numbers a token that each matrix of a layer gives on a device, in order, and whether it is the last.

    Those of experts, which are one product, are left out.
    """
    tensor, split = block["tensor"], block["tensor"] if block["sequence_parallel"] else 1
    hidden, latent = network.hidden_size / split, network.latent
    parts = KINDS[kind]
    if parts.mixer in SCANS:
        found = [one / tensor for one in scan_products(network, parts.mixer)]
    elif parts.mixer == "none":
        found = []
    elif latent is None:
        keys = network.num_kv_heads / min(tensor, network.num_kv_heads) * network.head_size
        found = [network.num_heads * network.head_size / tensor, keys, keys]
    else:
        found = [] if latent.query_rank is None else [latent.query_rank / split]
        found += [network.num_heads * network.head_size / tensor, (latent.key_value_rank + latent.rope_size) / split]
        found += [network.num_heads * (latent.nope_size + latent.value_size) / tensor]
    if parts.mixer == "attention" and (sparse := network.sparse) is not None:
        found += [float(sparse.heads * sparse.head_size), float(sparse.head_size), float(sparse.heads)]
    if parts.has_attention and network.has_attention_gate:
        found += [network.num_heads * network.value_head_size / tensor]
    found += [hidden] * (parts.mixer != "none")
    if parts.feed_forward == "none":
        return [(one, at == len(found) - 1) for at, one in enumerate(found)]
    inner, experts = float(network.feed_forward_size), network.experts
    if parts.feed_forward == "moe" and experts is not None:
        found += [experts.num_experts / split]
        inner = float(experts.num_shared * experts.shared_size)
    narrow: list[tuple[float, bool]] = []  # into the experts' narrower stream, and out of it
    if parts.feed_forward == "moe" and experts is not None and experts.latent_size is not None:
        narrow = [(experts.latent_size / split, False), (hidden, True)]
    if not inner:
        return [*((one, False) for one in found), *narrow]
    gate = parts.feed_forward == "moe" and experts is not None and experts.has_shared_gate  # which reads what it weighs
    halves = [(inner / tensor, False)] * (1 + network.is_gated)
    rows = [*((one, False) for one in found), *narrow, *halves, (hidden, not gate)]
    return [*rows, *[(1.0 / split, False)] * gate]


def _fed(network: Transformer, block: Mapping[str, Any], kind: str, imbalance: float) -> tuple[float, float, float]:
    """Return the numbers a token that a feed-forward part keeps, its widest activation, and those of its router.

    ``imbalance``: tokens of the fullest rank's experts, over the mean.
    """
    tensor = block["tensor"]
    parts = 3 if network.is_gated else 2  # what enters the activation function, and what leaves it
    if KINDS[kind].feed_forward == "none":
        return 0.0, 0.0, 0.0
    if KINDS[kind].feed_forward == "dense":
        inner = parts * network.feed_forward_size / tensor
        return inner, inner, 0.0
    experts = network.experts
    assert experts is not None, "a layer of the kind moe has experts"
    inner = parts * experts.expert_size * experts.top_k * imbalance / tensor
    shared = parts * experts.num_shared * experts.shared_size / tensor
    # To the experts, and back, where it is weighted then: every rank of those that share an expert has what all sent.
    narrow, times = experts.latent_size or network.hidden_size, 1 if program_of(block).weighs_early else 2
    sent = times * narrow * experts.top_k * imbalance * block["expert_tensor"] / tensor
    weighed = (network.hidden_size + 1) * experts.has_shared_gate  # what the shared experts give, and its weight
    summed = experts.latent_size or 0  # of all experts, which a product widens
    return sent + inner + shared, max(inner, shared), float(experts.num_experts + experts.top_k + weighed + summed)
