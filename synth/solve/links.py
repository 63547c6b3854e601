"""Transfers of one directed link, of which there is one at a time, in the exact model."""

from collections.abc import Iterator

from ortools.sat.python import cp_model

from synth.kinds import OpKind


class Links:
    """The transfers that take turns, link by link; those of one kind of op do so already."""

    def __init__(self) -> None:
        self._intervals: dict[tuple[int, int], list[cp_model.IntervalVar]] = {}
        self._sources: dict[tuple[int, int], set[tuple[int, OpKind]]] = {}

    def add(
        self,
        ends: tuple[int, int],
        source: tuple[int, OpKind],
        interval: cp_model.IntervalVar,
    ) -> None:
        """One more transfer from a rank to another, of what a kind of op of a chunk makes."""
        self._intervals.setdefault(ends, []).append(interval)
        self._sources.setdefault(ends, set()).add(source)

    def contended(self) -> Iterator[list[cp_model.IntervalVar]]:
        """What must not overlap."""
        for ends, intervals in self._intervals.items():
            if len(self._sources[ends]) > 1:
                yield intervals
