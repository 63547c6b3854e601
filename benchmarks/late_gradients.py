r"""Loss by tokens with and without a flush: the same model, data and batches.

    python -m benchmarks.late_gradients --seeds 3 --svg notes/flush_free.svg \
        --json benchmarks/results/late-gradients.json

A byte-level GPT (6 blocks of width 64, two layers per rank) learns Python's standard library on 4
ranks (threads of one process) with AdamW. Schedules without a flush run as one long plan. Each has
a counterpart that updates after as many micro-batches and flushes before: `1f1b` with one
micro-batch or four. Each trains at every rate with every seed, which draws the first weights and
the batches, and is judged at the rate with the least median loss. Times are not measured, so other
work on the machine changes nothing.
"""

import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.late_gradients_table import FORMAT, Row, best_rows, line, table
from benchmarks.line_plot import LinePlot
from benchmarks.results_file import Run, parse_request, parser_of, report_rows
from synth.families import generate
from synth.profile.optimizer import OptimizerSpec
from synth.records.safe_write import write_atomically
from synth.report.picture.scale import Scale
from synth.report.picture.svg import svg_text
from synth.runtime.batch import Batch
from synth.runtime.execution.transport.in_process.ranks import InProcessGroup, run_ranks
from synth.runtime.models import build_model
from synth.runtime.models.spec import ModelSpec
from synth.runtime.optimize import (
    DelayedRate,
    StageSteps,
    StepSettings,
    build_flush_free_step,
    build_steps,
)
from synth.runtime.pipeline import Pipeline
from synth.schedule.model import Schedule

NUM_RANKS, LENGTH, BATCH = 4, 64, 4
RATES = (3e-4, 1e-3, 3e-3)
# Micro-batches of a seed have numbers of their own; that of seed 0 are 0, 1, and so on.
_SEED_STEP = 1_000_000
MODEL = ModelSpec(
    "gpt-bytes",
    {"width": 64, "num_blocks": 6, "num_heads": 4, "context_length": LENGTH},
)
CPU = torch.device("cpu")


class Training(NamedTuple):
    """A schedule to train with: a name, its family, a plan's micro-batches, and a correction."""

    name: str
    family: str
    micro_batches: int
    corrected: bool = False


class Trained(NamedTuple):
    """A rank's part of a training: losses of micro-batches, on the last rank, and its delay."""

    losses: list[float]
    delay: int


