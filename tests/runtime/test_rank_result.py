"""The results of all processes, folded to those of the first pipeline's ranks."""

import pytest

pytest.importorskip("torch")

from synth.profile.mesh import Mesh
from synth.runtime.rank_result import RankResult, of_first_pipeline
from synth.system.processor_waits import ProcessorTimes

STEPS = [9.0, 9.0, 2.0, 2.0]


def test_a_rank_waits_for_others_programs_on_its_own_machine_in_the_timed_steps() -> None:
    times: dict[str, list[ProcessorTimes | None]] = {
        # On a others ran 1 s, on b 5 s.
        "a": [ProcessorTimes(2.0, 2.0, 5.0), ProcessorTimes(2.0, 2.0, 5.0)],
        "b": [ProcessorTimes(1.0, 3.0, 9.0), ProcessorTimes(3.0, 0.0, 9.0)],
        "c": [None, None],
    }
    results = [
        RankResult(0, host, "cpu", 2, step_seconds=STEPS, processor_times=each)
        for host, there in times.items()
        for each in there
    ]
    found = of_first_pipeline(results, Mesh(1, 6))
    assert [each.waiting_share for each in found] == [0.125, 0.125, 0.75, 0.0, None, None]
