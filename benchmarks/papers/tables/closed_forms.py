"""Closed forms of bubbles, memory and traffic, over grids of sizes, odd ones among them."""

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import partial
from itertools import product

from benchmarks.papers.comparison import PaperTable, Row, counted
from synth.costs.costs import Costs, uniform_costs
from synth.families import family_placement, generate
from synth.schedule.lowering.lower import Lowered
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.simulate import Timeline
from synth.schedule.verify import verify
from synth.schedule.version_facts import version_facts

Sizes = tuple[int, int]  # ranks and micro-batches
Form = Callable[[int, int], Fraction | int]

_ANY = [(d, n) for d in range(2, 9) for n in (1, 2, 3, 5, 8, 13, 24) if n >= d]
_MULTIPLES = [(d, k * d) for d, k in product(range(2, 9), (1, 2, 3))]
_EVEN = [(d, n) for d, n in _MULTIPLES if not d % 2]
_UNITS = [(d, n) for d, n in _EVEN if n == d]

Run = tuple[Lowered, Timeline]


def _costs(stages: int, backward: int, saved: int = 1) -> Costs:
    """F takes 1, B and W 1 each, or both together `backward`."""
    split = backward // 2
    return uniform_costs(
        stages,
        forward_us=1,
        backward_input_us=split,
        backward_weight_us=backward - split,
        saved_bytes=saved,
        saved_w_bytes=saved,
        output_bytes=0,
    )


def ran(name: str, ranks: int, micro_batches: int, backward: int = 2) -> Run:
    """Verify and simulate a family with equal stages, BW taking `backward` times F."""
    costs = _costs(family_placement(name, ranks).num_stages, backward)
    return verify(generate(name, ranks, micro_batches, costs=costs), costs)


def share(timeline: Timeline, span_us: int) -> Fraction:
    """Return the share of a span in which a rank is idle, on average."""
    work = Fraction(sum(timeline.work_us), len(timeline.work_us))
    return 1 - work / span_us


def idle(name: str, d: int, n: int, backward: int = 2) -> Fraction:
    """Return the bubble of an iteration as a share of its time."""
    _, timeline = ran(name, d, n, backward)
    return share(timeline, timeline.makespan_us)


def over_work(name: str, d: int, n: int) -> Fraction:
    """Return the bubble over the work, as Megatron-LM's paper counts it."""
    part = idle(name, d, n)
    return part / (1 - part)


def idle_between(name: str, d: int, n: int) -> Fraction:
    """Return the bubble of an iteration that others follow at once."""
    _, timeline = ran(name, d, n)
    return share(timeline, timeline.period_us)


def held(name: str, d: int, n: int) -> Fraction:
    """Return the most activations of a rank, in micro-batches of all its stages of a copy."""
    lowered, _ = ran(name, d, n)
    per_copy = family_placement(name, d).num_stages // d
    return Fraction(max(peak_bytes(lowered)), per_copy)


def sent(name: str, d: int, n: int) -> int:
    """Return the activations and gradients that are sent."""
    stages = family_placement(name, d).num_stages
    costs = uniform_costs(
        stages, forward_us=1, backward_input_us=1, backward_weight_us=1, output_bytes=1
    )
    lowered, _ = verify(generate(name, d, n, costs=costs), costs)
    return int(lowered.transfer_table.num_bytes.sum())


def versions(name: str, d: int, n: int) -> list[int]:
    """Return by stage the versions of weights that are alive at once."""
    lowered, _ = ran(name, d, n)
    return [facts.alive for facts in version_facts(lowered)]


def delays(name: str, d: int, n: int) -> list[int]:
    """Return by stage the updates by which gradients are late."""
    lowered, _ = ran(name, d, n)
    return [facts.delay for facts in version_facts(lowered)]


def _compared(
    row: str, sizes: Iterable[Sizes], own: Callable[[int, int], object], form: Callable[..., object]
) -> Row:
    return counted(row, (own(d, n) == form(d, n) for d, n in sizes))


def _over_1f1b(figure: Callable[[str, int, int], Fraction | int], name: str) -> Form:
    """Return a figure of a family over that of 1F1B, by ranks and micro-batches."""
    return lambda d, n: Fraction(figure(name, d, n)) / figure("1f1b", d, n)


