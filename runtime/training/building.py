"""Builds a rank's stages as the plan says, and refuses a model that has changed since."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch
from torch import nn

from synth.errors import Mismatch, SynthError
from synth.schedule.files.plan_file import Plan
from synth.schedule.weight_flow import Route

from ..dtypes import dtype_of
from ..execution.stage.stage import Stage
from ..execution.weights.stage_weights import release_parameters
from ..input_function import spec_of
from ..models import BuiltModel, ModelSpec, build_model, trusted_address
from ..models.layered_stage import LayeredStage, Randomness, calls_of
from ..models.sizes import SIZES
from ..models.ties import Tie, untie_stages
from ..optimize import static_bytes
from .process_grid import Divide

Builder = Callable[..., BuiltModel]

_HOST = torch.device("cpu")


@dataclass(frozen=True)
class BuiltStages:
    """A rank's stages by number, and its parameters that several layers share, by name.

    They are one parameter on the rank; with weight passing each of its stages has one.
    """

    stages: dict[int, Stage]
    tied: dict[str, tuple[nn.Parameter, ...]]


def build_stages(
    plan: Plan,
    rank: int,
    device: torch.device,
    seed: int,
    randomness: Randomness | None = None,
    model: str | None = None,
    inputs: str | None = None,
    build: Builder = build_model,
    *,
    empty: bool = False,
    divide: Divide | None = None,
) -> BuiltStages:
    """Build the stages that the placement gives a rank, and no others.

    Args:
        plan: the plan, with the model and the layers of each stage.
        device: the device that they compute on; if the host keeps all stages, they are made on the
            CPU, and the pipeline brings them there.
        randomness: the source of the layers' random draws while they run.
        model: the address of the user's own model, which replaces the one in the plan. None:
            built-in models only.
        inputs: the address of the function that makes micro-batches, for one of which a whole
            module is cut; None: token ids.
        build: makes the layers, as `build_model` does.
        empty: True if a file has the weights, so that a user's model is made without values.
        divide: divides layers in place over the processes of the rank, on the device, one after the
            other; the host holds all of the rank's whole before. None: the rank is one process.

    Raises:
        SynthError: the workload's dtype is unknown, its model cannot be built, or it is a user's
            model whose address was not given.
    """
    workload = plan.workload
    spec = replace(spec_of(workload, trusted_address(workload, model), inputs), empty=empty)
    made = _make_layers(plan, rank, spec, _HOST if divide else device, seed, build)
    if divide is not None:
        _divide(divide, made, device)
    last = len(plan.partition) - 1
    _check_shared_bytes(plan, rank, made)
    _check_ties(plan, made.ties)
    stages: dict[int, Stage] = {}
    for number, layers in made.layers.items():
        _check_bytes(plan, number, list(layers.values()))
        stages[number] = LayeredStage(
            calls_of(workload, layers, plan.layers, plan.recomputation),
            is_first=number == 0,
            is_last=number == last,
            randomness=randomness,
        )
    return BuiltStages(stages, made.tied)


def _divide(divide: Divide, made: "_MadeLayers", device: torch.device) -> None:
    """Divide the layers of a rank over its processes, so that the device holds one whole at a time.

    Raises:
        SynthError: layers share parameters, which would be divided twice.
    """
    if made.ties:
        raise SynthError(
            "layers of this model share parameters, and ranks that are groups of processes "
            "(tensor parallelism) would divide each layer's anew; untie them, or use "
            "synth.Pipeline with tied=…"
        )
    for layers in made.layers.values():
        for layer in layers.values():
            divide([layer.to(device)])


@dataclass(frozen=True)
class _MadeLayers:
    """The layers of a rank by stage and index, its tied parameters by name, and all ties."""

    layers: dict[int, dict[int, nn.Module]]
    tied: dict[str, tuple[nn.Parameter, ...]]
    ties: tuple[Tie, ...] | None


def _make_layers(
    plan: Plan, rank: int, spec: ModelSpec, device: torch.device, seed: int, build: Builder
) -> _MadeLayers:
    """Make the layers of a rank's stages; those of stages with another home have no data."""
    schedule = plan.schedule()
    held = sorted({stage for stage, _ in schedule.placement.held[rank]})
    flow = schedule.weights
    if flow is not None and flow.weights == Route.HOST:
        device = _HOST
    away: set[int] = set()
    if flow is not None:
        away = {number for number in held if not flow.is_home(number, rank)}
    # Of stages that are away only the form is needed, so each is released before the next one is
    # made; a user's function makes all layers at once.
    parts = [[n] for n in held] if away and spec.factory in SIZES else [held]
    found: dict[int, dict[int, nn.Module]] = {}
    tied: dict[str, tuple[nn.Parameter, ...]] = {}
    ties: tuple[Tie, ...] | None = None
    for numbers in parts:
        made = build(
            spec,
            seed=seed,
            indices=[index for number in numbers for index in plan.layers_of(number)],
            names=plan.layers,
            device=device,
            dtype=dtype_of(plan.workload.dtype),
        )
        ties = made.ties
        layers = {n: {i: made.layers[i] for i in plan.layers_of(n)} for n in numbers}
        if flow is None:
            tied |= {name: (parameter,) for name, parameter in made.tied.items()}
        else:
            for name, parameters in untie_stages(layers, made.tied).items():
                tied[name] = (*tied.get(name, ()), *parameters)
        for number in away.intersection(numbers):
            for layer in layers[number].values():
                release_parameters(layer)
        found |= layers
    return _MadeLayers(found, tied, ties)


