"""The rows of a comparison: the figures of simulated schedules."""

from synth.costs.costs import HOST
from synth.plan.claim import claim_of
from synth.plan.comparison import Comparison, Entry, Question
from synth.schedule.files.claim import Claim
from synth.schedule.lowering.lower import Lowered
from synth.schedule.rank_memory import exceeds_caps, peak_bytes, static_bytes
from synth.schedule.simulate import Timeline
from synth.schedule.steady_state import steady_us
from synth.schedule.verify import verify
from synth.schedule.version_facts import largest_versions
from synth.search.outcome import StoppedBy
from synth.solver.options import SolveOptions
from synth.solver.result import Result


def so_far(found: Comparison, options: SolveOptions, stopped_by: StoppedBy) -> Comparison:
    """Return a comparison as if it ended here, with the best schedules of unfinished searches.

    Args:
        found: the comparison, which another thread may still fill.
        stopped_by: why the searches that are not over end here.
    """
    question, entries, refusals = found.question, list(found.entries), list(found.refusals)
    names = {entry.name for entry in entries}
    for name, search in list(found.searching.items()):
        best = search.close()
        if best is not None and name not in names:
            result = best.as_result(options.time_limit_s, stopped_by)
            entries.append(solved_entry(question, name, result, options))
    return Comparison(question, entries, refusals, list(found.ended_early))


def solved_entry(question: Question, name: str, result: Result, options: SolveOptions) -> Entry:
    """Return the row of a search that has found a schedule."""
    solved = result.problem
    assert solved.partition is not None and result.schedule is not None
    simulated = verify(result.schedule, solved.costs)
    claim = claim_of(result, solved, options)
    return entry_of(question, name, solved.partition, simulated, claim)


def entry_of(
    question: Question,
    name: str,
    sizes: tuple[int, ...],
    simulated: tuple[Lowered, Timeline],
    claim: Claim | None = None,
) -> Entry:
    """Return the row of a schedule that was simulated on the costs of its partition."""
    (lowered, line), caps = simulated, question.caps_bytes
    peaks, transfer_table = peak_bytes(lowered), lowered.transfer_table
    facts, flushes = largest_versions(lowered), lowered.schedule.versions is None
    num_micro_batches = lowered.schedule.num_micro_batches
    of_host = (transfer_table.source == HOST) | (transfer_table.target == HOST)
    return Entry(
        name=name,
        schedule=lowered.schedule,
        partition=sizes,
        makespan_us=line.makespan_us,
        period_us=line.period_us,
        work_us=max(line.work_us),
        mean_work_us=line.mean_work_us,
        peak_bytes=peaks,
        static_bytes=tuple(static_bytes(lowered, rank) for rank in range(lowered.num_ranks)),
        sent_bytes=int(transfer_table.num_bytes[~of_host].sum()),
        reduced_bytes=sum(one.sent_bytes for one in lowered.collectives),
        host_bytes=int(transfer_table.num_bytes[of_host].sum()),
        fits=None if caps is None else not exceeds_caps(peaks, caps),
        claim=claim,
        delay=facts.delay,
        versions=facts.alive,
        steady_us=line.period_us / num_micro_batches if flushes else steady_us(line),
    )
