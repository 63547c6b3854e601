"""WPipe against PipeDream-2BW (Yang et al., ICLR 2022): versions, activations, memory and time."""

from collections.abc import Iterator
from functools import cache

from benchmarks.papers.comparison import PaperTable, Row, counted
from benchmarks.papers.tables.bitpipe_model import MEMORY_BYTES, estimator_of
from benchmarks.papers.tables.closed_forms import ran
from synth.costs.partition_costs import partition_costs
from synth.estimates.training_step import TrainingStep
from synth.families import generate
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import verify
from synth.schedule.version_facts import version_facts

_RANKS = 8
# Ranks, and micro-batches of an update, of which there are four.
_SIZES = [(n, k) for n in range(2, 9) for k in (n, n + 1, 2 * n)]


def _versions(name: str, n: int, every: int) -> list[int]:
    lowered, _ = ran(f"{name}:every={every}", n, 4 * every)
    return [facts.alive for facts in version_facts(lowered)]


def _delays(name: str, n: int, every: int) -> list[int]:
    lowered, _ = ran(f"{name}:every={every}", n, 4 * every)
    return [facts.delay for facts in version_facts(lowered)]


def _most_held(name: str, n: int, every: int) -> int:
    return max(peak_bytes(ran(f"{name}:every={every}", n, 4 * every)[0]))


@cache
def _peak(name: str, sequences: int) -> int:
    """Return the highest peak of a rank, for BERT-64 on 8 ranks."""
    estimator = estimator_of("BERT-64", sequences, 1)
    profile = estimator.profile()
    sizes = TrainingStep(estimator, _RANKS, 1, name).stage_sizes(len(profile.layers))
    costs = partition_costs(profile, sizes)
    schedule = generate(f"{name},every={_RANKS}", _RANKS, 4 * _RANKS, costs=costs)
    return max(peak_bytes(verify(schedule, costs)[0]))


def _memory() -> Iterator[Row]:
    yield counted(
        "versions: 2 in the first group, 1 in the second",
        (_versions("wpipe", n, k) == [2] * n + [1] * n for n, k in _SIZES),
    )
    yield counted(
        "delay: 1 in the first group, 0 in the second",
        (_delays("wpipe", n, k) == [1] * n + [0] * n for n, k in _SIZES),
    )
    yield counted(
        "k = n: activations of 2BW",
        (_most_held("wpipe", n, k) == 2 * _most_held("2bw", n, k) for n, k in _SIZES if n == k),
    )
    size = max(size for size in range(8, 72, 8) if _peak("2bw:recompute", size) <= MEMORY_BYTES)
    for few in (4, 16, size):
        ratio = _peak("wpipe:recompute", few) / _peak("2bw:recompute", few)
        yield Row(f"memory over 2BW's, recomputation, B = {few}", round(ratio, 3))
    times = [_makespan_us(name) for name in ("2bw", "wpipe")]
    yield Row("speed over 2BW", round(times[0] / times[1], 3))


def _makespan_us(name: str) -> float:
    """Return the time of 32 micro-batches."""
    estimator = estimator_of("BERT-64", 4, 1)
    profile = estimator.profile()
    sizes = TrainingStep(estimator, _RANKS, 1, name).stage_sizes(len(profile.layers))
    costs = partition_costs(profile, sizes)
    return verify(generate(name, _RANKS, 4 * _RANKS, costs=costs), costs)[1].makespan_us


TABLES = (PaperTable("wpipe", "closed forms for 2 to 8 ranks; BERT-64 on 8 A800, k = 8.", _memory),)
