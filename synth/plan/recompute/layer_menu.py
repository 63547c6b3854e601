"""Menus of recomputation: the Pareto-optimal choices of layers for each stage.

Layers are added to a stage one after another, each kept or recomputed under one of its policies.
Of two choices for the same layers that treat the last one alike, one is dropped if no op of the
other takes longer and it needs no more bytes in any figure, because all layers that follow change
both alike. So of many equal layers mostly only the number matters, and the first ones are
recomputed: B comes to them last, when most of what the others keep is freed.

Where too many choices are left, there are two sets of them: some of those that can be made
(`options`), and figures that no choice is below in every respect (`floors`), for bounds.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from math import isqrt
from operator import add
from typing import NamedTuple

import numpy as np

from synth.costs.costs import Costs
from synth.costs.layer_boundaries import StageEnds, StageLayers, own_change
from synth.costs.partition_costs import partition_costs, stage_costs
from synth.costs.recomputation import Recomputation
from synth.costs.recomputed_layers import policies_of, recomputed, recomputing
from synth.costs.stage_costs import StageCosts
from synth.op_kinds import OpKind
from synth.plan.tuning import LAYER_MENU
from synth.profile import Profile
from synth.profile.layer_profile import LayerProfile
from synth.profile.layer_tensors import SharedMemory
from synth.profile.tied_parameters import GradientSum

# Times are compared in nanoseconds, the resolution of profiles.
_NS_PER_US = 1000

_NOTHING_YET = -(1 << 62)

# The ops whose costs a choice of layers changes; B first, which recomputes.
_VARIED = (OpKind.B, OpKind.BW, OpKind.F, OpKind.R, OpKind.W)

# A layer and the policy under which it is recomputed; empty if it is kept.
_Chosen = tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Option:
    """A choice of a stage's layers to recompute, and its costs."""

    layers: Recomputation
    costs: StageCosts

    @property
    def work_us(self) -> int:
        """Time of F, B and W, which includes the recomputation."""
        return self.costs.work_us


@dataclass(frozen=True)
class Menu:
    """Choices of a stage by rising time of its work; the first one recomputes nothing."""

    options: tuple[Option, ...]
    floors: tuple[StageCosts, ...]


def menu(profile: Profile, first: int, size: int) -> Menu:
    """Return the choices for a stage of `size` layers from `first` on."""
    indices = range(first, first + size)
    plain = tuple(profile.stage_layers(first, first + size))
    policies = tuple(policies_of(profile, i) for i in indices)
    sums = profile.gradient_sums(first, first + size)
    found = _menu(_Layers(plain, policies, sums, profile.shared_inputs(first)), first == 0)
    if not first:
        return found
    options = (
        Option(
            Recomputation({first + index: policy for index, policy in option.layers.items()}),
            option.costs,
        )
        for option in found.options
    )
    return Menu(tuple(options), found.floors)


@lru_cache(maxsize=1024)
def _menu(row_of_layers: "_Layers", is_first: bool) -> Menu:
    """Return the choices of a stage with these layers, which are numbered from 0."""
    rows = _Rows(_followed(row_of_layers, _some), _followed(row_of_layers, _lowered))
    base = row_of_layers.stage(Recomputation(), is_first=is_first)
    possible = _best_stages(
        [row.on(base, row.run.ends(is_first=is_first)) for row in rows.possible]
    )
    options = [
        Option(chosen, row_of_layers.stage(chosen, is_first=is_first))
        for chosen in (Recomputation(dict(rows.possible[place].layers)) for place in possible)
    ]
    options.sort(key=lambda option: (option.work_us, option.costs.saved_bytes))
    is_plain = all(layer.tensors is None for layer in row_of_layers.plain)
    floors = [
        row.on(base, row.run.ends(is_first=is_first) if is_plain else row.run.least_ends())
        for row in rows.floors
    ]
    return Menu(tuple(options), tuple(floors[place] for place in _best_stages(floors)))


def figures(stage: StageCosts) -> tuple[int, ...]:
    """Return the figures that a choice of layers changes; less is never worse."""
    durations, rises = stage.duration_us, stage.rise_bytes
    return (
        *(durations[kind] for kind in _VARIED),
        stage.saved_bytes,
        stage.saved_w_bytes,
        *(rises[kind] for kind in (OpKind.F, OpKind.R, OpKind.B, OpKind.W, OpKind.BW)),
        stage.light_rise,
        stage.sent_output_bytes,
        stage.input_until.rank_in_chain,
        stage.output_until.rank_in_chain,
    )


def _best_stages(stages: Sequence[StageCosts]) -> list[int]:
    """Return the indices of the choices that no other one dominates."""
    found = [figures(stage) for stage in stages]
    order = sorted(range(len(stages)), key=lambda place: (found[place], place))
    return [order[place] for place in _undominated([found[place] for place in order])]


