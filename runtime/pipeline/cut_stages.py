"""The stages of a rank, of a whole model that was cut into layers."""

import os

import torch
from torch import nn

from synth.errors import Mismatch, SynthError
from synth.schedule.files.plan_file import Plan

from ..execution.stage.stage import Stage
from ..models import layer_names
from ..models.cut import CutModel, Piece
from ..models.empty import allocate_parameters
from ..models.layered_stage import LayeredStage, calls_of
from ..models.recompute_policies import check_is_imported
from ..models.ties import Tie, keep_tied
from .rank_parts import AnySchedule


def rank_layers(
    plan: AnySchedule, model: CutModel, rank: int, device: torch.device | str | None = None
) -> list[Piece]:
    """Return the layers of a rank, in order, on its device.

    Args:
        plan: the plan, or its file.
        model: the layers of the whole model.
        rank: the rank.
        device: the device to move them to; None: they stay where they are. Parameters without
            values become zeros there, or on the CPU.

    Raises:
        SynthError: there is no plan.
        Mismatch: the plan is of other layers.
    """
    checked = _checked(plan, model)
    held = sorted({stage for stage, _ in checked.placed.held[rank]})
    found = [model[i] for number in held for i in checked.layers_of(number)]
    allocate_parameters(found, device or "cpu")
    return found if device is None else [layer.to(device) for layer in found]


def cut_stages(
    plan: AnySchedule, model: CutModel, rank: int, device: torch.device | str | None = None
) -> tuple[dict[int, Stage], dict[str, nn.Parameter]]:
    """Return a rank's stages, which recompute the plan's layers, and its tied parameters by name.

    Arguments are those of `rank_layers`.

    Raises:
        SynthError: there is no plan, it is of weight passing and the model has tied parameters, or
            it names a policy whose code the program has not imported.
        Mismatch: the plan is of other layers.
    """
    plan, names = _checked(plan, model), layer_names(model)
    ties = _find_ties(model)
    if ties and plan.weights is not None:
        raise SynthError(
            f"{ties[0].name} is shared by several layers, and with weight passing each stage needs "
            f"a parameter of its own: give the modules of this rank's stages, and `tied`"
        )
    check_is_imported(plan.recompute_policies or ())
    rank_layers(plan, model, rank, device)
    held = sorted({stage for stage, _ in plan.placed.held[rank]})
    layers = {number: {i: model[i] for i in plan.layers_of(number)} for number in held}
    stages: dict[int, Stage] = {
        number: LayeredStage(
            calls_of(plan.workload, own, names, plan.recomputation),
            is_first=number == 0,
            is_last=number == len(plan.partition) - 1,
        )
        for number, own in layers.items()
    }
    of_rank = {index: layer for own in layers.values() for index, layer in own.items()}
    return stages, keep_tied(of_rank, ties)


def _checked(plan: AnySchedule, model: CutModel) -> Plan:
    """Return the plan of a model.

    Raises:
        SynthError: there is no plan.
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
    return plan


def _find_ties(model: CutModel) -> tuple[Tie, ...]:
    """Find the parameters of several pieces by their names in the whole model.

    Those that are on the rank already are other objects than those that are not.
    """
    places: dict[str, list[tuple[int, str]]] = {}
    for index, piece in enumerate(model):
        for name, _ in piece.named_parameters():
            places.setdefault(piece.names_of(name)[0], []).append((index, name))
    return tuple(Tie(tuple(found)) for found in places.values() if len(found) > 1)
