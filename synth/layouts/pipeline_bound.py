"""Lower bounds on the makespan of a pipeline over all its partitions, placements and orders.

For placements with one copy of each stage, where a rank holds its stages for the whole step and
layers may be computed again. A rank ends with the optimizer's update of its layers, which is its
work as if each micro-batch had a part of it. Three arguments are combined:

- Work: the busiest rank has no less than the mean, and waits for the first micro-batch to reach it.
- Whole layers: in units of a layer's time, each layer rounded down, a rank holds whole numbers.
- States: the fullest rank holds whole layers, too: their parameters, gradients and optimizer state,
  and after a micro-batch's last F on it the input of each.
- Memory: what F of a layer keeps lives until the layer's B, so through F and B of all later layers.
  Bytes times lifetimes, summed over layers and micro-batches, fit into room times makespan.
- Reduction of gradients: with one stage per rank each rank reduces those of its layers behind its
  work, as far as its last backward does not hide that; so the mean of the ranks has its part of it.
- Pairs: where F and BW may run at once, each F hides no more of a layer than the time by which the
  two are shorter so, and neither of them gets shorter by more.
- Recomputation: a layer that is computed again keeps nothing but its input, and takes F's time
  again. Of all choices of layers the best one by a fractional knapsack counts.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from synth.costs.recomputed_layers import is_recomputed_already
from synth.costs.stage_costs import LAST_BUCKET
from synth.op_kinds import OpKind
from synth.profile import Profile

# Parts of an item that are tried as units, and a share below rounding.
_PARTS = np.array([1.0, 2.0, 3.0])
_TINY = 1e-6


def least_of_fullest(sizes: npt.ArrayLike, bins: int, counts: Iterable[int] | None = None) -> float:
    """Return a lower bound on the content of the fullest bin.

    It has no less than the mean, and holds whole items: a bin with content L holds items of sum
    floor(s / u) ≤ floor(L / u) for every unit u (a dual feasible function of bin packing, Lueker
    1983).

    Args:
        sizes: of the items; none is negative.
        bins: their number.
        counts: how many items there are of each size; None: one of each.
    """
    each = np.asarray(sizes, dtype=np.float64)
    number = np.ones(len(each)) if counts is None else np.array([*counts], dtype=np.float64)
    mean = float((each * number).sum()) / bins
    distinct = np.array([*{*each.round(3).tolist()} - {0.0}])
    units = (distinct[:, None] / _PARTS).reshape(-1, 1)
    whole = (np.floor(each / units + _TINY) * number).sum(axis=1)
    packed = float((units[:, 0] * np.ceil(whole / bins)).max(initial=0.0))
    return max(mean, packed) * (1 - 2 * _TINY)


_Values = npt.NDArray[np.float64]

# Half a microsecond for each of F, B and W of a stage, and for its STEP and its reduction, whose
# times are rounded.
_ROUNDED_US, _STEP_ROUNDED_US = 1.5, 1.0

# More than any step takes.
_UNFIT_US = 1e12


class Again(Enum):
    """The layers that may be computed again: none, all but the model's ends, or any."""

    NONE, INNER, ANY = range(3)


@dataclass(frozen=True)
class PipelineSize:
    """Ranks of a pipeline, stages per rank, and micro-batches."""

    ranks: int
    rounds: int
    micro_batches: int


