"""What the executor cannot run is refused before anything starts."""

import pytest

from synth.costs import uniform_costs
from synth.errors import SynthError
from synth.profile import Link, Links
from synth.runtime.execution.supported import check_supported
from synth.schedule import Op, Schedule, lower


def test_a_schedule_that_moves_what_it_saved_is_refused_with_the_op() -> None:
    links = Links(host=Link())
    costs = uniform_costs(1, forward_us=1, backward_input_us=1, backward_weight_us=1, links=links)
    made = Schedule.linear("by hand", 1, [map(Op.parse, ["F0.0", "O0.0", "L0.0", "BW0.0"])])
    with pytest.raises(SynthError, match=r"rank 0 has O0\.0: the schedule moves"):
        check_supported(lower(made, costs))
