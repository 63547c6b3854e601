"""The answer of `synth plan`: the chosen layout, its proven distance, and the others beside it."""

from collections.abc import Iterator, Mapping, Sequence
from textwrap import fill
from typing import Any

from synth.cli.answer.output import percent
from synth.layouts.answer import LayoutAnswer, Stability
from synth.layouts.judged import PART_NAMES, JudgedLayout
from synth.layouts.question import LayoutQuestion
from synth.report.text.tables import table
from synth.units import counted, format_bytes, format_us

_COLUMNS = 100
_MOST_ROWS, _MOST_REASONS = 12, 3

# Share of the best step below which a difference of parts is no reason.
_NO_REASON = 0.002


def layout_text(found: LayoutAnswer, commands: Mapping[str, str]) -> str:
    """Return the answer as text."""
    best = found.best
    assert best is not None
    sections = ["\n".join(_head(found, best)), _rows(found, best.us, found.best_of_each())]
    if found.also:
        sections.append("\n".join(_named(found, best)))
    sections.append("\n".join(f"{name}:\n{_indented(text)}" for name, text in commands.items()))
    return "\n\n".join(sections)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _filled(text: str) -> str:
    return fill(text, _COLUMNS, subsequent_indent="  ", break_on_hyphens=False)


def _head(found: LayoutAnswer, best: JudgedLayout) -> Iterator[str]:
    asked, estimate = found.question, best.profile.provenance.estimate
    assert estimate is not None
    yield _filled(estimate.words)
    number = counted(best.layout.micro_batches, "micro-batch")
    yield f"layout {best.layout.words}: {best.schedule}, {number}"
    yield (
        f"step {format_us(round(best.us))}, {asked.tokens_per_s(best.us):,.0f} tokens/s per device"
    )
    if found.bound_us is not None and found.gap is not None:
        yield _filled(
            f"no legal layout takes less than {format_us(round(found.bound_us))} under this cost "
            f"model{_orders(asked)}: no layout can be more than {percent(found.gap, 1)} faster "
            f"than this one"
        )
    yield _memory(found, best)
    why = "the search was interrupted" if found.is_interrupted else "the time was over"
    open_words = "" if found.is_complete else f"; {why} before all that may be faster"
    bounded = "" if found.bounded == found.legal else f"{found.bounded:,} bounded, "
    yield _filled(
        f"{found.legal:,} legal {'layout' if found.legal == 1 else 'layouts'}, "
        f"{bounded}{found.unfit:,} exceed the memory in any order, {found.judged:,} "
        f"judged{open_words}"
    )
    parts = (f"{name} {percent(us / best.us, 1)}" for name, us in _shown_parts(best))
    yield _filled(f"the step: {', '.join(parts)}")
    if found.stability is not None:
        yield _filled(_stable(found.stability, found.ranked, estimate.scatter))


def _orders(asked: LayoutQuestion) -> str:
    """Return for which orders bounds hold, unless for all."""
    return "" if asked.allowed.orders_freely else " in 1F1B or interleaved 1F1B"


def _memory(found: LayoutAnswer, best: JudgedLayout) -> str:
    peak, cap = max(best.peaks_bytes), found.question.cap_bytes
    if cap is None:
        return f"memory: {format_bytes(peak)} on the fullest rank, no limit"
    return (
        f"memory: {format_bytes(peak)} of {format_bytes(cap)} on the fullest rank, margin "
        f"{percent(1 - peak / cap, 1)}, {counted(best.recomputed, 'layer')} recomputed"
    )


def _shown_parts(one: JudgedLayout) -> Iterator[tuple[str, float]]:
    named = zip(PART_NAMES, one.parts, strict=True)
    yield from ((name, us) for name, us in named if abs(us) >= 0.0005 * one.us)


def _stable(stability: Stability, ranked: Sequence[JudgedLayout], scatter: float) -> str:
    near = sum(one.us <= (1 + scatter) * ranked[0].us for one in ranked)
    cut = ", for more of which the time was over" if stability.is_cut_short else ""
    return (
        f"the best in {stability.wins[0]} of {counted(stability.draws, 'draw')} of the estimate's "
        f"factors{cut}, among the best layouts of {len(stability.wins)} choices of tp and pp, at "
        f"most {percent(stability.worst_regret, 1)} slower than the best of a draw; "
        f"{counted(near, 'layout')} {'is' if near == 1 else 'are'} within the scatter of the "
        f"estimate, {percent(scatter, 0)}"
    )


