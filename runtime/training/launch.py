"""Launches the ranks of a run on this machine, and explains how they ended."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from synth.errors import ExitCode, RunFailure, SynthError
from synth.profile.links import Links
from synth.run_options.emulation_options import EmulationOptions
from synth.run_options.train_options import TrainOptions
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered
from synth.system.processors import limit_ranks

from ..execution.transport.host.block_names import remove_leftovers, shared_folder
from ..models import is_hugging_face
from ..rank_result import RankResult
from ..run_folder import named_to_ranks
from ..world import pick_device
from .local_ranks import RanksFailed, Signalled, can_fork, run_ranks
from .post_mortem import LastSeen, explain, last_attempt, places_of_all
from .process_grid import mesh_of
from .stopping import passing_on_sigterm
from .worker import WorkerOrder, load_results

_SIGNALS = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})


def launch(
    plan_path: Path, plan: Plan, lowered: Lowered, options: TrainOptions | EmulationOptions
) -> list[RankResult]:
    """Run a plan with all its processes on this machine.

    Raises:
        SynthError: a rank refused (bad data, wrong model); its own message.
        RunFailure: a rank failed or was killed; says where every rank was.
    """
    mesh = mesh_of(plan, options)
    # Before the folder is made, which Ctrl-C meanwhile would leave behind.
    preload = _preload(plan, options)
    forked = preload is not None and can_fork(preload)
    received: list[signal.Signals] = []
    with tempfile.TemporaryDirectory(prefix="synth-run-") as name:
        folder = Path(name)
        order = WorkerOrder(
            plan=plan_path.resolve(),
            options=options.resolved(),
            folder=folder,
            launcher=os.getpid(),
        )
        order_path = folder / "order.json"
        order_path.write_text(order.model_dump_json())
        saves = isinstance(options, TrainOptions) and options.checkpoint is not None
        try:
            terminate = partial(received.append, signal.SIGTERM)
            passing = passing_on_sigterm(folder, terminate) if saves else nullcontext()
            with passing, _meeting_in(folder):
                run_ranks(
                    mesh.size,
                    "synth.runtime.training.worker",
                    [str(order_path)],
                    signals=_SIGNALS - {signal.SIGTERM} if saves else _SIGNALS,
                    received=received,
                    max_restarts=options.restarts,
                    forked=forked,
                )
        except RanksFailed as error:
            raise explain(last_attempt(folder), lowered, error.codes, mesh) from None
        except Signalled as error:
            places = places_of_all(last_attempt(folder), lowered, mesh)
            raise _interrupted(places, error.number) from None
        finally:
            remove_leftovers(shared_folder())
        return load_results(folder)


def _preload(plan: Plan, options: TrainOptions | EmulationOptions) -> tuple[str, ...] | None:
    """Return what ranks import beside their module; None: this process is not to be forked.

    CUDA cannot be forked, and the code of a user's function, which has run here, may not be.
    """
    if isinstance(options, EmulationOptions):
        return ()
    if pick_device(options.device).type != "cpu" or options.inputs is not None:
        return None
    used = is_hugging_face(options.model or plan.workload.model)
    # torch imports the first one for operations on the meta device.
    return ("torch._dynamo", *(("transformers.modeling_utils",) if used else ()))


def _interrupted(places: Sequence[LastSeen | str], number: signal.Signals) -> SynthError:
    """Return the error for a signal, with the places of the ranks."""
    is_term = number == signal.SIGTERM
    return SynthError(
        f"stopped by {number.name}: {'; '.join(map(str, places))}",
        ExitCode.TERMINATED if is_term else ExitCode.INTERRUPTED,
    )


def launch_link_probe(num_ranks: int, device: str) -> Links:
    """Measure the links between `num_ranks` processes on this machine.

    Raises:
        RunFailure: a process failed.
        SynthError: a signal ended it.
    """
    with tempfile.TemporaryDirectory(prefix="synth-links-") as name:
        try:
            with _meeting_in(Path(name)):
                run_ranks(
                    num_ranks,
                    "synth.runtime.profiling.link_probe",
                    [device, name],
                    signals=_SIGNALS,
                    received=[],
                )
        except RanksFailed as error:
            raise RunFailure(f"measuring the links failed: {error}") from None
        except Signalled as error:
            raise _interrupted(["the links were being measured"], error.number) from None
        return Links.model_validate_json((Path(name) / "links.json").read_text())


@contextmanager
def _meeting_in(folder: Path) -> Iterator[None]:
    """Let ranks that are started meet in a folder, which is this user's alone.

    Their connections are on the loopback interface.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())
    os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback())
    limit_ranks()
    with named_to_ranks(folder):
        yield


def loopback() -> str:
    """The loopback interface's name on this system."""
    return "lo0" if sys.platform == "darwin" else "lo"
