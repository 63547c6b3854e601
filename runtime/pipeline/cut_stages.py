"""The stages of a rank, of a whole model that was cut into layers."""

import os

import torch
from torch import nn

from synth.errors import Mismatch, SynthError
from synth.schedule.files.plan_file import Plan

from ..execution.stage.stage import Stage
from ..models import layer_names
from ..models.cut import CutModel
from ..models.empty import allocate_parameters
from ..models.layered_stage import LayeredStage, calls_of
from ..models.ties import find_ties, keep_tied
from .rank_parts import AnySchedule


def cut_stages(
    plan: AnySchedule, model: CutModel, rank: int, device: torch.device | str | None = None
) -> tuple[dict[int, Stage], dict[str, nn.Parameter]]:
    """Return a rank's stages, which recompute the plan's layers, and its tied parameters by name.

    Args:
        plan: the plan, or its file.
        model: the layers of the whole model.
        rank: the rank.
        device: the device to move the rank's layers to; None: they stay where they are. Parameters
            without values become zeros there, or on the CPU.

    Raises:
        SynthError: there is no plan, or it is of weight passing and the model has tied parameters.
        Mismatch: the plan is of other layers.
    """
    if isinstance(plan, str | os.PathLike):
        plan = Plan.load(plan)
    if not isinstance(plan, Plan):
        raise SynthError(
            "a whole model that was cut needs a plan, which says which layers a stage has; give "
            "the plan or its file, or the modules of this rank's stages"
        )
    names = layer_names(model)
    if list(plan.layers) != names:
        raise Mismatch(
            f"the model has the layers {', '.join(names[:4])}, …, and the plan "
            f"{', '.join(plan.layers[:4])}, …; profile and solve again, or cut at the same places"
        )
    ties = find_ties(model)
    if ties and plan.weights is not None:
        raise SynthError(
            f"{ties[0].name} is shared by several layers, and with weight passing each stage needs "
            f"a parameter of its own: give the modules of this rank's stages, and `tied`"
        )
    held = sorted({stage for stage, _ in plan.placed.held[rank]})
    layers = {number: {i: model[i] for i in plan.layers_of(number)} for number in held}
    of_rank = {index: layer for own in layers.values() for index, layer in own.items()}
    allocate_parameters(of_rank.values(), device or "cpu")
    if device is not None:
        for layer in of_rank.values():
            layer.to(device)
    stages: dict[int, Stage] = {
        number: LayeredStage(
            calls_of(plan.workload, own, names, plan.recomputed_layers or ()),
            is_first=number == 0,
            is_last=number == len(plan.partition) - 1,
        )
        for number, own in layers.items()
    }
    return stages, keep_tied(of_rank, ties)