def _check_ties(plan: Plan, ties: Collection[Tie] | None) -> None:
    """Check that stages share the parameters of which the plan says so.

    Raises:
        Mismatch: some do not; their ranks would wait for gradients that nothing sends.
    """
    if ties is None:
        return
    stage_of = {i: n for n in range(len(plan.partition)) for i in plan.layers_of(n)}
    found = {frozenset(stage_of[i] for i, _ in tie.places) for tie in ties}
    for stages in (tie.stages for tie in plan.costs.ties):
        if frozenset(stages) not in found:
            raise Mismatch(
                f"stages {' and '.join(map(str, stages))} share parameters in the plan, and in "
                f"the model they do not: the model or the plan has changed since it was profiled; "
                f"profile and solve again"
            )


def _check_bytes(plan: Plan, stage: int, layers: Collection[nn.Module]) -> None:
    """Check that a stage's static bytes are those that the plan counts.

    Plans from profiles without tied parameters count these for each layer.
    """
    needed, optimizer = plan.costs.stages[stage].static_bytes, plan.workload.optimizer
    found = static_bytes(layers, optimizer)
    if needed not in (found, sum(static_bytes([layer], optimizer) for layer in layers)):
        raise _changed(
            f"stage {stage} (layers {', '.join(plan.layers[i] for i in plan.layers_of(stage))})",
            found,
            needed,
        )


def _check_shared_bytes(plan: Plan, rank: int, made: _MadeLayers) -> None:
    """Check that the stages of a rank share the parameters that the plan counts once for them."""
    if plan.weights is not None or plan.versions is not None:
        return  # each stage has parameters of its own
    layers = [layer for of_stage in made.layers.values() for layer in of_stage.values()]
    found = static_bytes(layers, plan.workload.optimizer)
    needed = plan.costs.static_bytes(made.layers.keys())
    if found > needed:
        raise _changed(f"rank {rank} (stages {', '.join(map(str, made.layers))})", found, needed)


def _changed(holder: str, found: int, needed: int) -> Mismatch:
    return Mismatch(
        f"{holder} holds {found} static bytes, the plan counts {needed}: the model, its "
        f"division or the plan has changed since it was profiled; profile and solve again"
    )
