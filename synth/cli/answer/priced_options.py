"""Options of training programs that say what an estimate takes for granted.

A program whose default is what was estimated gets no option.
"""

from collections.abc import Iterator

from synth.errors import SynthError
from synth.estimates.device import Device
from synth.estimates.layout import AttentionKernel, Layout, Precision, Sharding
from synth.layouts.question import LayoutQuestion, RunLayout
from synth.profile.optimizer import OptimizerKind, OptimizerSpec


def priced_in_megatron(question: LayoutQuestion, layout: RunLayout) -> Iterator[str]:
    """Yield Megatron-LM's options.

    Raises:
        SynthError: it has no option for something.
    """
    groups, software = layout.groups, question.software
    yield from _optimizer_of_megatron(question.optimizer)
    if groups.sharding is Sharding.FSDP:
        yield "--use-torch-fsdp2 --no-gradient-accumulation-fusion --ckpt-format torch_dist"
        yield "--untie-embeddings-and-output-weights"
    else:
        yield from _shared_states_of_megatron(question, layout)
    if software.hidden_tensor and groups.tensor > 1 and groups.sequence:
        yield "--tp-comm-overlap"
    if software.waits_for_sends and layout.rounds > 1:
        if layout.ranks == 2:
            raise SynthError(
                "Megatron-LM overlaps the transfers of interleaved 1F1B on 2 ranks; give "
                "--software megatron, or vp=1"
            )
        yield "--no-overlap-p2p-communication"
    if software.attention is AttentionKernel.UNFUSED:
        yield "--attention-backend unfused"
    if not question.shape.dropout:
        yield "--attention-dropout 0 --hidden-dropout 0"
    if question.shape.experts is not None:
        yield "--moe-grouped-gemm --moe-permute-fusion"
        # Its dispatcher `flex` asserts that several ranks share the experts.
        is_flex = software.sends_once and groups.expert > 1
        once = "flex --moe-flex-dispatcher-backend deepep"
        yield f"--moe-token-dispatcher-type {once if is_flex else 'alltoall'}"
        if has_graphs(question):
            # Without a scope it captures whole layers, of which those with experts are refused.
            yield "--cuda-graph-impl transformer_engine"
            yield "--cuda-graph-scope attn moe_router moe_preprocess"


def has_graphs(question: LayoutQuestion) -> bool:
    """True if layers with experts are estimated without the time in which a host launches them."""
    return question.shape.experts is not None and not question.software.host_us


def needs_one_connection(device: Device, groups: Layout) -> bool:
    """True if Megatron-LM asserts `CUDA_DEVICE_MAX_CONNECTIONS=1`.

    It does with tensor or context parallelism, but not with FSDP2, and not from Blackwell on, whose
    devices are those with products in float4.
    """
    is_divided = groups.tensor > 1 or groups.context > 1
    is_older = Precision.FP4.dtype not in device.peak_flops_per_s
    return is_divided and is_older and groups.sharding is not Sharding.FSDP


def _shared_states_of_megatron(question: LayoutQuestion, layout: RunLayout) -> Iterator[str]:
    """Yield the options of ZeRO-1 or none, between the ranks of data and context parallelism."""
    groups = layout.groups
    is_shared = groups.sharding is Sharding.ZERO1
    if is_shared:
        yield "--use-distributed-optimizer"
    ranks = groups.state_ranks
    if question.shape.experts is not None:
        ranks = max(ranks, groups.expert_state_ranks)
    if question.software.overlaps_gradients and ranks > 1:
        yield "--overlap-grad-reduce"
        if is_shared:
            yield "--overlap-param-gather"


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

    torchtitan keeps parameters and gradients in float32, and reduces gradients so: `float32` is the
    only value of `mixed_precision_reduce`. `[model_registry]` has arguments of the function of that
    name.

    Raises:
        SynthError: it has no option for something.
    """
    optimizer, precision = question.optimizer, layout.groups.precision
    is_adamw = optimizer.kind is OptimizerKind.ADAMW and not optimizer.post_validation
    if not (is_adamw and optimizer.float32_gradients):
        raise SynthError(
            f"torchtitan has AdamW with parameters and gradients in float32; the optimizer is "
            f"{optimizer}: give adamw+master+float32-gradients"
        )
    if precision is Precision.FP4:
        raise SynthError("torchtitan has no option for products in float4; give fp8 or bf16")
    training = ['mixed_precision_param = "bfloat16"', 'mixed_precision_reduce = "float32"']
    compiling = ["[compile]", "enable = true", 'components = ["model", "loss"]']
    software, groups = question.software, layout.groups
    if software.hidden_tensor and groups.tensor > 1:
        compiling.append("enable_async_tensor_parallel = true")
    sections = [compiling]
    if software.sends_once and groups.expert > 1:
        sections.append(["[model_registry]", 'moe_comm_backend = "deepep"'])
    if precision is Precision.FP8:
        sections += _float8_of_torchtitan(question)
    return training, *sections


def _float8_of_torchtitan(question: LayoutQuestion) -> list[list[str]]:
    """Return the sections of float8, which products of experts have beside the others (0.2.2)."""
    linear, grouped = "quantize.linear.float8", "quantize.grouped_mm.float8"
    if question.shape.experts is None:
        names, left = f'"{linear}"', '"output"'
    else:
        names, left = f'"{linear}", "{grouped}"', '"output", "router.gate"'
    converters = "Float8LinearConverter" + ", Float8GroupedExpertsConverter" * (", " in names)
    of_classes = f"# of 0.2; 0.3.0: converters of model_registry: {converters}; output is lm_head"
    sections = [
        ["[model]", of_classes, f"converters = [{names}]"],
        [f"[{linear}]", f"filter_fqns = [{left}]"],
    ]
    if question.shape.experts is not None:
        sections.append([f"[{grouped}]", 'fqns = ["experts"]'])
    return sections
