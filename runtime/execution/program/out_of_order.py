"""Bounded out-of-order replay: a rank's program by the choices of `LookAhead`."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from synth.schedule.look_ahead import LookAhead
from synth.schedule.lowering.lower import Action, Instruction
from synth.schedule.ops import Value

from ..transport.watched_channels import Arrivals


class ProgramRunner(Protocol):
    """Runs the instructions of a program: a `CompiledProgram`."""

    def note_place(self, place: int) -> None:
        """Note that everything before this place has run."""
        ...

    def run_one(self, index: int) -> None:
        """Run an instruction."""
        ...

    def free(self, values: Iterable[Value]) -> None:
        """Drop values."""
        ...


class OutOfOrder:
    """Replays a rank's program; while the next op waits for a receive, another one may run."""

    def __init__(
        self, chooser: LookAhead, program: Sequence[Instruction], arrivals: Arrivals
    ) -> None:
        """Prepare a rank.

        Args:
            chooser: chooses instructions.
            program: the rank's program, the same that the chooser has.
            arrivals: knows which receives have arrived.
        """
        self._chooser = chooser
        self._program = program
        self._arrivals = arrivals
        self._has_arrived: Callable[[int], bool] = lambda place: arrivals.has_arrived(
            program[place].moved
        )

    def begin(self, left_out: Sequence[int]) -> None:
        """Begin an iteration, without some instructions."""
        self._chooser.begin(left_out)

    @property
    def num_early(self) -> int:
        """The number of ops that ran early in the last iteration."""
        return self._chooser.num_early

    def run(self, end: int, runner: ProgramRunner) -> None:
        """Run all instructions before a place."""
        chooser = self._chooser
        while chooser.head < end:
            runner.note_place(chooser.head)
            index = chooser.choose(self._has_arrived, end)
            if index is None:
                missing = sorted(chooser.awaited)
                self._arrivals.wait_any([self._program[place].moved for place in missing])
                continue
            is_early_op = index != chooser.head and self._program[index].action == Action.COMPUTE
            self._run_one(index, runner)
            if is_early_op:
                for send in chooser.sends_behind(index, end):
                    self._run_one(send, runner)

    def _run_one(self, index: int, runner: ProgramRunner) -> None:
        runner.run_one(index)
        runner.free(self._chooser.run(index))