class Data:
    """Byte sequences at random places of the standard library's sources, by micro-batch."""

    def __init__(self, seed: int) -> None:
        self._first = seed * _SEED_STEP
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        text = b"".join(path.read_bytes() for path in files)
        self._bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def micro_batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets; the same for every schedule."""
        draw = torch.Generator().manual_seed(self._first + number)
        begins = torch.randint(len(self._bytes) - LENGTH - 1, (BATCH, 1), generator=draw)
        taken = self._bytes[begins + torch.arange(LENGTH + 1)].long()
        return taken[:, :-1], taken[:, 1:]


def train(training: Training, total: int, rate: float, seed: int) -> Row:
    """Train, and return the losses of the micro-batches as a row."""
    schedule, data = generate(training.family, NUM_RANKS, training.micro_batches), Data(seed)
    # Built here, because the threads of ranks would draw from one random state at once.
    layers = build_model(MODEL, seed=seed).layers
    each = len(layers) // NUM_RANKS
    stages = [[layers[each * rank + i] for i in range(each)] for rank in range(NUM_RANKS)]

    def on_rank(group: InProcessGroup) -> Trained:
        annealing = total // 4 if training.corrected else 0
        return _train_rank(group, schedule, stages[group.rank], data, total, rate, annealing)

    ranks = run_ranks(NUM_RANKS, on_rank, timeout_s=3600.0)
    losses = ranks[-1].losses
    last = losses[-len(losses) // 8 :]
    delays = tuple(rank.delay for rank in ranks)
    loss = sum(last) / len(last)
    size, curve = min(schedule.update_sizes), tuple(smoothed(losses))
    return Row(training.name, size, delays, rate, seed, loss, curve)


def _train_rank(
    group: InProcessGroup,
    schedule: Schedule,
    layers: list[nn.Module],
    data: Data,
    total: int,
    rate: float,
    annealing: int,
) -> Trained:
    pipeline = Pipeline(schedule, {group.rank: layers}, group=group)
    pipeline.stepper = _steps(pipeline, group.rank, rate, annealing)
    found: list[float] = []
    for first in range(0, total, schedule.num_micro_batches):
        pairs = [data.micro_batch(first + j) for j in range(schedule.num_micro_batches)]
        losses: list[Tensor | None] = []
        pipeline.step(Batch(*map(list, zip(*pairs, strict=True))), losses=losses)
        found += [float(loss) for loss in losses if loss is not None]
    return Trained(found, pipeline.delays[group.rank])


def _steps(pipeline: Pipeline, rank: int, rate: float, annealing: int) -> StageSteps:
    modules = {rank: pipeline.stages[rank].module}
    if pipeline.lowered.versions is None:
        settings = StepSettings(rate)
        return build_steps(modules, OptimizerSpec(), settings, device=CPU, skip_nonfinite=False)
    return build_flush_free_step(
        modules,
        OptimizerSpec(),
        StepSettings(rate),
        delays=pipeline.delays,
        device=CPU,
        on_update=DelayedRate(annealing) if annealing else None,
    )


def smoothed(losses: Sequence[float], points: int = 48) -> list[tuple[float, float]]:
    """Means over equal shares of the run, as (tokens, loss)."""
    size = max(1, len(losses) // points)
    return [
        ((end - size / 2) * BATCH * LENGTH, sum(losses[end - size : end]) / size)
        for end in range(size, len(losses) + 1, size)
    ]


COLOURS = ("#222222", "#1f6fb4", "#d1662b", "#7f3fa5", "#888888", "#2f8f4e")


def picture(rows: Sequence[Row]) -> str:
    """Loss against tokens of the first seed at each schedule's best rate, as SVG."""
    rows = [row for row in best_rows(rows) if row.seed == 0]
    points = [point for row in rows for point in row.curve]
    across = Scale(0.0, max(x for x, _ in points), 60, 460)
    up = Scale(min(y for _, y in points), max(y for _, y in points), 270, 20)
    plot = LinePlot((760, 330), across, up, COLOURS, "loss against tokens")
    names = "tokens", "loss (nats per byte)"
    plot.draw_axes(names, lambda x: f"{x / 1000:,.0f}k", lambda y: f"{y:.1f}")
    for row in rows:
        plot.add(f"{row.schedule} ({' '.join(map(str, row.delays))}) {row.rate:g}", row.curve)
    return svg_text(plot.picture)


def trainings(total: int) -> Iterator[Training]:
    """The schedules, and the counterpart with a flush before those that update as often."""
    yield Training("1f1b, update every 1", "1f1b", 1)
    yield Training("pipedream", "pipedream", total)
    yield Training("delayed-update", "delayed-update", total)
    yield Training("delayed-update, rate by delay", "delayed-update", total, corrected=True)
    yield Training("1f1b, update every 4", "1f1b", 4)
    yield Training("2bw, update every 4", "2bw:every=4", total)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train with all schedules, print and save rows, then the table; draw the losses."""
    parser = parser_of(__doc__)
    parser.add_argument("--micro-batches", type=int, default=960)
    parser.add_argument(
        "--rate", type=float, action="append", help="learning rate of AdamW; can be repeated"
    )
    parser.add_argument("--svg", type=Path, help="draw the losses into this file")
    asked = parse_request(parser, arguments)
    rates = asked.rate or RATES
    about = (
        f"byte-level GPT on {NUM_RANKS} ranks, {asked.micro_batches} micro-batches of "
        f"{BATCH * LENGTH} tokens, AdamW at {', '.join(f'{rate:g}' for rate in rates)}."
    )
    request = Run("late-gradients", about, asked.seeds, 0, None)
    total = asked.micro_batches
    trained = (
        train(training, total, rate, seed)
        for seed in range(asked.seeds)
        for training in trainings(total)
        for rate in rates
    )
    rows = report_rows(trained, asked.json, FORMAT, request, table, line)
    if asked.svg:
        write_atomically(asked.svg, picture(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
