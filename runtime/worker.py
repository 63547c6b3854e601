"""What every process of `synth run` does: join, train, gather, and leave word of how it ended."""

import json
import math
import os
import pickle
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path

import torch.distributed as dist

from synth.errors import SynthError
from synth.record import Record, write_atomically
from synth.schedule.file import Plan

from .emulation.rank import EmulationOptions, RankEmulation
from .progress import Progress
from .rank_result import RankResult
from .train_options import TrainOptions
from .trainer import RankTrainer
from .world import join_world

RESULTS = "results.pickle"
_MOST_LINES = 20


class WorkerOrder(Record):
    """What the launcher asks of its workers; it travels as a JSON file."""

    plan: Path
    options: TrainOptions | EmulationOptions
    folder: Path


def work(order: WorkerOrder) -> list[RankResult] | None:
    """Train, or emulate, as one rank.

    Returns:
        All ranks' results on rank 0, none elsewhere.
    """
    plan = Plan.load(order.plan)
    lowered, _ = plan.check()
    with join_world(order.options.device, order.options.timeout_s) as world:
        with Progress(order.folder, world.rank) as progress:
            tell = partial(_tell, max(1, order.options.steps // _MOST_LINES))
            on_step = tell if world.rank == 0 else None
            if isinstance(order.options, EmulationOptions):
                emulation = RankEmulation(lowered, order.options, world, progress)
                result = emulation.run(on_step)
            else:
                trainer = RankTrainer(plan, lowered, order.options, world, progress)
                result = trainer.train(on_step)
        gathered: list[RankResult | None] = [None] * world.size
        dist.all_gather_object(gathered, result)
    complete = [r for r in gathered if r is not None]
    return complete if result.rank == 0 else None


def _tell(steps_per_line: int, step: int, loss: float, seconds: float) -> None:
    """Say how it goes; an emulated run has no loss."""
    if step % steps_per_line == 0:
        said = "emulated" if math.isnan(loss) else f"loss {loss:.4f}"
        print(f"step {step:4d}  {said}  {seconds:.3f} s", file=sys.stderr)


def work_inside_torchrun(
    plan: Path, options: TrainOptions | EmulationOptions
) -> list[RankResult] | None:
    """Train (or emulate) as the rank that torchrun made of this process; results as `work`."""
    with tempfile.TemporaryDirectory(prefix="synth-run-") as name:
        return work(WorkerOrder(plan=plan, options=options, folder=Path(name)))


def main() -> None:
    """Entry point of a launched process: `python -m synth.runtime.worker ORDER`."""
    order = WorkerOrder.model_validate_json(Path(sys.argv[1]).read_text())
    try:
        results = work(order)
        if results is not None:
            (order.folder / RESULTS).write_bytes(dump_results(results))
        exit_code = 0
    except SynthError as error:
        exit_code = int(error.exit_code)
        leave_word(order.folder, str(error), exit_code)
    except KeyboardInterrupt:
        exit_code = 130
    except Exception as error:
        exit_code = 1
        leave_word(order.folder, f"{type(error).__name__}: {error}", exit_code)
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # All is written. C++ teardown at interpreter exit now and then aborts in torch's own threads
    # ("terminate called without an active exception", torch 2.13), which would fail a good run.
    os._exit(exit_code)


def dump_results(results: list[RankResult]) -> bytes:
    """Results travel between processes of one user on one machine, hence pickle."""
    return pickle.dumps(results)


def load_results(folder: Path) -> list[RankResult]:
    """The results that rank 0 left for the launcher."""
    results: list[RankResult] = pickle.loads((folder / RESULTS).read_bytes())
    return results


def leave_word(folder: Path, message: str, exit_code: int) -> None:
    """Say how this rank failed, for the launcher to read."""
    word = {"message": message, "exit_code": exit_code, "time": time.time()}
    write_atomically(folder / f"failure-{os.environ.get('RANK', '0')}.json", json.dumps(word))


if __name__ == "__main__":
    main()