def _undominated(ordered: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the indices of the rows that no row before them dominates.

    In lexicographic order a row is dominated by rows before it alone.
    """
    table = np.array(ordered, dtype=np.int64)
    is_below = (table[:, None, :] <= table[None, :, :]).all(axis=2)
    dominated = np.triu(is_below, k=1).any(axis=0)
    return [int(place) for place in np.flatnonzero(~dominated)]


def menus(profile: Profile, sizes: Sequence[int]) -> list[Menu]:
    """Return the menus of all stages of a partition."""
    firsts = [sum(sizes[:stage]) for stage in range(len(sizes))]
    return [menu(profile, first, size) for first, size in zip(firsts, sizes, strict=True)]


def costs_with(profile: Profile, sizes: Sequence[int], layers: Collection[int]) -> Costs:
    """Return the costs of a partition with some layers recomputed, as in `recomputing`."""
    return partition_costs(recomputing(profile, layers), sizes)


class _Row(NamedTuple):
    """A choice for the first layers of a stage; figures as in `synth.costs`.

    `extra_ns` are the times by which each of `_VARIED` is longer than without recomputation.
    `run` are the layers as those behind them see them, and the last one as it is treated.
    `weight_rise`, `backward_rise` and `fused_rise` are the highest levels of W, B and BW above that
    at the start of the last layer, once that one is over, `_NOTHING_YET` where it is the only one:
    what is freed there depends on the layer after it.
    """

    layers: _Chosen
    last: LayerProfile
    run: StageLayers
    extra_ns: tuple[int, ...]
    saved: int
    saved_w: int
    forward_rise: int
    again_rise: int
    weight_rise: int
    backward_rise: int
    fused_rise: int
    light_rise: int

    @classmethod
    def of(
        cls,
        layers: _Chosen,
        layer: LayerProfile,
        extra_ns: tuple[int, ...],
        shared: Sequence[SharedMemory],
    ) -> "_Row":
        """Make the row of a first layer."""
        rises = layer.rise_bytes
        return cls(
            layers,
            layer,
            StageLayers.of(layer, shared),
            extra_ns,
            saved=layer.saved_bytes,
            saved_w=layer.saved_w_bytes,
            forward_rise=rises[OpKind.F],
            again_rise=layer.recompute_rise_bytes,
            weight_rise=_NOTHING_YET,
            backward_rise=_NOTHING_YET,
            fused_rise=_NOTHING_YET,
            light_rise=rises[OpKind.F],
        )

    @property
    def figures(self) -> tuple[int, ...]:
        """Return the figures to compare; less is never worse."""
        return (*self.extra_ns, *self[4:], *self.run.figures)

    def then(self, layers: _Chosen, layer: LayerProfile, extra_ns: tuple[int, ...]) -> "_Row":
        """Return the row with one more layer."""
        last, rises = self.last, layer.rise_bytes
        run, boundary = self.run.then(layer)
        level = self.saved + self.run.unsaved_bytes

        def before(kind: OpKind, highest: int) -> int:
            """The highest level of the layers before, given it without this one."""
            highest = max(last.inner_rise(kind), highest + boundary.by_previous[kind])
            return own_change(layer, kind) + boundary.by_next[kind] + highest

        return _Row(
            self.layers + layers,
            layer,
            run,
            extra_ns=tuple(map(add, self.extra_ns, extra_ns)),
            saved=self.saved + layer.saved_bytes + boundary.saved_bytes,
            saved_w=self.saved_w + layer.saved_w_bytes + boundary.saved_w_bytes,
            forward_rise=max(self.forward_rise, level + rises[OpKind.F]),
            again_rise=max(self.again_rise, level + layer.recompute_rise_bytes),
            weight_rise=before(OpKind.W, self.weight_rise),
            backward_rise=before(OpKind.B, self.backward_rise),
            fused_rise=before(OpKind.BW, self.fused_rise),
            light_rise=max(self.light_rise, self.run.open_bytes + rises[OpKind.F]),
        )

    def on(self, base: StageCosts, ends: StageEnds) -> StageCosts:
        """Return the costs of a stage, given those without recomputation and those of its ends."""
        durations = {
            kind: base.duration_us[kind] + ns // _NS_PER_US
            for kind, ns in zip(_VARIED, self.extra_ns, strict=True)
        }
        earlier = {
            OpKind.B: self.backward_rise,
            OpKind.W: self.weight_rise,
            OpKind.BW: self.fused_rise,
        }
        rises = {OpKind.F: self.forward_rise, OpKind.R: self.again_rise}
        for kind, rise in earlier.items():
            kept = ends.kept(self.run.place, kind)
            rises[kind] = max(self.last.rise_bytes[kind], rise + kept)
        return base.replace(
            duration_us={**base.duration_us, **durations},
            saved_bytes=self.saved + ends.saved_bytes,
            saved_w_bytes=self.saved_w + ends.saved_w_bytes,
            rise_bytes={**base.rise_bytes, **rises},
            input_until=ends.input_until,
            output_until=ends.output_until,
            light_rise_bytes=self.light_rise,
            sent_bytes=None if ends.sent_bytes == base.output_bytes else ends.sent_bytes,
            parts_bytes=ends.parts_bytes,
        )

    def below(self, other: "_Row") -> "_Row":
        """Return figures that are at most those of both; possibly of no real choice."""
        extra_ns = tuple(map(min, self.extra_ns, other.extra_ns))
        row = _Row(*self[:2], self.run, extra_ns, *map(min, self[4:], other[4:]))
        run, freed_bytes = self.run.below(other.run)
        return row._replace(
            run=run,
            weight_rise=row.weight_rise - freed_bytes,
            backward_rise=row.backward_rise - freed_bytes,
            fused_rise=row.fused_rise - freed_bytes,
        )


class _Rows(NamedTuple):
    """Remaining choices, and figures that bound all choices from below."""

    possible: list[_Row]
    floors: list[_Row]


_Thin = Callable[[list[_Row], int], list[_Row]]


class _Layers:
    """The layers of a row, equal to another row's where their profiles have equal values."""

    def __init__(
        self,
        plain: tuple[LayerProfile, ...],
        policies: tuple[tuple[str, ...], ...],
        sums: tuple[GradientSum, ...],
        shared: tuple[SharedMemory, ...],
    ) -> None:
        """Take the layers, the policies under which each may be recomputed, their sums of
        gradients, and the memory that several inputs have."""
        self.plain, self.policies, self.sums, self.shared = plain, policies, sums, shared
        self.kinds = {id(layer): layer for layer in plain}
        values = {key: layer.model_dump_json() for key, layer in self.kinds.items()}
        self._key = (tuple(values[id(layer)] for layer in plain), policies, sums, shared)

    @cached_property
    def again(self) -> tuple[dict[str, LayerProfile], ...]:
        """Each layer recomputed, by policy; empty where that is no choice."""
        both = list(zip(self.plain, self.policies, strict=True))
        kinds = {
            (id(layer), policy): recomputed(layer, policy)
            for layer, policies in both
            for policy in policies
        }
        return tuple(
            {policy: kinds[id(layer), policy] for policy in policies} for layer, policies in both
        )

    def stage(self, chosen: Recomputation, *, is_first: bool) -> StageCosts:
        """Return the costs of a stage with these layers, some of them recomputed."""
        layers = [
            again[chosen[index]] if index in chosen else kept
            for index, (kept, again) in enumerate(zip(self.plain, self.again, strict=True))
        ]
        return stage_costs(layers, self.sums, self.shared, is_first=is_first)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Layers) and self._key == other._key


