"""A whole step of a few layers has the time and the peaks of its parts, or it is said that not."""

import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profile.layer_profile import Layer
from synth.profile.whole_step import HeldPeak, Turns, WholeStep
from synth.profile.workload import Workload
from synth.runtime.models.layered_stage import LayerCall
from synth.runtime.optimize import StageOptimizer, StepSettings
from synth.runtime.profiling import step_check
from synth.runtime.profiling.profile_model import profile_layers, profile_model
from synth.runtime.profiling.short_model import ShortLayer, fitting

CPU = torch.device("cpu")
TINY = {"vocabulary_size": 64, "width": 32, "num_blocks": 4, "num_heads": 2, "context_length": 16}
MS = 1_000_000
MB = 1_000_000


def tiny(model: str = "gpt", autocast: str | None = None, **changes: int | bool) -> Workload:
    return Workload(
        model=model,
        arguments=TINY | changes,
        micro_batch_size=2,
        sequence_length=16,
        autocast=autocast,
    )


def whole_step_of(workload: Workload) -> WholeStep:
    steps: list[WholeStep] = []
    profile_model(workload, CPU, warmup=1, iterations=2, on_whole_step=steps.append)
    [step] = steps
    return step


SCALAR_BYTES = 4


@pytest.mark.parametrize(
    ("autocast", "checkpoint"),
    [(None, False), (None, True), ("bfloat16", False)],
    ids=["plain", "checkpointed", "autocast"],
)
@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_the_peaks_of_held_micro_batches_are_the_planned_ones(
    model: str, checkpoint: bool, autocast: str | None
) -> None:
    step = whole_step_of(tiny(model, autocast, checkpoint=checkpoint))
    assert step.layers == ("embedding", "block.0", "block.1", "head")
    assert [peak.micro_batches for peak in step.peaks] == [1, 2, 4]
    for peak in step.peaks:
        too_much = peak.planned_bytes - peak.measured_bytes
        assert too_much >= -SCALAR_BYTES
        assert autocast or too_much <= SCALAR_BYTES
        assert abs(peak.difference) < 0.03


class Product(nn.Module):
    """A product that saves its input; at the end the loss."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        y = x @ self.weight
        return y if targets is None else (y - targets).square().mean()


def test_each_held_micro_batch_takes_what_its_layers_save() -> None:
    """A product saves its input, and the last one the difference of which it takes the square."""
    x, steps = torch.randn(64, 8), list[WholeStep]()
    layers = [Product(8) for _ in range(5)]
    profile_layers(layers, x, x, warmup=0, iterations=1, on_whole_step=steps.append)
    one, two, four = (peak.measured_bytes for peak in steps[0].peaks)
    assert steps[0].layers == ("Product.0", "Product.1", "Product.2", "Product.4")
    kept = 5 * x.nbytes
    assert two - one == pytest.approx(kept, abs=16) and four - two == pytest.approx(
        2 * kept, abs=32
    )


class Clock:
    """Time that only layers take."""

    def __init__(self) -> None:
        self.ns = 0

    def ticking(self, of_forward: Callable[[], int], of_backward: int) -> Any:
        clock = self

        class Ticking(torch.autograd.Function):
            @staticmethod
            def forward(context: Any, x: Tensor) -> Tensor:
                clock.ns += of_forward()
                return x.clone()

            @staticmethod
            def backward(context: Any, gradient: Tensor) -> Tensor:
                clock.ns += of_backward
                return gradient

        return Ticking.apply


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    for name in ("perf_counter_ns", "thread_time_ns"):
        monkeypatch.setattr(time, name, lambda: made.ns)
    yield made


class Timed(nn.Module):
    """A layer whose F and B take what a function of it says."""

    def __init__(self, apply: Any) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.apply_clock = apply

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        y = self.apply_clock(x * self.scale)
        return y if targets is None else y.square().mean()


def step_of(layers: list[nn.Module], **options: Any) -> tuple[Profile, WholeStep]:
    steps: list[WholeStep] = []
    x = torch.randn(2, 3)
    found = profile_layers(
        layers, x, x, warmup=1, iterations=12, on_whole_step=steps.append, **options
    )
    return found, steps[0]


def doubts_of_time(step: WholeStep) -> list[str]:
    return [line for line in step.doubts() if line.startswith("the time")]


def test_a_whole_step_takes_the_time_of_its_parts(clock: Clock) -> None:
    layers: list[nn.Module] = [Timed(clock.ticking(lambda: 3 * MS, 4 * MS)) for _ in range(3)]
    found, step = step_of(layers, separate=True)
    assert found.layer_profiles["Timed.1"].work_us() == 7_000
    assert (step.parts_us, step.whole_us, step.turns) == (21_000, 21_000, None)
    assert doubts_of_time(step) == []


def test_layers_that_take_longer_behind_others_do_so_in_turns_too(clock: Clock) -> None:
    """A cache that holds one layer: behind itself it takes 3 ms, behind another one 5 ms."""
    last: list[int] = [-1]

    def cached(index: int) -> int:
        is_hot, last[0] = last[0] == index, index
        return (3 if is_hot else 5) * MS

    layers: list[nn.Module] = [
        Timed(clock.ticking(partial(cached, index), 4 * MS)) for index in range(3)
    ]
    _, step = step_of(layers, separate=True)
    assert (step.parts_us, step.whole_us) == (21_000, 27_000)
    assert step.turns == Turns(parts_us=21_000, whole_us=27_000)
    [line] = doubts_of_time(step)
    assert line.startswith(
        "the time of a whole step is +28.6% off its parts, and +28.6% when both are measured in "
        "turns: caches that are hot"
    )


def test_a_machine_that_became_faster_is_told_from_layers_that_differ(clock: Clock) -> None:
    slowness = [2]

    def speed_up(line: str) -> None:
        if line.startswith("measuring a whole step"):
            slowness[0] = 1

    layers: list[nn.Module] = [
        Timed(clock.ticking(lambda: slowness[0] * 3 * MS, 0)) for _ in range(3)
    ]
    _, step = step_of(layers, separate=True, tell=speed_up)
    assert (step.parts_us, step.whole_us) == (18_000, 9_000)
    assert step.turns == Turns(parts_us=9_000, whole_us=9_000)
    [line] = doubts_of_time(step)
    assert line == (
        "the time of a whole step is -50.0% off its parts, and +0.0% when both are measured in "
        "turns: the machine changed meanwhile, so profile again when it is quiet"
    )


def test_turns_count_the_time_of_the_thread_where_it_alone_computes(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others take the processor for 1 ms between any two moments of the monotonic clock."""
    taken = itertools.count()
    monkeypatch.setattr(time, "perf_counter_ns", lambda: clock.ns + next(taken) * MS)
    layers: list[nn.Module] = [Timed(clock.ticking(lambda: 3 * MS, 4 * MS)) for _ in range(3)]
    for num_threads, turns in ((1, (21_000, 21_000)), (2, (26_000, 30_000))):
        monkeypatch.setattr(torch, "get_num_threads", lambda number=num_threads: number)
        _, step = step_of(layers, separate=True)
        assert (step.whole_us, step.parts_us) == (26_000, 30_000)
        assert step.turns == Turns(whole_us=turns[0], parts_us=turns[1])


