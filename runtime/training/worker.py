"""The process of one rank of `synth run`: join, train, gather, and report how it ended."""

import math
import os
import pickle
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from synth.errors import SynthError
from synth.profile.mesh import Mesh
from synth.records.record import Record
from synth.run_options.emulation_options import EmulationOptions
from synth.run_options.train_options import TrainOptions
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered
from synth.system.messages import is_quiet
from synth.system.terminal_text import as_message

from ..emulation.emulated_rank import RankEmulation
from ..execution.program.progress import RankProgress, counted_place
from ..execution.transport.objects import gather_objects
from ..execution.transport.rank_group import named_failure
from ..rank_result import RankResult, of_first_pipeline
from ..world import World, join_world, restarts
from .hang_detector import HangDetector
from .post_mortem import (
    attempt_folder,
    explain,
    failure_report_exists,
    hopeless,
    note_ended,
    write_failure_report,
)
from .process_grid import mesh_of
from .stopping import StopRequest
from .trainer import OnStep, RankTrainer
from .watchdog import ProcessWatchdog, end_without, local_pids, sibling_pids

RESULTS = "results.pickle"
_MOST_LINES = 20


class WorkerOrder(Record):
    """The launcher's order to its workers, as a JSON file.

    `launcher` is its process id; workers end when it is gone.
    """

    plan: Path
    options: TrainOptions | EmulationOptions
    folder: Path
    launcher: int | None = None


def work(order: WorkerOrder, attempt: Path) -> list[RankResult] | None:
    """Train, or emulate, as one rank, which leaves its traces in the folder of this attempt.

    Returns:
        The results of the first pipeline's ranks on process 0, none elsewhere.
    """
    plan = Plan.load(order.plan)
    lowered, _ = plan.check()
    mesh = mesh_of(plan, order.options)
    on_end = partial(_end, attempt, mesh)
    # Whoever has not joined yet may still import: only a process that is stopped counts.
    watchdog = ProcessWatchdog(sibling_pids(), int(os.environ["RANK"]), on_end)
    with join_world(order.options.device, order.options.timeout_s) as world:
        with named_failure(world.rank, where="where the ranks find each other"):
            pids = local_pids()
        watchdog.close()
        hanging = _hanging_processes(lowered, mesh, order.options, attempt)
        watchdog = ProcessWatchdog(pids, world.rank, on_end, hanging)
        with RankProgress(attempt, world.rank) as progress:
            if isinstance(order.options, EmulationOptions):
                emulation = RankEmulation(lowered, order.options, world, progress)
                result = emulation.run(_telling(world, order.options.steps))
            else:
                result = _train(plan, lowered, order, world, progress)
        with named_failure(world.rank, where="where the results of all ranks are gathered"):
            gathered: list[RankResult] = gather_objects(result)
        watchdog.close()
    return of_first_pipeline(gathered, mesh) if result.rank == 0 else None


def _hanging_processes(
    lowered: Lowered, mesh: Mesh, options: TrainOptions | EmulationOptions, attempt: Path
) -> Callable[[], dict[int, float]]:
    """Tells which processes hang, of any pipeline, and for how many seconds."""

    def place_of(first: int) -> Callable[[int], tuple[int, int] | None]:
        return lambda rank: counted_place(attempt, first + rank * mesh.tensor)

    pipelines = {
        first: HangDetector(
            lowered, place_of(first), patience_s=options.patience_s, timeout_s=options.timeout_s
        )
        for start in range(0, mesh.size, mesh.ranks * mesh.tensor)
        for first in range(start, start + mesh.tensor)
    }
    return lambda: {
        first + rank * mesh.tensor: seconds
        for first, hanging in pipelines.items()
        for rank, seconds in hanging.look().items()
    }


def _train(
    plan: Plan, lowered: Lowered, order: WorkerOrder, world: World, progress: RankProgress
) -> RankResult:
    """Train; with checkpoints, SIGTERM ends training gracefully."""
    assert isinstance(order.options, TrainOptions)
    stop = StopRequest(order.folder)
    with stop.listening() if order.options.checkpoint is not None else nullcontext():
        trainer = RankTrainer(plan, lowered, order.options, world, progress, stop)
        if world.rank == 0 and trainer.warning is not None:
            _talk(trainer.warning)
        return trainer.train(_telling(world, trainer.num_steps))


