"""Reading what is estimated: the model, the device, and the factors."""

from pydantic import ValidationError

from synth.errors import SynthError
from synth.estimates.calibration import factors_of
from synth.estimates.device import device_of
from synth.estimates.estimated_profile import Estimator
from synth.estimates.factors import software_of
from synth.estimates.layout import Layout
from synth.estimates.model_config import model_of
from synth.estimates.model_shape import ModelShape
from synth.options.arguments.estimate import EstimateArguments
from synth.profile.optimizer import OptimizerSpec
from synth.records.record import describe


def estimator_of(given: EstimateArguments, shape: ModelShape | None = None) -> Estimator:
    """Read all arguments of an estimate.

    Args:
        shape: of the model; None: that of the model's name or file.

    Raises:
        SynthError: one is not understood, or they do not go together.
    """
    shape, device = shape or model_of(given.model), device_of(given.device)
    if given.gpus_per_node is not None:
        device = device.replace(ranks_per_node=given.gpus_per_node)
    layout, software = _layout(given), software_of(given.software)
    layout.check(shape)
    if given.gpus_per_node is None:
        device = device.filled_by(layout.group_size)
    if layout.narrow_gather:
        software.check_narrow_gather(layout.precision)
    return Estimator(
        shape,
        device,
        layout,
        software,
        factors_of(given.calibration, device, given.software),
        OptimizerSpec.parse(given.optimizer),
    )


def _layout(given: EstimateArguments) -> Layout:
    try:
        return Layout(
            seq_len=given.seq_len,
            micro_batch_size=given.micro_batch_size,
            tensor=given.tp,
            sequence=given.sp,
            context=given.cp,
            expert=given.ep,
            expert_tensor=given.etp,
            data=given.dp or max(1, given.ep * given.etp // (given.tp * given.cp)),
            precision=given.dtype,
            sharding=given.sharding,
            recompute=given.recompute,
            narrow_gather=given.fp8_param_gather,
        )
    except ValidationError as error:
        raise SynthError(
            f"the sizes of the estimate are out of range:\n{describe(error)}"
        ) from None