def _followed(layers: _Layers, thin: _Thin) -> list[_Row]:
    rows: list[list[_Row]] = []
    most = isqrt(LAYER_MENU.followed_squared // len(layers.plain))
    most = max(LAYER_MENU.least_followed, min(LAYER_MENU.most_followed, most))
    for index, (kept, again) in enumerate(zip(layers.plain, layers.again, strict=True)):
        treated: list[tuple[_Chosen, LayerProfile, tuple[int, ...]]] = [
            ((), kept, (0,) * len(_VARIED)),
            *(
                (((index, policy),), layer, _longer_ns(kept, layer))
                for policy, layer in again.items()
            ),
        ]
        rows = [
            thin(
                _best(
                    [row.then(*one) for group in rows for row in group]
                    if index
                    else [_Row.of(*one, layers.shared)]
                ),
                most,
            )
            for one in treated
        ]
    return [row for group in rows for row in group]


def _longer_ns(kept: LayerProfile, again: LayerProfile) -> tuple[int, ...]:
    """Return by how much the ops of a layer are longer if it is recomputed."""
    both = ((_us(again, kind), _us(kept, kind)) for kind in _VARIED)
    return tuple(round(_NS_PER_US * (longer_us - us)) for longer_us, us in both)


def _us(layer: LayerProfile, kind: OpKind) -> float:
    return layer.recompute_us if kind == OpKind.R else layer.time_us[kind].median_us


def _best(rows: list[_Row]) -> list[_Row]:
    """Return the rows that no other one dominates."""
    ordered = sorted(rows, key=lambda row: (row.figures, row.layers))
    return [ordered[place] for place in _undominated([row.figures for row in ordered])]


def _some(rows: list[_Row], most: int) -> list[_Row]:
    """Return a limited number of rows, evenly spaced, including both ends."""
    if len(rows) <= most:
        return rows
    last, steps = len(rows) - 1, most - 1
    return [rows[round(step * last / steps)] for step in range(most)]


def _lowered(rows: list[_Row], most: int) -> list[_Row]:
    """Return a limited number of rows: neighbours are replaced by one that is above neither."""
    if len(rows) <= most:
        return rows
    merged = []
    for step in range(most):
        first, *others = rows[step * len(rows) // most : (step + 1) * len(rows) // most]
        merged.append(reduce(_Row.below, others, first))
    return merged
