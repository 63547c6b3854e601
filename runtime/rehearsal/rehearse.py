"""Rehearses ranks of a plan: each is trained alone for some steps, and then freed."""

import copy
import gc
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from synth.errors import SynthError
from synth.run_options.train_options import TrainOptions
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered

from ..batch import Batch
from ..dtypes import dtype_of
from ..execution.base.clock import OpClock
from ..execution.transport.in_process.ranks import InProcessRanks
from ..execution.transport.rank_group import without_warnings_of_trees
from ..execution.weights.keeping import ranks_share_host
from ..input_function import spec_of
from ..models import BuiltModel, build_model, is_built_in, num_safe_ids, trusted_address
from ..pipeline import Pipeline
from ..rank_result import RankResult
from ..training.batches import Batches
from ..training.building import build_stages
from ..training.data import TokenData
from ..training.launch import loopback
from ..training.run_data import RunData, open_data
from ..training.trainer import RankTrainer
from ..world import World
from .absent_ranks import AbsentRanks
from .device_memory import check_fits
from .planned_arrivals import PlannedArrivals

T = TypeVar("T")

OnRank = Callable[[int], None]

_META = torch.device("meta")
# How long a rank waits for the threads of the others, which run no kernel.
_TIMEOUT_S = 600.0


def rehearse(
    plan: Plan,
    lowered: Lowered,
    options: TrainOptions,
    device: torch.device,
    *,
    ranks: Sequence[int] | None = None,
    planned_arrivals: bool = False,
    on_rank: OnRank = lambda rank: None,
) -> dict[int, RankResult]:
    """Train ranks of a plan alone, one after the other, with made-up inputs from other ranks.

    Args:
        options: of the run; without data or inputs a built-in model gets random token ids.
        ranks: the ranks to rehearse; None: all.
        planned_arrivals: True if what other ranks would send arrives when the plan says, counted
            from the beginning of a rank's program; False: it is there at once.
        on_rank: called with each rank before it is built.

    Returns:
        The results by rank; losses are those of made-up inputs.

    Raises:
        SynthError: the schedule cannot be rehearsed, there are no inputs, or a rank does not fit
            on the device; says how many bytes it needs.
        RunFailure: an op failed.
    """
    chosen = range(plan.num_ranks) if ranks is None else ranks
    _check(lowered, chosen)
    plan.check_executable()
    _check_single(plan)
    check_fits(plan, chosen, device)
    rehearsal = _Rehearsal(plan, lowered, options, device, planned_arrivals=planned_arrivals)
    found = {}
    with _world_of_one():
        for rank in chosen:
            on_rank(rank)
            found[rank] = rehearsal.of(rank)
            gc.collect()  # a pipeline refers to itself
            if device.type == "cuda":
                torch.cuda.empty_cache()  # what is reserved is measured for each rank
    return found


