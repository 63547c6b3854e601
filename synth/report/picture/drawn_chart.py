"""The drawing of a chart: numbered ops, plain ones, or shares of time, by the width of its ops."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from synth.op_kinds import OpKind
from synth.report.chart.chart import Chart
from synth.report.chart.palette import COLOURS, MOVED_COLOURS, lightened, most_stages, stage_places
from synth.report.picture.scale import Scale
from synth.schedule.ops import ValueKind
from synth.schedule.rank_memory import peak_bytes

# Numbers in ops: their size, and the width of a digit in wide fonts, in pixels.
NUMBER_SIZE = 11.0
DIGIT_WIDTH = 0.64 * NUMBER_SIZE

# Room beside a number, in pixels, and the share of a kind's ops that may be too short for it.
_BESIDE, _TOO_SHORT = 3.0, 0.1

# Ops have edges from this mean width on, in pixels. Below the second width, or above this many ops,
# shares of time are drawn instead of ops.
_EDGES_FROM, _THIN, _MOST_OPS = 4.0, 1.5, 20_000


class SavedMove(NamedTuple):
    """A move of saved activations: OFFLOAD or RELOAD, its value and its times."""

    kind: OpKind
    name: str
    start_us: int
    end_us: int


@dataclass(frozen=True)
class DrawnChart:
    """A chart on a time axis, with what its rows share.

    Attributes:
        kinds: those that take time.
        numbered: the kinds whose ops are wide enough for the number of their micro-batch.
        is_dense: ops are too thin or too many to be drawn one by one.
        has_edges: neighbours are separated by a white line.
        places: the place of each (stage, replica) among those of its rank.
        num_shades: the largest number of stages of a rank.
        has_memory: the memory curves are drawn.
        most_bytes: the upper end of the memory scale.
        moves: moves of saved activations, by rank; empty if there are none.
    """

    chart: Chart
    kinds: tuple[OpKind, ...]
    numbered: frozenset[OpKind]
    is_dense: bool
    has_edges: bool
    places: dict[tuple[int, int], int]
    num_shades: int
    has_memory: bool
    most_bytes: int
    moves: dict[int, list[SavedMove]]

    @classmethod
    def of(cls, chart: Chart, x: Scale, ranks: Sequence[int], memory: bool) -> "DrawnChart":
        """Decide how some ranks of a chart are drawn on a time axis (in µs)."""
        timed, arrays = chart.timed, chart.timed.lowered.arrays
        nodes = np.concatenate([timed.nodes_of(rank) for rank in ranks])
        inside = (timed.end_us[nodes] > x.low) & (timed.start_us[nodes] < x.high)
        nodes = nodes[inside & (timed.end_us[nodes] > timed.start_us[nodes])]
        pixel_us = (x.high - x.low) / (x.end - x.start)
        widths = (timed.end_us[nodes] - timed.start_us[nodes]) / pixel_us
        codes = arrays.kind[nodes]
        of_kind = {
            kind: widths[codes == code]
            for code, kind in enumerate(OpKind)
            if kind in COLOURS and (codes == code).any()
        }
        longest = len(str(int(arrays.microbatch[nodes].max(initial=0))))
        needed = DIGIT_WIDTH * longest + _BESIDE
        mean = float(widths.mean()) if len(widths) else _EDGES_FROM
        return cls(
            chart,
            kinds=tuple(of_kind),
            numbered=frozenset(
                kind
                for kind, found in of_kind.items()
                if kind != OpKind.STEP and np.quantile(found, _TOO_SHORT) >= needed
            ),
            is_dense=len(nodes) > _MOST_OPS or mean < _THIN,
            has_edges=mean >= _EDGES_FROM,
            places=stage_places(timed.lowered),
            num_shades=most_stages(timed.lowered),
            has_memory=memory,
            most_bytes=max(*peak_bytes(timed.lowered), *(chart.caps_bytes or ()), 1),
            moves=_moves(chart),
        )

    def styles(self) -> dict[str, str]:
        """Return the style of each kind of op on each stage of a rank, and of moves."""
        edge = "stroke:#ffffff;stroke-width:0.8" if self.has_edges else "stroke:none"
        found = {
            f"{kind}-{place}": f"fill:{self.colour(kind, place)};{edge}"
            for kind in self.kinds
            for place in range(self.num_shades)
        }
        moved = {move.kind for moves in self.moves.values() for move in moves}
        return found | {str(kind): f"fill:{MOVED_COLOURS[kind]};stroke:none" for kind in moved}

    def colour(self, kind: OpKind, place: int) -> str:
        """Return the colour of a kind on the stage at a place of its rank."""
        return lightened(COLOURS[kind], place / max(1, self.num_shades - 1))


def _moves(chart: Chart) -> dict[int, list[SavedMove]]:
    timed, lowered = chart.timed, chart.timed.lowered
    kinds = {ValueKind.MOVED_OUT: OpKind.OFFLOAD, ValueKind.MOVED_BACK: OpKind.RELOAD}
    found: dict[int, list[SavedMove]] = {}
    for node, moved in enumerate(lowered.transfers, lowered.first_node[-1]):
        kind = kinds.get(moved.value.kind)
        if kind is not None:
            rank = moved.source if kind == OpKind.OFFLOAD else moved.target
            times = int(timed.start_us[node]), int(timed.end_us[node])
            found.setdefault(rank, []).append(SavedMove(kind, str(moved.value), *times))
    return found
