"""The pipeline as a library: a schedule, this rank's stage modules, and `step`.

    plan = Plan.load("plan.json")
    pipeline = Pipeline(plan, {rank: my_stage}, group=mesh["pp"], loss=cross_entropy)
    for tokens, labels in loader:
        loss = pipeline.step(pipeline.split(tokens, targets=labels))
        optimizer.step()
        optimizer.zero_grad()

Optimizer, data and precision stay the caller's.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed import ReduceOp

from synth.errors import RunFailure, SynthError
from synth.schedule.files.plan_file import Plan, schedule_fingerprint
from synth.schedule.lowering.lower import Lowered
from synth.schedule.model import Schedule

from .batch import Batch
from .execution.core.clock import OpClock
from .execution.core.executor import Executor
from .execution.core.forward_only import forward_only
from .execution.core.progress import RankProgress
from .execution.core.stepper import Stepper
from .execution.gradients.data_parallel import DataParallel
from .execution.gradients.layout import GradientLayout
from .execution.gradients.reducer import GradientReducer
from .execution.stage.loss_terms import LossTerms, Weights
from .execution.stage.saved_sizes import SizeFinder
from .execution.stage.shapes import ShapeFinder
from .execution.stage.stage import Loss
from .execution.stage.warm_up import WarmUp
from .execution.transport.channels import WithHost, open_channels
from .execution.transport.rank_group import Refused
from .execution.transport.traced_channels import TracedChannels
from .optimize.gradients import Gradients
from .optimize.norm import GradientNorm
from .pipeline_groups import PipelineGroups, Ranks
from .pipeline_parts import (
    Modules,
    check_same,
    check_size,
    device_of,
    lower_verified,
    make_stages,
)

Scale = Callable[[Tensor], Tensor]


class Pipeline:
    """One rank of a pipeline; every rank makes one, with the same schedule, at the same time."""

    def __init__(
        self,
        schedule: Plan | Schedule | Lowered | str | Path,
        stages: Modules,
        *,
        group: Ranks | None = None,
        loss: Loss | None = None,
        tied: Mapping[str, nn.Parameter] | None = None,
        data_parallel: Ranks | None = None,
        on_gradients: Callable[[int], None] | None = None,
        device: torch.device | str | None = None,
        changing_shapes: bool = False,
        timeout_s: float = 300.0,
        clock: OpClock | None = None,
        progress: RankProgress | None = None,
        warm_up: bool | None = None,
    ) -> None:
        """Verify the schedule, open its channels, and prepare this rank.

        Args:
            schedule: a plan (or its file), or any schedule, such as a published family's.
            stages: this rank's modules by stage number; or just the module, of a rank that holds
                one stage. A sequence of modules is run one after another.
            group: the pipeline's processes: a process group, or one dimension of a device mesh;
                none: all of them; or threads of this process (`run_ranks`). The group's rank r
                runs the schedule's rank r.
            loss: of the last stage's output and the targets; none: the last stage's module takes
                the targets as its last argument and gives the loss itself.
            tied: parameters that this rank shares with others, under names common to all of them
                (an embedding and a head): they start equal and their gradients are added up.
            data_parallel: the processes that hold the same stages in pipelines side by side: a
                process group, or the other dimension of the mesh. They start with equal parameters
                and buffers, and gradients become the average of all pipelines', each stage's from
                its last backward on. None: there is one pipeline, or the stages are wrapped in
                DistributedDataParallel or FSDP2.
            on_gradients: called with a stage's number after its last backward of a step that
                updates: a place to start a reduction of one's own. Sums over copies, tied
                parameters and `data_parallel` come later.
            device: where this rank computes; none: where its parameters are.
            changing_shapes: whether inputs have other shapes from step to step. The rank with the
                first stage then tells the others at every step; else at the first one only.
            timeout_s: after which ranks wait for each other no longer.
            clock: records when each op ran and what was waited for; none: nobody does.
            progress: told before each instruction, for a post-mortem.
            warm_up: True runs the stages on zeros ahead of the first step, see `WarmUp`; None: on
                NCCL alone, where the first use of a kernel may wait for a posted receive.

        Raises:
            SynthError: the schedule is not fit to run, or not for this many ranks or these stages.
            RunFailure: another rank failed while it made its pipeline; says which and why.
        """
        self._timeout_s = timeout_s
        self._groups = PipelineGroups.of(group, data_parallel, timeout_s)
        self._group = self._groups.pipeline
        self._is_broken = False
        self._norm_group: Any = None
        with self._groups.building():
            self.lowered = lower_verified(schedule)
            check_size(self.lowered, self._group)
            self.stages = make_stages(self.lowered, self._group.rank, stages, loss)
            self.device = torch.device(device) if device is not None else device_of(self.stages)
            self._groups = self._groups.on(self.device)
            self._group = self._groups.pipeline
            check_same(self.lowered.schedule, self._group)
            self.clock = clock or OpClock(self.device, recording=False)
            modules = [stage.module for stage in self.stages.values()]
            layout = GradientLayout(modules, tied or {})
            self._reducer = GradientReducer(
                self.lowered,
                self._group,
                self.stages,
                tied or {},
                layout=layout,
                clock=self.clock,
            )
            self._shapes = ShapeFinder(
                self._group,
                self.lowered.schedule.placement,
                self.stages,
                changing=changing_shapes,
            )
            self._saved_sizes = SizeFinder(self._group, self.lowered, self.stages)
            self._warm_up = WarmUp(self.lowered, self._group.rank, self.stages, self.device)
            on_nccl = self._group.backend(self.device) == "nccl"
            self._warm_up.active = on_nccl if warm_up is None else warm_up
            self._evaluator: Executor | None = None
            self._channels = open_channels(
                self.device, self.lowered.transfers, timeout_s, self._group, self.lowered
            )
            self._executor = Executor(
                self.lowered,
                self._group.rank,
                self.stages,
                TracedChannels(self._channels, self.clock),
                device=self.device,
                clock=self.clock,
                reducer=self._reducer,
                data_parallel=self._join_peers(layout),
                on_gradients=on_gradients,
                progress=progress,
                on_failure=self._groups.tell,
            )

    def _join_peers(self, layout: GradientLayout) -> DataParallel | None:
        if self._groups.peers is None:
            return None
        return DataParallel(
            self._groups.peers,
            self.stages,
            rank=self._group.rank,
            fingerprint=schedule_fingerprint(self.lowered.schedule),
            layout=layout,
            summed=self._reducer.summed,
        )

    @property
    def stepper(self) -> Stepper | None:
        """Carries out the STEPs; none: the caller steps its optimizer after `step`."""
        return self._executor.stepper

    @stepper.setter
    def stepper(self, stepper: Stepper | None) -> None:
        self._executor.stepper = stepper

    @property
    def num_micro_batches(self) -> int:
        """How many micro-batches one step takes."""
        return self.lowered.schedule.num_micro_batches

    @property
    def held_values(self) -> int:
        """How many boundary values and transfers are held now; none between steps."""
        return self._executor.held_values

    def owns(self, parameter: Tensor) -> bool:
        """Whether this rank is the one that counts a parameter, where several hold it.

        For sums over all ranks, such as the norm of the gradients.
        """
        return self._reducer.owns(parameter)

    def separate_group(self) -> Any:
        """A process group of this pipeline's ranks, for `build_steps`; all of them call this.

        Unlike others it ends with the pipeline: a rank that fails does not leave those behind that
        wait for it in this group.
        """
        timeout = timedelta(seconds=self._timeout_s)
        return self._group.subgroup(range(self._group.size), timeout, "norm")

    def split(self, *inputs: Any, targets: Any = None, **keywords: Any) -> Batch:
        """Cut a mini-batch along the first dimension into the schedule's micro-batches.

        Raises:
            SynthError: it cannot be cut into equal ones. The caller may pad it and go on. If this
                process ends instead, ranks that are in the step already fail at once, with this
                reason; if it does neither, they do so after `timeout_s`.
        """
        try:
            return Batch.split(self.num_micro_batches, *inputs, targets=targets, **keywords)
        except SynthError as error:
            self._groups.tell(error)
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
        """Forward and backward of a mini-batch; gradients accumulate into the parameters.

        Args:
            batch: this rank's part is enough, see `Batch`.
            weight: the loss, and with it every gradient, is multiplied by this.
            weights: one per micro-batch, numbers or a tensor: the loss is the sum of the
                micro-batches' losses times these; None: their mean. They are taken as they are:
                tokens of the micro-batch by tokens of all micro-batches that make one update. Only
                ranks with the last stage need them.
            update: False for all but the last of several steps whose gradients add up: copies and
                tied parameters are then not reduced, and nothing is updated.
            losses: a list that this call fills, on ranks with the last stage, with the unweighted
                loss of each micro-batch (None for those of another copy of that stage); detached.
                Elsewhere it is emptied.
            outputs: a list that is filled likewise with the outputs of the last stage's module,
                ahead of `loss`. They take memory that no plan counts.
            scaler: a `PipelineGradScaler`: backwards start from the scaled loss; what is returned
                is not scaled.

        Returns:
            The mean of the micro-batches' losses, or their weighted sum, on ranks that hold the
            last stage, else None.

        Raises:
            RunFailure: an op failed or another rank is gone; names this rank and the instruction,
                and the rank and the error that came first.
            SynthError: the batch has another number of micro-batches; autograd is off; outputs are
                asked of a module that computes its loss itself; the scaler does not fit. The other
                ranks get a RunFailure that says so, and the pipeline is of no more use.
        """
        with self._together():
            if not torch.is_grad_enabled():
                raise SynthError(
                    "a step needs autograd, which is off here (torch.no_grad or inference_mode): "
                    "call step outside of it, or evaluate"
                )
            scale = self._scale_of(scaler)
            terms = self._terms(weight, weights, losses, outputs, scale=scale)
            batch.check(self.num_micro_batches)
            shapes = self._shapes.of(batch, self.num_micro_batches)
            sizes = self._saved_sizes.of(batch, shapes, self._shapes.kinds)
            moves = self._warm_up.before_step(batch, shapes, self._shapes.kinds)
            if isinstance(self._channels, WithHost):
                self._channels.reserve(moves)
            return self._executor.step(batch, shapes, saved_sizes=sizes, terms=terms, update=update)

    def evaluate(
        self,
        batch: Batch,
        *,
        weights: Weights | None = None,
        losses: list[Any] | None = None,
        outputs: list[Any] | None = None,
    ) -> Tensor | None:
        """The loss of a mini-batch, forward only and without autograd; parameters stay.

        Every rank calls this at the same time. `module.eval()` is the caller's.

        Args:
            batch: as in `step`. Without targets, and with `outputs` but not `losses` asked for, no
                loss is computed, and None returned; all ranks then give no targets.
            weights: as in `step`.
            losses: as in `step`.
            outputs: as in `step`; without a loss also where the module computes its own, which is
                then called without targets.

        Returns:
            As `step`.

        Raises:
            As `step`.
        """
        with self._together():
            with_loss = outputs is None or losses is not None or batch.targets is not None
            terms = self._terms(1.0, weights, losses, outputs, with_loss=with_loss)
            batch.check(self.num_micro_batches)
            if self.stepper is not None:
                self.stepper.finish()
            shapes = self._shapes.of(batch, self.num_micro_batches)
            with torch.no_grad():
                self._warm_up.before_evaluation(
                    batch, shapes, self._shapes.kinds, with_loss=with_loss
                )
                loss = self._forward_only().step(batch, shapes, terms=terms, update=False)
        for stage in self.stages.values():
            stage.forget()
        return loss

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale the gradients of all ranks down to a global norm of at most `max_norm`.

        Every rank calls this at the same time, after the step and `scaler.unscale_`. Copies and
        tied parameters are counted once.

        Returns:
            The norm before, a float64 scalar; the same on all ranks.

        Raises:
            SynthError: a stepper is set, which clips by itself.
            RunFailure: another rank is gone.
        """
        with self._together():
            if self.stepper is not None:
                raise SynthError("the pipeline's stepper clips: give build_steps its clip_norm")
            modules = {number: stage.module for number, stage in self.stages.items()}
            gradients = Gradients(modules, self.owns)
            norm = GradientNorm(max_norm, self.device, self._among_all())
            norm.start(gradients.counted())
            verdict = norm.verdict()
            assert verdict.scale is not None
            gradients.scale(verdict.scale)
            return verdict.norm

    def combine_overflow(self, found_inf: Tensor, group: Any = None) -> None:
        """Make a flag (0 or 1) the largest of all ranks', in place; all of them call this.

        Args:
            found_inf: a scalar on this rank's device.
            group: the process group that has a say; None: the pipeline's ranks.
        """
        with self._together():
            (group or self._among_all()).allreduce([found_inf], ReduceOp.MAX).wait()

    def close(self) -> None:
        """Free what only this pipeline uses on NCCL, when all its ranks have done their work.

        Every rank calls this at the same time, ahead of `destroy_process_group`; the pipeline is
        of no more use. Without it, that happens when the process ends.
        """
        self._is_broken = True
        self._groups.close()

    def _among_all(self) -> Any:
        if self._norm_group is None:
            self._norm_group = self.separate_group()
        return self._norm_group

    def _forward_only(self) -> Executor:
        if self._evaluator is None:
            self._evaluator = Executor(
                forward_only(self.lowered),
                self._group.rank,
                self.stages,
                self._channels,
                device=self.device,
                clock=OpClock(self.device, recording=False),
                reducer=self._reducer,
                on_failure=self._groups.tell,
            )
        return self._evaluator

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
        count = self.num_micro_batches
        last = [stage for stage in self.stages.values() if stage.is_last]
        if outputs is not None and with_loss and not all(stage.has_loss for stage in last):
            raise SynthError(
                "there are no outputs to give where the last stage's module computes the loss by "
                "itself: give the Pipeline its loss=…, or evaluate without targets"
            )
        kept: dict[str, Any] = {"losses": losses, "outputs": outputs}
        return LossTerms.of(count, weight, weights, scale=scale, with_loss=with_loss, **kept)

    def _scale_of(self, scaler: GradScaler | None) -> Scale | None:
        if scaler is None or not scaler.is_enabled():
            return None
        if self.stepper is not None:
            raise SynthError(
                "the pipeline's stepper would update with scaled gradients: step without a scaler, "
                "or leave the stepper out and call scaler.step(optimizer)"
            )
        if self._group.size > 1 and type(scaler)._unscale_grads_ is GradScaler._unscale_grads_:
            raise SynthError(
                f"with a {type(scaler).__name__} only those ranks would skip a step on which a "
                f"gradient overflows: make a PipelineGradScaler (synth.runtime.grad_scaler)"
            )
        return scaler.scale

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Guard a call that all ranks make together: an error of one ends it on all, told."""
        if self._is_broken:
            raise RunFailure(
                "a step of this pipeline has failed, and transfers of it are still open, or it was "
                "closed; end the process, or make a new process group and a new pipeline"
            )
        self._groups.recover()
        try:
            yield
        except Refused:
            raise
        except BaseException as error:
            self._is_broken = True
            self._groups.tell(error)
            self._channels.abort()
            explained = self._groups.explain(error)
            if explained is not error:
                raise explained from error
            raise
