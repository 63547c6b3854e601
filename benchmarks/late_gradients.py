"""Loss by tokens with and without a flush: the same model, data, rates and batches.

    python -m benchmarks.late_gradients [--micro-batches 960] [--svg docs/flush_free.svg]

A byte-level GPT (6 blocks of width 64, two layers per rank) learns Python's standard library on 4
ranks (threads of one process) with AdamW. Schedules without a flush run as one long plan. Each has
a counterpart that updates after as many micro-batches and flushes before: `1f1b` with one
micro-batch or four. Times are not measured, so other work on the machine changes nothing.
"""

import argparse
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.line_plot import LinePlot
from synth.families import generate
from synth.optimizer import OptimizerSpec
from synth.record import write_atomically
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
MODEL = ModelSpec(
    "gpt-bytes",
    {"width": 64, "num_blocks": 6, "num_heads": 4, "context_length": LENGTH},
)
CPU = torch.device("cpu")


class Run(NamedTuple):
    """A schedule to train with: its family, the micro-batches of a plan, and a correction."""

    family: str
    micro_batches: int
    corrected: bool = False


class Data:
    """Byte sequences at random places of the standard library's sources, by micro-batch."""

    def __init__(self) -> None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        text = b"".join(path.read_bytes() for path in files)
        self._bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def micro_batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets; the same for every schedule."""
        draw = torch.Generator().manual_seed(number)
        begins = torch.randint(len(self._bytes) - LENGTH - 1, (BATCH, 1), generator=draw)
        taken = self._bytes[begins + torch.arange(LENGTH + 1)].long()
        return taken[:, :-1], taken[:, 1:]


def train(run: Run, total: int, rate: float) -> list[float]:
    """The loss of each micro-batch, in order."""
    schedule, data = generate(run.family, NUM_RANKS, run.micro_batches), Data()
    # Built here, because the threads of ranks would draw from one random state at once.
    layers = build_model(MODEL, seed=0).layers
    each = len(layers) // NUM_RANKS
    stages = [[layers[each * rank + i] for i in range(each)] for rank in range(NUM_RANKS)]

    def on_rank(group: InProcessGroup) -> list[float]:
        annealing = total // 4 if run.corrected else 0
        return _train_rank(group, schedule, stages[group.rank], data, total, rate, annealing)

    return run_ranks(NUM_RANKS, on_rank, timeout_s=3600.0)[-1]


def _train_rank(
    group: InProcessGroup,
    schedule: Schedule,
    layers: list[nn.Module],
    data: Data,
    total: int,
    rate: float,
    annealing: int,
) -> list[float]:
    pipeline = Pipeline(schedule, {group.rank: layers}, group=group)
    pipeline.stepper = _steps(pipeline, group.rank, rate, annealing)
    found: list[float] = []
    for first in range(0, total, schedule.num_micro_batches):
        pairs = [data.micro_batch(first + j) for j in range(schedule.num_micro_batches)]
        losses: list[Tensor | None] = []
        pipeline.step(Batch(*map(list, zip(*pairs, strict=True))), losses=losses)
        found += [float(loss) for loss in losses if loss is not None]
    return found


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


def picture(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Loss against tokens, as SVG."""
    points = [point for curve in curves.values() for point in curve]
    across = Scale(0.0, max(x for x, _ in points), 60, 460)
    up = Scale(min(y for _, y in points), max(y for _, y in points), 270, 20)
    plot = LinePlot((760, 330), across, up, COLOURS, "loss against tokens")
    names = "tokens", "loss (nats per byte)"
    plot.draw_axes(names, lambda x: f"{x / 1000:,.0f}k", lambda y: f"{y:.1f}")
    for name, curve in curves.items():
        plot.add(name, curve)
    return svg_text(plot.picture)


def runs(total: int) -> dict[str, Run]:
    """The schedules by the name in the picture."""
    return {
        "1f1b, update every 1": Run("1f1b", 1),
        "pipedream (delay 3 2 1 0)": Run("pipedream", total),
        "delayed-update (6 4 2 0)": Run("delayed-update", total),
        "delayed-update, rate by delay": Run("delayed-update", total, corrected=True),
        "1f1b, update every 4": Run("1f1b", 4),
        "2bw, update every 4 (delay 1)": Run("2bw:every=4", total),
    }


def main() -> None:
    """Train with all schedules, print the losses and draw them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--micro-batches", type=int, default=960)
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate of AdamW")
    parser.add_argument("--svg", type=Path, help="draw the losses into this file")
    asked = parser.parse_args()
    curves = {}
    for name, run in runs(asked.micro_batches).items():
        losses = train(run, asked.micro_batches, asked.rate)
        curves[name] = smoothed(losses)
        last = losses[-len(losses) // 8 :]
        print(f"{name:32} {sum(last) / len(last):.3f} over the last eighth", flush=True)
    if asked.svg:
        write_atomically(asked.svg, picture(curves))


if __name__ == "__main__":
    main()
