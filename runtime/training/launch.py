"""Starts a run's processes with torchrun's engine."""

import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType

from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from synth import version
from synth.errors import ExitCode, RunFailure, SynthError
from synth.profile.links import Links
from synth.run_options.emulation_options import EmulationOptions
from synth.run_options.train_options import TrainOptions
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered

from ..execution.transport.host.block_names import remove_leftovers, shared_folder
from ..rank_result import RankResult
from ..run_folder import named_to_ranks
from .local_rendezvous import BACKEND
from .post_mortem import LastSeen, explain, last_attempt, places_of_all
from .process_grid import mesh_of
from .stopping import passing_on_sigterm
from .worker import WorkerOrder, load_results

_SIGNALS = "SIGTERM,SIGHUP,SIGQUIT"


def launch(
    plan_path: Path, plan: Plan, lowered: Lowered, options: TrainOptions | EmulationOptions
) -> list[RankResult]:
    """Run a plan with all its processes on this machine.

    Raises:
        SynthError: a rank refused (bad data, wrong model); its own message.
        RunFailure: a rank failed or was killed; says where every rank was.
    """
    mesh = mesh_of(plan, options)
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
            with passing_on_sigterm(folder, _terminate) if saves else nullcontext():
                _start(
                    mesh.size,
                    "synth.runtime.training.worker",
                    str(order_path),
                    folder=folder,
                    max_restarts=options.restarts,
                    signals="SIGHUP,SIGQUIT" if saves else _SIGNALS,
                )
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
            raise explain(last_attempt(folder), lowered, codes, mesh) from None
        except SignalException as error:
            places = places_of_all(last_attempt(folder), lowered, mesh)
            raise _interrupted(places, error.sigval) from None
        finally:
            remove_leftovers(shared_folder())
        return load_results(folder)


def _terminate() -> None:
    """End the ranks as torchrun's engine does on a signal."""
    raise SignalException("a second SIGTERM", sigval=signal.SIGTERM)


@contextmanager
def _killing_on_ctrl_c() -> Iterator[None]:
    """Kill the ranks on Ctrl-C; while they import, SIGINT would end them with tracebacks.

    Only a main thread may handle signals; elsewhere they are somebody else's.
    """

    def kill(signum: int, frame: FrameType | None) -> None:
        raise SignalException("Ctrl-C", sigval=signal.SIGKILL)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, kill)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _interrupted(places: Sequence[LastSeen | str], signal_number: signal.Signals) -> SynthError:
    """Return the error for a signal, with the places of the ranks.

    SIGKILL means Ctrl-C, for which the ranks are killed.
    """
    if signal_number == signal.SIGKILL:
        signal_number = signal.SIGINT
    is_term = signal_number == signal.SIGTERM
    return SynthError(
        f"stopped by {signal.Signals(signal_number).name}: {'; '.join(map(str, places))}",
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
            _start(num_ranks, "synth.runtime.profiling.link_probe", device, name, folder=Path(name))
        except ChildFailedError as error:
            raise RunFailure(f"measuring the links failed: {error}") from None
        except SignalException as error:
            raise _interrupted(["the links were being measured"], error.sigval) from None
        return Links.model_validate_json((Path(name) / "links.json").read_text())


def _start(
    num_ranks: int,
    module: str,
    *arguments: str,
    folder: Path,
    max_restarts: int = 0,
    signals: str = _SIGNALS,
) -> None:
    """Run a module as `torchrun --standalone -m MODULE` does, such that only this user gets in.

    Ranks meet in the folder, which is this user's alone, and their connections are on the loopback
    interface. The engine's own files go into the folder, too, because it never removes them.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())
    os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback())
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "3")
    _silence("torch.distributed.elastic")
    _let_workers_find_a_checkout()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id=f"synth-{os.getpid()}",
        rdzv_backend=BACKEND,
        local_addr="localhost",
        max_restarts=max_restarts,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "torchelastic")),
        signals_to_handle=signals,
    )
    with _killing_on_ctrl_c(), named_to_ranks(folder):
        elastic_launch(config, sys.executable)("-m", module, *arguments)


def _silence(name: str) -> None:
    """Silence loggers, also those below that have levels of their own."""
    logger = logging.getLogger(name)
    logger.propagate = False
    logger.addHandler(logging.NullHandler())


def _let_workers_find_a_checkout() -> None:
    """Put the checkout on PYTHONPATH, because workers start in the user's folder."""
    root = Path(version.__file__).resolve().parent.parent
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if (root / "pyproject.toml").exists() and str(root) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), *paths]))


def loopback() -> str:
    """The loopback interface's name on this system."""
    return "lo0" if sys.platform == "darwin" else "lo"
