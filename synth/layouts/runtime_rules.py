"""What a layout needs beside the sizes that the estimate admits: the rules of training programs."""

from synth.errors import SynthError
from synth.estimates.layout import Layout, Precision, Recompute, Sharding
from synth.estimates.model_shape import ModelShape
from synth.plan.runtimes import Runtime
from synth.profile.optimizer import OptimizerSpec

_FLOAT8_EXPERTS = (
    "torchtitan has products of experts in float8 neither with a pipeline nor with context "
    "parallelism"
)


def left_out(runtime: Runtime, shape: ModelShape, precision: Precision) -> str | None:
    """Return what a program lacks so that layouts with a pipeline are left out; None: nothing."""
    is_torchtitan = runtime == Runtime.TORCHTITAN
    if is_torchtitan and shape.experts is not None and precision is Precision.FP8:
        return f"{_FLOAT8_EXPERTS}: only layouts with pp=1 and cp=1 count; --dtype bf16 has others"
    return None


def check_on_runtime(
    runtime: Runtime, shape: ModelShape, groups: Layout, ranks: int, optimizer: OptimizerSpec
) -> None:
    """Refuse a layout that a training program does not run.

    Megatron-LM's `--use-torch-fsdp2` goes neither with expert parallelism nor with a tied
    embedding, and reduces gradients in the dtype of parameters. torchtitan applies FSDP2 to the
    ranks of context parallelism, and its experts are shared by whole groups of tensor and context
    parallelism, and by the ranks that share parameters; in float8 it has them in one stage alone
    (0.2.2). With context parallelism every rank has two pieces of a sequence, so that causal
    attention is shared equally.

    Args:
        groups: the sizes.
        optimizer: with the dtype of its gradients.
    """
    pieces = 2 * groups.context * groups.tensor
    if groups.context > 1 and groups.seq_len % pieces:
        raise SynthError(
            f"{groups.seq_len} tokens of a sequence are no multiple of 2 × cp × tp = {pieces}, "
            f"which context parallelism needs; give a multiple, or cp=1"
        )
    is_fsdp = groups.sharding is Sharding.FSDP
    if runtime == Runtime.MEGATRON and is_fsdp and (groups.expert_ranks > 1 or shape.tied):
        kind = "expert parallelism" if groups.expert_ranks > 1 else "a tied embedding"
        raise SynthError(f"Megatron-LM has no FSDP with {kind}; give sharding=zero1")
    if runtime == Runtime.MEGATRON and is_fsdp and optimizer.float32_gradients:
        raise SynthError(
            f"Megatron-LM's FSDP2 keeps and reduces gradients in bfloat16; the optimizer is "
            f"{optimizer}: give adamw+master, or sharding=zero1"
        )
    if runtime == Runtime.TORCHTITAN:
        if groups.context > 1 and groups.sharding is Sharding.NONE:
            raise SynthError(
                f"torchtitan shards parameters between the ranks of context parallelism, and "
                f"sharding=none is given with cp={groups.context}; give sharding=zero1"
            )
        if shape.experts is not None:
            _check_experts_of_torchtitan(groups, ranks)


def _check_experts_of_torchtitan(groups: Layout, ranks: int) -> None:
    if groups.expert_tensor > 1:
        raise SynthError(
            f"torchtitan sends tokens to all ranks that divide an expert, which is not estimated, "
            f"and etp={groups.expert_tensor} is given; leave etp out"
        )
    within = groups.tensor * groups.context
    if groups.precision is Precision.FP8 and (ranks > 1 or groups.context > 1):
        raise SynthError(
            f"{_FLOAT8_EXPERTS}, and pp={ranks} and cp={groups.context} are given; give both as 1, "
            f"or --dtype bf16"
        )
    if groups.expert == 1 and groups.tensor > 1:
        raise SynthError(
            f"torchtitan shares experts by expert parallelism where there is tensor parallelism, "
            f"and tp={groups.tensor} is given with ep=1; give ep as a multiple of {within}, or tp=1"
        )
    if groups.expert > 1 and groups.expert % within:
        raise SynthError(
            f"torchtitan needs ep as a multiple of cp × tp = {within}, and ep={groups.expert} is "
            f"given; give a multiple"
        )
    if groups.expert > within and groups.sharding is Sharding.NONE:
        raise SynthError(
            f"torchtitan's ep={groups.expert} takes ranks that share parameters, and without "
            f"sharding there are cp × tp = {within}; give sharding=zero1"
        )


def why_no_pairs(
    runtime: Runtime, shape: ModelShape, groups: Layout, ranks: int, rounds: int
) -> str | None:
    """Return why a program does not run F and BW of two micro-batches at once; None: it does.

    Megatron-LM does with `--overlap-moe-expert-parallel-comm`, which asserts expert parallelism,
    several stages per rank, no layers that are recomputed as a whole, and no more than one layer of
    multi-token prediction. Torch and torchtitan run the two one after the other by default.
    """
    if runtime == Runtime.SYNTH:
        return None
    if runtime != Runtime.MEGATRON:
        return "and runs one after the other with any sizes"
    needs = {
        "ep > 1": groups.expert > 1,
        "pp > 1": ranks > 1,
        "vp > 1": rounds > 1,
        "another recompute than full": groups.recompute is not Recompute.FULL,
        "one layer of multi-token prediction at most": shape.mtp_layers <= 1,
    }
    missing = [need for need, is_met in needs.items() if not is_met]
    return f"which needs {' and '.join(missing)}" if missing else None


def recomputes_layers(runtime: Runtime, groups: Layout, *, pairs: bool = False) -> bool:
    """True if whole layers can be recomputed beside what a layout recomputes within layers.

    Megatron-LM and torchtitan have one mode for all layers, and Megatron-LM recomputes no whole
    ones where F and BW run at once (`pairs`).
    """
    if pairs and runtime == Runtime.MEGATRON:
        return False
    has_one_mode = runtime in (Runtime.MEGATRON, Runtime.TORCHTITAN)
    return not (has_one_mode and groups.recompute in (Recompute.SELECTIVE, Recompute.OPS))
