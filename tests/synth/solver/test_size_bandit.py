"""The bandit that distributes effort over window sizes."""

import random
from collections import Counter, defaultdict

from synth.solver.improve.lns.size_bandit import SizeBandit, WindowSize

SMALL, MIDDLE, LARGE = WindowSize(20, 0.1), WindowSize(100, 1.0), WindowSize(500, 5.0)
COST_S = {SMALL: 0.01, MIDDLE: 0.1, LARGE: 1.0}


def effort(gains_us: dict[WindowSize, int], windows: int = 2000) -> dict[WindowSize, float]:
    """Seconds spent on each size where every tenth of its windows gains so much."""
    sizes, rng = SizeBandit(list(COST_S), 10_000, 10_000), random.Random(0)
    spent: dict[WindowSize, float] = defaultdict(float)
    for _ in range(windows):
        arm = sizes.choose(rng, 1000)
        assert arm is not None
        gains = rng.randrange(10) == 0
        sizes.learn(arm, gains_us[arm.window_size] if gains else 0, COST_S[arm.window_size])
        spent[arm.window_size] += COST_S[arm.window_size]
    return spent


def test_effort_goes_where_a_second_gains_most() -> None:
    # Per second: 1000, 100, 10; then 10, 100, 1000.
    downwards = effort({SMALL: 100, MIDDLE: 100, LARGE: 100})
    upwards = effort({SMALL: 1, MIDDLE: 100, LARGE: 10_000})
    assert downwards[SMALL] > downwards[MIDDLE] + downwards[LARGE]
    assert upwards[LARGE] > upwards[MIDDLE] + upwards[SMALL]
    assert all(spent > 0 for each in (downwards, upwards) for spent in each.values())


def test_a_size_that_gains_no_more_is_left() -> None:
    sizes, rng = SizeBandit(list(COST_S), 10_000, 100_000), random.Random(1)
    tried = []
    for count in range(3000):
        arm = sizes.choose(rng, 1000)
        assert arm is not None
        paying = SMALL if count < 1000 else MIDDLE
        gained = 10 if arm.window_size == paying and rng.randrange(5) == 0 else 0
        sizes.learn(arm, gained, COST_S[arm.window_size])
        tried.append(arm.window_size)
    late = Counter(tried[2000:])
    assert late[MIDDLE] * COST_S[MIDDLE] > 2 * late[SMALL] * COST_S[SMALL]


def test_sizes_end_when_windows_with_as_many_ops_as_there_are_found_nothing() -> None:
    sizes, rng = SizeBandit(list(COST_S), 10_000, 500), random.Random(2)
    tried: Counter[WindowSize] = Counter()
    while (arm := sizes.choose(rng, 200)) is not None:
        sizes.learn(arm, 0, COST_S[arm.window_size])
        tried[arm.window_size] += 1
    assert tried == {SMALL: 25, MIDDLE: 10}  # 500 ops, and ten windows at least
    large = sizes.choose(rng, 1000)
    assert large is not None
    assert large.window_size == LARGE
    sizes.learn(large, 1, 1.0)
    assert sizes.choose(rng, 200) is not None  # a gain opens new ways
