"""The figures in the sentences of `notes/weight-passing.md` are those of saved results."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import tables
from benchmarks.weight_passing import hidden_from_tokens
from benchmarks.weight_passing_model import NETWORKS, Model, network, simulate
from benchmarks.weight_search import weight_passing_problem
from synth.op_kinds import OpKind
from synth.profile.links import Links
from synth.schedule.lowering.lower import Lowered
from synth.schedule.model import Buffering
from synth.schedule.rank_memory import exceeds_caps, peak_bytes
from synth.schedule.verify import check_deadlock, lower_checked
from synth.schedule.weight_flow import Sharded
from synth.search.outcome import StoppedBy
from synth.solver.options import Part, SolveOptions
from synth.solver.weight_passing.bounds import prove_weight_passing
from synth.solver.weight_passing.compute_order import ComputeOrder, all_split, split
from synth.solver.weight_passing.first_orders import orders_of_one_by_one
from synth.solver.weight_passing.problem import WeightMovement, WeightPassingProblem
from synth.solver.weight_passing.programs import make_schedule
from synth.solver.weight_passing.search import WeightPassingSearch
from synth.solver.weight_passing.unshard_placement import OpNeeds
from synth.solver.weight_passing.visit_options import VisitOptions

Rows = list[dict[str, Any]]
TEXT = " ".join((tables.ROOT / "notes" / "weight-passing.md").read_text("utf-8").split())


def rows_of(name: str) -> Rows:
    rows: Rows = json.loads((tables.RESULTS / f"{name}.json").read_text("utf-8"))["rows"]
    return rows


def percent(shares: Iterable[float]) -> str:
    """The least and the largest of some shares."""
    found = sorted(shares)
    return f"{100 * found[0]:.0f} to {100 * found[-1]:.0f} %"


def times(shares: Iterable[float]) -> str:
    found = sorted(shares)
    return f"{found[0]:.2f} to {found[-1]:.2f}"


def test_searched_schedules() -> None:
    gather, ring = (
        [row for row in rows_of("weight-search") if row["movement"] == movement]
        for movement in ("gather", "ring")
    )
    proven = sum(row["value_us"] == row["bound_us"] for row in gather)
    assert f"With all-gathers {proven} of the {len(gather)} schedules are proven optimal" in TEXT

    def less(row: dict[str, Any]) -> float:
        return 1 - float(row["value_us"]) / float(row["published_us"])

    (tight,) = (row for row in gather if (row["tokens"], row["buffers"]) == (32768, 1))
    words = f"Under the tightest limit on 10 GbE the schedule takes {100 * less(tight):.0f} % less"
    assert words in TEXT
    published = [row for row in ring if row["published"]]
    assert f"than the published ones, by {percent(map(less, published))}" in TEXT
    assert len(ring) - len(published) == 3
    assert "In three rows a schedule is found where no published one fits" in TEXT


def of_one_by_one(
    movement: WeightMovement, setting: tuple[str, int], buffers: int
) -> tuple[WeightPassingProblem, ComputeOrder, ComputeOrder]:
    """A row's problem; micro-batches one after the other with BW whole, and with B and W apart."""
    passing = weight_passing_problem(movement, *setting, buffers)
    whole = next(iter(orders_of_one_by_one(passing)))
    return passing, whole, all_split(whole)


def placed(
    passing: WeightPassingProblem, order: ComputeOrder, options: VisitOptions, *, is_capped: bool
) -> Lowered:
    headrooms = passing.headrooms(Sharded.WEIGHTS) if is_capped else None
    schedule = make_schedule(OpNeeds(passing), (order,), options, headrooms)
    return lower_checked(schedule, passing.problem.costs)


def besides_static_gb(passing: WeightPassingProblem, peaks: Iterable[int]) -> str:
    headrooms, caps = passing.headrooms(Sharded.WEIGHTS), passing.problem.caps_bytes
    assert headrooms is not None and caps is not None
    return f"{max(p - c + h for p, c, h in zip(peaks, caps, headrooms, strict=True)) / 1e9:.1f} GB"


