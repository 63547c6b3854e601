"""Launching the ranks of a run on processes that are there already, where many tests launch."""

import io
import sys
import tempfile
from contextlib import redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING

from synth.errors import SynthError
from synth.run_options.emulation_options import EmulationOptions
from synth.run_options.train_options import TrainOptions
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered

if TYPE_CHECKING:
    from synth.runtime.rank_result import RankResult
    from tests.runtime.gloo_pool import GlooPool


class PooledLaunch:
    """Stands for `launch`: the same order, by way of its file, to ranks of a pool."""

    def __init__(self, pool: "GlooPool") -> None:
        self._pool = pool

    def __call__(
        self,
        path: Path,
        plan: Plan,
        lowered: Lowered,
        options: TrainOptions | EmulationOptions,
    ) -> "list[RankResult]":
        from synth.runtime.rank_result import of_first_pipeline
        from synth.runtime.training.process_grid import mesh_of
        from synth.runtime.training.worker import WorkerOrder

        with tempfile.TemporaryDirectory() as folder:
            order = WorkerOrder(
                plan=path.resolve(), options=options.resolved(), folder=Path(folder)
            )
            mesh = mesh_of(plan, options)
            ended = self._pool.run(work, mesh.size, order.model_dump_json())
        results, refusals, written = zip(*ended, strict=True)
        sys.stderr.write("".join(written))
        for refusal in filter(None, refusals):
            raise refusal
        return of_first_pipeline(results, mesh)


def work(
    rank: int, world_size: int, text: str
) -> "tuple[RankResult | None, SynthError | None, str]":
    """Do what the worker of a launched run does, in a group that is formed.

    Returns:
        The result, or why it refused, and what it wrote.
    """
    import torch

    from synth.runtime.emulation.emulated_rank import RankEmulation
    from synth.runtime.execution.program.progress import RankProgress
    from synth.runtime.training.worker import WorkerOrder, _telling, _train
    from synth.runtime.world import World

    order = WorkerOrder.model_validate_json(text)
    plan = Plan.load(order.plan)
    lowered, _ = plan.check()
    world = World(rank, world_size, torch.device("cpu"), "gloo", "here", 2)
    with redirect_stderr(io.StringIO()) as written, RankProgress(order.folder, rank) as progress:
        try:
            if isinstance(order.options, EmulationOptions):
                emulation = RankEmulation(lowered, order.options, world, progress)
                result = emulation.run(_telling(world, order.options.steps))
            else:
                result = _train(plan, lowered, order, world, progress)
        except SynthError as refusal:
            return None, refusal, written.getvalue()
        return result, None, written.getvalue()
