"""`synth.estimate`: a profile computed from a model's config and a device's numbers."""

from synth.api.front import named_as_arguments
from synth.options.arguments.estimate import EstimateArguments
from synth.options.estimator import estimator_of
from synth.profile import Profile
from synth.records.command_option import from_values
from synth.records.safe_read import AnyPath


@named_as_arguments
def estimate(
    model: AnyPath,
    device: AnyPath,
    *,
    gpus_per_node: int | None = None,
    seq_len: int = 4096,
    micro_batch_size: int = 1,
    tp: int = 1,
    sp: bool = True,
    cp: int = 1,
    ep: int = 1,
    etp: int = 1,
    dp: int | None = None,
    dtype: str = "bf16",
    fp8_param_gather: bool = False,
    optimizer: str = "adamw+master+float32-gradients",
    sharding: str = "zero1",
    recompute: str = "none",
    software: str = "megatron",
    calibration: str | None = None,
) -> Profile:
    """Compute the profile of a model on a device that need not be there.

    Args:
        model: a `config.json` of Hugging Face's library, its folder, or the name of a known model.
        device: the name of a known device, or a JSON file of one.
        gpus_per_node: devices that fast links connect; None: as the device has it.
        seq_len: tokens per sequence.
        micro_batch_size: sequences per micro-batch.
        tp: ranks of tensor parallelism.
        sp: sequence parallelism beside it.
        cp: ranks that share the tokens of a sequence.
        ep: ranks that share the experts, of those of `tp`, `cp` and `dp` together.
        etp: ranks that divide each expert.
        dp: ranks with other samples that share the optimizer state; None: as many as `ep` and `etp`
            need.
        dtype: of the factors of matrices: bf16, fp8 or fp4.
        fp8_param_gather: with fp8 and ZeRO-1, matrices are kept and gathered in float8.
        optimizer: with the dtypes of its state.
        sharding: what the ranks of `dp` and `cp` share: none, zero1 or fsdp.
        recompute: activations that B computes again: none, selective, ops or full.
        software: the training program.
        calibration: a file of `synth calibrate`, or none; None: the shipped one, if any.

    Returns:
        The profile; `profile.provenance.estimate` says how far it may be off.

    Raises:
        SynthError: an argument is not understood, or they do not go together.

    Example:
        >>> synth.estimate("llama3-70b", "h100", tp=8, seq_len=8192)
    """
    options = locals()
    options["model"], options["device"] = str(model), str(device)
    return estimator_of(from_values(EstimateArguments, options)).profile(variants=True)
