"""Values and bounds of generated pipelines whose ranks hold several stages, on equal layers.

    python -m benchmarks.several_stages [--first 0] [--cases 10] [--limit 16] [--seed 0]
    python -m benchmarks.several_stages --without bounds windows

Each case is solved on the cut of equal numbers of layers, with one worker and a limit in processor
time. Nothing recomputes. Parts of the search that are left out (`synth.solver.options.Part`) show
what they are worth.
"""

from collections.abc import Sequence

from benchmarks.generated_cases import case_parser, numbers_of
from benchmarks.realistic_profiles import case_of_several_stages
from benchmarks.realistic_suite import in_processor_time, solved
from synth.plan.partition.candidates import equal_cuts
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.schedule.placements import placement
from synth.solver.options import Part, SolveOptions


def main(given: Sequence[str] | None = None) -> None:
    """Solve all cases, and print a line for each."""
    parser = case_parser("several_stages", __doc__, cases=10, limit_s=16)
    parser.add_argument("--seed", type=int, default=0)
    parts = [part.value for part in Part]
    parser.add_argument("--without", nargs="*", default=[], choices=parts, metavar="PART")
    asked = parser.parse_args(given)
    without = frozenset(map(Part, asked.without))
    options = SolveOptions(asked.limit, workers=1, seed=asked.seed, without=without)
    for number in numbers_of(asked):
        case = case_of_several_stages(number)
        where = placement(case.placement, case.num_ranks)
        equal, *_ = equal_cuts(StageCostTable(case.profile), where.num_stages)
        with in_processor_time():
            found = solved(case, equal, options)
        gap = "none" if found.gap is None else f"{100 * found.gap:.2f} %"
        words = "nothing proven" if found.certificate is None else found.certificate.words
        print(
            f"{number}: {case.placement}, {case.num_ranks} ranks, {case.num_micro_batches} "
            f"micro-batches: {found.value_us}, bound {found.lower_bound_us}, "
            f"gap {gap}, by {words}",
            flush=True,
        )


if __name__ == "__main__":
    main()
