"""Equal stages whose weights are kept by the host."""

from synth.costs.costs import Costs, uniform_costs
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links

F_US, BW_US = 10, 20
WEIGHTS, GRADIENTS, SAVED = 100, 60, 500


def host_costs(
    num_stages: int, output_bytes: int = 0, *, rate: float | None = None, step_us: int = 0
) -> Costs:
    """Stages with BW = 2F, no times between ranks; `rate` is of the host's links in bytes/µs."""
    made = uniform_costs(
        num_stages,
        forward_us=F_US,
        backward_input_us=BW_US // 2,
        backward_weight_us=BW_US // 2,
        saved_bytes=SAVED,
        output_bytes=output_bytes,
        parameter_bytes=WEIGHTS,
        gradient_bytes=GRADIENTS,
        static_bytes=4 * WEIGHTS + GRADIENTS,
        links=Links(host=Link(bandwidth_bytes_per_s=None if rate is None else rate * 1e6)),
    )
    times = {**made.stages[0].duration_us, OpKind.STEP: step_us}
    return made.replace(stages=tuple(each.replace(duration_us=times) for each in made.stages))