class _Rehearsal:
    """The model outline and the data that the rehearsals of all ranks share."""

    def __init__(
        self,
        plan: Plan,
        lowered: Lowered,
        options: TrainOptions,
        device: torch.device,
        *,
        planned_arrivals: bool,
    ) -> None:
        self._plan, self._lowered, self._options, self._device = plan, lowered, options, device
        self._planned_arrivals = planned_arrivals
        self._outline = build_model(
            spec_of(plan.workload, trusted_address(plan.workload, options.model), options.inputs),
            seed=options.seed,
            names=plan.layers,
            device=_META,
            dtype=dtype_of(plan.workload.dtype),
        )
        self._data = self._open_data()

    def of(self, rank: int) -> RankResult:
        """Train one rank on the device, beside the others without data."""
        return _beside(self._plan.num_ranks, rank, partial(self._train, rank), self._stand_in)

    def _train(self, rank: int, group: AbsentRanks) -> RankResult:
        world = World(rank, group.size, self._device, "absent", socket.gethostname(), group.size)
        clock = OpClock(self._device)
        if self._planned_arrivals:
            late = self._options.optimizer_of(self._plan.workload.optimizer).post_validation
            group.arrivals = PlannedArrivals(self._lowered, rank, clock, late=late)
        trainer = RankTrainer(
            self._plan, self._lowered, self._options, world,
            group=group, data=self._data, clock=clock,
        )  # fmt: skip
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        result = trainer.train()
        if self._device.type == "cuda":
            result.reserved_bytes = torch.cuda.max_memory_reserved(self._device)
        return result

    def _stand_in(self, group: AbsentRanks) -> None:
        """Take a rank's part in what the ranks tell each other before the first step."""
        plan, options = self._plan, self._options
        built = build_stages(
            plan, group.rank, _META, options.seed, model=options.model, build=self._outlined
        )
        for stage in built.stages.values():
            stage.trial_device = self._device
        pipeline = Pipeline(self._lowered, built.stages, group=group, tied=built.tied, device=_META)
        batch = self._first_batch() if 0 in built.stages else Batch()
        pipeline.find_sizes(batch)

    def _outlined(self, *_: Any, indices: Sequence[int], **__: Any) -> BuiltModel:
        """Return layers without data, which are no other rank's."""
        layers = {index: self._outline.layers[index] for index in indices}
        held = {id(p) for layer in layers.values() for p in layer.parameters()}
        tied = {name: p for name, p in self._outline.tied.items() if id(p) in held}
        return copy.deepcopy(BuiltModel(layers, tied))

    def _first_batch(self) -> Batch:
        batches = Batches(
            self._data,
            self._plan,
            per_step=1,
            inputs=True,
            targets=False,
            device=torch.device("cpu"),
        )
        return batches.take()[0].batch

    def _open_data(self) -> RunData:
        """Open what the options name, else draw token ids of a built-in model's vocabulary."""
        options, workload = self._options, self._plan.workload
        if options.data is not None or options.inputs is not None:
            return open_data(options, workload, None)
        if not is_built_in(workload.model if options.model is None else options.model):
            raise SynthError(
                "the inputs of a model of your own are not known; give --inputs FILE.py:FUNCTION, "
                "or --data PATH"
            )
        draw = torch.Generator().manual_seed(options.seed)
        most = num_safe_ids(self._outline.layers[0]) or 1
        count = 64 * (workload.sequence_length + 1)
        ids = torch.randint(most, (count,), generator=draw)
        return TokenData(ids, workload.sequence_length, options.seed)


def _check_single(plan: Plan) -> None:
    """Refuse ranks that are groups, whose processes would wait for each other."""
    group = plan.workload.group
    if group is not None and group.devices > 1:
        raise SynthError(
            f"each rank of the plan is a group of {group.devices} devices ({group.words}), and one "
            f"device rehearses one process; rehearse a model of one process's shapes, or `synth "
            f"run` the plan"
        )


def _check(lowered: Lowered, ranks: Sequence[int]) -> None:
    """Refuse what cannot be rehearsed."""
    unknown = [rank for rank in ranks if not 0 <= rank < lowered.num_ranks]
    if unknown:
        raise SynthError(
            f"rank {unknown[0]} was asked for, the plan has ranks 0 to {lowered.num_ranks - 1}"
        )
    if ranks_share_host(lowered):
        raise SynthError(
            "the ranks of this schedule leave values for each other in the host's memory, so none "
            "of them can be rehearsed alone; run it, or take a schedule such as mobius"
        )


def _beside(
    num_ranks: int, rank: int, own: Callable[[AbsentRanks], T], other: Callable[[AbsentRanks], None]
) -> T:
    """Run one rank here, and the others in threads until they have told it what it needs to know.

    Raises:
        BaseException: the error of a rank.
    """
    ranks = InProcessRanks(num_ranks, _TIMEOUT_S, eager_bytes=0)
    failures: list[BaseException] = []

    def join(one: int) -> AbsentRanks:
        return AbsentRanks(ranks, one, tuple(range(num_ranks)), _TIMEOUT_S)

    def stand_in(one: int) -> None:
        try:
            other(join(one))
        except BaseException as error:
            failures.append(error)
            ranks.end(one, f"{type(error).__name__}: {error}")

    others = [
        threading.Thread(target=stand_in, args=(one,), name=f"rank {one}", daemon=True)
        for one in range(num_ranks)
        if one != rank
    ]
    with without_warnings_of_trees():
        try:
            for thread in others:
                thread.start()
            return own(join(rank))
        except BaseException as error:
            ranks.end(rank, f"{type(error).__name__}: {error}")
            if failures:
                raise failures[0] from error
            raise
        finally:
            for thread in others:
                thread.join()


@contextmanager
def _world_of_one() -> Iterator[None]:
    """Be a world of one process, over which a trainer sums its losses."""
    if dist.is_initialized():
        raise SynthError("a rehearsal makes its own process group, and this process has one")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())
    timeout = timedelta(seconds=_TIMEOUT_S)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1, timeout=timeout)
    try:
        yield
    finally:
        dist.destroy_process_group()
