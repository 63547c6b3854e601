"""A stage measured as a whole rises in each op as its layers, measured one by one, add up to."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from synth.costs.costs import Costs
from synth.costs.partition_costs import partition_costs
from synth.op_kinds import OpKind
from synth.profile.whole_step import WholeStep
from synth.runtime.batch import Batch
from synth.runtime.execution.stage.stage import Stage
from synth.runtime.execution.transport.in_process.ranks import InProcessGroup, InProcessRanks
from synth.runtime.pipeline import Pipeline
from synth.runtime.profiling.held_bytes import held_bytes
from synth.runtime.profiling.meter import measure
from synth.runtime.profiling.profile_model import profile_layers
from synth.runtime.profiling.sample import Sample
from synth.runtime.profiling.whole_step import _Copies
from synth.schedule.lowering.lower import lower
from synth.schedule.model import Placement, Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import peak_bytes

BACKWARDS = (OpKind.B, OpKind.W, OpKind.BW)
CHANNELS = 16
# The loss, and the numbers that a few ops of torch make; a boundary has 131,072 bytes.
SCALARS_BYTES = 1024
RANDOM_STATE_BYTES = 5056 + SCALARS_BYTES

Activation = Callable[[Tensor], Tensor]


class Convolved(nn.Module):
    """A convolution with an activation before or after it."""

    def __init__(self, before: Activation | None = None, after: Activation | None = None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.before, self.after = before, after

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x if self.before is None else self.before(x))
        return x if self.after is None else self.after(x)


class Normed(nn.Module):
    """A residual of a convolution and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(CHANNELS, CHANNELS, 1), nn.GroupNorm(4, CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.norm(self.conv(x)))


class Mean(nn.Module):
    """A loss that takes no memory, so that the layers before it have the peak."""

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return x.mean()


def plain() -> nn.Module:
    return Convolved()


def saves_its_output() -> nn.Module:
    return Convolved(after=torch.relu)


def saves_before_its_output() -> nn.Module:
    return Convolved(after=nn.functional.gelu)


def saves_its_input_in_b() -> nn.Module:
    return Convolved(before=nn.functional.gelu)


KINDS = (plain, saves_its_output, saves_before_its_output, saves_its_input_in_b, Normed)

STAGES: dict[str, tuple[Callable[[], nn.Module], ...]] = {
    **{kind.__name__: (kind,) * 4 for kind in KINDS},
    "mixed": (saves_its_output, plain, saves_before_its_output, saves_its_output, Normed, plain),
    "reversed": (plain, Normed, saves_its_input_in_b, saves_its_output, nn.GELU, plain),
    "modules": (plain, nn.GELU, plain, nn.GELU, plain),
}


class WithMean(nn.Module):
    """Layers and the loss."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.mean()


@pytest.mark.parametrize("name", STAGES)
def test_no_op_of_a_stage_rises_above_the_plan_and_none_is_planned_too_high(name: str) -> None:
    torch.manual_seed(0)
    layers = [make() for make in STAGES[name]]
    x = torch.randn(8, CHANNELS, 16, 16)
    profile = profile_layers(
        [*layers, Mean()], x, x[:, 0, 0, 0], warmup=0, iterations=1, separate=True
    )
    for parameter in (p for layer in layers for p in layer.parameters()):
        parameter.grad = torch.zeros_like(parameter)
    [added] = partition_costs(profile, [len(layers) + 1]).stages
    real = held_bytes(Sample(WithMean(layers), x, x[:, 0, 0, 0], is_first=True))
    assert added.saved_bytes == pytest.approx(real.saved_bytes, abs=SCALARS_BYTES)
    for kind in BACKWARDS:
        assert added.rise_bytes[kind] == pytest.approx(real.rise_bytes[kind], abs=SCALARS_BYTES)


@pytest.mark.parametrize("name", STAGES)
def test_the_peaks_of_a_whole_step_of_convolutions_are_the_planned_ones(name: str) -> None:
    torch.manual_seed(0)
    steps: list[WholeStep] = []
    x = torch.randn(8, CHANNELS, 16, 16)
    layers = [*(make() for make in STAGES[name]), Mean()]
    profile_layers(layers, x, x[:, 0, 0, 0], warmup=0, iterations=1, on_whole_step=steps.append)
    for peak in steps[0].peaks:
        assert peak.planned_bytes == pytest.approx(peak.measured_bytes, abs=SCALARS_BYTES)


def frozen() -> nn.Module:
    return Convolved().requires_grad_(False)


@pytest.mark.parametrize("make", [nn.GELU, frozen])
def test_inputs_that_are_not_saved_are_not_in_the_peaks_of_a_whole_step(
    make: Callable[[], nn.Module],
) -> None:
    torch.manual_seed(0)
    steps: list[WholeStep] = []
    x = torch.randn(8, CHANNELS, 16, 16)
    layers = [*(make() for _ in range(4)), Mean()]
    profile_layers(layers, x, x[:, 0, 0, 0], warmup=0, iterations=1, on_whole_step=steps.append)
    for peak in steps[0].peaks:
        assert peak.planned_bytes == pytest.approx(peak.measured_bytes, abs=RANDOM_STATE_BYTES)


def peaks_of_two_stages(layers: list[nn.Module], split: bool) -> tuple[int, int]:
    """The planned and the measured rise of a step in which a rank has both halves of a model."""
    x = torch.randn(8, CHANNELS, 16, 16)
    targets = x[:, 0, 0, 0]
    profile = profile_layers([*layers, Mean()], x, targets, warmup=0, iterations=1, separate=True)
    half = len(layers) // 2
    sizes = [half, len(layers) + 1 - half]
    stages = [
        stage.replace(static_bytes=0, rise_bytes={**stage.rise_bytes, OpKind.STEP: 0})
        for stage in partition_costs(profile, sizes).stages
    ]
    text = "B1.0 B0.0 W1.0 W0.0" if split else "BW1.0 BW0.0"
    ops = f"F0.0 F1.0 {text} STEP0 STEP1"
    where = Placement(ranks=((0, 0),))
    schedule = Schedule(where, 1, (tuple(map(Op.parse, ops.split())),))
    lowered = lower(schedule, Costs(stages=tuple(stages)))
    for parameter in (p for layer in layers for p in layer.parameters()):
        parameter.grad = torch.zeros_like(parameter)
    parts = {
        0: Stage(layers[:half], is_first=True, is_last=False),
        1: Stage([*layers[half:], Mean()], is_first=False, is_last=True),
    }
    group = InProcessGroup(InProcessRanks(1, 60, 0), 0, (0,), 60)
    pipeline = Pipeline(lowered, parts, group=group, device=torch.device("cpu"))
    for _ in range(2):  # the first step observes which weight gradients can wait
        with measure(torch.device("cpu")) as found:
            pipeline.step(Batch(_Copies(x, 1), [targets]))
    return peak_bytes(lowered)[0], found.peak_bytes


@pytest.mark.parametrize("split", [True, False], ids=["B and W", "BW"])
@pytest.mark.parametrize("name", STAGES)
def test_what_passes_between_two_stages_of_a_rank_is_held_as_planned(
    name: str, split: bool
) -> None:
    torch.manual_seed(0)
    planned, measured = peaks_of_two_stages([make() for make in STAGES[name]], split)
    assert planned == pytest.approx(measured, abs=SCALARS_BYTES)
