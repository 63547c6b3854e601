"""The work of `synth export`."""

from collections.abc import Mapping
from pathlib import Path

from synth.cli.answer.output import answer, talk
from synth.cli.export import ExportFormat, ExportRequest
from synth.cli.read.plans import load_checked
from synth.errors import SynthError
from synth.interop.jaxpp import to_jaxpp
from synth.interop.loss_order import in_loss_order
from synth.interop.megatron import megatron_parts, to_megatron
from synth.interop.recomputation import megatron_recomputation, torchtitan_checkpointing
from synth.interop.stage_table import beside, stage_table
from synth.interop.torch_comms_csv import to_torch_comms_csv
from synth.interop.torch_csv import to_torch_csv
from synth.interop.torchtitan import to_torchtitan, torchtitan_parts
from synth.records.overwrite_guard import (
    JAXPP,
    MEGATRON,
    STAGE_TABLE,
    TORCH_CSV,
    TORCHTITAN,
    FileKind,
    check_replaceable,
)
from synth.records.record import check_outputs, is_stream, write_together
from synth.report.text.tables import places
from synth.schedule.files.plan_file import Plan
from synth.units import shown
from synth.version import __version__

_KINDS: dict[ExportFormat, FileKind] = {
    ExportFormat.TORCH: TORCH_CSV,
    ExportFormat.TORCHTITAN: TORCHTITAN,
    ExportFormat.MEGATRON: MEGATRON,
    ExportFormat.JAXPP: JAXPP,
}

# As the name of the output: stdout.
_STDOUT = Path("-")


def work(plan_path: Path, request: ExportRequest) -> None:
    """Write a schedule for another runtime; `synth import` reads PyTorch's CSV again."""
    to, output = request.to, None if request.output == _STDOUT else request.output
    names = _layer_names(to, request.layer or [])
    files = _files(to, output)
    check_outputs(*files, inputs=[plan_path])
    for path, kind in files.items():
        check_replaceable(path, kind, "-o", request.force)
    plan, _, _ = load_checked(plan_path)
    texts = _texts(plan, to, names, *list(files)[1:])
    if files:
        write_together(dict(zip(files, texts, strict=True)))
    else:
        answer(texts[0].removesuffix("\n"))
    _tell_of_losses(plan, plan_path, to, names)
    if output is not None:
        copies = len(plan.placement)
        talk(
            f"{', '.join(map(str, files))}: {plan.num_ranks // copies} ranks, "
            f"{len(plan.partition)} stages, {plan.num_micro_batches // copies} micro-batches, "
            f"for {to}"
        )


def _layer_names(to: ExportFormat, given: list[str]) -> dict[str, str]:
    """Read `--layer`: the format's names of layers, by the names of the layers.

    Raises:
        SynthError: one is no NAME=TARGET, or the format has no names of layers.
    """
    if given and to not in (ExportFormat.TORCHTITAN, ExportFormat.MEGATRON):
        raise SynthError(
            f"--layer is for --to torchtitan and --to megatron; the format {to} has no names of "
            f"layers: leave it out"
        )
    parts = [text.partition("=") for text in given]
    wrong = next((part for part in parts if not part[0] or not part[1]), None)
    if wrong is not None:
        raise SynthError(
            f"--layer {shown(''.join(wrong))} is not understood; write NAME=TARGET, such as mtp=m"
        )
    return {name: target for name, _, target in parts}


def _files(to: ExportFormat, output: Path | None) -> dict[Path, FileKind]:
    """Return the files to write, the named one first.

    Raises:
        SynthError: torchtitan's options are to be written to stdout, or under the CSV's name.
    """
    if output is None or is_stream(output):
        if to == ExportFormat.TORCHTITAN:
            raise SynthError(
                "torchtitan reads two files, the options and the CSV; give -o plan.toml, and "
                "plan.csv is written beside it"
            )
        return {} if output is None else {output: _KINDS[to]}
    files = {output: _KINDS[to]}
    if to == ExportFormat.TORCH:
        files[beside(output)] = STAGE_TABLE
    if to == ExportFormat.TORCHTITAN:
        files[_csv_beside(output)] = TORCH_CSV
    return files


def _csv_beside(options: Path) -> Path:
    """Return the path of the CSV: `plan.csv`, or `plan.schedule.csv` if that is another file.

    A table of times may have the name, from which the plan's profile was made.

    Raises:
        SynthError: the options are to be written under the CSV's name.
    """
    csv = options.with_suffix(".csv")
    if csv == options:
        raise SynthError(
            f"torchtitan reads two files, and {options} would be both; the options and the CSV "
            f"need two names; give -o {options.with_suffix('.toml')}"
        )
    is_free = not csv.is_file() or not csv.stat().st_size or TORCH_CSV.is_kind_of(csv)
    return csv if is_free else csv.with_suffix(".schedule.csv")


def _texts(
    plan: Plan, to: ExportFormat, names: Mapping[str, str], other: Path | None = None
) -> list[str]:
    """Return the contents of the named file and, if there is one, of the `other` beside it."""
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


def _tell_of_losses(
    plan: Plan, plan_path: Path, to: ExportFormat, names: Mapping[str, str]
) -> None:
    """Say what the format does not carry."""
    _tell_of_layers(plan, plan_path, to, names)
    schedule = plan.schedule()
    if to in (ExportFormat.TORCH, ExportFormat.TORCHTITAN) and in_loss_order(schedule) != schedule:
        talk(
            f"note: micro-batches are numbered otherwise than in {plan_path}, by the order in "
            f"which the last stage runs them: PyTorch finds losses by that order; times and memory "
            f"stay"
        )
    if to == ExportFormat.TORCH and schedule.weights is not None:
        talk(
            "note: the file is for one of the data-parallel pipelines, and lists collectives and "
            "transfers: wrap each stage in fully_shard over the data-parallel ranks, and load it "
            "with format='compute_comms'"
        )
    if to == ExportFormat.MEGATRON:
        if not schedule.keeps_saved:
            talk(
                f"note: {plan_path} recomputes whole stages (R), which the layout does not say; "
                f"give Megatron-LM its own options of recomputation, or it takes more memory than "
                f"here"
            )
        talk(
            "note: the layout is the partition alone; Megatron-LM runs its own order of ops, 1F1B "
            "or interleaved 1F1B"
        )


def _tell_of_layers(
    plan: Plan, plan_path: Path, to: ExportFormat, names: Mapping[str, str]
) -> None:
    """Say how to recompute the layers that the plan recomputes, unless the format says it."""
    if not plan.recomputed_layers:
        return
    how = "checkpoint them in the model"
    if to == ExportFormat.TORCHTITAN:
        if torchtitan_checkpointing(plan, torchtitan_parts(plan, names)) is not None:
            return
    elif to == ExportFormat.MEGATRON:
        options = megatron_recomputation(plan, megatron_parts(plan, names))
        how = how if options is None else f"give Megatron-LM {options}"
    talk(
        f"note: {plan_path} recomputes layers {places(plan.recomputed_layers)}, which the format "
        f"does not say; {how}, or it takes more memory than here"
    )
