"""The pipeline as a library: a schedule, this rank's stage modules, and `step`.

    plan = Plan.load("plan.json")
    pipeline = Pipeline(plan, {rank: my_stage}, group=mesh["pp"], loss=cross_entropy)
    for tokens, labels in loader:
        loss = pipeline.step(pipeline.split(tokens, targets=labels))
        optimizer.step()
        optimizer.zero_grad()

Optimizer, data and precision stay the caller's.
"""

from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from numbers import Real
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed import ReduceOp

from synth.errors import SynthError
from synth.schedule.lowering.lower import Lowered
from synth.schedule.version_facts import version_facts

from ..batch import Batch
from ..execution.base.clock import OpClock
from ..execution.base.loss_terms import LossTerms, Weights
from ..execution.base.step_table import SavedSizes, Shapes
from ..execution.base.stepper import Stepper
from ..execution.base.without_graph import check_graphs
from ..execution.stage.stage import Stage
from ..execution.transport.calls import CallKind
from ..execution.transport.host.with_host import WithHost
from ..execution.transport.rank_group import RankGroup
from ..execution.weights.buffers import broadcast_buffers
from ..execution.weights.shared_tensor import SharedParameter
from ..models.cut import CutModel
from ..optimize.gradients import Gradients
from ..optimize.norm import GradientNorm
from .connections import connect
from .cut_stages import cut_stages
from .evaluation import ForwardEvaluation
from .joint_calls import JointCalls
from .loss_scale import Scale, scale_of
from .options import PipelineKeywords, PipelineOptions
from .rank_parts import AnySchedule, Modules, prepare_rank