def _bubbles() -> Iterator[Row]:
    long = [(d, n) for d, n in _ANY if n >= 2 * d]
    more = [(d, n) for d, n in _EVEN if n > d]
    two_units = [(d, n) for d, n in _EVEN if n == 2 * d]
    of_1f1b: Form = lambda d, n: Fraction(d - 1, n + d - 1)  # noqa: E731 - a table of forms
    of_bitpipe: Form = lambda d, n: Fraction(d - 2, 3 * n + d - 2)  # noqa: E731
    for row, sizes, own, form in (
        ("gpipe: share of the time", _ANY, partial(idle, "gpipe"), of_1f1b),
        ("1f1b: share of the time", _ANY, partial(idle, "1f1b"), of_1f1b),
        ("1f1b: over the work", _ANY, partial(over_work, "1f1b"), lambda d, n: Fraction(d - 1, n)),
    ):
        yield _compared(row, sizes, own, form)
    yield counted(
        "interleaved: over the work",
        (
            over_work(f"interleaved:{v}", d, n) == Fraction(d - 1, v * n)
            for (d, n), v in product(_MULTIPLES, (2, 3))
        ),
    )
    for row, sizes, own, form in (
        ("zb-h1: share of the time", _ANY, partial(idle, "zb-h1"),
         lambda d, n: Fraction(d - 1, 3 * (n + d - 1))),
        ("zb-h2: share of the period", long, partial(idle_between, "zb-h2"), lambda d, n: 0),
        ("zb-v: share of the period", long, partial(idle_between, "zb-v"), lambda d, n: 0),
        ("bitpipe: share of the time, N = D", _UNITS, partial(idle, "bitpipe:1"), of_bitpipe),
        ("bitpipe: share of the time, N > D", more, partial(idle, "bitpipe:1"), of_bitpipe),
        ("bitpipe:1,early: share of the time", two_units, partial(idle, "bitpipe:1,early"),
         lambda d, n: Fraction(d - 2, 4 * n + d - 2)),
    ):  # fmt: skip
        yield _compared(row, sizes, own, form)


def _memory() -> Iterator[Row]:
    long = [(d, n) for d, n in _ANY if n >= 2 * d]
    two_units = [(d, n) for d, n in _EVEN if n == 2 * d and d > 2]
    doubled = [(d, n) for d, n in _EVEN if n >= 2 * d]
    steady = [(d, n * d) for d in range(2, 9) for n in (3, 6)]
    once: Form = lambda d, n: 1  # noqa: E731
    twice: Form = lambda d, n: 2  # noqa: E731
    forms: list[tuple[str, list[Sizes], Callable[[int, int], object], Callable[[int, int], object]]]
    forms = [
        ("gpipe: activations", _ANY, partial(held, "gpipe"), lambda d, n: n),
        ("1f1b: activations", _ANY, partial(held, "1f1b"), lambda d, n: d),
        ("zb-h1: activations over 1f1b's", long, _over_1f1b(held, "zb-h1"), once),
        ("zb-h2: activations over 1f1b's", long, _over_1f1b(held, "zb-h2"), twice),
        ("zb-v: activations over 1f1b's", long, _over_1f1b(held, "zb-v"), once),
        ("zb-h1: traffic over 1f1b's", long, _over_1f1b(sent, "zb-h1"), once),
        ("zb-h2: traffic over 1f1b's", long, _over_1f1b(sent, "zb-h2"), once),
        ("zb-v: traffic over 1f1b's", long, _over_1f1b(sent, "zb-v"), twice),
        ("interleaved:2: traffic over 1f1b's", _MULTIPLES, _over_1f1b(sent, "interleaved:2"),
         twice),
        ("bitpipe:1: traffic over 1f1b's", _EVEN, _over_1f1b(sent, "bitpipe:1"), twice),
        ("bitpipe:1,early: activations", two_units, partial(held, "bitpipe:1,early"),
         lambda d, n: Fraction(3 * d - 3, 2)),
        ("chimera:doubling: activations, N ≥ 2D", doubled,
         partial(held, "chimera:doubling"), lambda d, n: 2 * d),
        ("mixpipe: activations, N ≥ 2D", doubled,
         partial(held, "mixpipe"), lambda d, n: Fraction(3 * d - 2, 2)),
        ("pipedream: versions", steady, partial(versions, "pipedream"),
         lambda d, n: [d - s for s in range(d)]),
        ("pipedream: delay", steady, partial(delays, "pipedream"),
         lambda d, n: [d - 1 - s for s in range(d)]),
        ("pipedream:vertical: delay", steady, partial(delays, "pipedream:vertical"),
         lambda d, n: [d - 1] * d),
        ("2bw: versions", steady, partial(versions, "2bw"), lambda d, n: [2] * d),
    ]  # fmt: skip
    for row, sizes, own, form in forms:
        yield _compared(row, sizes, own, form)


TABLES = (
    PaperTable("bubbles", "closed forms of bubbles, compared over grids of sizes.", _bubbles),
    PaperTable("memory", "closed forms of memory and traffic, over grids of sizes.", _memory),
)
