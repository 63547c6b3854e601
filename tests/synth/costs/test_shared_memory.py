"""Stages whose layers pass tensors on, against a simulation of every tensor's memory."""

import random
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.costs.layer_boundaries import BACKWARDS
from synth.costs.partition_costs import partition_costs
from synth.costs.recomputed_layers import recomputing
from synth.costs.stage_costs import StageCosts
from synth.op_kinds import OpKind
from synth.plan.partition.layer_run_memory import RunNeeds
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.plan.recompute.layer_menu import figures, menu
from synth.profile import Profile
from synth.profile.layer_profile import LayerProfile
from synth.profile.layer_tensors import (
    LayerTensors,
    MadeMemory,
    ReturnedTensor,
    SharedGradient,
    TakenTensor,
    last_of,
)
from tests.synth.costs.test_partition_costs import profile_of, random_layer

F, B, W, BW = OpKind.F, OpKind.B, OpKind.W, OpKind.BW
MB = 10**6
NUM_TIMES = 5


def random_tensors(
    rng: random.Random, sizes: list[int], gradients: list[int]
) -> tuple[LayerTensors, list[int]]:
    """Return the tensors of a layer that takes some of these sizes, and the sizes returned."""
    shared = [
        SharedGradient(tensor=at, earlier=0, num_bytes=rng.randint(0, gradients[at]))
        for at in range(1, len(gradients))
        if rng.random() < 0.3
    ]
    untils = (F, B, W)
    made = [MadeMemory(num_bytes=rng.randint(0, 20), until=rng.choice(untils)) for _ in range(2)]
    memory_sizes = [*sizes, *(one.num_bytes for one in made)]
    memories = [rng.randrange(len(memory_sizes)) for _ in range(rng.randint(1, 3))]
    memories += [at for at in range(len(sizes), len(memory_sizes)) if at not in memories]
    tensors = LayerTensors(
        taken=tuple(
            TakenTensor(
                num_bytes=size,
                until=rng.choice(untils),
                gradient_excess_bytes=max(0, rng.randint(-20, 9)),
            )
            for size in sizes
        ),
        made=tuple(made),
        returned=tuple(
            ReturnedTensor(
                memory=at,
                num_bytes=memory_sizes[at],
                gradient_bytes=rng.randint(0, 9),
                gradient_until=rng.choice((B, W)),
                is_copied=rng.random() < 0.1,
            )
            for at in memories
        ),
        shared_gradients=tuple(shared),
    )
    return tensors, [memory_sizes[at] for at in memories]


def random_profile(seed: int, num_layers: int) -> Profile:
    """Return layers with several tensors between them, some of which are passed on."""
    rng = random.Random(seed)
    layers: list[LayerProfile] = []
    sizes = [rng.randint(1, 20)]
    for _ in range(num_layers):
        given = (
            [one.gradient_bytes for one in layers[-1].boundary_tensors.returned] if layers else []
        )
        tensors, sizes = random_tensors(rng, sizes, given)
        sent = sum(one.num_bytes for one in tensors.returned)
        layers.append(random_layer(rng).replace(tensors=tensors, output_bytes=sent))
    return profile_of(layers)


class Memories:
    """The memory of every tensor of a stage, by a number that is the same for all who share it."""

    def __init__(self, layers: list[LayerProfile], before: list[LayerProfile]) -> None:
        """Number the memories.

        Args:
            before: the layers of the stages before, which may be on the same rank.
        """
        self.layers = layers
        self.size: dict[int, int] = {}
        self.holders: dict[int, dict[int, OpKind]] = {}
        self.made: list[list[int]] = []
        self.given: list[list[int]] = []
        taken = self._given_on(layers[0].boundary_tensors, before)
        self.inputs = list(dict.fromkeys(taken))
        for place, layer in enumerate(layers):
            tensors = layer.boundary_tensors
            self.given.append(taken)
            made = [self._new(one.num_bytes) for one in tensors.made]
            self.made.append(made)
            row = [*taken, *made]
            untils = [*(one.until for one in tensors.taken), *(one.until for one in tensors.made)]
            for memory, until in zip(row, untils, strict=True):
                own = self.holders[memory]
                own[place] = last_of((own.get(place, F), until))
            taken = [row[one.memory] for one in tensors.returned]
        self.outputs = taken

    def _given_on(self, tensors: LayerTensors, before: list[LayerProfile]) -> list[int]:
        """Return the memories of the stage's input: tensors that are in one are held together."""
        if not before:
            return [self._new(one.num_bytes) for one in tensors.taken]
        theirs = Memories(before, [])
        returned = before[-1].boundary_tensors.returned
        origins = [
            -1 - at if one.is_copied else theirs.outputs[at] for at, one in enumerate(returned)
        ]
        apart: dict[int, int] = {}
        for origin, one in zip(origins, tensors.taken, strict=True):
            apart[origin] = apart.get(origin, 0) + one.num_bytes
        numbers = {
            origin: self._new(max(size, theirs.size.get(origin, 0)))
            for origin, size in apart.items()
        }
        return [numbers[origin] for origin in origins]

    def _new(self, size: int) -> int:
        self.size[number := len(self.size)] = size
        self.holders[number] = {}
        return number

    def until(self, memory: int) -> OpKind:
        return last_of([*self.holders[memory].values()])

    def shared_until(self, memories: set[int], *, counts_inputs: bool) -> OpKind:
        """Return the op that needs all of some memories last, F if it is not the same of all."""
        kinds = {
            F if one in self.inputs and not counts_inputs else self.until(one): self.size[one]
            for one in sorted(memories, key=lambda one: self.size[one])
        }
        large = {kind for kind, size in kinds.items() if size} or set(kinds)
        return large.pop() if len(large) == 1 else F


