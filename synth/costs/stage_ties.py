"""Tied parameters of several stages, which a rank that holds these stages has once."""

from collections.abc import Collection, Iterable
from typing import ClassVar, Self

from pydantic import Field, NonNegativeInt

from synth.records.record import BriefRecord


class StageTie(BriefRecord):
    """Parameters that several stages share, each of which counts them.

    Attributes:
        stages: the stages, in forward order.
        static_bytes: the parameters, their gradient and their optimizer state.
        step_us: the part of a stage's STEP that updates them, in µs.
        reduce_us: the part of a stage's `reduce_us` that reduces their gradients, in µs.
        trained: False if they are frozen; files of earlier versions do not say so.
    """

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("reduce_us", "trained")

    stages: tuple[NonNegativeInt, ...] = Field(min_length=2)
    static_bytes: NonNegativeInt
    step_us: NonNegativeInt = 0
    reduce_us: NonNegativeInt = 0
    trained: bool = True

    def repeated_bytes(self, held: Iterable[int]) -> int:
        """The bytes that a rank's stages count beyond the one time that the rank has them."""
        return self.static_bytes * max(0, len(set(held).intersection(self.stages)) - 1)

    def is_updated_before(self, stage: int, held: Collection[int]) -> bool:
        """True if an earlier stage of the rank reduces and updates what this stage shares."""
        return stage in self.stages and any(each < stage for each in self.stages if each in held)

    def share(self, count: int) -> Self:
        """The tie where ranks keep and update a part of the state, one of `count` equal ones."""
        return self.replace(
            static_bytes=-(-self.static_bytes // count), step_us=-(-self.step_us // count)
        )
