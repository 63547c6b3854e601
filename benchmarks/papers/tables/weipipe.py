"""WeiPipe (PPoPP 2025): its formulas one by one, and its scaling from 4 to 32 GPUs."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache
from itertools import product

from benchmarks.papers.comparison import PaperTable, Row, counted
from benchmarks.papers.tables.closed_forms import idle_between, over_work, sent
from benchmarks.weight_passing_model import LATENCY_US, NETWORKS, Model, Outcome, simulate
from synth.costs.costs import Costs, uniform_costs
from synth.families import generate
from synth.families.weipipe import turns
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links, NodeLink
from synth.schedule.lowering.lower import Lowered
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import verify

_SIZES = [(p, rounds) for p in range(2, 10) for rounds in (2, 3, 5)]
_EVEN = [(p, rounds) for p, rounds in _SIZES if not p % 2]
_TIMES = ((1, 2), (3, 4), (2, 5))
_UNIT = {OpKind.F: 1, OpKind.B: 1, OpKind.W: 1, OpKind.BW: 2}

# Weights and gradients that a link carries in a turn of the published rings.
_CHUNKS = 3


def lock_step_us(order: str, p: int, rounds: int, took: Mapping[OpKind, int]) -> int:
    """Return the time if all ranks begin each turn together."""
    ranks = [turns(order, p, rounds, rank) for rank in range(p)]
    return sum(
        max(sum(took[op.kind] for op in rank[turn]) for rank in ranks if turn < len(rank))
        for turn in range(max(map(len, ranks)))
    )


def bubble(order: str, p: int, rounds: int, forward: int = 1, backward: int = 2) -> Fraction:
    """Return the idle time in lock-step over the work of a rank."""
    took = _UNIT | {OpKind.F: forward, OpKind.BW: backward}
    work = rounds * p * (forward + backward)
    return Fraction(lock_step_us(order, p, rounds, took) - work, work)


def _num_turns(order: str, p: int, rounds: int) -> int:
    return max(len(turns(order, p, rounds, rank)) for rank in range(p))


def _lowered(name: str, p: int, rounds: int, *, saved: int = 0, parameters: int = 0) -> Lowered:
    costs = _costs(p, saved, parameters)
    return verify(generate(name, p, p * rounds, costs=costs), costs)[0]


def _costs(p: int, saved: int, parameters: int) -> Costs:
    return uniform_costs(
        p,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        saved_bytes=saved,
        saved_w_bytes=saved,
        parameter_bytes=parameters,
        gradient_bytes=parameters,
        static_bytes=2 * parameters,
    )


def _sent(name: str, p: int, rounds: int) -> int:
    """Return the weights and gradients of a stage that are sent in an iteration."""
    return int(_lowered(name, p, rounds, parameters=1).transfer_table.num_bytes.sum())


def _held(name: str, p: int, rounds: int) -> tuple[int, ...]:
    """Return by rank the activations of a stage that are held at once."""
    return peak_bytes(_lowered(name, p, rounds, saved=1))


def _formulas() -> Iterator[Row]:
    yield counted(
        "bubble over the work, interleaved",
        (
            bubble("interleaved", p, rounds, *times) == Fraction(p - 1, p * rounds)
            for (p, rounds), times in product(_SIZES, _TIMES)
        ),
    )
    yield counted(
        "the same bubble as 1F1B",
        (bubble("interleaved", p, n) == over_work("1f1b", p, n * p) for p, n in _SIZES),
    )
    yield counted(
        "WZB1: less bubble than interleaved",
        (bubble("wzb1", p, n) < bubble("interleaved", p, n) for p, n in _EVEN),
    )
    yield counted(
        "WZB2: less bubble than WZB1",
        (bubble("wzb2", p, n) < bubble("wzb1", p, n) for p, n in _EVEN),
    )
    yield counted(
        "ZB2: no bubble between iterations",
        (idle_between("zb-h2", p, n * p) == 0 for p, n in _SIZES),
    )
    yield counted(
        "activations: bytes over a link",
        (sent("1f1b", p, n * p) == 2 * n * p * (p - 1) for p, n in _SIZES),
    )
    yield counted(
        "interleaved: at most 3 chunks of 12 H² per link and turn",
        (
            _sent("weipipe", p, n) <= _CHUNKS * p * _num_turns("interleaved", p, n)
            for p, n in _SIZES
        ),
    )
    yield Row(
        "turns of naive over interleaved, P = 8, 64 rounds",
        round(_num_turns("naive", 8, 64) / _num_turns("interleaved", 8, 64), 2),
    )
    yield counted(
        "interleaved: activations as 1F1B's first rank, on every rank",
        (set(_held("weipipe", p, n)) == {max(_held("1f1b", p, n))} for p, n in _SIZES),
    )
    yield counted(
        "WZB1: 1.5 of the activations of interleaved",
        (max(_held("weipipe:wzb1", p, n)) == 1.5 * p for p, n in _EVEN if n > 2),
    )
    yield counted(
        "WZB2: the activations of ZB1",
        (max(_held("weipipe:wzb2", p, n)) == max(_held("zb-h1", p, n)) for p, n in _SIZES),
    )
    yield counted(
        "weights are fewer bytes if GS/(12H) > 1, Table 2",
        (
            (tokens > 12 * hidden) == (36 * 2 * hidden**2 < 2 * tokens * hidden)
            for hidden, tokens in product((1024, 2048, 4096), (65536,))
        ),
    )


# 32 layers, H = 2048, sequences of 16384 tokens, 4 of them in a micro-batch.
_SYSTEMS = {
    "1F1B": "1f1b", "ZB1": "zb-h1", "ZB2": "zb-h2", "FSDP": "zero3:1", "WeiPipe": "weipipe",
}  # fmt: skip
_HIDDEN, _LAYERS, _SEQUENCE, _SEQUENCES = 2048, 32, 16384, 4
_MEMORY_BYTES = 80 * 10**9
# GPUs, GPUs of a server, and micro-batches of the constant batch (128 and 256 sequences).
_ALL, _SOME = tuple(_SYSTEMS), ("1F1B", "FSDP", "WeiPipe")
_SCALES = {"small": ((4, 8, 16), 4, 32), "large": ((8, 16, 32), 8, 64)}


@cache
def _outcome(system: str, gpus: int, in_node: int, micro_batches: int) -> Outcome:
    fast = Link(latency_us=LATENCY_US, bandwidth_bytes_per_s=NETWORKS["NVLink"])
    slow = NodeLink(
        ranks_per_node=in_node, latency_us=LATENCY_US, bandwidth_bytes_per_s=NETWORKS["10 GbE"]
    )
    is_whole = not system.startswith("ZB")
    # Without recomputation a micro-batch is a single sequence, and there are four times as many.
    sequences = _SEQUENCES if is_whole else 1
    model = Model(_HIDDEN, _LAYERS, _SEQUENCE, _SEQUENCE * sequences, is_whole)
    rounds = micro_batches * _SEQUENCES // sequences // gpus
    return simulate(_SYSTEMS[system], model, gpus, rounds, Links(default=fast, nodes=(slow,)))


def _speeds(system: str, scale: str, *, is_weak: bool) -> list[float | None]:
    """Return tokens per second of all GPUs by their number; None: out of memory."""
    counts, in_node, batch = _SCALES[scale]
    found: list[float | None] = []
    for gpus in counts:
        one = _outcome(system, gpus, in_node, 4 * gpus if is_weak else batch)
        found.append(one.tokens_per_s * gpus if one.peak_bytes <= _MEMORY_BYTES else None)
    return found


def _scaling() -> Iterator[Row]:
    for figure, scale, is_weak, systems in (
        (6, "small", True, _ALL), (7, "large", True, _SOME),
        (8, "small", False, _ALL), (9, "large", False, _SOME),
    ):  # fmt: skip
        speeds = {name: _speeds(name, scale, is_weak=is_weak) for name in systems}
        ours = speeds.pop("WeiPipe")
        for other, theirs in speeds.items():
            yield counted(
                f"figure {figure}: WeiPipe is faster than {other}",
                (
                    their is None or (our is not None and our > their)
                    for our, their in zip(ours, theirs, strict=True)
                ),
            )
        for other in ("1F1B", "FSDP"):
            kept = _kept(ours) > _kept(speeds[other])
            yield counted(f"figure {figure}: WeiPipe keeps more of its speed than {other}", (kept,))


def _kept(speeds: list[float | None]) -> float:
    first, last = speeds[0], speeds[-1]
    assert first is not None and last is not None
    return last / first


TABLES = (
    PaperTable("weipipe-formulas", "2 to 9 ranks, odd numbers among them.", _formulas),
    PaperTable(
        "weipipe-scaling", "H = 2048, S = 16384, 32 layers, 10 GbE between servers.", _scaling
    ),
)
