"""A pool of processes that form process groups for tests: started once, used by many tests."""

import gc
import importlib.util
import multiprocessing
import queue
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

# By leaving, a rank that failed ends the wait of the others, so it does not wait long for them.
LONGEST_WAIT_S = 1.0


def forkserver() -> Any:
    """The context of all processes that tests fork: one process imports what they need, once.

    The first use of the context starts that process.
    """
    context = multiprocessing.get_context("forkserver")
    # The last ones take a second or two in each process that imports them for itself.
    context.set_forkserver_preload(
        [
            "pytest",
            "synth.cli.work.run",
            "synth.runtime.training.worker",
            "tests.cli.forked_command",
            "torch.distributed.tensor.debug",
            "transformers.modeling_utils",
        ]
    )
    return context


class GlooPool:
    """Runs `function(rank, world_size, *arguments)` of a test file on 1 to `size` processes.

    Each starts when a test first needs as many.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._context = forkserver()
        self._processes: list[Any] = []
        self._begin_anew()

    def _begin_anew(self) -> None:
        """End the processes there are; others take the next orders."""
        for process in self._processes:
            process.kill()
        self._processes.clear()
        self._results = self._context.Queue()
        self._orders = [self._context.Queue() for _ in range(self.size)]

    def run(
        self, function: Any, world_size: int, *arguments: Any, timeout: float = 600
    ) -> list[Any]:
        """Run a module-level function on every rank and return the results in rank order."""
        file = Path(sys.modules[function.__module__].__file__ or "")
        with tempfile.TemporaryDirectory() as folder:
            self._start(world_size)
            order = (str(file), function.__name__, world_size, folder, arguments)
            for orders in self._orders[:world_size]:
                orders.put(order)
            answers: dict[int, Any] = {}
            errors = []
            while len(answers) < world_size:
                try:
                    rank, error, value = self._next_answer(time.monotonic() + timeout)
                except AssertionError:
                    self._begin_anew()  # a late answer is none to the next order
                    raise
                answers[rank] = value
                errors += [f"rank {rank}:\n{error}"] if error else []
        if errors:
            raise AssertionError("\n".join(errors))
        return [answers[rank] for rank in range(world_size)]

    def _start(self, count: int) -> None:
        """Start processes until there are `size` of them."""
        for rank in range(len(self._processes), count):
            arguments = (rank, self._orders[rank], self._results)
            process = self._context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            self._processes.append(process)

    def _next_answer(self, deadline: float) -> tuple[int, str | None, Any]:
        while True:
            try:
                return self._results.get(timeout=1)
            except queue.Empty:
                dead = [p.pid for p in self._processes if not p.is_alive()]
                if dead or time.monotonic() > deadline:
                    raise AssertionError(f"no answer; dead processes: {dead}") from None

    def close(self) -> None:
        """End the processes."""
        for orders in self._orders:
            orders.put(None)
            orders.close()
            orders.cancel_join_thread()
        for process in self._processes:
            process.join(timeout=60)
            process.terminate()


def serve(rank: int, orders: Any, results: Any) -> None:
    """A process of the pool: take an order, form the group, answer."""
    import os

    import torch

    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    torch.set_num_threads(1)
    while (order := orders.get()) is not None:
        file, name, world_size, folder, arguments = order
        try:
            value = _run_order(rank, file, name, world_size, folder, arguments)
            results.put((rank, None, value))
        except BaseException:
            results.put((rank, traceback.format_exc(), None))


def _run_order(
    rank: int, file: str, name: str, world_size: int, folder: str, arguments: tuple[Any, ...]
) -> Any:
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    function = getattr(_load(file), name)
    store = FileStore(f"{folder}/store", world_size)
    timeout = timedelta(seconds=500)
    dist.init_process_group("gloo", rank=rank, world_size=world_size, store=store, timeout=timeout)
    dist.barrier()  # none leaves while another one still connects
    try:
        return function(rank, world_size, *arguments)
    finally:
        gc.collect()  # executors refer to themselves, and hold on to the group's connections
        _wait_for_others(store, world_size)
        dist.destroy_process_group()


def _wait_for_others(store: Any, world_size: int) -> None:
    """Wait until all ranks have ended, but not for one that ends when this one is gone.

    Who leaves earlier closes connections that another one may still be making.
    """
    until_s = time.monotonic() + LONGEST_WAIT_S
    store.add("ended", 1)
    while store.add("ended", 0) < world_size and time.monotonic() < until_s:
        time.sleep(0.002)


_LOADED: dict[str, Any] = {}


def _load(file: str) -> Any:
    if file not in _LOADED:
        spec = importlib.util.spec_from_file_location(f"pool_{Path(file).stem}", file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        _LOADED[file] = module
        gc.collect()
        gc.freeze()  # what is imported stays: to look through all of it takes a tenth of a second
    return _LOADED[file]