def _telling(world: World, num_steps: int) -> OnStep | None:
    """Return the function by which rank 0 prints its steps."""
    return partial(_tell, max(1, num_steps // _MOST_LINES)) if world.rank == 0 else None


def _tell(steps_per_line: int, step: int, loss: float, seconds: float) -> None:
    """Print the progress of a step; an emulated run has no loss."""
    if step % steps_per_line == 0 and not is_quiet():
        said = "emulated" if math.isnan(loss) else f"loss {loss:.4f}"
        _talk(f"step {step:4d}  {said}  {seconds:.3f} s")


def _end(attempt: Path, mesh: Mesh, process: int, why: str) -> None:
    note_ended(attempt, process, why)
    _talk(f"{mesh.name(process)} {why.removesuffix(',')}; the others wait for it: ending it")


def _talk(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def work_inside_torchrun(
    plan: Path, options: TrainOptions | EmulationOptions
) -> list[RankResult] | None:
    """Train (or emulate) as the rank that torchrun made of this process; results as `work`.

    A rank that fails does not return: it reports the failure and exits at once, so that torchrun
    detects it. Threads that write a checkpoint with dead ranks would delay an orderly exit.
    """
    with _torchruns_folder() as folder:
        try:
            return work(WorkerOrder(plan=plan, options=options, folder=folder), folder)
        except SynthError as error:
            _talk(f"error: {as_message(str(error))}")
            exit_code = int(error.exit_code)
        except Exception:
            traceback.print_exc()
            exit_code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


@contextmanager
def _torchruns_folder() -> Iterator[Path]:
    """The folder of torchrun for this start of this machine's ranks, which outlives killed ranks.

    If torchrun has none, each rank makes its own.
    """
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")  # FOLDER/RANK/error.json
    if error_file:
        yield Path(error_file).parent.parent
        return
    with tempfile.TemporaryDirectory(prefix="synth-run-") as name:
        yield Path(name)


def main() -> None:
    """Entry point of a launched process: `python -m synth.runtime.training.worker ORDER`."""
    order = WorkerOrder.model_validate_json(Path(sys.argv[1]).read_text())
    if order.launcher is not None:
        end_without(order.launcher)
    rank, number = int(os.environ["RANK"]), restarts()
    attempt = attempt_folder(order.folder, number)
    try:
        if number:
            _explain_restart(order, number, rank)
        results = work(order, attempt)
        if results is not None:
            (order.folder / RESULTS).write_bytes(pickle.dumps(results))
        exit_code = 0
    except SynthError as error:
        exit_code = int(error.exit_code)
        write_failure_report(attempt, rank, error, exit_code)
    except KeyboardInterrupt:
        exit_code = 130
    except Exception as error:
        exit_code = 1
        if not failure_report_exists(attempt):
            traceback.print_exc()
        write_failure_report(attempt, rank, error, exit_code)
    sys.stdout.flush()
    sys.stderr.flush()
    # All is written. C++ teardown at interpreter exit now and then aborts in torch's own threads
    # ("terminate called without an active exception", torch 2.13), which would fail a good run.
    os._exit(exit_code)


def _explain_restart(order: WorkerOrder, number: int, rank: int) -> None:
    """Before a restart: print its reason, or refuse one that would fail in the same way."""
    plan = Plan.load(order.plan)
    lowered, mesh = plan.check()[0], mesh_of(plan, order.options)
    before = attempt_folder(order.folder, number - 1)
    reason = hopeless(before, mesh.size)
    if reason is not None:
        raise reason
    if rank == 0:
        why = str(explain(before, lowered, {}, mesh)).replace("the run ended early", "ranks failed")
        _talk(f"restart {number} of {order.options.restarts}: {why}")


def load_results(folder: Path) -> list[RankResult]:
    """The results that rank 0 left for the launcher."""
    results: list[RankResult] = pickle.loads((folder / RESULTS).read_bytes())
    return results


if __name__ == "__main__":
    main()
