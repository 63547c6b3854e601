"""ZB-V as released: a greedy on times and bytes averaged over stages (see `v_greedy.py`).

Qi et al. 2023, arXiv 2401.10241; 2024, arXiv 2405.15362; sail-sg/zero-bubble-pipeline-parallelism,
`zbv.py`. The limit counts activations of a stage. Without memory limits it is 2D, the memory of
1F1B, as there. With memory limits it is the most that the fullest rank can hold.
"""

from functools import lru_cache, partial

from synth.errors import SynthError
from synth.families._lib.buffering_choice import patient
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.fit_to_caps import left_bytes, over_bytes
from synth.families._lib.v_greedy import ALL_CHOICES, NoRoomError, RunsByChoice, repeated_run
from synth.families._lib.v_passes import PassCosts, averaged, costs_by_pass, units_bytes

# Limits tried within caps: boundary values and uneven stages take memory that the averages miss.
_MOST_ATTEMPTS = 6


def make(setting: Setting) -> Programs:
    """The greedy within 2D activations, or within the most that keeps the memory limits."""
    pass_costs = averaged(costs_by_pass(setting.costs, setting.num_micro_batches))
    d, m = setting.num_ranks, setting.num_micro_batches
    if setting.caps_bytes is None:
        return released(pass_costs, 2 * d)
    unit, least = units_bytes(pass_costs)[0], 2 * min(d, m)
    count = min(min(left_bytes(setting)) // unit, most_activations(setting))
    for _ in range(_MOST_ATTEMPTS):
        if count < least:
            break
        programs = released(pass_costs, count)
        over = max(over_bytes(setting, programs))
        if not over:
            return programs
        count -= -(-over // unit)
    raise SynthError(
        f"zb-v-greedy found no schedule within the memory limits; every rank must hold {least} "
        f"activations of a stage, and the tensors that it sends and receives"
    )


def most_activations(setting: Setting) -> int:
    """A limit that never holds the greedy back, because it looks ahead by 2D at most."""
    return 2 * (setting.num_micro_batches + setting.num_ranks)


@lru_cache(maxsize=64)  # while a limit is dragged on a page, and by `zb-v`
def released(pass_costs: PassCosts, count: int) -> Programs:
    """The schedule of least period over all choices, within `count` activations.

    Raises:
        SynthError: the count is too small.
    """
    limits = [count * unit for unit in units_bytes(pass_costs)]
    made = RunsByChoice(partial(repeated_run, pass_costs))
    runs = []
    for choices in ALL_CHOICES:
        try:
            runs.append(made.at(limits, choices))
        except NoRoomError:
            continue
    if not runs:
        raise SynthError(f"zb-v-greedy finds no schedule within {count} activations")
    return tuple(map(tuple, min(runs, key=lambda run: run.period_us).ops()))


FAMILY = Family(
    "zb-v-greedy",
    "Qi et al. 2023, arXiv 2401.10241; 2024, arXiv 2405.15362",
    make,
    "v",
    timed=True,
    reads_limits=True,
    averages=True,
    buffering=patient,
)
