"""Options of training programs that say what an estimate takes for granted.

A program whose default is what was estimated gets no option.
"""

from collections.abc import Iterator

from synth.errors import SynthError
from synth.estimates.layout import AttentionKernel, Precision, Sharding
from synth.layouts.question import LayoutQuestion, RunLayout
from synth.profile.optimizer import OptimizerKind, OptimizerSpec

# The element of a gradient in float32.
_FLOAT32 = 4


def priced_in_megatron(question: LayoutQuestion, layout: RunLayout) -> Iterator[str]:
    """Yield Megatron-LM's options.

    Raises:
        SynthError: it has no option for something.
    """
    groups, software = layout.groups, question.software
    yield from _optimizer_of_megatron(question.optimizer)
    if groups.sharding is Sharding.ZERO1:
        yield "--use-distributed-optimizer"
    if groups.sharding is Sharding.FSDP:
        yield "--use-torch-fsdp2 --no-gradient-accumulation-fusion --ckpt-format torch_dist"
        yield "--untie-embeddings-and-output-weights"
    if software.overlaps_gradients and groups.data > 1:
        yield "--overlap-grad-reduce"
        if groups.sharding is Sharding.ZERO1:
            yield "--overlap-param-gather"
    if software.hidden_tensor and groups.tensor > 1 and groups.sequence:
        yield "--tp-comm-overlap"
    if software.waits_for_sends and layout.rounds > 1:
        yield "--no-overlap-p2p-communication"
    if software.attention is AttentionKernel.UNFUSED:
        yield "--attention-backend unfused"
    if not question.shape.dropout:
        yield "--attention-dropout 0 --hidden-dropout 0"
    if question.shape.experts is not None:
        yield "--moe-grouped-gemm --moe-permute-fusion"
        once = "flex --moe-flex-dispatcher-backend deepep"
        yield f"--moe-token-dispatcher-type {once if software.sends_once else 'alltoall'}"
        if not software.host_us:
            yield "--cuda-graph-impl transformer_engine"


def _optimizer_of_megatron(optimizer: OptimizerSpec) -> Iterator[str]:
    """Yield the options of an optimizer, of which Megatron-LM's default is Adam in float32.

    It keeps float32 copies of parameters, and gradients in the dtype in which it reduces them.
    """
    if not optimizer.master_weights or optimizer.post_validation:
        raise SynthError(
            f"Megatron-LM has float32 copies of parameters and no post-validation; the optimizer "
            f"is {optimizer}: give adamw+master+float32-gradients, or adamw+master"
        )
    if optimizer.kind is OptimizerKind.SGD:
        yield f"--optimizer sgd --sgd-momentum {optimizer.momentum:g}"
    if not optimizer.float32_gradients:
        yield "--grad-reduce-in-bf16"


def priced_in_torchtitan(question: LayoutQuestion, layout: RunLayout) -> tuple[list[str], ...]:
    """Return lines for the section `[training]`, and further sections.

    torchtitan keeps parameters and their gradients in float32, and reduces these in the dtype that
    an option says.

    Raises:
        SynthError: it has no option for something.
    """
    optimizer, precision = question.optimizer, layout.groups.precision
    if optimizer.kind is not OptimizerKind.ADAMW or optimizer.post_validation:
        raise SynthError(f"torchtitan has AdamW; the optimizer is {optimizer}: give adamw+master")
    if precision is Precision.FP4:
        raise SynthError("torchtitan has no option for products in float4; give fp8 or bf16")
    is_wide = optimizer.gradient_bytes(1, 2) == _FLOAT32
    dtype = "float32" if is_wide else "bfloat16"
    training = ['mixed_precision_param = "bfloat16"', f'mixed_precision_reduce = "{dtype}"']
    sections = [["[compile]", "enable = true", 'components = ["model", "loss"]']]
    if precision is Precision.FP8:
        name = "quantize.linear.float8"
        sections.append(["[model]", f'converters = ["{name}"]'])
        sections.append([f"[{name}]", 'filter_fqns = ["output"]'])
    return training, *sections
