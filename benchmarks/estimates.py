"""Estimated against published times of training steps, and peaks of memory.

    python -m benchmarks.estimates --json benchmarks/results/estimates.json
    python -m benchmarks.estimates --stack mlperf --device h100 --each
    python -m benchmarks.estimates --ship

Stacks, that is, the programs of a source on one device, are never pooled. The three factors of each
are fitted to at most three of its rows, chosen by their layouts alone, so that all rows are
predicted best, and the errors, orders and regrets are those of the other rows. Beside it stand the
errors of the same rows under the shipped factors, unless these were fitted to them, and the errors
over a hundred random choices of three rows. `--ship` fits the factors that synth ships to all dense
rows of a source.
"""

import json
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.estimates_table import FORMAT, Row, table
from benchmarks.results_file import Run, parse_without_seeds, parser_of, report_rows
from synth.estimates.calibrate import calibrate, representative
from synth.estimates.calibration import factors_of
from synth.estimates.device import device_of
from synth.estimates.factors import Factors
from synth.estimates.fit import StepParts, fit
from synth.estimates.published import PROGRAM, PublishedRun, published_runs

_CALIBRATED, _CHOICES, _DIFFERENT = 3, 100, 0.05

# The sources of which each device and program has its shipped factors.
_SHIPPED = ("nemo", "megatron-2021", "simumax", "torchtitan", "llm-foundry")
# Rows that nothing is fitted to, but which are judged: one of GB300 that is printed without the
# virtual stages that its time needs, and float8 with scales by rows, which its source calls
# unexpectedly slow (torchtitan#1207). A row's error is no reason to leave it out.
_LEFT_OUT = ("nemo", "gb300", "1f1b")
_SLOW = "float8 rowwise"
_FILE = Path(__file__).parent.parent / "synth" / "estimates" / "data" / "calibrations.json"

