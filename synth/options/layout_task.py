"""The search for a layout that the arguments of `synth plan` ask for."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from synth.errors import SynthError
from synth.estimates.calibration import factors_of
from synth.estimates.device import MOST_IN_NODE, Device, device_of
from synth.estimates.estimated_profile import Estimator
from synth.estimates.factors import software_of
from synth.estimates.layout import Layout
from synth.estimates.model_config import model_of
from synth.layouts.answer import JudgedLayout
from synth.layouts.named_layout import read_layout
from synth.layouts.question import LayoutQuestion
from synth.layouts.search import LayoutSearch, NamedLayout, OnProgress, SolvedPipeline
from synth.objective import BoundScope
from synth.options.arguments.groups import PipelineArguments, RuntimeArguments, SearchArguments
from synth.options.arguments.plan import LayoutArguments
from synth.options.arguments.solve import LimitOrLeast, SolveArguments
from synth.options.memory_limit import MemoryLimit, read_limit
from synth.options.solve_task import read_solve
from synth.options.values import LEAST
from synth.plan.choose.candidates import SearchWatch
from synth.plan.runtimes import Runtime
from synth.profile.optimizer import OptimizerSpec
from synth.system.messages import silenced

_OF_TORCH = (Runtime.TORCH, Runtime.TORCHTITAN)


def software_name(given: LayoutArguments) -> str:
    """The name of the training program: the given one, or that of the runtime."""
    usual = "torchtitan" if given.runtime in _OF_TORCH else "megatron"
    return given.software or usual


class LayoutTask(NamedTuple):
    """A question with the layouts to judge beside the legal ones."""

    given: LayoutArguments
    question: LayoutQuestion
    limit: MemoryLimit
    also: Sequence[NamedLayout]

    @property
    def software(self) -> str:
        """The name of the training program."""
        return software_name(self.given)

    @property
    def nodes(self) -> tuple[int, int] | None:
        """The number of nodes and of the devices of each; None: it has racks of unknown nodes."""
        gpus, node = self.question.gpus, self.question.device.ranks_per_node
        if self.given.nodes is None and node > MOST_IN_NODE:
            return None
        return max(1, gpus // node), min(gpus, node)

    def search(
        self,
        limit_s: float,
        stop: threading.Event,
        on_progress: OnProgress = lambda text, answer: None,
    ) -> LayoutSearch:
        """Return the search; `run` runs it."""
        return LayoutSearch(
            self.question,
            limit_s,
            solve=self._solve,
            also=self.also,
            seed=self.given.seed,
            stop=stop,
            on_progress=on_progress,
        )

    def _solve(
        self, judged: JudgedLayout, limit_s: float, stop: threading.Event
    ) -> SolvedPipeline | None:
        """Solve the pipeline of a layout, as `synth solve` does on the profile of the estimate."""
        layout, cap = judged.layout, self.question.cap_bytes
        given = SolveArguments(
            pipeline=PipelineArguments(
                profile=judged.profile, ranks=layout.ranks, micro_batches=layout.micro_batches
            ),
            memory=LimitOrLeast(mem_limit="none" if cap is None else (cap,)),
            placement=judged.placement,
            freedom=RuntimeArguments(runtime=self.given.runtime),
            search=SearchArguments(seed=self.given.seed),
            workers=self.given.workers,
            time_limit=limit_s,
        )
        with silenced():
            asked = read_solve(given)
        options = replace(asked.request.options, time_limit_s=limit_s)
        result = asked.space.search(options, SearchWatch(None, stop)).result
        if result.schedule is None or result.peak_bytes is None:
            return None
        is_of_all = result.bound_scope == BoundScope.ALL
        bound_us = result.lower_bound_us if is_of_all else 0
        plan = asked.request.of(result).plan(result)
        return SolvedPipeline(plan, result.peak_bytes, bound_us)


def read_layout_task(given: LayoutArguments) -> LayoutTask:
    """Read and check all arguments.

    Raises:
        SynthError: one is not understood, or they do not go together.
    """
    device = _device(given)
    name = software_name(given)
    question = LayoutQuestion(
        shape=model_of(given.model),
        device=device,
        gpus=given.gpus,
        global_batch=given.global_batch,
        seq_len=given.seq_len,
        software=software_of(name),
        precision=given.dtype,
        narrow_gather=given.fp8_param_gather,
        factors=factors_of(given.calibration, device, name),
        optimizer=OptimizerSpec.parse(given.optimizer),
        allowed=given.allowed,
    )
    if question.narrow_gather:
        question.software.check_narrow_gather(question.precision)
    limit = _limit(given, question)
    cap = None if limit.caps_bytes is None else limit.caps_bytes[0]
    question = question.within(cap)
    also = [read_layout(text, question) for text in given.also or ()]
    return LayoutTask(given, question, limit, also)


def _device(given: LayoutArguments) -> Device:
    device = device_of(given.device)
    device.peak(given.dtype.dtype)
    if (asked := _gpus_per_node(given)) is not None:
        device = device.replace(ranks_per_node=asked)
    node = device.ranks_per_node
    if given.gpus <= node:
        return device.replace(ranks_per_node=given.gpus)
    if given.gpus % node == 0:
        return device
    used = max(size for size in range(1, node + 1) if given.gpus % size == 0)
    # Racks are larger than what runs take of them, and nodes are taken whole (`filled_by`).
    if asked is None and node > MOST_IN_NODE and used >= MOST_IN_NODE:
        return device.replace(ranks_per_node=used)
    raise SynthError(
        f"{given.gpus} devices do not fill nodes of {node}; give a multiple as §gpus, or "
        f"§gpus_per_node {used}"
    )


def _gpus_per_node(given: LayoutArguments) -> int | None:
    """Return the devices of a node that the arguments say; None: those of the device.

    Raises:
        SynthError: nodes cannot have equally many devices, or not as many as are given.
    """
    gpus, nodes, node = given.gpus, given.nodes, given.gpus_per_node
    if nodes is None:
        return node
    if gpus % nodes:
        near = max(size for size in range(1, nodes) if gpus % size == 0)
        raise SynthError(
            f"{nodes} nodes cannot share {gpus} devices equally; give §nodes {near}, or a multiple "
            f"of {nodes} as §gpus"
        )
    if node not in (None, gpus // nodes):
        raise SynthError(
            f"§nodes {nodes} have {gpus // nodes} each of {gpus} devices, and §gpus_per_node is "
            f"{node}; leave one of them out"
        )
    return gpus // nodes


def _limit(given: LayoutArguments, question: LayoutQuestion) -> MemoryLimit:
    """The memory limit of a device, whose capacity all estimates have."""
    if given.mem_limit == LEAST:
        raise SynthError("§mem_limit min is of synth solve; give a size here, auto, or none")
    groups = Layout(seq_len=given.seq_len, precision=given.dtype)
    estimator: Estimator = question.estimator(groups)
    return read_limit(given.mem_limit, 1, estimator.profile())
