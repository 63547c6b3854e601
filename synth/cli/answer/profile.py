"""The answer of commands that make a profile: its layers, links and conditions."""

from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profile.layer_profile import LayerProfile
from synth.profile.links import Link
from synth.profile.model_flops import ModelFlops, format_flops
from synth.profile.whole_step import HeldPeak, WholeStep
from synth.units import counted, format_bytes, format_us


def profile_summary(profile: Profile) -> str:
    """Return a table with a line per distinct layer: times in ms, bytes per micro-batch."""
    kinds = (OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.STEP)
    head = "layer             count" + "".join(f"{kind + ' ms':>10s}" for kind in kinds)
    lines = [head + "        saved    retained  parameters"]
    for name, layer in profile.layer_profiles.items():
        count = sum(entry.profile == name for entry in profile.layers)
        times = "".join(f"{layer.time_us[kind].median_us / 1000:10.3f}" for kind in kinds)
        lines.append(
            f"{name:16s}{count:7d}{times}{format_bytes(layer.saved_bytes):>13s}"
            f"{format_bytes(layer.saved_w_bytes):>12s}{format_bytes(layer.parameter_bytes):>12s}"
        )
        if layer.pair_us is not None:
            apart_us = layer.time_us[OpKind.F].median_us + layer.time_us[OpKind.BW].median_us
            pair_us = layer.pair_us.median_us
            lines.append(
                f"  F and BW at once: {pair_us / 1000:.3f} ms, apart {apart_us / 1000:.3f} ms"
            )
        lines.extend(_under_policies(layer))
    if profile.workload.group is not None:
        lines.append(f"each rank is a group: {profile.workload.group.words}")
    lines.append(f"link: {_described(profile.links.default)}")
    if profile.links.host is not None:
        lines.append(f"link to the host's memory: {_described(profile.links.host)}")
    lines.extend(_left_to_b(profile))
    lines += [
        f"{tied.layers[0]} shares {format_bytes(tied.parameter_bytes)} of parameters with "
        f"{tied.layers[1] if len(tied.layers) == 2 else f'{len(tied.layers) - 1} other layers'}"
        for tied in profile.tied_parameters or ()
    ]
    if profile.flops is not None:
        lines.append(_said_of(profile.flops))
    if profile.provenance.estimate is not None:
        lines.append(profile.provenance.estimate.words)
    if profile.provenance.notes is not None:
        lines.append(profile.provenance.notes)
    return "\n".join(lines)


def _under_policies(layer: LayerProfile) -> list[str]:
    """Return a line for each policy under which B computes a part of the layer again."""
    kept_us = layer.work_us()
    under = {policy: layer.under(policy) for policy in layer.variants}
    return [
        f"  under {policy}: F + B + W {one.work_us() / kept_us - 1:+.1%}, saved "
        f"{format_bytes(one.saved_bytes)}"
        for policy, one in under.items()
    ]


def _left_to_b(profile: Profile) -> list[str]:
    """Return a line that names the layers of which B computes much of the weight gradients."""
    parts = [
        f"{name} {layer.deferred_share:.1%}"
        for name, layer in profile.layer_profiles.items()
        if layer.defers_little
    ]
    return [f"share of the weight gradients that waits for W: {', '.join(parts)}"] if parts else []


def _said_of(flops: ModelFlops) -> str:
    """Return the FLOPs of a micro-batch, and the peak or the option that sets it."""
    count = f"{format_flops(flops.per_micro_batch)} per micro-batch, forward and backward"
    if flops.peak_per_s is None:
        return f"{count}; --peak-flops RATE of the device gives the MFU"
    return f"{count}; peak {format_flops(flops.peak_per_s)}/s"


def _described(link: Link) -> str:
    rate = link.bandwidth_bytes_per_s
    speed = f"{format_bytes(rate)}/s" if rate else "unlimited"
    return f"latency {format_us(link.latency_us)}, bandwidth {speed}"


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
