"""The five profiles that the zero-bubble paper publishes, from stage times to layers.

Source: Qi, Wan, Huang, Lin, "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv 2401.10241),
Tables 5 and 6: times of one stage for one micro-batch on A100 SXM 80G, measured by the authors.

Time. The paper evens out its stages by taking one transformer layer away from the first and from
the last, where the embedding and the head take its place:

    stage 0              stage 1              …   stage p − 1
    [emb][block][block]  [block][block][block]    [block][block][head]

So `layers` + 2 units lie equally on the ranks, and each unit here is given its share of the stage's
time. Cutting equally gives back the published times; any other cut is an interpolation. BW is
B + W. The paper prints no time for the optimizer step; it is 0 here.

Memory. The paper prints formulas for a transformer layer (its Table 1, after Korthikanti et al.
2022), with sequence length s, micro-batch size b, hidden size h and a heads: F keeps
s·b·(34h + 5·a·s) bytes, its input among them, and s·b·32h of those remain after B. A boundary
activation in bf16 is s·b·h·2 bytes. A layer has 12h² + 13h parameters. Counted here, not printed
there: 18 static bytes per parameter (2 for bf16, 4 for the gradient accumulated in fp32, 12 for the
fp32 copy and the two moments of Adam); no op needs workspace; and the embedding and the head, whose
vocabulary is not printed, weigh what the layer weighs that they replace.

FLOPs. F of a transformer layer takes 24·s·b·h² + 4·b·s²·h (Narayanan et al. 2021, appendix). The
head's are not known without its vocabulary and count 0, so an MFU is a lower bound of the model's.
The peak is that of the A100's datasheet for dense bf16.

`python -m synth.profiles.zero_bubble` writes the files anew.
"""

from dataclasses import dataclass
from pathlib import Path

from synth.op_kinds import MEASURED, OpKind
from synth.profile import Profile, Provenance
from synth.profile.layer_profile import Layer, LayerProfile, Timing
from synth.profile.links import Link, Links
from synth.profile.workload import Workload

SOURCE = "Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024 (arXiv 2401.10241), Tables 5 and 6"
NOTES = (
    "Stage times as published, shared equally by the layers of a stage. Bytes follow the formulas "
    "of the paper's Table 1; 18 static bytes per parameter are counted, not published. FLOPs are "
    "those of the transformer layers alone, as the vocabulary of the head is not published. "
    "See synth.profiles.zero_bubble."
)

# NVIDIA A100 datasheet: bf16 on tensor cores, without sparsity.
A100_FLOPS_PER_S = 312e12


@dataclass(frozen=True)
class PublishedModel:
    """One row of the paper's tables; times are of one stage and one micro-batch."""

    size: str
    num_ranks: int
    num_micro_batches: int
    num_blocks: int
    hidden_size: int
    num_heads: int
    sequence_length: int
    micro_batch_size: int
    forward_us: int
    backward_input_us: int
    backward_weight_us: int
    transfer_us: int

    @property
    def name(self) -> str:
        """The name of the shipped file: `zb-1.5b-p8-m24`."""
        return f"zb-{self.size.lower()}-p{self.num_ranks}-m{self.num_micro_batches}"

    @property
    def layers_per_stage(self) -> int:
        """Embedding, blocks and head, shared equally by the ranks."""
        return (self.num_blocks + 2) // self.num_ranks

    @property
    def block_flops(self) -> int:
        """FLOPs of the forward of a transformer layer for one micro-batch."""
        tokens = self.sequence_length * self.micro_batch_size
        hidden = self.hidden_size
        return 24 * tokens * hidden**2 + 4 * tokens * self.sequence_length * hidden

    @property
    def stage_us(self) -> dict[OpKind, int]:
        """The printed values of the paper, by op."""
        forward, weight = self.forward_us, self.backward_weight_us
        backward = self.backward_input_us
        times = (forward, backward, weight, backward + weight, 0)
        return dict(zip(MEASURED, times, strict=True))


#   size   ranks  m blocks hidden heads seq  b   F µs   B µs   W µs  transfer µs
ROWS = (
    PublishedModel("1.5B", 8, 24, 22, 2304, 24, 1024, 6, 18522, 18086, 9337, 601),
    PublishedModel("1.5B", 8, 64, 22, 2304, 24, 1024, 6, 18546, 18097, 9321, 762),
    PublishedModel("6.2B", 8, 24, 30, 4096, 32, 1024, 3, 29718, 29444, 19927, 527),
    PublishedModel("14.6B", 16, 48, 46, 5120, 40, 1024, 1, 11347, 11248, 8132, 377),
    PublishedModel("28.3B", 32, 96, 62, 6144, 48, 1024, 1, 10419, 10207, 7715, 408),
)


def profile(row: PublishedModel) -> Profile:
    """Derive the profile file of one row; see the module's docstring."""
    blocks = [Layer(name=f"block.{i}", profile="block") for i in range(row.num_blocks)]
    return Profile(
        name=row.name,
        provenance=Provenance(
            source=SOURCE, device="NVIDIA A100 SXM 80G", date="2024-01", notes=NOTES
        ),
        workload=_workload(row),
        capacity_bytes=80 * 10**9,
        peak_flops_per_s=A100_FLOPS_PER_S,
        links=Links(default=Link(latency_us=row.transfer_us)),
        layer_profiles={
            "embedding": _layer(row, is_first=True),
            "block": _layer(row),
            "head": _layer(row, is_last=True),
        },
        layers=(
            Layer(name="embedding", profile="embedding"),
            *blocks,
            Layer(name="head", profile="head"),
        ),
    )


def _workload(row: PublishedModel) -> Workload:
    return Workload(
        model=f"GPT {row.size}",
        arguments={
            "num_layers": row.num_blocks,
            "hidden_size": row.hidden_size,
            "num_heads": row.num_heads,
        },
        micro_batch_size=row.micro_batch_size,
        sequence_length=row.sequence_length,
        dtype="bfloat16",
        runnable=False,
    )


def _layer(row: PublishedModel, *, is_first: bool = False, is_last: bool = False) -> LayerProfile:
    tokens = row.sequence_length * row.micro_batch_size
    hidden = row.hidden_size
    boundary = tokens * hidden * 2
    saved = tokens * (34 * hidden + 5 * row.num_heads * row.sequence_length)
    parameters = 12 * hidden**2 + 13 * hidden
    output, input_gradient = (0 if is_last else boundary), (0 if is_first else boundary)
    return LayerProfile(
        time_us={
            kind: Timing.exactly(round(stage_us / row.layers_per_stage, 3))
            for kind, stage_us in row.stage_us.items()
        },
        parameter_bytes=2 * parameters,
        gradient_bytes=4 * parameters,
        optimizer_bytes=12 * parameters,
        output_bytes=output,
        saved_bytes=saved,
        saved_w_bytes=tokens * 32 * hidden,
        rise_bytes={
            OpKind.F: saved + output,
            OpKind.B: input_gradient,
            OpKind.W: 0,
            OpKind.BW: input_gradient,
            OpKind.STEP: 0,
        },
        input_until=OpKind.F,
        forward_flops=0 if is_first or is_last else row.block_flops,
    )


def write_all(folder: Path) -> None:
    """Write the file of every row."""
    for row in ROWS:
        profile(row).save(folder / f"{row.name}.json")


if __name__ == "__main__":
    write_all(Path(__file__).parent)
