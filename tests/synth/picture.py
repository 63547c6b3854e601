"""A schedule as its paper draws it: one row a rank, one column a unit of time."""

from synth.schedule.simulate import Timeline


def picture(timeline: Timeline) -> list[str]:
    """Draw a timeline of short ops.

    F0 is F of micro-batch 0, X is BW, -- goes on. Lower case: a stage of the second round or of the
    second copy.
    """
    lowered, rows = timeline.lowered, []
    for first, program in zip(lowered.first_node, lowered.ops, strict=False):
        row = [".."] * timeline.makespan_us
        for node, op in enumerate(program, first):
            start, end = timeline.start_us[node], timeline.end_us[node]
            letter = "X" if op.kind == "BW" else op.kind.value
            if op.stage >= lowered.num_ranks or op.replica:
                letter = letter.lower()
            cells = [f"{letter}{op.microbatch}", *["--"] * (end - start - 1)]
            row[start:end] = cells[: end - start]
        rows.append(" ".join(row))
    return rows


def rows(drawn: str) -> list[str]:
    """The rows of a drawing; blocks with a blank line between them go on to the right."""
    blocks = [block.split("\n") for block in drawn.strip().split("\n\n")]
    return [" ".join(line.strip() for line in parts) for parts in zip(*blocks, strict=True)]
