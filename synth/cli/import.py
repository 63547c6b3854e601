"""`synth import`: make a plan file of another runtime's schedule."""

from pathlib import Path
from typing import Annotated

import typer

from synth.cli.answer.output import talk
from synth.cli.read.options import LinkOption, PartitionOption, ProfileArgument
from synth.options.partition import read_partition
from synth.options.profiles import load_profile


def command(
    schedule_path: Annotated[
        Path,
        typer.Argument(metavar="CSV", help="Schedule of torch.distributed.pipelining."),
    ],
    profile_name: ProfileArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="Plan file to write.")],
    partition: PartitionOption = "even",
    link: LinkOption = None,
) -> None:
    """Read a schedule in PyTorch's CSV format, verify it, and write it with what it costs.

    The order and the placement are the file's; times and bytes are the profile's.
    """
    from synth.interop.torch_csv import from_torch_csv
    from synth.plan.partition.balance import balance
    from synth.record import check_outputs
    from synth.safe_read import read_text
    from synth.schedule.files.plan_file import Plan, check_replaceable

    check_outputs(output, inputs=[schedule_path, profile_name])
    check_replaceable(output)
    profile = load_profile(profile_name, link)
    text = read_text(schedule_path, "a CSV of actions such as 0F0")
    schedule = from_torch_csv(text, schedule_path.stem)
    where = schedule.placement
    sizes = read_partition(partition, where) or balance(profile, where)
    plan = Plan.of(profile, sizes, schedule, arguments={"imported": schedule_path.name})
    plan.save(output)
    talk(
        f"{output}: {plan.num_ranks} ranks, {len(sizes)} stages of {','.join(map(str, sizes))} "
        f"layers, {plan.num_micro_batches} micro-batches; makespan {plan.claim.makespan_us} µs"
    )