def test_why_gaps_of_rings_are_wide() -> None:
    passing, _, apart = of_one_by_one(WeightMovement.RING, ("200 Gb/s", 8192), 4)
    work_us = sum(stage.work_us for stage in passing.stages) * passing.rounds
    assert f"39/32 of the work is {39 / 32 * work_us / 1e6:.1f} s" in TEXT
    roomy = VisitOptions(buffering=Buffering(4, 16), most_open=2)
    lowered = placed(passing, apart, roomy, is_capped=False)
    us, bound_us = check_deadlock(lowered).makespan_us, prove_weight_passing(passing).bound_us
    assert f"with B and W apart, take {us / 1e6:.2f} s" in TEXT
    assert f"That is {100 * (1 - bound_us / us):.1f} % above the bound" in TEXT
    need = besides_static_gb(passing, peak_bytes(lowered))
    left = besides_static_gb(passing, passing.problem.caps_bytes or ())
    assert f"needs {need} besides static memory, and four buffers leave {left}" in TEXT
    slow, whole, _ = of_one_by_one(WeightMovement.RING, ("10 GbE", 32_768), 4)
    last = slow.rounds - 1
    for op in whole:
        if op.kind == OpKind.BW and op.microbatch == last:
            whole = split(whole, op)
    found = placed(slow, whole, VisitOptions(ahead=3), is_capped=True)
    assert not exceeds_caps(peak_bytes(found), slow.problem.caps_bytes)
    us = check_deadlock(found).makespan_us
    assert f"in the last round alone {us / 1e6:.1f} s" in TEXT


def test_why_gaps_of_gathers_are_wide() -> None:
    passing, _, _ = of_one_by_one(WeightMovement.GATHER, ("10 GbE", 32_768), 1)
    stage, num_stages, rounds = passing.stages[0], len(passing.stages), passing.rounds
    headrooms = passing.headrooms(Sharded.WEIGHTS)
    assert headrooms is not None
    held = num_stages * stage.saved_bytes + stage.parameter_bytes + stage.gradient_bytes
    room = (min(headrooms) - held - stage.rise_bytes[OpKind.BW]) // stage.parameter_bytes
    again = num_stages - 1 - room
    assert (room, again) == (1, 6)
    gathers = num_stages + rounds * again
    us = gathers * passing.gather_us(0) + rounds * num_stages * passing.scatter_us(0)
    assert (
        f"{gathers} gathers at least, which with 32 reduce-scatters take {us / 1e6:.1f} s" in TEXT
    )
    work_us = sum(each.work_us for each in passing.stages) * rounds
    assert f"The work of a rank takes {work_us / 1e6:.1f} s" in TEXT


@pytest.mark.slow
def test_closed_forms_of_small_gathers_are_below_proven_optima() -> None:
    proven, below = [], []
    for num_stages, rounds in ((2, 2), (3, 1)):
        passing = weight_passing_problem(
            WeightMovement.GATHER, "10 GbE", 32_768, 1, num_stages=num_stages, rounds=rounds
        )
        options = SolveOptions(time_limit_s=20.0, deterministic=True, workers=1)
        alone = replace(options, without=frozenset({Part.EXACT}), time_limit_s=1.0)
        searched = WeightPassingSearch(passing, alone).run()
        exact = WeightPassingSearch(passing, options).run()
        assert exact.stopped_by == StoppedBy.OPTIMAL and searched.value_us == exact.value_us
        assert exact.value_us is not None
        proven.append(exact.value_us / 1e6)
        below.append(100 * (1 - prove_weight_passing(passing).bound_us / exact.value_us))
    words = (
        "it proves {:.2f} s for two stages and two micro-batches per rank, and {:.2f} s for three"
    )
    assert words.format(*proven) in TEXT
    assert "the closed forms are {:.1f} and {:.1f} % below".format(*below) in TEXT


def test_stages_that_stay_where_others_are_gathered() -> None:
    once = []
    for buffers in range(1, 5):
        passing, whole, _ = of_one_by_one(WeightMovement.GATHER, ("10 GbE", 32_768), buffers)
        lowered = placed(passing, whole, VisitOptions(), is_capped=True)
        assert not exceeds_caps(peak_bytes(lowered), passing.problem.caps_bytes)
        gathered = [op.stage for op in lowered.schedule.programs[0] if op.kind == OpKind.UNSHARD]
        once.append(sum(gathered.count(stage) == 1 for stage in range(len(passing.stages))))
    words = "gather {}, {}, {} and {} of the 8 stages once with one to four buffers on 10 GbE"
    assert words.format(*once) in TEXT


