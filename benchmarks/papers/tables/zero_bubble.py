"""Bubble rates of zero-bubble schedules (Qi et al., arXiv 2401.10241), from its measured times."""

from collections.abc import Iterator

from benchmarks.papers.comparison import PaperTable, Row
from synth.costs.partition_costs import partition_costs
from synth.families import generate
from synth.profile import Profile
from synth.profiles import find
from synth.schedule.verify import verify

_PROFILES = (
    "zb-1.5b-p8-m24", "zb-1.5b-p8-m64", "zb-6.2b-p8-m24", "zb-14.6b-p16-m48", "zb-28.3b-p32-m96",
)  # fmt: skip
_NAMES = ("1f1b", "zb-h1", "zb-h2", "zb-1p", "zb-2p")


def _rates() -> Iterator[Row]:
    for name in _PROFILES:
        profile = Profile.load(find(name))
        ranks, micro_batches = (int(part[1:]) for part in name.split("-")[2:])
        costs = partition_costs(profile, [len(profile.layers) // ranks] * ranks)
        for family in _NAMES:
            _, line = verify(generate(family, ranks, micro_batches, costs=costs), costs)
            yield Row(f"{name}, {family}", round(line.bubble_rate(line.period_us), 4))


TABLES = (PaperTable("zero-bubble", "bubble rates of the period, from the paper's times.", _rates),)