def test_f_is_measured_behind_a_backward_and_not_behind_the_update(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F reads cold weights once after an update, as in the first micro-batch of a step alone."""
    is_cold, step = [True], StageOptimizer.step

    def updated(optimizer: StageOptimizer, settings: StepSettings) -> None:
        step(optimizer, settings)
        is_cold[0] = True

    def forward_ns() -> int:
        was_cold, is_cold[0] = is_cold[0], False
        return (9 if was_cold else 3) * MS

    monkeypatch.setattr(StageOptimizer, "step", updated)
    found, _ = step_of([Timed(clock.ticking(forward_ns, 4 * MS))])
    assert found.layer_profiles["Timed.0"].time_us[OpKind.F].median_us == 3_000


def test_peaks_that_are_off_are_told() -> None:
    def with_peak(measured_bytes: int) -> WholeStep:
        peaks = [
            HeldPeak(micro_batches=m, planned_bytes=100 * MB, measured_bytes=measured)
            for m, measured in ((1, 100 * MB), (2, measured_bytes), (4, 101 * MB))
        ]
        return WholeStep(layers=("a",), parts_us=1, whole_us=1, peaks=tuple(peaks))

    assert list(with_peak(102_900_000).doubts()) == []
    [line] = with_peak(104 * MB).doubts()
    assert line.startswith("the peak with 2 held is +4.0% off the plan: plans take too little")
    [line] = with_peak(96 * MB).doubts()
    assert line.startswith("the peak with 2 held is -4.0% off the plan: plans ask for more")


def test_differences_of_less_than_a_megabyte_are_not_told() -> None:
    for measured_bytes, is_told in ((10_999_999, False), (11 * MB, True)):
        peak = HeldPeak(micro_batches=1, planned_bytes=10 * MB, measured_bytes=measured_bytes)
        step = WholeStep(layers=("a",), parts_us=1, whole_us=1, peaks=(peak,))
        assert bool([*step.doubts()]) == is_told


def test_times_of_layers_that_take_less_than_50_us_each_are_not_told() -> None:
    for parts_us, is_told in ((99, False), (100, True)):
        step = WholeStep(layers=("a", "b"), parts_us=parts_us, whole_us=2 * parts_us)
        assert step.is_time_off == is_told
        assert bool([*step.doubts()]) == is_told


@pytest.mark.parametrize(
    ("first", "again", "meaning"),
    [
        (0.87, 0.031, "the machine changed"),
        (0.332, -0.049, "the machine changed"),
        (-0.2, 0.1, "the machine changed"),
        (0.2, 0.09, "the machine changed"),
        (0.04, 0.029, "the machine changed"),
        (0.2, 0.11, "caches that are hot"),
        (0.04, 0.3, "caches that are hot"),
        (-0.2, -0.11, "ops so short"),
    ],
)
def test_a_difference_has_a_cause_of_the_layers_only_if_it_is_seen_again_in_turns(
    first: float, again: float, meaning: str
) -> None:
    turns = Turns(parts_us=1000, whole_us=1000 * (1 + again))
    step = WholeStep(layers=("a",), parts_us=1000, whole_us=1000 * (1 + first), turns=turns)
    [line] = step.doubts()
    assert line.startswith(
        f"the time of a whole step is {first:+.1%} off its parts, and {again:+.1%} when both are "
        f"measured in turns: {meaning}"
    )


class Other(Product):
    """Another kind of layer."""


def names_of(layers: list[nn.Module], width: int = 8) -> tuple[str, ...]:
    steps: list[WholeStep] = []
    x = torch.randn(4, width)
    profile_layers(layers, x, x[:, :8], warmup=0, iterations=1, on_whole_step=steps.append)
    return steps[0].layers


def test_of_each_kind_two_layers_run() -> None:
    alternating = itertools.chain.from_iterable((Product(8), Other(8)) for _ in range(4))
    assert names_of([*alternating]) == (
        "Product.0", "Other.1", "Product.2", "Other.3", "Product.4", "Other.7",
    )  # fmt: skip


def test_tied_layers_are_one_parameter_in_the_whole_step() -> None:
    """Both are of one kind, so that the second one is a copy of the first."""
    table, again = Product(64), Product(64)
    again.weight = table.weight
    x, steps = torch.randn(4, 64), list[WholeStep]()
    layers: list[nn.Module] = [Other(64), table, again, Other(64)]
    profile_layers(layers, x, x, warmup=0, iterations=1, on_whole_step=steps.append)
    for peak in steps[0].peaks:
        assert abs(peak.planned_bytes - peak.measured_bytes) < table.weight.nbytes // 2
    assert again.weight is table.weight and table.weight.grad is None


def short(name: str, kind: str, *, can_be_left_out: bool = True) -> ShortLayer:
    call = LayerCall(0, nn.Identity())
    return ShortLayer(0, Layer(name=name, profile=kind), call, can_be_left_out)


def test_repeated_layers_are_left_out_first_and_then_the_largest() -> None:
    sizes = {"first": 1, "small": 2, "large": 5, "last": 3}
    layers = [
        short("first", "first", can_be_left_out=False),
        short("small", "small"),
        short("large", "large"),
        short("small.1", "small"),
        short("last", "last", can_be_left_out=False),
    ]

    def within(most: int) -> list[str]:
        chosen = fitting(
            layers,
            lambda some: sum(sizes[x.entry.profile] for x in some) <= most,
            sizes.__getitem__,
        )
        return [layer.entry.name for layer in chosen]

    assert within(13) == ["first", "small", "large", "small.1", "last"]
    assert within(12) == ["first", "small", "large", "last"]
    assert within(10) == ["first", "small", "last"]
    assert within(4) == ["first", "last"]
    assert within(3) == []


def test_a_step_that_does_not_fit_is_told_and_the_profile_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_check, "available_bytes", lambda device: 1000)
    told: list[str] = []
    steps: list[WholeStep] = []
    x = torch.randn(4, 8)
    layers = [Product(8) for _ in range(3)]
    found = profile_layers(
        layers, x, x, warmup=0, iterations=1, tell=told.append, on_whole_step=steps.append
    )
    assert len(found.layers) == 3 and steps == []
    assert told[-1].startswith("no whole step is compared with its parts") and "1 kB" in told[-1]


class Uncopied(Product):
    """A layer that keeps what no copy can have."""

    def __deepcopy__(self, memo: object) -> nn.Module:
        raise TypeError("this has a lock")


def test_a_layer_that_cannot_be_copied_is_told_and_the_profile_is_made() -> None:
    told: list[str] = []
    steps: list[WholeStep] = []
    x = torch.randn(4, 8)
    layers = [Product(8), *(Uncopied(8) for _ in range(3)), Product(8)]
    found = profile_layers(
        layers, x, x, warmup=0, iterations=1, tell=told.append, on_whole_step=steps.append
    )
    assert len(found.layers) == 5 and steps == []
    assert told[-1] == (
        "no whole step is compared with its parts, as it failed: layer 'Uncopied.1' cannot be "
        "copied: this has a lock"
    )