# Sources whose memory is no peak of what a program allocated: reserved, or states and activations
# by formula (arXiv 2205.05198, figure 1).
_NO_PEAKS = ("torchtitan", "automodel", "megatron-2021")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and save a row for each stack, device and kind of model."""
    parser = parser_of(__doc__)
    parser.add_argument("--stack", help="only the rows of this source")
    parser.add_argument("--device", help="only those on this device")
    parser.add_argument("--each", action="store_true", help="print the error of each row, too")
    parser.add_argument("--ship", action="store_true", help="write the factors that synth ships")
    asked = parse_without_seeds(parser, arguments)
    if asked.ship:
        _ship()
        return 0
    chosen = [
        run
        for run in published_runs()
        if asked.stack in (None, run.stack) and asked.device in (None, run.device)
    ]
    about = "published training steps by stack, errors in percent of the measured time."
    request = Run("estimates", about, 1, 0, None)
    report_rows(_rows(chosen, asked.each), asked.json, FORMAT, request, table)
    return 0


def _rows(runs: Sequence[PublishedRun], is_each: bool) -> Iterator[Row]:
    groups: dict[tuple[str, str, bool], list[StepParts]] = defaultdict(list)
    for run in runs:
        groups[run.stack, run.device, run.dense].append(StepParts(run))
    for (stack, device, is_dense), rows in groups.items():
        yield _row(stack, device, "dense" if is_dense else "moe", rows, is_each)


def _row(stack: str, device: str, models: str, rows: list[StepParts], is_each: bool) -> Row:
    """Calibrate with few rows, and judge with the others."""
    count = min(_CALIBRATED, len(rows) - 1)
    usual = [row for row in rows if not _is_left_out(row.run)]
    chosen = representative(usual, count)
    factors = fit(chosen) if chosen else Factors()
    others = [row for row in rows if row not in chosen]
    errors = [abs(row.error(factors)) for row in others] if chosen else []
    shipped = _shipped_errors(others)
    choices = _random_choices(rows)
    pairs, ordered, regret = _order(others, factors)
    peaks = [] if stack in _NO_PEAKS else _peak_errors(rows)
    if is_each:
        for row in rows:
            used = "*" if row in chosen else " "
            print(f"{row.run.name:32s}{used}{100 * row.error(factors):+7.1f}", file=sys.stderr)
    return Row(
        stack=stack,
        device=device,
        models=models,
        rows=len(rows),
        before=statistics.median(abs(row.error(Factors())) for row in others),
        shipped=statistics.median(shipped) if shipped else None,
        shipped_p90=float(np.quantile(shipped, 0.9)) if shipped else None,
        used=len(chosen),
        after=statistics.median(errors) if errors else None,
        after_p90=float(np.quantile(errors, 0.9)) if errors else None,
        any_three=statistics.median(choices) if choices else None,
        any_three_p90=float(np.quantile(choices, 0.9)) if choices else None,
        pairs=pairs,
        ordered=ordered,
        regret=regret,
        memory_rows=len(peaks),
        memory=statistics.median(peaks) if peaks else None,
        memory_worst=max(peaks) if peaks else None,
    )


def _shipped_errors(rows: Sequence[StepParts]) -> list[float]:
    """Return the errors under the shipped factors, of rows that these were not fitted to."""
    run = rows[0].run
    if run.dense and run.stack in _SHIPPED:
        return []
    factors = factors_of(None, device_of(run.device), PROGRAM.get(run.stack, "megatron"))
    return [abs(row.error(factors)) for row in rows]


def _random_choices(rows: Sequence[StepParts]) -> list[float]:
    """Return the errors of the others over random choices of three rows."""
    if len(rows) <= _CALIBRATED:
        return []
    usual = [place for place, row in enumerate(rows) if not _is_left_out(row.run)]
    every = list(combinations(usual, _CALIBRATED))
    some = random.Random(0).sample(every, min(_CHOICES, len(every)))
    found = []
    for choice in some:
        factors = fit([rows[place] for place in choice])
        found += [abs(row.error(factors)) for place, row in enumerate(rows) if place not in choice]
    return found


def _order(rows: Sequence[StepParts], factors: Factors) -> tuple[int, int, float | None]:
    """Count pairs that only differ in layout or schedule, those in order, and the regret."""
    groups: dict[tuple[object, ...], list[_Rated]] = defaultdict(list)
    for row in rows:
        step = row.run.step
        layout = step.estimator.layout
        gpus = layout.tensor * layout.context * layout.data * step.ranks
        # Per token, as the batches of layouts may differ.
        tokens = layout.seq_len * layout.micro_batch_size * layout.data * step.micro_batches
        variant = row.run.variant
        key = (step.estimator.shape, gpus, layout.seq_len, layout.precision, variant)
        estimated, measured = row.us(factors) / tokens, row.run.measured_us / tokens
        groups[key].append(_Rated(estimated, measured, step.micro_batches, tokens))
    pairs = ordered = 0
    regrets = []
    for group in groups.values():
        for one, other in combinations(group, 2):
            apart = max(one.measured, other.measured) / min(one.measured, other.measured) - 1
            if one.is_choice(other) and apart > _DIFFERENT:
                pairs += 1
                is_faster = one.measured < other.measured
                ordered += (one.estimated < other.estimated) == is_faster
        for one in group:
            choice = [other for other in group if one.is_choice(other)]
            if len(choice) > 1 and one is choice[0]:
                best = min(other.measured for other in choice)
                regrets.append(min(choice).measured / best - 1)
    return pairs, ordered, statistics.fmean(regrets) if regrets else None


class _Rated(NamedTuple):
    """A step's estimated and measured time per token, its micro-batches and its tokens."""

    estimated: float
    measured: float
    micro_batches: int
    tokens: int

    def is_choice(self, other: "_Rated") -> bool:
        """True of two layouts or schedules for the same batch, of tokens or micro-batches."""
        return self.tokens == other.tokens or self.micro_batches == other.micro_batches


def _peak_errors(rows: Sequence[StepParts]) -> list[float]:
    """Return the errors of the peaks, of steps that differ in more than their micro-batches."""
    known = {}
    for row in rows:
        if row.run.peak_bytes is None:
            continue
        step = row.run.step
        key = (step.estimator.shape, step.estimator.layout, step.ranks, step.schedule)
        known[key] = abs(max(step.peaks_bytes()) / row.run.peak_bytes - 1)
    return list(known.values())


def _ship() -> None:
    """Write the factors that synth ships."""
    groups: dict[tuple[str, str], list[PublishedRun]] = defaultdict(list)
    for run in published_runs():
        if run.stack in _SHIPPED and run.dense and not _is_left_out(run):
            groups[run.stack, run.device].append(run)
    found = [
        calibrate(runs, device, PROGRAM.get(stack, "megatron"), stack).model_dump(mode="json")
        for (stack, device), runs in groups.items()
    ]
    text = {"comment": "Written by python -m benchmarks.estimates --ship.", "calibrations": found}
    _FILE.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")


def _is_left_out(run: PublishedRun) -> bool:
    is_incomplete = (run.stack, run.device, run.step.schedule) == _LEFT_OUT and run.step.ranks > 1
    return is_incomplete or run.variant == _SLOW


if __name__ == "__main__":
    raise SystemExit(main())
