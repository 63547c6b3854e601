"""Tables of the difference between a run and its plan."""

from synth.report.explain.difference import Difference
from synth.report.text.tables import table

_PIECES = (
    ("ops, against the profile", "ops_us", 1),
    ("transfers, against the link model", "transfers_us", 1),
    ("executor overhead (inputs ready)", "gaps_us", 1),
    ("global norm and clipping", "norm_us", 1),
    ("per-iteration jitter", "jitter_us", 1),
    ("before the first op and after the last", "outside_us", 1),
    ("slack of this path in the plan", "room_us", -1),
)

_OVERLAPPING = (
    ("ops, against the profile", "ops_us", 1),
    ("more waiting for other ranks than planned", "transfers_us", 1),
    ("executor overhead (inputs ready)", "gaps_us", 1),
    ("validating the step before, and making it final", "norm_us", 1),
    ("per-iteration jitter", "jitter_us", 1),
    ("between the iterations", "outside_us", 1),
)


def difference_text(found: Difference, most: int = 4) -> str:
    """Return tables of the causes of the difference, and of the largest deviations on the path."""
    said = _PIECES if found.rank is None else _OVERLAPPING
    rows = [(text, _signed_ms(sign * getattr(found, field))) for text, field, sign in said]
    rows.append(("measured − predicted", _signed_ms(found.total_us)))
    of = "" if found.rank is None else f", on rank {found.rank}"
    pieces = table((f"difference of the median iteration{of}", "\nms"), rows)
    longest = [
        (part.name, str(part.n), _ms(part.planned_us), _ms(part.measured_us))
        for part in found.path[:most]
    ]
    where = "the critical path" if found.rank is None else f"rank {found.rank}"
    head = (f"largest deviations on {where}", "n", "planned\nms", "measured\nms")
    return f"{pieces}\n\n{table(head, longest)}"


def _signed_ms(time_us: float) -> str:
    return f"{time_us / 1000:+.3f}"


def _ms(time_us: float) -> str:
    return f"{time_us / 1000:.3f}"
