"""The hang detector judges by places: ranks that wait for others, or are only slow, do not hang."""

from pathlib import Path

from synth.costs.costs import uniform_costs
from synth.families import generate
from synth.op_kinds import OpKind
from synth.run_options.train_options import TrainOptions
from synth.runtime.execution.program.progress import RankProgress, counted_place, last_place
from synth.runtime.training.hang_detector import HangDetector
from synth.schedule.lowering.lower import Action, lower
from synth.schedule.ops import Op

PATIENCE_S, TIMEOUT_S = 15.0, 300.0

LOWERED = lower(
    generate("1f1b", 2, 4),
    uniform_costs(2, forward_us=1, backward_input_us=1, backward_weight_us=1),
)


def place_of(rank: int, op: Op) -> int:
    program = LOWERED.programs[rank]
    return next(i for i, x in enumerate(program) if x.action == Action.COMPUTE and x.compute == op)


FORWARD_0, FORWARD_1 = place_of(0, Op(OpKind.F, 0, 2)), place_of(1, Op(OpKind.F, 1, 0))
BACKWARD_0 = place_of(0, Op(OpKind.BW, 0, 0))
STEP_1 = place_of(1, Op(OpKind.STEP, 1))


class World:
    """Ranks that stand where they are put, and a clock that is wound by hand."""

    def __init__(self, patience_s: float = PATIENCE_S, timeout_s: float = TIMEOUT_S) -> None:
        self.now_s = 100.0
        self.places: dict[int, tuple[int, int]] = {0: (0, 0), 1: (0, 0)}
        self.ranks = HangDetector(
            LOWERED,
            lambda rank: self.places.get(rank),
            patience_s=patience_s,
            timeout_s=timeout_s,
            now=lambda: self.now_s,
        )

    def passes(self, seconds: float) -> dict[int, float]:
        """Look twice a second for so long."""
        for _ in range(round(seconds * 2)):
            self.now_s += 0.5
            found = self.ranks.look()
        return found

    def steps(self, count: int, seconds: float) -> None:
        """Let both ranks take `count` steps of `seconds` each."""
        for step in range(count):
            self.places = {0: (step, 0), 1: (step, 0)}
            self.passes(seconds)


def stand(
    rank_0: tuple[int, int],
    rank_1: tuple[int, int],
    step_s: float = 0.5,
    *,
    patience_s: float = PATIENCE_S,
    timeout_s: float = TIMEOUT_S,
) -> World:
    world = World(patience_s, timeout_s)
    world.steps(5, step_s)
    world.places = {0: rank_0, 1: rank_1}
    return world


def test_an_op_that_has_all_and_goes_on_for_ever_is_found() -> None:
    world = stand((5, BACKWARD_0), (5, FORWARD_1))  # F0.0 was sent: rank 1 hangs in F1.0
    assert world.passes(PATIENCE_S - 1) == {}
    assert set(world.passes(2)) == {1}


def test_a_rank_that_waits_for_another_is_not_taken_for_one_that_hangs() -> None:
    world = stand((5, FORWARD_0), (5, STEP_1))  # rank 1 waits for the norm of rank 0
    assert set(world.passes(60)) == {0}
    world = stand((5, 0), (5, FORWARD_1))  # F0.0 is not sent yet
    assert 1 not in world.passes(60)


def test_patience_grows_with_the_steps() -> None:
    world = stand((5, BACKWARD_0), (5, FORWARD_1), step_s=4)
    assert world.passes(70) == {}
    assert set(world.passes(20)) == {1}


def test_what_is_between_steps_and_the_first_step_may_take_what_it_takes() -> None:
    assert stand((5, -1), (5, -1)).passes(500) == {}
    world = World()
    world.places = {0: (0, BACKWARD_0), 1: (0, FORWARD_1)}
    assert world.passes(500) == {}


def test_after_being_held_up_itself_it_begins_to_count_anew() -> None:
    world = stand((5, BACKWARD_0), (5, FORWARD_1))
    world.passes(PATIENCE_S - 1)
    world.now_s += 1000  # all were stopped, and go on
    assert world.passes(PATIENCE_S - 1) == {}


def test_time_runs_only_from_when_the_sender_has_passed_its_send() -> None:
    world = stand((5, 0), (5, FORWARD_1))
    assert 1 not in world.passes(PATIENCE_S - 2)  # rank 0 has not sent yet
    world.places[0] = (5, FORWARD_0)
    assert 1 not in world.passes(PATIENCE_S - 1)  # what it sent may still be on its way
    assert 1 in world.passes(2)


def test_an_op_that_takes_a_minute_once_is_let_be_by_default() -> None:
    world = stand(
        (5, BACKWARD_0), (5, FORWARD_1), patience_s=TrainOptions(data=Path("text")).patience_s
    )
    assert world.passes(90) == {}
    world.places = {0: (5, BACKWARD_0), 1: (5, STEP_1)}
    assert world.passes(1) == {}


def test_patience_never_goes_beyond_the_time_out_of_those_that_wait() -> None:
    world = stand((5, BACKWARD_0), (5, FORWARD_1), patience_s=1000, timeout_s=30)
    assert world.passes(29) == {}
    assert set(world.passes(2)) == {1}


def test_without_patience_nobody_is_taken_for_one_that_hangs() -> None:
    assert stand((5, BACKWARD_0), (5, FORWARD_1), patience_s=0).passes(5000) == {}


def test_steps_shorter_than_a_look_are_seen_by_their_numbers() -> None:
    world = World()
    world.passes(1)
    world.places = {0: (40, BACKWARD_0), 1: (40, FORWARD_1)}
    assert world.passes(PATIENCE_S - 1) == {}
    assert list(world.passes(3)) == [1]


def test_a_hang_that_is_there_at_the_first_look_is_found() -> None:
    world = World()
    world.places = {0: (3, BACKWARD_0), 1: (3, FORWARD_1)}
    assert world.passes(PATIENCE_S) == {}
    assert list(world.passes(3)) == [1]


def test_the_first_step_of_a_resumed_run_is_a_first_step(tmp_path: Path) -> None:
    with RankProgress(tmp_path, 0) as progress:
        assert (last_place(tmp_path, 0), counted_place(tmp_path, 0)) == ((-1, -1), (-1, -1))
        progress.begin_step(500)
        progress.at(3)
        assert (last_place(tmp_path, 0), counted_place(tmp_path, 0)) == ((500, 3), (0, 3))
    (tmp_path / "progress-2").touch()  # as it is while it is made
    assert counted_place(tmp_path, 1) is counted_place(tmp_path, 2) is None
    world = World()
    world.places = {0: (-1, -1), 1: (-1, -1)}
    world.passes(10)
    world.places = {0: (0, BACKWARD_0), 1: (0, FORWARD_1)}  # it warms up
    assert world.passes(500) == {}
