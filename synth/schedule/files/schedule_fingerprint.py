"""The fingerprint of a schedule, by which ranks and traces know that they have the same one."""

import hashlib

from synth.schedule.files.program_text import program_text
from synth.schedule.model import Schedule


def schedule_fingerprint(schedule: Schedule) -> str:
    """Hash everything in a schedule except its name, as 16 hexadecimal digits."""
    rules: tuple[object, ...] = (
        schedule.placement,
        schedule.num_micro_batches,
        schedule.buffering,
        schedule.eager,
    )
    if schedule.placement.backward_ranks is not None:
        rules = (*rules, schedule.placement.backward_ranks)
    if schedule.weights is not None:
        rules = (*rules, schedule.weights)
    programs = (program_text(ops, schedule.overlapped) for ops in schedule.programs)
    lines = [repr(rules), *programs]
    if schedule.versions is not None:
        lines.append(repr(schedule.versions))
    if schedule.vocabulary:
        lines.append(f"vocabulary {schedule.vocabulary}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
