"""The answer of `synth profile` about a whole step beside the sum of its parts."""

from synth.profile.whole_step import HeldPeak, WholeStep
from synth.units import counted, format_bytes


def whole_step_lines(step: WholeStep) -> list[str]:
    """Return a line for the time, and one for the peaks of memory if there are any."""
    in_turns = "" if step.turns is None else f"; {step.turns.difference:+.1%} in turns"
    lines = [
        f"whole step of {counted(len(step.layers), 'layer')}: F + B + W take "
        f"{step.whole_us / 1000:.3f} ms, the sum of its parts is {step.parts_us / 1000:.3f} ms "
        f"({step.time_difference:+.1%}{in_turns})"
    ]
    if step.peaks:
        lines.append(f"peak of its memory: {'; '.join(map(_of_peak, step.peaks))}")
    return lines


def _of_peak(peak: HeldPeak) -> str:
    return (
        f"{peak.micro_batches} held {format_bytes(peak.measured_bytes)}, planned "
        f"{format_bytes(peak.planned_bytes)} ({peak.difference:+.1%})"
    )
