"""The answer of `synth solve --versions`: the steady state, its bounds, and published schedules."""

from typing import Any

from synth.cli.answer.output import wrapped
from synth.cli.answer.show import steady_lines, version_lines
from synth.report.text.plan_table import plan_table
from synth.report.text.tables import size_unit, table
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered
from synth.schedule.simulate import Timeline
from synth.schedule.version_facts import largest_versions
from synth.solver.result import Result, SteadyBaseline, SteadyProof


def steady_text(plan: Plan, result: Result, simulated: tuple[Lowered, Timeline], limit: str) -> str:
    """Return the table of schedules without a flush, the bounds, and the table of ranks.

    Args:
        plan: the result's plan.
        simulated: the plan's schedule.
        limit: explains the memory limit.
    """
    lowered, timeline = simulated
    assert result.steady is not None
    bounds = (
        "the bound of all orders, in which stages take micro-batches in order, is from work, links "
        "and the states of a stage; that of orders which repeat with every micro-batch is proven "
        "by CP-SAT"
    )
    return "\n".join(
        (
            _table(result, lowered, result.steady),
            "",
            *version_lines(timeline),
            *steady_lines(plan),
            wrapped(bounds),
            f"makespan {timeline.makespan_us / 1000:,.3f} ms with fill and drain",
            f"status: {result.stopped_by} ({result.found_by}) after {result.wall_s:.1f} s",
            limit,
            "",
            plan_table(plan, lowered, timeline),
        )
    )


def _table(result: Result, lowered: Lowered, proof: SteadyProof) -> str:
    assert result.peak_bytes is not None
    has_cap, facts = result.problem.caps_bytes is not None, largest_versions(lowered)
    peaks = result.peak_bytes
    own = SteadyBaseline("this plan", proof.us, facts.delay, facts.alive, peaks, fits=True)
    listed = (*proof.baselines, own)
    factor, unit = size_unit(max(max(one.peak_bytes) for one in listed))
    header = ["schedule", "ms of a\nmicro-batch", "delay", "versions", f"peak memory\n{unit}"]
    rows = [
        [
            one.name,
            "never full" if one.us is None else f"{one.us / 1000:,.3f}",
            str(one.delay),
            str(one.versions),
            f"{max(one.peak_bytes) / factor:,.3f}",
            *(["yes" if one.fits else "no"] if has_cap else []),
        ]
        for one in listed
    ]
    return table([*header, *(["fits"] if has_cap else [])], rows)


def steady_json(proof: SteadyProof | None) -> dict[str, Any]:
    """Return the steady state for scripts; nothing if the search was not for one."""
    if proof is None:
        return {}
    return {
        "steady": {
            "micro_batch_us": proof.us,
            "lower_bound_us": proof.lower_bound_us,
            "gap": proof.gap,
            "repeating_us": proof.repeating_us,
            "rivals": [
                {
                    "name": one.name,
                    "micro_batch_us": one.us,
                    "delay": one.delay,
                    "versions": one.versions,
                    "peak_bytes": one.peak_bytes,
                    "fits": one.fits,
                }
                for one in proof.baselines
            ],
        }
    }