Cells = dict[tuple[str, int, int], dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def papers() -> Cells:
    """The rows of the papers' tables by table, hidden size and sequence, then by system."""
    found: Cells = defaultdict(dict)
    for row in rows_of("weight-passing-papers"):
        found[row["table"], row["hidden"], row["sequence"]][row["system"]] = row
    return found


def ratios(papers: Cells, table: str, *systems: str, printed: bool) -> list[float]:
    """The speeds of systems as multiples of 1F1B's, without those that are out of memory."""
    key = "printed_tokens_per_s" if printed else "tokens_per_s"
    return [
        cell[system][key] / cell["1F1B"][key]
        for (name, *_), cell in papers.items()
        for system in systems
        if name == table and cell[system][key]
    ]


def test_peaks_of_the_papers(papers: Cells) -> None:
    rows = [
        row for (table, *_), cell in papers.items() if table == "table-2" for row in cell.values()
    ]
    below: dict[bool, list[float]] = {True: [], False: []}
    for row in rows:
        if row["printed_peak_gb"]:
            share = 1 - row["peak_bytes"] / 1e9 / row["printed_peak_gb"]
            below[row["system"] == "1F1B"].append(share)
    words = f"{percent(below[False])} below the printed ones, and {percent(below[True])} for 1F1B"
    assert words in TEXT
    peaks = sorted(row["peak_bytes"] / 1e9 for row in rows if not row["printed_peak_gb"])
    assert f"except two with S = 8192 ({peaks[0]:.0f} and {peaks[1]:.0f} GB)" in TEXT
    assert "are printed as out of memory need 72 GB or more" in TEXT and peaks[2] >= 72


def test_speeds_of_the_papers(papers: Cells) -> None:
    def both(table: str, *systems: str) -> tuple[str, str]:
        one, other = (ratios(papers, table, *systems, printed=each) for each in (True, False))
        return times(one), times(other)

    printed, simulated = both("table-4", "WeiPipe")
    assert f"as long as 1F1B (printed {printed}, simulated {simulated})" in TEXT
    printed, _ = both("table-2", "WeiPipe")
    zero_bubble, _ = both("table-2", "ZB1", "ZB2")
    assert f"speedups of {printed} for WeiPipe, and {zero_bubble} for ZB1 and ZB2" in TEXT
    assert max(ratios(papers, "table-2", "WeiPipe", printed=False)) < 1.02
    _, simulated = both("table-3", "WeiPipe")
    assert f"the simulated speedup of WeiPipe is {simulated}," in TEXT
    printed, simulated = both("table-3", "ZB1", "ZB2")
    assert f"simulated {simulated} times as fast as 1F1B, and printed {printed} times" in TEXT
    slow = papers["table-3", 4096, 4096]
    one, other = (
        slow["WeiPipe"][key] / slow["1F1B"][key] for key in slow["1F1B"] if "tokens" in key
    )
    assert f"printed as a slowdown ({one:.2f}) and simulated as a speedup ({other:.2f})" in TEXT


def test_speeds_between_nodes(papers: Cells) -> None:
    over = [
        own / theirs - 1
        for own, theirs in zip(
            ratios(papers, "tawpipe", "TawPipe", printed=False),
            ratios(papers, "tawpipe", "TawPipe", printed=True),
            strict=True,
        )
    ]
    assert max(map(abs, over[:3])) < 0.05 < over[3]
    words = f"within 5 % of the printed one for H = 1024, and {100 * over[3]:.0f} % above it"
    assert words in TEXT
    for (table, *_), cell in papers.items():
        if table == "tawpipe":
            more = cell["FSDP"]["between_nodes_bytes"] / cell["TawPipe"]["between_nodes_bytes"]
            assert more == pytest.approx(1.5, rel=0.05)
    assert "about 1.5 times the bytes between nodes" in TEXT
    peaks = {name: row["printed_peak_gb"] for name, row in papers["tawpipe", 4096, 16384].items()}
    words = "prints {TawPipe} GB for TawPipe, {WeiPipe} for WeiPipe, {FSDP} for FSDP and {1F1B}"
    assert words.format(**peaks) in TEXT


def test_steps_bytes_and_processor_time_of_the_runtime() -> None:
    cases: dict[tuple[int, int], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in rows_of("executor-weights"):
        cases[row["tokens"], row["ranks"]][row["system"]] = row

    def shares(key: str, system: str, other: str, *wanted: tuple[int, int]) -> list[float]:
        return [cases[c][system][key] / cases[c][other][key] - 1 for c in wanted or cases]

    less = [[-x for x in shares("step_ms", one, "fsdp2")] for one in ("weipipe", "zero3:1")]
    assert f"WeiPipe takes {percent(less[0])} less time than FSDP2" in TEXT
    assert f"ZeRO-3 under this executor {percent(less[1])} less" in TEXT
    wide = [1 + x for x in shares("sent_bytes", "weipipe", "1f1b", (512, 2), (512, 4))]
    wide += [1 + x for x in shares("sent_bytes", "zero3:1", "1f1b", (512, 2), (512, 4))]
    assert f"weight passing sends {min(wide):.0f} to {max(wide):.0f} times as many bytes" in TEXT
    two, four = shares("step_ms", "weipipe", "1f1b", (4096, 2), (4096, 4))
    words = f"takes {-100 * two:.0f} % less time than 1F1B, and on 4 ranks {100 * four:.0f} % more"
    assert words in TEXT
    work = [percent(shares("cpu_ms", one, "1f1b")) for one in ("weipipe", "zero3:1", "fsdp2")]
    assert (
        "of WeiPipe is {} above that of 1F1B, that of ZeRO-3 {}, and that of FSDP2 {}".format(*work)
        in TEXT
    )
    on_two, on_four = (
        percent(shares("sent_bytes", "weipipe", "zero3:1", (512, ranks), (4096, ranks)))
        for ranks in (2, 4)
    )
    assert on_two == "29 to 29 %"
    assert f"It sends 29 % more than ZeRO-3 on 2 ranks, and {on_four} more on 4" in TEXT


def more_bytes(num_ranks: int, rounds: int) -> str:
    """The bytes of WeiPipe above those of FSDP, by the formulas of the notes, for w = g."""
    p, n = num_ranks, rounds
    ring = 2 * n * p * (p - 1) + n * p**2 - 1
    gathered = n * (p - 1) * (2 * p - 1) + n * p * (p - 1)
    return f"{100 * (ring / gathered - 1):.0f}"


def test_bytes_of_the_formulas() -> None:
    assert f"{more_bytes(16, 4)} % more here (P = 16, n = 4), and {more_bytes(2, 4)} %" in TEXT
    # 8 micro-batches on 2 and on 4 ranks.
    assert f"say ({more_bytes(2, 4)} and {more_bytes(4, 2)} %)" in TEXT
    assert f"from {18 * 2 * 4096 // 1024}k tokens on" in TEXT


def test_tokens_from_which_on_transfers_are_hidden() -> None:
    rates = [NETWORKS[name] for name in ("10 GbE", "200 Gb/s", "NVLink")]
    found = [hidden_from_tokens(rate, 16, attention=1 / 12) for rate in rates]
    # Of an all-gather and a reduce-scatter behind BW two thirds of the bytes per FLOP.
    for system, of_f, name in (
        ("weipipe", 1.0, "two stages' weights and a gradient | 3 C b / (8 · bandwidth)"),
        ("zero3:1", 1.0, "one all-gather | C b / (2 · bandwidth)"),
        ("zero3:1", 2 / 3, "an all-gather and a reduce-scatter | C b / (3 · bandwidth)"),
    ):
        thousands = [each[system] * of_f / 1024 for each in found]
        shown = [f"{each:.{0 if each > 10 else 1}f}k" for each in thousands]
        assert f"{name} | {' | '.join(shown)} |" in TEXT


def test_speed_while_transfers_are_not_hidden() -> None:
    def speed(system: str, thousands: int) -> str:
        model = Model(4096, 32, 4096, 1024 * thousands)
        slow, free = (
            simulate(system, model, 16, 4, links).tokens_per_s
            for links in (network("10 GbE"), Links())
        )
        return f"{100 * slow / free:.0f} %"

    fsdp = [speed("zero3:1", thousands) for thousands in (86, 70, 59, 39)]
    ring = [speed("weipipe", thousands) for thousands in (73, 59, 53, 44, 29)]
    words = "without transfer times at 86k tokens, {} at 70k, {} at 59k and {} at 39k."
    assert f"`zero3:1` has {fsdp[0]} of its speed {words.format(*fsdp[1:])}" in TEXT
    assert (
        "WeiPipe has {} at 73k, {} at 59k, {} at 53k, {} at 44k and {} at 29k.".format(*ring)
        in TEXT
    )