class PipelineBound:
    """The bounds of a profile's layers."""

    def __init__(self, profile: Profile, *, pairs: bool = False, again: Again = Again.ANY) -> None:
        """Add up the layers.

        Args:
            pairs: the bounds also hold for orders with F and BW of two micro-batches at once.
            again: the layers that may be computed again.
        """
        layers = [profile.layer_profile(place) for place in range(len(profile.layers))]
        times = {
            kind: np.array([layer.time_us[kind].median_us for layer in layers])
            for kind in (OpKind.F, OpKind.B, OpKind.W, OpKind.BW)
        }
        hidden = pairs * np.array([layer.hidden_us for layer in layers])
        self.forward = times[OpKind.F] - hidden
        least_us = np.minimum(times[OpKind.B], times[OpKind.BW])
        self.input_gradient = np.maximum(0.0, least_us - hidden)
        backward = np.minimum(times[OpKind.B] + times[OpKind.W], times[OpKind.BW])
        self._passes = self.forward + backward
        once = profile.stage_layers(0, len(layers))
        self._step = np.array([layer.time_us[OpKind.STEP].median_us for layer in once])
        self._backward_us = float(times[OpKind.BW].sum())
        again_us = sum(
            tied.reduce_us * (len(tied.layers) - 1) for tied in profile.tied_parameters or ()
        )
        self._reduce_us = max(0.0, sum(layer.reduce_us for layer in layers) - again_us)
        self._static = _static_bytes(profile)
        self.static_bytes = float(self._static.sum())
        is_open = np.array([not is_recomputed_already(profile, at) for at in range(len(layers))])
        is_open[[0, -1]] &= again is Again.ANY
        self.again = np.array([layer.recompute_us for layer in layers]) * is_open
        self.again *= again is not Again.NONE
        passes = self.forward + self.input_gradient
        later = passes.sum() - np.cumsum(passes)
        lives = later + self.input_gradient
        saved = np.array([float(layer.saved_bytes) for layer in layers])
        inputs = np.array([0.0] + [float(layer.output_bytes) for layer in layers[:-1]])
        # Others may share the memory of tensors that are listed.
        inputs *= np.array([one.input_until != OpKind.F and one.tensors is None for one in layers])
        self._busiest: dict[tuple[int, int], float] = {}
        self._fullest: dict[int, float] = {}
        self._states: dict[int, float] = {}
        self._inputs_bytes, self._saved_bytes = inputs, saved
        self._rise_bytes = float(max(layer.rise_bytes[OpKind.BW] for layer in layers))
        self.inputs_us, self.saved_us = inputs * lives, saved * lives

    def least_bytes(self, ranks: int) -> float:
        """The least memory of the fullest rank in any order: states, and inputs of its layers."""
        if ranks not in self._fullest:
            self._fullest[ranks] = least_of_fullest(self._static + self._inputs_bytes, ranks)
        return self._fullest[ranks]

    def states_bytes(self, ranks: int) -> float:
        """The least states of the fullest rank."""
        if ranks not in self._states:
            self._states[ranks] = least_of_fullest(self._static, ranks)
        return self._states[ranks]

    def work(self, size: PipelineSize) -> _Values:
        """The work of each layer for a micro-batch, with its part of the update."""
        found: _Values = self._passes + self._step / size.micro_batches
        return found

    def least_us(self, size: PipelineSize, cap_bytes: int | None) -> float | None:
        """The bound; None: a rank exceeds the limit with one micro-batch, for every partition.

        Args:
            cap_bytes: the memory limit of each rank; None: no limit.
        """
        slack, plain = slack_us(size), self._time(size)
        if cap_bytes is None:
            return max(0.0, plain - slack)
        room = float(size.ranks * cap_bytes - self.static_bytes)
        if room <= self._inputs_bytes.sum() or self.least_bytes(size.ranks) > cap_bytes:
            return None
        kept_us = float(self.inputs_us.sum() + self.saved_us.sum())
        # Without its recomputation an order takes no longer, so the bound by work holds as well.
        found = max(plain, self._with_layers(size, room, kept_us))
        if room > self._inputs_bytes.sum() + self._saved_bytes.sum():
            found = min(found, max(plain, size.micro_batches * kept_us / room))
        return max(0.0, found - slack)

    def work_us(self, size: PipelineSize) -> float:
        """A quick bound: the mean work of the ranks, without the optimizer."""
        mean = size.micro_batches * float(self._passes.sum()) / size.ranks
        return max(0.0, mean - slack_us(size))

    def guess_us(
        self,
        size: PipelineSize,
        cap_bytes: int | None,
        states_bytes: float | None = None,
        reduce_us: float | None = None,
    ) -> float:
        """About the makespan of interleaved 1F1B with equal stages and recomputed layers; no bound.

        Its first rank keeps a whole model's activations of a micro-batch, and more with more stages
        (Narayanan et al. 2021, arXiv 2104.04473; Megatron-LM's memory estimate). What seems not to
        fit takes longer than all that does, and the longer the more memory it needs.

        Args:
            cap_bytes: the memory limit of each rank; None: no limit.
            states_bytes: those of the fullest rank; None: those of the profile.
            reduce_us: the reduction of all gradients; None: that of the profile.
        """
        ranks = size.ranks
        again = 0.0
        if cap_bytes is not None:
            held = min(_held_by_first(size), size.micro_batches / ranks)
            states = self.states_bytes(ranks) if states_bytes is None else states_bytes
            inputs, saved = (
                held * float(one.sum()) for one in (self._inputs_bytes, self._saved_bytes)
            )
            needed = states + self._rise_bytes + inputs
            if needed + saved > cap_bytes:
                room = cap_bytes - needed - float(self._saved_bytes.max())
                if room < 0:
                    return _UNFIT_US * (1 - room / cap_bytes)
                again = float(self.again.sum()) * max(0.0, 1 - room / max(1.0, saved))
        fill, total = (ranks - 1) / (ranks * size.rounds), float(self.work(size).sum())
        busiest = max(self._busiest_us(size), total / ranks) + again / ranks
        return (
            size.micro_batches * busiest
            + fill * (total + again)
            + self._guess_reduced_us(size, reduce_us)
        )

    def _with_layers(self, size: PipelineSize, room: float, kept_us: float) -> float:
        """The least of the larger of work and memory over fractions of recomputed layers."""
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = np.where(self.again > 0, self.saved_us / self.again, 0.0)
        order = [at for at in np.argsort(-gain, kind="stable") if self.again[at] > 0]
        each = self.work(size)
        spread = self._factor(size, self._least_share(each + self.again))
        total = float(each.sum())
        work, memory = spread * total, size.micro_batches * kept_us / room
        for at in order:
            if work >= memory:
                return work
            more, less = spread * self.again[at], size.micro_batches * self.saved_us[at] / room
            if work + more >= memory - less:
                return float(work + more * (memory - work) / (more + less))
            work, memory = work + more, memory - less
        return float(max(work, memory))

    def _time(self, size: PipelineSize) -> float:
        """The bound by work, without recomputation."""
        each = self.work(size)
        total = float(each.sum())
        found = self._factor(size, self._least_share(each)) * total
        passes = float((self.forward + self.input_gradient).sum())
        if size.rounds == 1:
            # After its last F and B, the gradient passes all ranks before.
            found = max(found, _spread(size.ranks, size.micro_batches, 1.0) * passes)
        fill = (size.ranks - 1) / 2 * float(self.forward.min())
        mean = size.micro_batches * total / size.ranks + fill + self._reduced_us(size)
        packed = size.micro_batches * self._busiest_us(size)
        return max(found, mean, packed, passes)

    def _reduced_us(self, size: PipelineSize) -> float:
        """The mean of what the ranks reduce behind their work, at least.

        Only the first stage hides a part of its own, no more than its last backward, and no more
        than all but the last bucket.
        """
        if size.rounds > 1:
            return 0.0
        seen_us = max(LAST_BUCKET * self._reduce_us, self._reduce_us - self._backward_us)
        return seen_us / size.ranks

    def _guess_reduced_us(self, size: PipelineSize, reduce_us: float | None) -> float:
        """About what is seen of the reduction of a rank's equal stages, one after another.

        The first rank has its last backwards of a micro-batch over the time of all backwards.
        """
        whole_us = self._reduce_us if reduce_us is None else reduce_us
        each, stages = whole_us / size.ranks, size.ranks * size.rounds
        within_us = self._backward_us * (size.rounds - 1) / size.rounds
        beside_us = self._backward_us if size.rounds == 1 else 0.0
        last_us = (whole_us - beside_us) / stages
        return max(LAST_BUCKET * whole_us / stages, last_us, each - within_us)

    def _busiest_us(self, size: PipelineSize) -> float:
        """The least work of the busiest rank, whichever layers it holds."""
        known = size.ranks, size.micro_batches
        if known not in self._busiest:
            self._busiest[known] = least_of_fullest(self.work(size), size.ranks)
        return self._busiest[known]

    def _least_share(self, work: _Values) -> float:
        """F's least share in the time of a layer."""
        return float((self.forward / np.maximum(work, 1e-9)).min())

    @staticmethod
    def _factor(size: PipelineSize, share: float) -> float:
        """The makespan over the work of a micro-batch, at least."""
        if size.rounds > 1:
            return size.micro_batches / size.ranks
        return _spread(size.ranks, size.micro_batches, share)


