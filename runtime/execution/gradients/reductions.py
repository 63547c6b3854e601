"""Reductions of a rank's gradients over ranks, within a pipeline and between pipelines."""

from collections.abc import Callable
from dataclasses import dataclass

from .copies_and_ties import Reducer
from .data_parallel import DataParallel


@dataclass(frozen=True)
class Reductions:
    """The reductions of gradients, and a listener to complete ones.

    Attributes:
        reducer: adds up the gradients that several ranks hold; None: no stage has copies.
        data_parallel: averages gradients over pipelines side by side; None: there is one.
        on_gradients: called with a stage's number after its last backward of a step that updates.
    """

    reducer: Reducer | None = None
    data_parallel: DataParallel | None = None
    on_gradients: Callable[[int], None] | None = None
