"""Building a rank's stages as the plan says, and refusing a model that has changed since."""

from collections.abc import Iterable

import torch
from torch import nn

from synth.errors import Mismatch, SynthError
from synth.profile import Workload
from synth.schedule.file import Plan

from .models import ModelSpec, build_layers
from .optimize import static_bytes
from .stage import Stage

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def prepare_device(workload: Workload, device: torch.device) -> None:
    """Set what the profile was measured with: on CPU, the number of threads."""
    if device.type == "cpu":
        torch.set_num_threads(workload.threads)


def build_stages(plan: Plan, rank: int, device: torch.device, seed: int) -> dict[int, Stage]:
    """Build the stages that the placement gives a rank, and no others.

    Raises:
        SynthError: the workload's dtype is unknown, or its model cannot be built.
    """
    workload = plan.workload
    spec = ModelSpec(workload.model, workload.arguments)
    dtype = dtype_of(workload.dtype)
    last = len(plan.partition) - 1
    stages = {}
    for number in sorted({stage for stage, _ in plan.schedule().placement.held[rank]}):
        layers = build_layers(
            spec,
            seed=seed,
            indices=plan.layers_of(number),
            names=plan.layers,
            device=device,
            dtype=dtype,
        )
        _check_bytes(plan, number, layers.values())
        stages[number] = Stage(list(layers.values()), is_first=number == 0, is_last=number == last)
    return stages


def _check_bytes(plan: Plan, stage: int, layers: Iterable[nn.Module]) -> None:
    """A stage's static bytes must be those that the plan counts."""
    needed = plan.costs.stages[stage].static_bytes
    found = static_bytes(layers, plan.workload.optimizer)
    if found != needed:
        raise Mismatch(
            f"stage {stage} (layers {', '.join(plan.layers[i] for i in plan.layers_of(stage))}) "
            f"holds {found} static bytes, the plan counts {needed}: the model or the plan has "
            f"changed since it was profiled; profile and solve again"
        )


def dtype_of(name: str) -> torch.dtype:
    """The parameters' dtype by name.

    Raises:
        SynthError: no such dtype.
    """
    if name not in DTYPES:
        raise SynthError(f"dtype {name!r} is unknown; known: {', '.join(DTYPES)}")
    return DTYPES[name]
