"""The order of published runs that differ in layout or schedule alone, estimated and measured.

    python -m benchmarks.layout_order

Runs of one source are compared that train the same model on as many devices with the same batch,
and whose measured steps are more than 5 % apart; of other releases or recipes of precision they
stand apart. Estimates have the shipped factors, as those of
`synth plan`; `python -m benchmarks.estimates` fits factors to each source instead. The regret is
that of the run with the shortest estimated step, over the shortest measured one.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from synth.estimates.calibration import factors_of
from synth.estimates.device import device_of
from synth.estimates.published import PROGRAM, PublishedRun, published_runs

_DIFFERENT = 1.05

# Sources whose runs differ in layout or schedule alone.
_FAMILIES = ("simumax", "zero-bubble", "torchtitan", "megatron-moe")

# What pairs of the same release and recipe of precision differ in.
_ALIKE = ("layout", "schedule")


class _Rated(NamedTuple):
    """The estimated and measured step of a run, its layout and its schedule."""

    estimated_us: float
    measured_us: float
    layout: tuple[object, ...]
    schedule: str
    variant: str


def main() -> int:
    """Print the pairs in order by source, and the regrets."""
    found: dict[tuple[str, str, str], list[bool]] = defaultdict(list)
    regrets: dict[str, list[float]] = defaultdict(list)
    for (stack, device), rated in _groups():
        for kind, is_in_order in _pairs(rated):
            found[stack, device, kind].append(is_in_order)
        if len({(one.layout, one.schedule) for one in rated}) > 1:
            best_us = min(one.measured_us for one in rated)
            regrets[stack].append(min(rated).measured_us / best_us - 1)
    print("| source | device | differ in | pairs | in order |\n|---|---|---|---|---|")
    for (stack, device, kind), pairs in found.items():
        print(f"| {stack} | {device} | {kind} | {len(pairs)} | {sum(pairs)} |")
    every = [each for pairs in found.values() for each in pairs]
    alike = {key: pairs for key, pairs in found.items() if key[2] in _ALIKE}
    same = [each for pairs in alike.values() for each in pairs]
    named = [each for key, pairs in alike.items() if key[0] in _FAMILIES for each in pairs]
    print(
        f"{sum(named)} of {len(named)} pairs in order in {', '.join(_FAMILIES)}, "
        f"{_regret_words([each for name in _FAMILIES for each in regrets[name]])}"
    )
    print(
        f"{sum(every)} of {len(every)} pairs in order, of the same release and recipe {sum(same)} "
        f"of {len(same)}, {_regret_words([each for own in regrets.values() for each in own])}"
    )
    return 0


def _regret_words(regrets: Sequence[float]) -> str:
    return (
        f"regret of {len(regrets)} choices: mean {statistics.fmean(regrets):.1%}, median "
        f"{statistics.median(regrets):.1%}, largest {max(regrets):.1%}"
    )


def _groups() -> Iterator[tuple[tuple[str, str], Sequence[_Rated]]]:
    """Yield the runs of the same model, devices and batch by source and device."""
    groups: dict[tuple[object, ...], list[PublishedRun]] = defaultdict(list)
    for run in published_runs():
        step, layout = run.step, run.step.estimator.layout
        gpus = layout.tensor * layout.context * layout.data * step.ranks
        batch = layout.micro_batch_size * layout.data * step.micro_batches
        shape = step.estimator.shape
        key = (run.stack, run.device, shape, gpus, layout.seq_len, layout.precision, batch)
        groups[key].append(run)
    for runs in groups.values():
        stack, device = runs[0].stack, runs[0].device
        factors = factors_of(None, device_of(device), PROGRAM.get(stack, "megatron"))
        yield (
            (stack, device),
            [
                _Rated(
                    run.step.with_factors(factors).us(),
                    run.measured_us,
                    (run.step.estimator.layout, run.step.ranks),
                    run.step.schedule,
                    run.variant,
                )
                for run in runs
            ],
        )


def _pairs(rated: Sequence[_Rated]) -> Iterator[tuple[str, bool]]:
    """Yield what each pair differs in, and whether the faster one has the shorter estimate."""
    for one, other in combinations(rated, 2):
        measured = one.measured_us, other.measured_us
        if max(measured) <= _DIFFERENT * min(measured):
            continue
        if (one.layout, one.schedule) == (other.layout, other.schedule):
            continue
        kind = "schedule" if one.layout == other.layout else "layout"
        if one.variant != other.variant:
            kind += " and release or recipe"
        is_first = one.measured_us < other.measured_us
        yield kind, (one.estimated_us < other.estimated_us) == is_first


if __name__ == "__main__":
    raise SystemExit(main())
