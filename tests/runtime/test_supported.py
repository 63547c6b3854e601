"""What the executor cannot run is refused before anything starts."""

import pytest

from synth.costs import uniform_costs
from synth.errors import SynthError
from synth.profile import Link, Links
from synth.runtime.supported import check_supported
from synth.schedule import Op, Schedule, lower


@pytest.mark.parametrize(
    ("program", "named"),
    [
        ("F0.0 R0.0 BW0.0", r"R0\.0: the schedule rebuilds"),
        ("F0.0 O0.0 L0.0 BW0.0", r"O0\.0: .*moves"),
    ],
)
def test_a_schedule_that_rebuilds_or_moves_is_refused_with_the_op(program: str, named: str) -> None:
    links = Links(host=Link())
    costs = uniform_costs(1, forward_us=1, backward_input_us=1, backward_weight_us=1, links=links)
    made = Schedule.linear("by hand", 1, [map(Op.parse, program.split())])
    with pytest.raises(SynthError, match=named):
        check_supported(lower(made, costs))
