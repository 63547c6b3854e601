"""Estimated times of layers and of their parts, beside printed ones.

    python -m benchmarks.estimates_layers

The layer of 22 B parameters of the selective-recompute paper (Korthikanti et al. 2022, arXiv
2205.05198), on eight A100; the stages of the zero-bubble paper (Qi et al. 2023, arXiv 2401.10241)
on A100, whose times are also in `profiles/`; and a layer of DeepSeek-V3 in the trace of training
that DeepSeek published (deepseek-ai/profile-data, H800, 64 ranks share the experts), by kernels.
Its exchanges include waiting, as their kernels do. Estimates have the shipped factors of the device
and program, or none where there are none. Nothing is fitted to these times.
"""

import csv
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from synth.estimates.calibration import factors_of
from synth.estimates.device import Device, device_of
from synth.estimates.estimated_profile import Estimator
from synth.estimates.factors import Factors, software_of
from synth.estimates.layer_ops import LayerOps
from synth.estimates.layout import Layout, Precision, Recompute
from synth.estimates.model_config import model_of
from synth.estimates.model_shape import ModelShape
from synth.estimates.op_times import parts_of
from synth.estimates.ops import GroupExchange, Operation, Role
from synth.op_kinds import OpKind

_FILE = Path(__file__).parent / "layer_times.csv"

_RECOMPUTE = {
    "no recomputation": (False, Recompute.NONE),
    "sequence parallelism": (True, Recompute.NONE),
    "recomputed layer": (False, Recompute.FULL),
    "selective": (False, Recompute.SELECTIVE),
    "selective and sequence parallelism": (True, Recompute.SELECTIVE),
}

# Of the zero-bubble paper's models: hidden size, heads, micro-batch, layers of a stage.
_STAGES = {
    "1.5B": (2304, 24, 6, 3),
    "6.2B": (4096, 32, 3, 4),
    "14.6B": (5120, 40, 1, 3),
    "28.3B": (6144, 48, 1, 2),
}


class LayerTime(NamedTuple):
    """A printed time and its estimate, in milliseconds."""

    source: str
    case: str
    part: str
    printed_ms: float
    estimated_ms: float

    @property
    def error(self) -> float:
        """Estimate over printed time, less 1."""
        return self.estimated_ms / self.printed_ms - 1


def main() -> int:
    """Print the times by source, and the median and largest error of each."""
    times = layer_times()
    print(
        "| source | case | part | printed, ms | estimated, ms | error |\n|---|---|---|---|---|---|"
    )
    for each in times:
        shown = f"{each.printed_ms:.2f} | {each.estimated_ms:.2f} | {each.error:+.1%}"
        print(f"| {each.source} | {each.case} | {each.part} | {shown} |")
    for source in dict.fromkeys(each.source for each in times):
        errors = [abs(each.error) for each in times if each.source == source]
        print(f"{source}: median {statistics.median(errors):.1%}, largest {max(errors):.1%}")
    return 0


def layer_times() -> list[LayerTime]:
    """All printed times with their estimates."""
    estimated = {**dict(_recompute_paper()), **dict(_zero_bubble()), **dict(_deepseek())}
    with _FILE.open(encoding="utf-8") as file:
        return [
            LayerTime(
                row["source"],
                row["case"],
                row["part"],
                float(row["printed_ms"]),
                estimated[row["case"], row["part"]] / 1e3,
            )
            for row in csv.DictReader(file)
        ]


_Time = tuple[tuple[str, str], float]


def _gpt(hidden: int, heads: int) -> ModelShape:
    return ModelShape(
        name="gpt",
        layers=48,
        hidden=hidden,
        ffn=4 * hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        vocab=51200,
        gated=False,
        biases=True,
        tied=True,
        dropout=True,
    )


def _layer_us(shape: ModelShape, layout: Layout) -> dict[OpKind, float]:
    device = device_of("a100")
    factors = factors_of(None, device, "megatron-2021")
    estimator = Estimator(shape, device, layout, software_of("megatron-2021"), factors)
    times = estimator.profile().layer_profiles["block"].time_us
    return {kind: time.median_us for kind, time in times.items()}


def _recompute_paper() -> Iterator[_Time]:
    for case, (sequence, recompute) in _RECOMPUTE.items():
        layout = Layout(
            seq_len=2048, micro_batch_size=4, tensor=8, sequence=sequence, recompute=recompute
        )
        times = _layer_us(_gpt(6144, 64), layout)
        yield (case, "forward"), times[OpKind.F]
        yield (case, "backward"), times[OpKind.BW]


def _zero_bubble() -> Iterator[_Time]:
    for case, (hidden, heads, batch, layers) in _STAGES.items():
        times = _layer_us(_gpt(hidden, heads), Layout(seq_len=1024, micro_batch_size=batch))
        for kind in (OpKind.F, OpKind.B, OpKind.W):
            yield (case, kind.value), layers * times[kind]


def _deepseek() -> Iterator[_Time]:
    device, software = device_of("h800"), software_of("megatron-graphs")
    layout = Layout(seq_len=4096, expert=64, data=64, precision=Precision.FP8)
    ops = LayerOps(model_of("deepseek-v3"), layout, software, device.ranks_per_node)
    attention, experts = ops.attention(), ops.mlp(dense=False)
    factors = factors_of(None, device, "megatron")
    for role in Role:
        sent = [one for one in experts.by_role[role] if isinstance(one, GroupExchange)]
        other = [one for one in experts.by_role[role] if not isinstance(one, GroupExchange)]
        yield ("attention", role.value), _us(attention.by_role[role], device, factors)
        yield ("experts", role.value), _us(other, device, factors)
        yield ("dispatch and combine", role.value), _us(sent, device, factors)


def _us(operations: Sequence[Operation], device: Device, factors: Factors) -> float:
    return factors.us(parts_of(operations, device, software_of("megatron-graphs")))


if __name__ == "__main__":
    raise SystemExit(main())
