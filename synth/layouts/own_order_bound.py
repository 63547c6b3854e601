"""Lower bounds on the makespan of 1F1B and interleaved 1F1B over all their partitions.

A program that runs these two alone (Megatron-LM) admits more than the bounds over every order:

- Activations: when rank r of p begins its first backward, it holds those of min(m, p − r)
  micro-batches for each of its layers with one stage per rank, and with several no fewer than
  min(m, p, 2 (p − r) − 1), which are those of its last stage.
- Fill and drain: rank r begins when the first micro-batch has passed the stages before its first
  one, and ends before the last gradient passes these. Each of them has a layer at least.
- Transients: that backward begins with the last layer of a stage, whose saved tensors it rebuilds
  if they were not kept, and on the last rank with the head's.
- Embedding and head are on the first and on the last rank, and are not computed again.
- Recomputation: all layers, or the first n of each stage with the same n for all.

A time is too short if the ranks do not hold all layers of the model in it, by one of two arguments:

- Of the kind of layer that takes the most, each rank holds a whole number for each n.
- In fractions of layers, of whichever kind and computed again or not, a rank holds no more than a
  linear program within its time and its memory, of whose dual three corners are known.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from synth.layouts.pipeline_bound import PipelineSize, slack_us
from synth.op_kinds import OpKind
from synth.profile import Profile

_Values = npt.NDArray[np.float64]

# Below rounding, as a share of a layer; and how closely the bound is searched for, up to how often
# the bound that it raises.
_TINY = 1e-6
_PRECISION, _MOST = 1e-3, 16.0

_NO_LIMIT = 1e18

# Layers that a rank has room to keep, up to which each number of them is looked at.
_MOST_KEPT = 12


@dataclass(frozen=True)
class _Kind:
    """Layers of one kind: a micro-batch's time, that of F again, and bytes.

    `rise` is that of BW above what is saved, `end_rise` that of F and BW above what others save.
    """

    count: int
    work_us: float
    again_us: float
    static: float
    inputs: float
    saved: float
    rise: float
    end_rise: float


class OwnOrderBound:
    """The bounds of a profile's layers, of which the first and the last are its ends."""

    def __init__(self, profile: Profile, *, pairs: bool, recomputes: bool) -> None:
        """Add up the layers.

        Args:
            pairs: F and BW of two micro-batches run at once, and every layer is kept.
            recomputes: whole layers between the ends may be computed again.
        """
        self.recomputes = recomputes and not pairs
        listed = [layer.profile for layer in profile.layers]
        of_kind = {kind: self._kind(profile, kind, pairs=pairs) for kind in dict.fromkeys(listed)}
        self.first, self.last = of_kind[listed[0]], of_kind[listed[-1]]
        inner = [of_kind[kind] for kind in dict.fromkeys(listed[1:-1])]
        self.main = max(inner, key=lambda kind: kind.count * kind.work_us)
        self.others = [kind for kind in inner if kind is not self.main]
        self.least_work_us = min(kind.work_us for kind in inner)
        self.least_rise = min(kind.rise for kind in inner)
        self.least_saved = min(kind.saved for kind in inner)
        # Passes of a micro-batch through the layers before each.
        passes = np.array([of_kind[kind].work_us for kind in listed])
        self.before_us: _Values = np.concatenate([[0.0], np.cumsum(passes)])
        self.hop_us = _hop_us(profile)

    @staticmethod
    def _kind(profile: Profile, kind: str, *, pairs: bool) -> _Kind:
        layer = profile.layer_profiles[kind]
        times = {op: layer.time_us[op].median_us for op in (OpKind.F, OpKind.BW)}
        # Others may share the memory of tensors that are listed.
        is_kept = layer.input_until != OpKind.F and layer.tensors is None
        return _Kind(
            count=sum(each.profile == kind for each in profile.layers),
            work_us=times[OpKind.F] + times[OpKind.BW] - pairs * layer.hidden_us,
            again_us=layer.recompute_us,
            static=float(layer.static_bytes),
            inputs=float(_boundary_bytes(profile)) if is_kept else 0.0,
            saved=float(layer.saved_bytes),
            rise=float(layer.inner_rise(OpKind.BW)),
            end_rise=float(
                max(layer.rise_bytes[OpKind.F], layer.saved_bytes + layer.inner_rise(OpKind.BW))
            ),
        )

    def least_us(
        self, size: PipelineSize, cap_bytes: int | None, from_us: float, enough_us: float
    ) -> float:
        """Return the bound, or a lower one of `enough_us` at least.

        Args:
            size: of several ranks.
            cap_bytes: the memory limit of each rank; None: no limit.
            from_us: a bound that is known.
            enough_us: a makespan that is of no use.
        """
        most_us, slack = _MOST * from_us, slack_us(size)
        if from_us >= enough_us:
            return from_us
        ranks = _Ranks(self, size, _NO_LIMIT if cap_bytes is None else float(cap_bytes))
        low, high = max(from_us, ranks.forced_us), 0.0
        if enough_us < most_us and ranks.are_too_few(enough_us + slack):
            return enough_us
        step = _PRECISION
        while not high and low < most_us:
            if ranks.are_too_few(tried := low * (1 + step)):
                low, step = tried, 2 * step
            else:
                high = tried
        while high > low * (1 + _PRECISION):
            middle = (low + high) / 2
            low, high = (middle, high) if ranks.are_too_few(middle) else (low, middle)
        return max(from_us, low - slack)


