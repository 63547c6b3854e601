"""Least memory of every run of layers as one stage, vectorized over the ends of runs.

The sums and maxima are those of `costs.partition_costs` and `infeasibility.needed_bytes` with one
stage per rank, as arrays over the ends. Runs are visited from the last first layer to the first
one. Then forward peaks are running maxima along the run, and backward peaks grow by one layer at
each step.
"""

from collections.abc import Callable, Sequence

import numpy as np

from synth.costs.costs import IntArray
from synth.costs.layer_boundaries import BACKWARDS, first_layers, own_change
from synth.op_kinds import OpKind
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.profile.layer_profile import LayerProfile

B, BW, F, STEP, W = OpKind.B, OpKind.BW, OpKind.F, OpKind.STEP, OpKind.W


class RunNeeds:
    """Visits first layers from the last one down; uses memory linear in the number of layers."""

    def __init__(self, table: StageCostTable) -> None:
        """Nothing is visited yet; the table is that of the model's profile."""
        profile, self._table = table.profile, table
        self._tied = [np.array(places, np.int64) for places in profile.tied_places]
        layers = [profile.layer_profile(i) for i in range(len(profile.layers))]
        self.first = self.num_layers = len(layers)
        self._output = _array(layers, lambda layer: layer.output_bytes)
        self._returned = _array(layers, lambda layer: layer.returned_bytes)
        self._saved = _array(layers, lambda layer: layer.saved_bytes)
        self._saved_w = _array(layers, lambda layer: layer.saved_w_bytes)
        self._rise = {
            kind: _array(layers, lambda layer, kind=kind: layer.rise_bytes[kind])
            for kind in (F, B, W, BW, STEP)
        }
        self._inner_rise = {
            kind: [layer.inner_rise(kind) for layer in layers] for kind in BACKWARDS
        }
        self._input_until = [layer.input_until for layer in layers]
        self._until = {
            until: np.array([layer.output_until == until for layer in layers])
            for until in (F, B, W)
        }
        self._has_next = np.arange(1, self.num_layers + 1) < self.num_layers
        self._sent = self._output * self._has_next
        self._gradient_for_w = _array(layers, lambda layer: layer.gradient_until == W)
        self._own_change = {
            kind: [own_change(layer, kind) for layer in layers] for kind in BACKWARDS
        }
        _, self._boundaries = first_layers(layers)
        # What a boundary holds may depend on the layers before it.
        self._are_pairs = all(layer.tensors is None for layer in layers)
        self._sum_up(layers)
        self._levels = {kind: 0 for kind in BACKWARDS}
        self._starts = {kind: np.zeros(self.num_layers + 1, np.int64) for kind in BACKWARDS}
        self._tops = {kind: np.zeros(self.num_layers + 1, np.int64) for kind in BACKWARDS}

    def _sum_up(self, layers: Sequence[LayerProfile]) -> None:
        """Return prefix sums over layers, and over pairs of neighbouring layers."""
        kept = np.array([*(one.saved_bytes for one in self._boundaries), 0], np.int64)
        kept_w = np.array([*(one.saved_w_bytes for one in self._boundaries), 0], np.int64)
        self._static = _sums(_array(layers, lambda layer: layer.static_bytes))
        self._saved_up_to = _sums(self._saved), _sums(kept)
        self._saved_w_up_to = _sums(self._saved_w), _sums(kept_w)
        self._step = _sums(self._rise[STEP])
        # Right after F of a layer the output of the one before may go.
        gone = np.concatenate(([0], (self._output - kept)[:-1]))
        self._gone = gone
        self._forward = _sums(self._saved + self._output - gone)

    def of_next(self, stop: int) -> IntArray:
        """Return the least memory of the runs from the next first layer to each end, in bytes."""
        self.first -= 1
        first, stop = self.first, max(stop, self.first + 1)
        if not self._are_pairs:
            ends_of_runs = range(first + 1, stop + 1)
            return np.array([self._table.need_bytes(first, end) for end in ends_of_runs], np.int64)
        for kind in BACKWARDS:
            self._prepend(kind, first)
        ends = slice(first + 1, stop + 1)
        static = self._static[ends] - self._static[first]
        step = self._step[ends] - self._step[first]
        needs: IntArray = static + np.maximum(step, self._one_micro_batch(stop))
        self._with_ties(needs)
        return needs

    def _with_ties(self, needs: IntArray) -> None:
        """Replace the needs of runs in which layers share parameters by those of their stages."""
        ends = np.arange(self.first + 1, self.first + 1 + len(needs))
        before = self.first
        for places in self._tied:
            within = np.searchsorted(places, ends) - np.searchsorted(places, before)
            for end in ends[within > 1].tolist():
                needs[end - before - 1] = self._table.need_bytes(before, end)

    def _one_micro_batch(self, stop: int) -> IntArray:
        """Return the peak of F, then of B and W or BW, whichever of both peaks lower."""
        first, last = self.first, slice(self.first, stop)
        saved = _between(self._saved_up_to, first, stop)
        saved_w = _between(self._saved_w_up_to, first, stop)
        before, returned = (
            int(sizes[first - 1]) if first else 0 for sizes in (self._output, self._returned)
        )
        after = self._sent[last]
        sent, for_b, for_w = (after * self._until[kind][last] for kind in (F, B, W))
        came = (self._returned * self._has_next)[last]
        gradient = came * self._gradient_for_w[last]
        input_b, input_w = (before * (self._input_until[first] == kind) for kind in (B, W))
        forward = saved + for_b + for_w + input_b + input_w
        backward = saved_w - saved - for_b - input_b + gradient
        weight = -saved_w - for_w - input_w - gradient
        peak_f = np.maximum(before + self._forward_rise(stop), forward + sent)
        peak_b = np.maximum(came + self._backward_rise(B, stop), backward + returned)
        peak_w = np.maximum(np.maximum(self._backward_rise(W, stop), weight), 0)
        peak_bw = np.maximum(came + self._backward_rise(BW, stop), backward + weight + returned)
        split = np.maximum(forward + peak_b, forward + backward + peak_w)
        least = np.maximum(peak_f, np.minimum(split, forward + peak_bw))
        # The activation that was sent is still there when the gradient's receive is posted.
        posted = (forward + sent + came) * self._has_next[last]
        peaks: IntArray = np.maximum(np.maximum(least, posted), 0)
        return peaks

    def _forward_rise(self, stop: int) -> IntArray:
        first = self.first
        level = self._forward[first:stop] - self._forward[first] + self._gone[first]
        level[0] = 0
        rises = np.maximum.accumulate(level + self._rise[F][first:stop])
        highest: IntArray = np.maximum(rises, 0)
        return highest

    def _prepend(self, kind: OpKind, first: int) -> None:
        """Prepend this layer to the runs that end after it.

        All levels change by the same amount, so one sum is kept, and its start for each end.
        """
        starts, tops = self._starts[kind], self._tops[kind]
        own = self._own_change[kind][first]
        has_next = first + 1 < self.num_layers
        if has_next:
            self._levels[kind] += self._boundaries[first].by_next[kind]
        top = self._levels[kind] + self._inner_rise[kind][first]
        np.maximum(tops[first + 2 :], top, out=tops[first + 2 :])
        if has_next:
            self._levels[kind] += self._boundaries[first].by_previous[kind]
        # The run of this layer alone starts at level 0, with no boundary after the layer.
        starts[first + 1] = self._levels[kind]
        tops[first + 1] = starts[first + 1] + int(self._rise[kind][first])
        self._levels[kind] += own

    def _backward_rise(self, kind: OpKind, stop: int) -> IntArray:
        ends = slice(self.first + 1, stop + 1)
        highest: IntArray = np.maximum(self._tops[kind][ends] - self._starts[kind][ends], 0)
        return highest


def _array(layers: Sequence[LayerProfile], of: Callable[..., int]) -> IntArray:
    return np.array([of(layer) for layer in layers], np.int64)


def _sums(values: IntArray) -> IntArray:
    sums: IntArray = np.concatenate(([0], np.cumsum(values, dtype=np.int64)))
    return sums


def _between(up_to: tuple[IntArray, IntArray], first: int, stop: int) -> IntArray:
    """Return the sums over the layers of each run, and over the pairs of layers within it."""
    layers, pairs = up_to
    own: IntArray = layers[first + 1 : stop + 1] - layers[first] + pairs[first:stop] - pairs[first]
    return own