def _rows(found: LayoutAnswer, best_us: float, shown: Sequence[JudgedLayout]) -> str:
    """Return a table with the best layout of each tp and pp, and those that were named."""
    header = ["tp", "cp", "ep", "pp", "dp", "mbs", "vp", "schedule", "recomp.", "step s"]
    header += ["tokens/s", "peak GB", "over best"]
    named = [(f"{text} *", one) for text, one in found.also.items() if one is not None]
    listed = [("", one) for one in shown[:_MOST_ROWS] if one not in found.also.values()]
    rows = [_row(found, best_us, one, text) for text, one in (*listed, *named)]
    text = table(header, [row for row in rows])
    more = len(shown) - _MOST_ROWS
    return f"{text}\n… and {more} more kinds" if more > 0 else text


def _row(found: LayoutAnswer, best_us: float, one: JudgedLayout, mark: str) -> list[str]:
    layout, groups = one.layout, one.layout.groups
    divided = f"×{groups.expert_tensor}" if groups.expert_tensor > 1 else ""
    sizes = (groups.tensor, groups.context, f"{groups.expert}{divided}", layout.ranks, groups.data)
    fits = "" if one.fits else " does not fit"
    return [
        *map(str, (*sizes, groups.micro_batch_size, layout.rounds)),
        f"{one.schedule}{' *' if mark else ''}",
        str(one.recomputed),
        f"{one.us / 1e6:.3f}",
        f"{found.question.tokens_per_s(one.us):,.0f}",
        f"{max(one.peaks_bytes) / 1e9:.1f}",
        f"{one.us / best_us - 1:+.1%}{fits}",
    ]


def _named(found: LayoutAnswer, best: JudgedLayout) -> Iterator[str]:
    for text, one in found.also.items():
        if one is None:
            yield _filled(f"* {text}: no schedule of the runtime exists for it")
            continue
        fits = "" if one.fits else ", and does not fit into the memory limit"
        reasons = ", ".join(_reasons(one, best)) or "no part differs much"
        yield _filled(f"* {text}: {one.us / best.us - 1:+.1%} of the best step{fits}: {reasons}")


def _reasons(one: JudgedLayout, best: JudgedLayout) -> list[str]:
    """Return the parts of the step that differ most, in shares of the best step."""
    listed = zip(PART_NAMES, one.parts, best.parts, strict=True)
    differences = [(name, (own - other) / best.us) for name, own, other in listed]
    differences.sort(key=lambda each: -abs(each[1]))
    chosen = [each for each in differences[:_MOST_REASONS] if abs(each[1]) >= _NO_REASON]
    return [f"{name} {share:+.1%}" for name, share in chosen]


def layout_json(found: LayoutAnswer, commands: Mapping[str, str]) -> dict[str, Any]:
    """Return the answer for scripts."""
    best, asked, stability = found.best, found.question, found.stability
    assert best is not None
    estimate = best.profile.provenance.estimate
    assert estimate is not None
    return {
        "model": asked.shape.name,
        "device": asked.device.name,
        "gpus": asked.gpus,
        "gpus_per_node": asked.device.ranks_per_node,
        "global_batch": asked.global_batch,
        "seq_len": asked.seq_len,
        "mem_limit_bytes": asked.cap_bytes,
        "runtime": asked.allowed.runtime.value,
        "software": asked.software.model_dump(mode="json"),
        "estimate": estimate.model_dump(mode="json"),
        "best": _json_of(found, best),
        "bound_us": found.bound_us,
        "gap": found.gap,
        "is_complete": found.is_complete,
        "interrupted": found.is_interrupted,
        "legal": found.legal,
        "bounded": found.bounded,
        "unfit": found.unfit,
        "judged": found.judged,
        "stability": None if stability is None else stability.data(),
        "best_of_each": [_json_of(found, one) for one in found.best_of_each()],
        "also": [
            {"text": text, "judged": None if one is None else _json_of(found, one)}
            for text, one in found.also.items()
        ],
        "commands": [{"for": name, "text": text} for name, text in commands.items()],
    }


def _json_of(found: LayoutAnswer, one: JudgedLayout) -> dict[str, Any]:
    layout, groups = one.layout, one.layout.groups
    return {
        "layout": layout.words,
        "tp": groups.tensor,
        "cp": groups.context,
        "ep": groups.expert,
        "etp": groups.expert_tensor,
        "pp": layout.ranks,
        "dp": groups.data,
        "micro_batch_size": groups.micro_batch_size,
        "stages_per_rank": layout.rounds,
        "micro_batches": layout.micro_batches,
        "sharding": groups.sharding.value,
        "recompute": groups.recompute.value,
        "recomputed_layers": one.recomputed,
        "schedule": one.schedule,
        "placement": one.placement,
        "step_us": one.us,
        "tokens_per_s": found.question.tokens_per_s(one.us),
        "bound_us": one.bound_us,
        "peak_bytes": max(one.peaks_bytes),
        "fits": one.fits,
        "parts_us": one.parts._asdict(),
    }
