"""`synth import`: make a plan file of another runtime's schedule."""

from pathlib import Path
from typing import Annotated

import typer

from synth.cli.answer.output import talk
from synth.options.arguments.groups import LinkTexts, ProfileName
from synth.options.partition import read_partition
from synth.options.profiles import load_profile
from synth.records.command_option import CommandOption
from synth.records.record import Record, check_outputs


class ImportRequest(Record):
    """The costs of an imported schedule, and the file that it is written to."""

    profile_name: ProfileName
    output: Annotated[Path, CommandOption("Plan file to write.", names=("--output", "-o"))]
    partition: Annotated[
        str,
        CommandOption("Layers per stage, such as 3,3,2; even: balance the work of the ranks."),
    ] = "even"
    link: LinkTexts = None


def command(
    schedule_path: Annotated[
        Path,
        typer.Argument(metavar="CSV", help="Schedule of torch.distributed.pipelining."),
    ],
    request: ImportRequest,
) -> None:
    """Read a schedule in PyTorch's CSV format, verify it, and write it with what it costs.

    The order and the placement are the file's; times and bytes are the profile's.
    """
    from synth.interop.torch_csv_reader import read_torch_csv
    from synth.plan.partition.balance import balance
    from synth.records.safe_read import read_text
    from synth.schedule.files.plan_file import Plan, check_replaceable

    check_outputs(request.output, inputs=[schedule_path, request.profile_name])
    check_replaceable(request.output)
    profile = load_profile(request.profile_name, request.link)
    text = read_text(schedule_path, "a CSV of actions such as 0F0")
    schedule, notes = read_torch_csv(text, schedule_path.stem)
    where = schedule.placement
    sizes = read_partition(request.partition, where) or balance(profile, where)
    plan = Plan.of(profile, sizes, schedule, arguments={"imported": schedule_path.name})
    plan.save(request.output)
    for note in notes:
        talk(f"note: {schedule_path}: {note}")
    talk(
        f"{request.output}: {plan.num_ranks} ranks, {len(sizes)} stages of "
        f"{','.join(map(str, sizes))} layers, {plan.num_micro_batches} micro-batches; "
        f"makespan {plan.claim.makespan_us} µs"
    )
