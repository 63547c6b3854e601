"""The executor: replays one rank's lowered program op by op, within the planned memory.

It makes no decisions, unless it may look ahead (`out_of_order.py`). The program says when a receive
is posted, when a send is waited for and when a value dies; its instructions are compiled once
(`compiled_program.py`). Here are the order of a step, its validation, and its failures.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from synth.errors import RunFailure, SynthError
from synth.schedule.validation_point import HalfOpenTransfers, find_validation_points

from ...batch import Batch
from ..base.failure import describe_failure
from ..base.loss_terms import LossTerms
from ..base.step_table import SavedSizes, Shapes
from ..base.stepper import ForwardPredictor, Stepper
from .compiled_program import CompiledProgram
from .out_of_order import OutOfOrder

_NONE_KEPT: SavedSizes = {}


class Executor:
    """Runs a rank's program once per `step`."""

    def __init__(
        self,
        program: CompiledProgram,
        *,
        on_failure: Callable[[BaseException], None] | None = None,
        out_of_order: OutOfOrder | None = None,
    ) -> None:
        """Prepare a rank.

        Args:
            on_failure: called with the error that ends a step, before other ranks can notice.
            out_of_order: chooses instructions while the next one waits; None: the program's order.
        """
        self._program = program
        self._on_failure, self._out_of_order = on_failure, out_of_order
        schedule = program.lowered.schedule
        self._mean = LossTerms.of(schedule.num_micro_batches, updates=schedule.num_updates)
        # The number of instructions before the validation point.
        self._point = 0
        self._half_open = HalfOpenTransfers((), ())
        self._is_broken = False

    def step(
        self,
        batch: Batch,
        shapes: Shapes,
        *,
        saved_sizes: SavedSizes = _NONE_KEPT,
        terms: LossTerms | None = None,
        update: bool = True,
    ) -> Tensor | None:
        """Run the program once on a mini-batch.

        Gradients of the loss accumulate into the parameters.

        Args:
            shapes: the boundary after each stage but the last, by micro-batch and stage.
            saved_sizes: the bytes of each storage of activations that move to another rank.
            terms: the weights of the micro-batches' losses; None: their mean.
            update: True if gradients are reduced and STEPs run; False leaves gradients for the
                next call to add to.

        Returns:
            The loss on a rank with the last stage if one is wanted, None elsewhere.

        Raises:
            RunFailure: an op failed or another rank is gone; names this rank and the instruction.
            SynthError: the schedule has updates between its ops, and there is nothing to carry them
                out, or they are not wanted.
        """
        program = self._program
        if program.versions is not None and (self.stepper is None or not update):
            raise SynthError(
                "this schedule updates weights between its ops: give the pipeline a stepper "
                "(build_flush_free_step), and let every step update"
            )
        if self._is_broken:
            raise RunFailure(
                "a step of this pipeline has failed, and transfers of it are still open; end the "
                "process, or make a new process group and a new pipeline"
            )
        self._is_broken = True
        terms = terms or self._mean
        program.begin_stages()
        try:
            program.updates.begin(update=update)
            self._step_through(lambda: self._begin(batch, shapes, saved_sizes, terms), update)
        except BaseException as error:
            program.forget()
            if self._on_failure is not None:
                self._on_failure(error)
            program.channels.abort()  # other ranks would wait for this one as long as it lives
            if isinstance(error, SynthError) or not isinstance(error, Exception):
                raise
            raise self._failure("where it validates the step before", error) from error
        finally:
            program.end_stages()
        self._is_broken = False
        program.clear()
        return program.loss.clone() if program.holds_last and terms.with_loss else None

    @property
    def stepper(self) -> Stepper | None:
        """Carries out the STEPs; None: the caller steps its optimizer."""
        return self._program.updates.stepper

    @stepper.setter
    def stepper(self, stepper: Stepper | None) -> None:
        lowered, versions = self._program.lowered, self._program.versions
        is_late = stepper is not None and stepper.late
        if is_late and lowered.visits is not None:
            raise SynthError(
                "this schedule has weight passing, so its steps cannot be validated afterwards; "
                "leave post-validation out of the optimizer"
            )
        if is_late and versions is not None:
            raise SynthError(
                "this schedule updates weights between its ops, which cannot be validated "
                "afterwards; leave post-validation out of the optimizer"
            )
        self._program.updates.stepper = stepper
        if versions is not None:
            predictor = stepper if isinstance(stepper, ForwardPredictor) else None
            versions.predict_by(predictor if predictor and predictor.predicts else None)
        self._point, self._half_open = 0, HalfOpenTransfers((), ())
        if is_late:
            points = find_validation_points(lowered)
            self._point = points.ends[self._program.rank]
            self._half_open = points.half_open(lowered, self._program.rank)

    @property
    def held_values(self) -> int:
        """The number of values and open transfers held now; 0 between steps."""
        return self._program.num_held

    @property
    def num_early(self) -> int:
        """The number of ops of the last step that ran before the plan's next one."""
        return 0 if self._out_of_order is None else self._out_of_order.num_early

    def _step_through(self, begin: Callable[[], None], update: bool) -> None:
        begin()
        stepper = self.stepper
        if stepper is not None:
            stepper.begin()
        before = range(self._point)
        self._run(before)
        if stepper is not None and stepper.late and not stepper.validate():
            self._program.undo(self._half_open)
            begin()
            self._run(before)
        self._run([place for place in self._program.places(update) if place >= self._point])
        try:
            self._program.end()
        except SynthError:
            raise
        except Exception as error:
            raise self._failure("at the end of a step", error) from error

    def _failure(self, where: str, error: Exception) -> RunFailure:
        return RunFailure(f"rank {self._program.rank} failed {where}: {describe_failure(error)}")

    def _begin(
        self, batch: Batch, shapes: Shapes, saved_sizes: SavedSizes, terms: LossTerms
    ) -> None:
        torch.clear_autocast_cache()  # parameters have changed since the step before
        program = self._program
        program.begin(batch, shapes, saved_sizes, terms)
        if self._out_of_order is not None:
            run = set(program.places(program.updates.wanted))
            self._out_of_order.begin([p for p in program.places(True) if p not in run])

    def _run(self, places: Sequence[int]) -> None:
        """Run the instructions at some places of the program."""
        if self._out_of_order is None:
            self._program.run(places)
        else:
            self._out_of_order.run(places[-1] + 1 if places else 0, self._program)
