"""Starting a run's processes with torchrun's engine, and telling what happened when one dies."""

import json
import logging
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import synth
from synth.errors import ExitCode, RunFailure, SynthError
from synth.profile import Links
from synth.schedule.file import Plan
from synth.schedule.lower import Lowered

from .emulation.rank import EmulationOptions
from .progress import last_place
from .rank_result import RankResult
from .train_options import TrainOptions
from .worker import WorkerOrder, load_results


def launch(
    plan_path: Path, plan: Plan, lowered: Lowered, options: TrainOptions | EmulationOptions
) -> list[RankResult]:
    """Run a plan with one process per rank on this machine.

    Raises:
        SynthError: a rank refused (bad data, wrong model); its own message.
        RunFailure: a rank failed or was killed; says where every rank was.
    """
    with tempfile.TemporaryDirectory(prefix="synth-run-") as name:
        folder = Path(name)
        order = WorkerOrder(
            plan=plan_path.resolve(),
            options=options.resolved(),
            folder=folder,
        )
        order_path = folder / "order.json"
        order_path.write_text(order.model_dump_json())
        try:
            _start(plan.num_ranks, "synth.runtime.worker", str(order_path))
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
            raise explain(folder, lowered, codes) from None
        except SignalException as error:
            raise _interrupted(folder, lowered, error.sigval) from None
        return load_results(folder)


def _interrupted(folder: Path, lowered: Lowered, signal_number: signal.Signals) -> SynthError:
    places = "; ".join(
        f"rank {rank} {where(folder, lowered, rank)}" for rank in range(lowered.num_ranks)
    )
    stopped = SynthError(f"stopped by {signal.Signals(signal_number).name}: {places}")
    stopped.exit_code = ExitCode.INTERRUPTED
    return stopped


def launch_link_probe(num_ranks: int, device: str) -> Links:
    """Measure the links between so many processes on this machine.

    Raises:
        RunFailure: a process failed.
    """
    with tempfile.TemporaryDirectory(prefix="synth-links-") as name:
        try:
            _start(num_ranks, "synth.runtime.link_probe", device, name)
        except ChildFailedError as error:
            raise RunFailure(f"measuring the links failed: {error}") from None
        return Links.model_validate_json((Path(name) / "links.json").read_text())


def _start(num_ranks: int, module: str, *arguments: str) -> None:
    """What `torchrun --standalone -m MODULE` does, on the loopback interface."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "3")
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    _let_workers_find_a_checkout()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id=f"synth-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=0.1,
    )
    elastic_launch(config, sys.executable)("-m", module, *arguments)


def _let_workers_find_a_checkout() -> None:
    """`python path/to/cli.py` finds synth beside itself; its workers start in the user's folder."""
    root = Path(synth.__file__).resolve().parent.parent
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if (root / "pyproject.toml").exists() and str(root) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), *paths]))


def _loopback() -> str:
    """The loopback interface's name on this system."""
    return "lo0" if sys.platform == "darwin" else "lo"


def explain(folder: Path, lowered: Lowered, exit_codes: dict[int, int]) -> SynthError:
    """Make one message of what the ranks left behind: the cause first, then who met it where."""
    words = _words(folder, lowered.num_ranks)
    refusals = [w for w in words.values() if w["exit_code"] not in (0, 1)]
    timed_out = any("timed out" in word["message"].lower() for word in words.values())
    killed = [r for r in exit_codes if exit_codes[r] < 0 and r not in words]
    if refusals:
        refusal = SynthError(refusals[0]["message"])
        refusal.exit_code = refusals[0]["exit_code"]
        return refusal
    lines = [
        f"rank {rank} {_ended_by(-exit_codes[rank], timed_out)} {where(folder, lowered, rank)}"
        for rank in killed
        if exit_codes[rank] != -signal.SIGTERM
    ]
    for rank, word in sorted(words.items(), key=lambda item: item[1]["time"]):
        message = word["message"]
        named = message.startswith("rank")
        lines.append(message if named else f"rank {rank} {where(folder, lowered, rank)}: {message}")
    if not lines:
        lines = [f"ranks {sorted(exit_codes)} ended with exit codes {exit_codes}"]
    told = {*words, *(rank for rank in killed if exit_codes[rank] != -signal.SIGTERM)}
    others = [rank for rank in range(lowered.num_ranks) if rank not in told]
    lines += [f"rank {rank} was stopped {where(folder, lowered, rank)}" for rank in others]
    return RunFailure("the run ended early:\n  " + "\n  ".join(dict.fromkeys(lines)))


def _words(folder: Path, num_ranks: int) -> dict[int, dict[str, Any]]:
    """What ranks said when they failed."""
    paths = {rank: folder / f"failure-{rank}.json" for rank in range(num_ranks)}
    return {rank: json.loads(path.read_text()) for rank, path in paths.items() if path.exists()}


def _ended_by(signal_number: int, others_timed_out: bool) -> str:
    """Who hangs until the others time out is in the end killed by the launcher itself."""
    if signal_number == signal.SIGKILL and others_timed_out:
        return "did not answer any more and was ended"
    return f"was killed by {signal.Signals(signal_number).name}"


def where(folder: Path, lowered: Lowered, rank: int) -> str:
    """Where a rank was last seen: `in step 12, at B2.5`."""
    place = last_place(folder, rank)
    if place is None or place[0] < 0:
        return "before its first step"
    step, instruction = place
    if instruction < 0:
        return f"between steps {step - 1} and {step}"
    return f"in step {step}, at {lowered.programs[rank][instruction]}"
