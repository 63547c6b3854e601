"""A plan as the texts of another runtime's files, and what these do not say."""

from collections.abc import Iterator, Mapping

from synth.interop.export_format import ExportFormat
from synth.interop.group_options import megatron_group
from synth.interop.jaxpp import to_jaxpp
from synth.interop.loss_order import in_loss_order
from synth.interop.megatron import PAIRS_OPTIONS, megatron_parts, to_megatron
from synth.interop.recomputation import megatron_recomputation, torchtitan_checkpointing
from synth.interop.stage_table import stage_table
from synth.interop.torch_comms_csv import to_torch_comms_csv
from synth.interop.torch_csv import to_torch_csv
from synth.interop.torchtitan import to_torchtitan, torchtitan_parts
from synth.report.text.tables import recomputed_places
from synth.schedule.files.plan_file import Plan
from synth.version import __version__


def exported_texts(
    plan: Plan, to: ExportFormat, names: Mapping[str, str], other: str | None = None
) -> list[str]:
    """Return the contents of the file of a format and, if there is one, of the one beside it.

    Args:
        names: the format's names of layers, by the names of the layers.
        other: the name of the file beside it; None: there is none.

    Raises:
        SynthError: the format cannot say what the plan does.
    """
    if to == ExportFormat.TORCH:
        return [_torch_text(plan)] + [stage_table(plan)] * (other is not None)
    if to == ExportFormat.TORCHTITAN:
        return [to_torchtitan(plan, str(other), names), to_torch_csv(plan.schedule())]
    if to == ExportFormat.MEGATRON:
        return [f"{to_megatron(plan, names)}\n"]
    return [to_jaxpp(plan, __version__)]


def _torch_text(plan: Plan) -> str:
    schedule = plan.schedule()
    return to_torch_csv(schedule) if schedule.weights is None else to_torch_comms_csv(schedule)


def losses(plan: Plan, name: str, to: ExportFormat, names: Mapping[str, str]) -> Iterator[str]:
    """Yield what a format does not carry, as sentences.

    Args:
        name: what the sentences call it.
        names: see `exported_texts`.
    """
    yield from _loss_of_layers(plan, name, to, names)
    yield from _loss_of_group(plan, name, to)
    schedule = plan.schedule()
    if to in (ExportFormat.TORCH, ExportFormat.TORCHTITAN) and in_loss_order(schedule) != schedule:
        yield (
            f"note: micro-batches are numbered otherwise than in {name}, by the order in "
            f"which the last stage runs them: PyTorch finds losses by that order; times and memory "
            f"stay"
        )
    if to == ExportFormat.TORCH and schedule.weights is not None:
        yield (
            "note: the file is for one of the data-parallel pipelines, and lists collectives and "
            "transfers: wrap each stage in fully_shard over the data-parallel ranks, and load it "
            "with format='compute_comms'"
        )
    if to == ExportFormat.JAXPP and schedule.overlapped:
        yield (
            f"note: {name} runs F and BW at once, and JaxPP one task after the other: it takes "
            f"longer than here"
        )
    if to == ExportFormat.MEGATRON:
        if schedule.overlapped:
            yield (
                f"note: {name} runs F and BW at once, which the layout does not say; give "
                f"Megatron-LM {PAIRS_OPTIONS}, or it takes longer than here"
            )
        if not schedule.keeps_saved:
            yield (
                f"note: {name} recomputes whole stages (R), which the layout does not say; "
                f"give Megatron-LM its own options of recomputation, or it takes more memory than "
                f"here"
            )
        yield (
            "note: the layout is the partition alone; Megatron-LM runs its own order of ops, 1F1B "
            "or interleaved 1F1B"
        )


def _loss_of_group(plan: Plan, name: str, to: ExportFormat) -> Iterator[str]:
    """Yield how to make the ranks the groups that they are, unless the format says it."""
    group = plan.workload.group
    experts = 1 if group is None else group.expert * group.parts_of_expert
    if group is None or group.devices * experts == 1 or to == ExportFormat.TORCHTITAN:
        return
    what, over = "ranks", f"groups of {group.devices} devices"
    how = "divide the layers of each stage over these devices"
    if group.devices == 1:
        what, over = "experts", f"divided over {experts} data-parallel ranks"
        how = "divide those of each stage so"
    if to == ExportFormat.MEGATRON:
        how = f"give Megatron-LM {' '.join(megatron_group(group))}"
    yield (
        f"note: the {what} of {name} are {over} ({group.words}), which the format does not say; "
        f"{how}"
    )


def _loss_of_layers(
    plan: Plan, name: str, to: ExportFormat, names: Mapping[str, str]
) -> Iterator[str]:
    """Yield how to recompute the layers that the plan recomputes, unless the format says it."""
    if not plan.recomputed_layers:
        return
    how = "checkpoint them in the model"
    if to == ExportFormat.TORCHTITAN:
        if torchtitan_checkpointing(plan, torchtitan_parts(plan, names)) is not None:
            return
    elif to == ExportFormat.MEGATRON:
        options = megatron_recomputation(plan, megatron_parts(plan, names))
        how = how if options is None else f"give Megatron-LM {options}"
    yield (
        f"note: {name} recomputes layers {recomputed_places(plan.recomputation)}, which the format "
        f"does not say; {how}, or it takes more memory than here"
    )