class _Ranks:
    """The ranks of a pipeline, as far as their room depends on no time.

    The ends of the model are taken off it. A rank holds x layers of the main kind within τ of time
    and c of room if x ≤ τ μ + c ν for each corner (μ, ν).
    """

    def __init__(self, layers: OwnOrderBound, size: PipelineSize, cap_bytes: float) -> None:
        places = np.arange(size.ranks)
        self._layers, self._size = layers, size
        self._main = main = layers.main
        held = size.ranks - places
        if size.rounds > 1:
            held = np.minimum(2 * held - 1, size.ranks)
        self._held: _Values = np.minimum(held, size.micro_batches).astype(np.float64)
        first, last = layers.first, layers.last
        self._taken_us = np.zeros(size.ranks)
        self._taken_us[[0, -1]] = size.micro_batches * np.array([first.work_us, last.work_us])
        self._room = np.full(size.ranks, cap_bytes - layers.least_rise)
        # The room for layers that are all computed again, of which one is rebuilt.
        self._again_room = self._room - layers.least_saved
        for room in (self._room, self._again_room):
            if size.rounds == 1:  # the first rank may have the embedding alone
                room[0] = cap_bytes
            room[0] -= self._bytes_of(first, is_kept=True)[0]
            room[-1] = cap_bytes - last.static - last.inputs - last.end_rise
        # Every gradient and activation passes the stages before a rank's first one.
        self._offset_us = 2 * layers.hop_us * places
        if size.rounds > 1:
            self._offset_us = self._offset_us + layers.before_us[: size.ranks]
        else:
            self._offset_us[1:] += layers.first.work_us
        self._corners = self._find_corners()
        # By n: layers that a rank computes again in any case, of all its stages.
        most = main.count + 1 if layers.recomputes else 1
        self._firsts = np.arange(most)[:, None]
        ends = np.zeros(size.ranks, dtype=np.int64)
        ends[[0, -1]] = 1
        further = np.maximum(0.0, size.rounds - 1 - ends)
        self._again_least = self._firsts + (self._firsts > 0) * further
        self._most_by_room = self._find_most_by_room()
        self._most_by_kept = self._find_most_by_kept()
        self.forced_us = self._forced_us()

    def _bytes_of(self, kind: _Kind, *, is_kept: bool) -> _Values:
        """The bytes of a layer by rank."""
        each = kind.inputs + kind.saved * is_kept
        found: _Values = kind.static + self._held * each
        return found

    def _us_of(self, kind: _Kind, *, is_kept: bool) -> float:
        return self._size.micro_batches * (kind.work_us + kind.again_us * (not is_kept))

    def _find_corners(self) -> list[tuple[_Values, _Values, _Values]]:
        """The corners with their room: of time alone, of memory alone, and of both."""
        kept_us, again_us = (self._us_of(self._main, is_kept=kept) for kept in (True, False))
        kept, again = (self._bytes_of(self._main, is_kept=kept) for kept in (True, False))
        none = np.zeros_like(kept)
        if not self._layers.recomputes:
            return [(none + 1 / kept_us, none, none), (none, 1 / kept, self._room)]
        found = [(none + 1 / kept_us, none, none), (none, 1 / again, self._again_room)]
        if again_us > kept_us:
            # Both columns cost 1: μ kept_us + ν kept = μ again_us + ν again = 1.
            scale = again_us * kept - kept_us * again
            found.append(((kept - again) / scale, (again_us - kept_us) / scale, self._room))
        return found

    def _forced_us(self) -> float:
        """Each stage has a layer, and the last one of them the model's last."""
        size, least_us = self._size, self._layers.least_work_us
        inner = np.full(size.ranks, size.rounds)
        inner[[0, -1]] -= 1
        each = self._offset_us + self._taken_us + size.micro_batches * inner * least_us
        return float(each.max())

    def _find_most_by_room(self) -> _Values:
        """The layers of the main kind in the room of each rank, by n."""
        kept, again = (self._bytes_of(self._main, is_kept=is_kept) for is_kept in (True, False))
        more = (kept - again) * self._size.rounds * self._firsts
        found: _Values = np.minimum((self._room + more) / kept, self._again_room / again)
        return found

    def _find_most_by_kept(self) -> _Values:
        """The layers in the room of each rank of which 0, 1, 2, … are kept, each in its row."""
        kept, again = (self._bytes_of(self._main, is_kept=is_kept) for is_kept in (True, False))
        most = int(max(0.0, (self._room / kept).max()))
        number = np.arange(1, min(most, self._main.count) + 1)[:, None]
        rows: _Values = (self._room - (kept - again) * number) / again
        return np.vstack([self._again_room / again, np.where(rows >= number, rows, 0.0)])

    def are_too_few(self, makespan_us: float) -> bool:
        """True if the ranks cannot hold all layers in this time."""
        time_us = makespan_us - self._offset_us - self._taken_us
        return self._are_too_few_whole(time_us) or self._are_too_few_in_fractions(time_us)

    def _are_too_few_whole(self, time_us: _Values) -> bool:
        """True if for each n too few layers of the main kind fit.

        Of those computed again in any case each other layer may be one, which leaves time for less
        than one further layer of the main kind. With one stage per rank, a rank waits for all
        layers before it: one more there is at most one less on those behind, so each holds all it
        can.
        """
        every = slice(None)
        if self._size.rounds > 1:
            held = self._most_whole(time_us, every).sum(axis=1)
        else:
            held = np.zeros(len(self._firsts))
            for rank, left_us in enumerate(time_us):
                us = left_us - held[:, None] * self._main.work_us
                held = held + self._most_whole(us, slice(rank, rank + 1))[:, 0]
        free = sum(kind.count for kind in self._layers.others)
        return bool((held + free).max() < self._main.count)

    def _most_whole(self, time_us: _Values, ranks: slice) -> _Values:
        """The whole layers of the main kind on some ranks in a time, by n and rank."""
        kept_us, again_us = (self._us_of(self._main, is_kept=kept) for kept in (True, False))
        less_us = again_us - kept_us
        by_time = (time_us - less_us * self._again_least[:, ranks]) / kept_us
        by_time = np.maximum(time_us / again_us, by_time)
        most = np.minimum(by_time, self._most_by_room[:, ranks])
        if self._layers.recomputes and len(by_kept := self._most_by_kept[:, ranks]) < _MOST_KEPT:
            number = np.arange(len(by_kept))[:, None]
            rows = np.minimum((time_us[..., None, :] + less_us * number) / again_us, by_kept)
            most = np.minimum(most, np.floor(rows + _TINY).max(axis=-2))
        found: _Values = np.floor(np.maximum(0.0, most + _TINY))
        return found

    def _are_too_few_in_fractions(self, time_us: _Values) -> bool:
        """True if too few layers fit, whichever are computed again."""
        each = np.array([mu * time_us + nu * room for mu, nu, room in self._corners])
        which, places = np.argmin(each, axis=0), np.arange(self._size.ranks)
        most = np.maximum(0.0, each[which, places])
        columns = list(zip(*self._corners, strict=True))
        mu, nu = (np.array(column)[which, places] for column in columns[:2])
        needed = self._main.count + sum(self._value(kind, mu, nu) for kind in self._layers.others)
        return bool(most.sum() < needed - _TINY)

    def _value(self, kind: _Kind, mu: _Values, nu: _Values) -> float:
        """Return the least that layers of another kind take of what ranks hold, in main layers."""
        kinds = (True, False) if self._layers.recomputes else (True,)
        costs = [
            self._us_of(kind, is_kept=kept) * mu + self._bytes_of(kind, is_kept=kept) * nu
            for kept in kinds
        ]
        return kind.count * float(np.min(costs))


def _boundary_bytes(profile: Profile) -> int:
    """The least output of a layer that another one takes."""
    every = range(len(profile.layers) - 1)
    return min(profile.layer_profile(place).output_bytes for place in every)


def _hop_us(profile: Profile) -> float:
    """The time of a transfer between stages, at least."""
    links = (profile.links.default, *profile.links.nodes)
    return float(min(link.transfer_us(_boundary_bytes(profile)) for link in links))