def slack_us(size: PipelineSize) -> float:
    """The most by which times of a schedule are rounded down."""
    return (_ROUNDED_US * size.micro_batches + _STEP_ROUNDED_US) * size.rounds + size.ranks


def _static_bytes(profile: Profile) -> _Values:
    """Bytes of each layer, of tied parameters those of one of the layers."""
    places = range(len(profile.layers))
    found = np.array([float(profile.layer_profile(place).static_bytes) for place in places])
    for tied, with_them in zip(profile.tied_parameters or (), profile.tied_places, strict=True):
        found[list(with_them[1:])] -= tied.static_bytes
    return found


def _held_by_first(size: PipelineSize) -> float:
    """The activations on the first rank of interleaved 1F1B, in those of the whole model."""
    more = (size.ranks - 1) / (size.ranks * size.rounds) if size.rounds > 1 else 0.0
    return 1 + more


def _spread(ranks: int, micro_batches: int, share: float) -> float:
    """The least largest time of a rank, of stages of any lengths that add up to 1.

    A rank waits for `share` of the stages before it, and then has its own for each micro-batch:
    stages that all take equally long with that are a geometric sequence.
    """
    step = share / micro_batches
    if step * ranks < 1e-9:
        return micro_batches / ranks
    return float(share / (1 - (1 - step) ** ranks))
