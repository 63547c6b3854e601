"""The ranks of the benchmark: processes on this machine, started once per number of ranks."""

import logging
import math
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.executor.case import Case

_TIMEOUT_S = 600


def run_cases(
    cases: list[tuple[Case, list[str]]],
    num_ranks: int,
    rounds: int,
    *,
    seconds: float = math.inf,
    eager: bool = True,
) -> Iterator[Any]:
    """The measurements of all ranks, case by case, as `measure_case` returns them.

    Without `eager` this project's runtime, too, sends every message through gloo.
    """
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (num_ranks, folder, cases, rounds, seconds, eager, answers)
        processes = [
            context.Process(target=_serve, args=(rank, *arguments), daemon=True)
            for rank in range(num_ranks)
        ]
        for process in processes:
            process.start()
        try:
            for _ in cases:
                found = dict(answers.get(timeout=_TIMEOUT_S) for _ in range(num_ranks))
                yield [_checked(found[rank]) for rank in range(num_ranks)]
        finally:
            for process in processes:
                process.join(timeout=5)
                process.kill()


def run_on_ranks(function: Callable[..., Any], num_ranks: int, *arguments: Any) -> list[Any]:
    """Run `function(rank, *arguments)` on all ranks and return the results in rank order."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(
                target=_answer, args=(rank, num_ranks, folder, answers, function, arguments)
            )
            for rank in range(num_ranks)
        ]
        for process in processes:
            process.start()
        try:
            found = dict(answers.get(timeout=_TIMEOUT_S) for _ in range(num_ranks))
            return [_checked(found[rank]) for rank in range(num_ranks)]
        finally:
            for process in processes:
                process.join(timeout=5)
                process.kill()


def _answer(
    rank: int,
    num_ranks: int,
    folder: str,
    answers: Any,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    _join(rank, num_ranks, folder)
    try:
        answers.put((rank, function(rank, *arguments)))
    except BaseException:
        answers.put((rank, traceback.format_exc()))
    answers.close()
    answers.join_thread()


def _join(rank: int, num_ranks: int, folder: str) -> None:
    """Form the process group of all ranks."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    torch.set_num_threads(1)
    store = FileStore(str(Path(folder) / "store"), num_ranks)
    dist.init_process_group(
        "gloo", rank=rank, world_size=num_ranks, store=store, timeout=timedelta(seconds=120)
    )


def _checked(answer: Any) -> Any:
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return answer


def _serve(
    rank: int,
    num_ranks: int,
    folder: str,
    cases: list[tuple[Case, list[str]]],
    rounds: int,
    seconds: float,
    eager: bool,
    answers: Any,
) -> None:
    import torch.distributed as dist

    from benchmarks.executor.measure import measure_case
    from synth.runtime.execution.transport.gloo import eager_sockets as eager_messages

    if not eager:
        eager_messages.MOST_BYTES = -1
    logging.getLogger("torch.distributed.pipelining").setLevel(logging.CRITICAL)
    _join(rank, num_ranks, folder)
    try:
        for case, names in cases:
            answers.put((rank, measure_case(case, rank, names, rounds, seconds)))
    except BaseException:
        answers.put((rank, traceback.format_exc()))
        answers.close()
        answers.join_thread()
        raise
    dist.destroy_process_group()