class Pipeline:
    """One rank of a pipeline; every rank makes one, with the same schedule, at the same time."""

    def __init__(
        self,
        schedule: AnySchedule,
        stages: Modules | CutModel,
        options: PipelineOptions | None = None,
        **keywords: Unpack[PipelineKeywords],
    ) -> None:
        """Verify the schedule, prepare this rank, and connect it to the others.

        Args:
            schedule: a plan (or its file), or any schedule, such as a published family's.
            stages: this rank's modules by stage number; or the module alone, if the rank holds one
                stage. A sequence of modules is run one after another. Or a whole model as
                `cut_model` returns it, of which the plan's stages of this rank are taken.
            options: see `PipelineOptions`; None: the defaults.
            **keywords: fields of the options, which may be given directly.

        Raises:
            SynthError: the schedule cannot run, or not on this many ranks or with these stages.
            RunFailure: another rank failed while it made its pipeline; says which and why.
        """
        given = options or PipelineOptions()
        self._groups = given.join_groups(keywords)
        with torch.inference_mode(False), self._groups.building():
            self._options = given.updated(**keywords)
            if isinstance(stages, CutModel):
                stages, tied = cut_stages(schedule, stages, self.ranks.rank, self._options.device)
                self._options = self._options.updated(tied=self._options.tied or tied)
            self._parts = prepare_rank(schedule, stages, self.ranks, self._options)
            self._groups.check_apart(stage.module for stage in self.stages.values())
            self._groups = self._groups.on(self.device)
            self.clock = self._options.clock or OpClock(self.device, recording=False)
            self._connections = connect(self._parts, self._groups, self._options, self.clock)
        self._evaluation = ForwardEvaluation(self._parts, self._groups, self._connections)
        self._joint = JointCalls(self._groups, self._connections.channels, self._connections.notes)

    def __repr__(self) -> str:
        """Name the rank, its stages and the schedule."""
        stages = ", ".join(map(str, self.stages))
        return (
            f"Pipeline of {self.lowered.schedule!r}; rank {self.ranks.rank} holds stage {stages} "
            f"on {self.device}"
        )

    @property
    def ranks(self) -> RankGroup:
        """This rank among those of the pipeline."""
        return self._groups.pipeline

    @property
    def lowered(self) -> Lowered:
        """The lowered schedule."""
        return self._parts.lowered

    @property
    def stages(self) -> Mapping[int, Stage]:
        """This rank's stages, by number."""
        return self._parts.stages

    @property
    def updated(self) -> Mapping[int, nn.Module]:
        """By stage the module whose parameters this rank's optimizer updates.

        These are the stages' modules. With weight passing they are those of the stages that have
        their home here. If several ranks share a stage, its module has flat parameters, an equal
        share of the stage's on each of them. If the host keeps a stage, its module has flat
        parameters in the host's memory.
        """
        kept = self._connections.kept
        if kept is None:
            return {number: stage.module for number, stage in self.stages.items()}
        return {n: each.updated for n, each in kept.items() if each.updated is not None}

    @property
    def updates_on_host(self) -> bool:
        """True if what this rank's optimizer updates is in the host's memory, not in the rank's."""
        return any(each.host is not None for each in (self._connections.kept or {}).values())

    @property
    def shared_parameters(self) -> Mapping[nn.Parameter, SharedParameter]:
        """The parameters that this rank updates as parts of flat ones, as checkpoints need them."""
        kept = (self._connections.kept or {}).values()
        return {p: shared for each in kept for p, shared in each.shared_parameters().items()}

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self._parts.device

    @property
    def stepper(self) -> Stepper | None:
        """Carries out the STEPs; None: the caller steps its optimizer after `step`."""
        return self._connections.executor.stepper

    @stepper.setter
    def stepper(self, stepper: Stepper | None) -> None:
        self._connections.executor.stepper = stepper

    @property
    def num_micro_batches(self) -> int:
        """The number of micro-batches of a step."""
        return self.lowered.schedule.num_micro_batches

    @property
    def delays(self) -> dict[int, int]:
        """By stage of this rank, the largest delay of its gradients, in updates."""
        facts = version_facts(self.lowered)
        return {stage: facts[stage].delay for stage in self.stages}

    @property
    def num_early_ops(self) -> int:
        """The number of this rank's ops of the last step that ran early, see `look_ahead`."""
        return self._connections.executor.num_early

    @property
    def held_values(self) -> int:
        """The number of boundary values and transfers held now; 0 between steps."""
        return self._connections.executor.held_values

    def owns(self, parameter: Tensor) -> bool:
        """True if this rank counts a parameter in sums over all ranks, such as a gradient norm.

        Of several ranks that hold a parameter, one counts it.
        """
        return self._connections.reducer.owns(parameter)

    def separate_group(self) -> Any:
        """Make a process group of this pipeline's ranks, for `build_steps`; all of them call this.

        Unlike other groups it ends with the pipeline: when a rank fails, ranks that wait for it in
        this group fail, too.
        """
        timeout = timedelta(seconds=self._options.timeout_s)
        return self.ranks.subgroup(range(self.ranks.size), timeout, "norm")

    def split(self, *inputs: Any, targets: Any = None, **keywords: Any) -> Batch:
        """Divide a mini-batch along the first dimension into the schedule's micro-batches.

        Raises:
            SynthError: it cannot be divided equally. The caller may pad it and go on. If this
                process ends instead, ranks that are in the step already fail at once, with this
                reason; if it does neither, they fail after `timeout_s`.
        """
        try:
            return Batch.split(self.num_micro_batches, *inputs, targets=targets, **keywords)
        except SynthError as error:
            self._groups.announce(error)
            raise

    def step(
        self,
        batch: Batch,
        *,
        weight: float = 1.0,
        weights: Weights | None = None,
        update: bool = True,
        losses: list[Any] | None = None,
        outputs: list[Any] | None = None,
        scaler: GradScaler | None = None,
    ) -> Tensor | None:
        """Run forward and backward of a mini-batch; gradients accumulate into the parameters.

        Args:
            batch: this rank's part suffices, see `Batch`.
            weight: a factor of the loss, and with it of every gradient.
            weights: one per micro-batch, numbers or a tensor: the loss is the sum of the
                micro-batches' losses times these; None: their mean. They are not normalised: pass
                the tokens of the micro-batch divided by the tokens of all micro-batches of the
                update; where updates of stages differ in size, of the smallest update of any
                stage, and a larger one takes the mean over those that it contains. Only ranks with
                the last stage need them.
            update: False for all but the last of several steps whose gradients add up: copies and
                tied parameters are then not reduced, and nothing is updated.
            losses: a list that this call fills, on ranks with the last stage, with the unweighted
                loss of each micro-batch (None for those of another copy of that stage); detached.
                On other ranks it is emptied.
            outputs: a list that is likewise filled with the outputs of the last stage's module,
                ahead of `loss`. Plans do not count their memory.
            scaler: a `PipelineGradScaler`: backwards start from the scaled loss; the returned loss
                is not scaled.

        Returns:
            The mean of the micro-batches' losses, or their weighted sum, on ranks that hold the
            last stage, else None.

        Raises:
            RunFailure: an op failed or another rank is gone; names this rank and the instruction,
                and the rank and the error that came first.
            SynthError: the batch has another number of micro-batches; autograd is off; outputs are
                requested of a module that computes its loss itself; the scaler does not fit. The
                other ranks get a RunFailure that says so, and the pipeline cannot be used again.
        """
        kind = CallKind.STEP if update else CallKind.ACCUMULATE
        with self._joint.call(kind, meets=self._connections.meets):
            check_graphs()
            scale = scale_of(scaler, self.ranks.size, has_stepper=self.stepper is not None)
            terms = self._terms(weight, weights, losses, outputs, scale=scale)
            Batch.checked(batch, self.num_micro_batches)
            shapes, sizes = self.find_sizes(batch)
            moves = self._connections.warm_up.before_step(
                batch, shapes, self._connections.shapes.kinds
            )
            if isinstance(self._connections.channels, WithHost):
                self._connections.channels.reserve(moves)
            return self._connections.executor.step(
                batch, shapes, saved_sizes=sizes, terms=terms, update=update
            )

    def find_sizes(self, batch: Batch) -> tuple[Shapes, SavedSizes]:
        """Return the shapes and sizes of a step; other ranks are told those of what this one sends.

        A rank that takes no part in steps calls this while the others call `step` for the first
        time.

        Args:
            batch: as in `step`; of the rank with the first stage only.
        """
        shapes = self._connections.shapes.of(batch, self.num_micro_batches)
        kinds = self._connections.shapes.kinds
        return shapes, self._connections.saved_sizes.of(batch, shapes, kinds)

    def evaluate(
        self,
        batch: Batch,
        *,
        weights: Weights | None = None,
        losses: list[Any] | None = None,
        outputs: list[Any] | None = None,
    ) -> Tensor | None:
        """Return the loss of a mini-batch, from forwards alone and without autograd.

        Every rank calls this at the same time. The caller is responsible for `module.eval()`.

        Args:
            batch: as in `step`. Without targets, and with `outputs` but not `losses` requested, no
                loss is computed, and None is returned; all ranks then pass no targets.
            weights: as in `step`.
            losses: as in `step`.
            outputs: as in `step`; without a loss they are also available of a module that computes
                its own loss, which is then called without targets.

        Returns:
            As `step`.

        Raises:
            As `step`.
        """
        # What is made here is used outside of an inference mode of the caller, too.
        evaluating = self._joint.call(CallKind.EVALUATE, meets=self._connections.meets)
        with torch.inference_mode(False), evaluating:
            Batch.checked(batch, self.num_micro_batches)
            with_loss = outputs is None or losses is not None or batch.targets is not None
            terms = self._terms(1.0, weights, losses, outputs, with_loss=with_loss)
            if self.stepper is not None:
                self.stepper.finish()
            return self._evaluation.run(batch, terms, with_loss=with_loss)

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale the gradients of all ranks down to a global norm of at most `max_norm`.

        Every rank calls this at the same time, after the step and `scaler.unscale_`. Copies and
        tied parameters count once.

        Returns:
            The norm before scaling, a float64 scalar; the same on all ranks.

        Raises:
            SynthError: a stepper is set, which clips by itself; `max_norm` is no such number.
            RunFailure: another rank is gone, or gives another `max_norm`.
        """
        is_number = isinstance(max_norm, Real) and max_norm >= 0
        with self._joint.call(CallKind.CLIP, meets=True, argument=max_norm if is_number else 0.0):
            if not is_number:
                raise SynthError(
                    f"clip_grad_norm_ was given {max_norm!r:.40} as the largest norm; give a "
                    f"number, 0 or more"
                )
            if self.stepper is not None:
                raise SynthError("the pipeline's stepper clips: give build_steps its clip_norm")
            gradients = Gradients(self.updated, self.owns)
            return gradients.clip(GradientNorm(max_norm, self.device, self._among_all))

    def combine_overflow(self, found_inf: Tensor, group: Any = None) -> None:
        """Replace a flag (0 or 1) by the maximum over all ranks, in place; all of them call this.

        Args:
            found_inf: a scalar on this rank's device.
            group: the process group to take the maximum over; None: the pipeline's ranks.
        """
        with self._joint.call(CallKind.OVERFLOW, meets=True):
            (group or self._among_all).allreduce([found_inf], ReduceOp.MAX).wait()

    def broadcast_buffers(self) -> None:
        """Make the buffers of each stage equal to those at its home, after these were loaded.

        All ranks call this. Without weight passing each rank loads its own, and nothing is done.
        """
        schedule = self.lowered.schedule
        if schedule.weights is not None:
            broadcast_buffers(schedule, self.ranks, self.stages, self.device)

    def close(self) -> None:
        """Free this pipeline's NCCL communicators, once all its ranks have done their work.

        Every rank calls this at the same time, before `destroy_process_group`. The pipeline cannot
        be used afterwards. Without this call the end of the process frees them.
        """
        self._joint.end()
        self._groups.close()

    @cached_property
    def _among_all(self) -> Any:
        return self.separate_group()

    def _terms(
        self,
        weight: float,
        weights: Weights | None,
        losses: list[Any] | None,
        outputs: list[Any] | None,
        *,
        scale: Scale | None = None,
        with_loss: bool = True,
    ) -> LossTerms:
        last = [stage for stage in self.stages.values() if stage.is_last]
        if outputs is not None and with_loss and not all(stage.has_loss for stage in last):
            raise SynthError(
                "there are no outputs to give where the last stage's module computes the loss by "
                "itself: give the Pipeline its loss=…, or evaluate without targets"
            )
        return LossTerms.of(
            self.num_micro_batches,
            weight,
            weights,
            updates=self.lowered.schedule.num_updates,
            scale=scale,
            losses=losses,
            outputs=outputs,
            with_loss=with_loss,
        )