class Walk:
    """Runs one stage's layers one by one; the stage's input counts where it is not held whole."""

    def __init__(self, layers: list[LayerProfile], before: list[LayerProfile]) -> None:
        self.all = Memories(layers, before)
        self.layers = layers
        self.input_until = self.all.shared_until({*self.all.inputs}, counts_inputs=True)
        self.output_until = self.all.shared_until({*self.all.outputs}, counts_inputs=False)
        if any(one.is_copied for one in layers[-1].boundary_tensors.returned):
            self.output_until = F
        own = [one for one in self.all.size if one not in self.all.inputs]
        kept = {*self.all.outputs} if self.output_until != F else set()
        self.own = [one for one in own if one not in kept]
        # Held to the end of an op, as parts of the stage's ends.
        self.parts = [one for one in self.all.inputs if self.input_until == F]
        self.inner = [one for one in self.own if one not in self.parts]

    def held(self, *kinds: OpKind) -> int:
        return sum(self.all.size[one] for one in (*self.inner, *self.parts)
                   if self.all.until(one) in kinds)  # fmt: skip

    @property
    def saved(self) -> int:
        return sum(layer.saved_bytes for layer in self.layers) + self.held(B, W)

    @property
    def sent(self) -> int:
        """Bytes of the output that are neither saved nor held as a part of the input."""
        returned = self.layers[-1].boundary_tensors.returned
        both = list(zip(self.all.outputs, returned, strict=True))
        free = {at for at, one in both if not one.is_copied and self.all.until(at) == F}
        copies = sum(one.num_bytes for _, one in both if one.is_copied)
        return copies + sum(self.all.size[one] for one in free)

    def gradients(self, place: int) -> list[tuple[int, OpKind]]:
        """The memories of the gradients of what a layer returns to the next one, and their ends."""
        returned = self.layers[place].boundary_tensors.returned
        shared = self.layers[place + 1].boundary_tensors.shared_gradients
        first = {one.tensor: one.earlier for one in shared}
        groups: dict[int, list[int]] = {}
        for number in range(len(returned)):
            groups.setdefault(first.get(number, number), []).append(number)
        less = {one.tensor: one.num_bytes for one in shared}
        taken = self.layers[place + 1].boundary_tensors.taken
        more = [one.gradient_excess_bytes for one in taken]
        return [
            (
                sum(returned[at].gradient_bytes - less.get(at, 0) + more[at] for at in group),
                last_of([returned[at].gradient_until for at in group]),
            )
            for group in groups.values()
        ]

    @property
    def saved_w(self) -> int:
        waiting = sum(
            size
            for place in range(len(self.layers) - 1)
            for size, until in self.gradients(place)
            if until == W
        )
        return sum(layer.saved_w_bytes for layer in self.layers) + self.held(W) + waiting

    def forward(self) -> int:
        peak = saved = 0
        alive: set[int] = set()
        for place, layer in enumerate(self.layers):
            level = saved + sum(self.all.size[one] for one in alive)
            peak = max(peak, level + layer.rise_bytes[F])
            saved += layer.saved_bytes
            alive |= {*self.all.made[place]}
            later = {*chain(*self.all.given[place + 1 :]), *self.all.outputs}
            held = {
                one
                for one in alive
                if any(kind != F for at, kind in self.all.holders[one].items() if at <= place)
            }
            alive &= later | held
        return peak

    def backward(self, kind: OpKind) -> int:
        over = {B: (B,), W: (W,), BW: (B, W)}[kind]
        level = peak = 0
        holders = {
            one: {at for at, until in self.all.holders[one].items() if until != F}
            for one in self.inner
        }
        if kind == W:  # B has run
            for one in self.inner:
                holders[one] = {at for at in holders[one] if self.all.holders[one][at] == W}
        for place in reversed(range(len(self.layers))):
            layer, is_inner = self.layers[place], place < len(self.layers) - 1
            is_handed = is_inner and not self.layers[place + 1].boundary_tensors.shared_gradients
            peak = max(
                peak, level + (layer.inner_rise(kind) if is_handed else layer.rise_bytes[kind])
            )
            level -= layer.saved_w_bytes if kind == W else layer.saved_bytes
            level += layer.saved_w_bytes if kind == B else 0
            if place and kind != W:
                level += sum(size for size, _ in self.gradients(place - 1))
            if is_inner:
                level -= sum(size for size, until in self.gradients(place) if until in over)
            for one in self.inner:
                if place in holders[one] and self.all.holders[one][place] in over:
                    holders[one].discard(place)
                    level -= 0 if holders[one] else self.all.size[one]
        return peak


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 5))
def test_memory_that_layers_share_counts_once(seed: int, num_layers: int) -> None:
    profile = random_profile(seed, num_layers + 1)
    stage = partition_costs(profile, [1, num_layers]).stages[1]
    first, *layers = [profile.layer_profile(place) for place in range(num_layers + 1)]
    walk = Walk(layers, [first])
    assert (stage.input_until, stage.output_until) == (walk.input_until, walk.output_until)
    assert (stage.saved_bytes, stage.saved_w_bytes) == (walk.saved, walk.saved_w)
    if stage.output_until == F:
        assert stage.sent_output_bytes == walk.sent
    assert stage.rise_bytes[F] == walk.forward()
    for kind in BACKWARDS:
        assert stage.rise_bytes[kind] == walk.backward(kind), kind


