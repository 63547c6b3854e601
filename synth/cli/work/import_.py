"""The work of `synth import`."""

from synth.cli.answer.output import talk
from synth.cli.import_ import ImportRequest
from synth.errors import SynthError
from synth.interop.torch_csv_reader import read_torch_csv
from synth.options.profiles import load_profile
from synth.options.values import AUTO
from synth.plan.partition.balance import balance
from synth.plan.problem_arguments import sizes_on
from synth.records.safe_read import read_text
from synth.schedule.files.plan_file import Plan

_APART = (
    "F and B that run at once (OVERLAP_F_B) run one after the other in the plan, because the "
    "profile has no time of both at once (pair_us)"
)


def work(request: ImportRequest) -> None:
    if request.partition == AUTO:
        raise SynthError(
            f"--partition {request.partition} searches, which `synth import` does not; give even, "
            f"or layers per stage such as 3,3,2"
        )
    path = request.schedule
    request.check_files(path, str(request.profile))
    profile = load_profile(request.profile, request.link)
    text = read_text(path, "a CSV of actions such as 0F0")
    schedule, notes = read_torch_csv(text, path.stem)
    if schedule.overlapped and not profile.has_pairs:
        schedule = schedule.one_after_the_other
        notes = (*notes, _APART)
    where = schedule.placement
    sizes = sizes_on(where, request.partition) or balance(profile, where)
    plan = Plan.of(profile, sizes, schedule, arguments={"imported": path.name})
    plan.save(request.output)
    for note in notes:
        talk(f"note: {path}: {note}")
    talk(
        f"{request.output}: {plan.num_ranks} ranks, {len(sizes)} stages of "
        f"{','.join(map(str, sizes))} layers, {plan.num_micro_batches} micro-batches; "
        f"makespan {plan.claim.makespan_us} µs"
    )