def choices(num_layers: int) -> list[tuple[int, ...]]:
    places = range(num_layers)
    return [*chain(*(combinations(places, count) for count in range(num_layers + 1)))]


def stage_with(profile: Profile, num_layers: int, chosen: tuple[int, ...]) -> StageCosts:
    again = recomputing(profile, [1 + place for place in chosen])
    return partition_costs(again, [1, num_layers]).stages[1]


def above(floor: StageCosts, stage: StageCosts) -> list[int]:
    """By how much the figures of a floor are above a stage's; times are rounded once more."""
    both = zip(figures(floor), figures(stage), strict=True)
    own = [own - their for own, their in both]
    return [*(us - 1 for us in own[:NUM_TIMES]), *own[NUM_TIMES:]]


@pytest.mark.parametrize("seed", range(8))
def test_no_choice_of_recomputed_layers_is_below_the_floors_of_the_menu(seed: int) -> None:
    profile = random_profile(seed, 5)
    found = menu(profile, 1, 4)
    for chosen in choices(4):
        if all(profile.layer_profile(1 + place).can_be_recomputed for place in chosen):
            stage = stage_with(profile, 4, chosen)
            assert any(max(above(floor, stage)) <= 0 for floor in found.floors)
    for option in found.options:
        layers = tuple(place - 1 for place in option.layers)
        assert option.costs == stage_with(profile, 4, layers)


@pytest.mark.parametrize("seed", range(5))
def test_runs_of_layers_need_what_their_stages_do(seed: int) -> None:
    table = StageCostTable(random_profile(seed, 5))
    needs = RunNeeds(table)
    for first in reversed(range(5)):
        assert needs.of_next(5).tolist() == [
            table.need_bytes(first, end) for end in range(first + 1, 6)
        ]


def one_passed_on(is_changed: bool) -> LayerTensors:
    """Tensors of a layer that makes a hidden state, and passes on what came with it."""
    return LayerTensors(
        taken=(
            TakenTensor(num_bytes=MB, until=B),
            TakenTensor(num_bytes=3 * MB, until=W, is_changed=is_changed),
        ),
        made=(MadeMemory(num_bytes=MB, until=F),),
        returned=(
            ReturnedTensor(memory=2, num_bytes=MB, gradient_bytes=MB, gradient_until=B),
            ReturnedTensor(memory=1, num_bytes=3 * MB, gradient_bytes=0, gradient_until=B),
        ),
    )


def test_a_layer_is_not_computed_again_from_what_a_later_one_changes() -> None:
    layer = random_layer(random.Random(0)).replace(saved_bytes=9)
    passes, changes = (layer.replace(tensors=one_passed_on(on)) for on in (False, True))
    profile = profile_of([layer, passes, changes, passes])
    assert profile.changed_inputs == {1, 2}
