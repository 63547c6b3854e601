"""The constraints of the exact model, one function for each kind.

It is fast by the FIFO lemma (see `add_order`), and by memory as precedences where a rank holds one
stage copy (see `precedences`) and as counts where it holds more (see `counts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from synth.solver.cpsat.fusion import Fusion
from synth.solver.cpsat.memory.counts import Counts
from synth.solver.cpsat.memory.precedences import Alternative, Before, asked_by_all, requirements
from synth.solver.cpsat.memory.reservoir import UsageEvent, add_reservoir, events_of
from synth.solver.cpsat.op_variables import OpVariables
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.instance.instance import BW, SPLIT, B, F, Instance, Node, OpIndex, W


def add_order(ops: OpVariables, copy: int) -> None:
    """Let F, B, W of a micro-batch follow each other, and each kind take micro-batches in order.

    FIFO loses nothing: micro-batches are identical, so the k-th op of a kind to start may be called
    number k. Sorting keeps every precedence between two kinds, and memory counts ops, not names.
    """
    for k in range(ops.instance[copy].num_micro_batches):
        for kind, after in ((F, B), (B, W)):
            ops.precede(copy, Before(OpIndex(kind, k), OpIndex(after, k)))
        for kind in SPLIT:
            if k > 0:
                ops.precede(copy, Before(OpIndex(kind, k - 1), OpIndex(kind, k)))


def add_one_at_a_time(ops: OpVariables, rank: int) -> None:
    """Let a rank run one op at a time, also recomputation that runs by itself."""
    held = ops.instance.held[rank]
    of_ops = (_interval(ops, copy, one) for copy in held for one in ops.instance.op_indices(copy))
    again = (one for copy in held for one in _recomputations(ops, copy))
    ops.cp.add_no_overlap([*of_ops, *again])


def _recomputations(ops: OpVariables, copy: int) -> Iterator[cp_model.IntervalVar]:
    """Yield the recomputation of each micro-batch, between its F and its B."""
    again_us = ops.instance[copy].again_us
    for k in range(ops.instance[copy].num_micro_batches if again_us else 0):
        start = ops.cp.new_int_var(0, ops.far_us, "")
        ops.cp.add(start >= ops.end(copy, OpIndex(F, k)))
        ops.cp.add(start + again_us <= ops.start[copy, OpIndex(B, k)])
        yield ops.cp.new_fixed_size_interval_var(start, again_us, "")


def _interval(ops: OpVariables, copy: int, op_index: OpIndex) -> cp_model.IntervalVar:
    start, size = ops.start[copy, op_index], ops.duration_us(copy, op_index)
    if isinstance(size, int):
        return ops.cp.new_fixed_size_interval_var(start, size, "")
    end = ops.cp.new_int_var(0, ops.far_us, "")  # CP-SAT takes no sums here
    return ops.cp.new_interval_var(start, size, end, "")


def add_memory(ops: OpVariables, rank: int, most_counted: int) -> bool:
    """Let each op start only in states in which it fits; return False if some op never does.

    Args:
        most_counted: ops of the rank up to which the order of each pair is a literal.
    """
    headroom, held = ops.instance.headroom_bytes[rank], ops.instance.held[rank]
    if headroom is None:
        return True
    if len(held) == 1:
        return _limit_one_stage(ops, held[0], headroom)
    nodes = [(copy, op_index) for copy in held for op_index in ops.instance.op_indices(copy)]
    start = {node: ops.start[node] for node in nodes}
    end = {node: ops.end(*node) for node in nodes}
    limit_many_stages(ops.cp, ops.instance, start, end, headroom, most_counted, fusions=ops.fusions)
    peaks_above = (
        ops.instance[copy].peak_above_bytes[op_index.kind]
        for copy, op_index in nodes
        if op_index.kind == F or copy not in ops.fusions
    )
    return max(peaks_above) <= headroom


def _limit_one_stage(ops: OpVariables, index: int, headroom: int) -> bool:
    """Add the cap as precedences, and a limit on the micro-batches in flight."""
    copy, fusion = ops.instance[index], ops.fusions.get(index)
    most = ops.instance.most_in_flight(index) or copy.num_micro_batches
    for k in range(most, copy.num_micro_batches):
        ops.precede(index, Before(OpIndex(B, k - most), OpIndex(F, k)))
    fits = [
        _require(ops, index, alternatives, fusion.separate(op_index) if fusion else None)
        for op_index, alternatives in requirements(copy, headroom)
    ]
    if fusion is not None:
        for op_index, alternatives in requirements(copy, headroom, BW):
            _require(ops, index, alternatives, fusion.fused_b[op_index.microbatch])
    return all(fits)


def _require(
    ops: OpVariables,
    copy: int,
    alternatives: Sequence[Alternative],
    given: cp_model.LiteralT | None,
) -> bool:
    """Let one of the alternatives hold if `given` holds; return False if none ever can.

    Precedences that all alternatives ask for are added unconditionally too: they propagate.
    """
    conditions = [] if given is None else [given]
    if not alternatives:
        ops.cp.add_bool_or([~literal for literal in conditions])
        return given is not None
    if len(alternatives) == 1:
        for before in alternatives[0]:
            ops.precede(copy, before).only_enforce_if(conditions)
        return True
    choices = [ops.cp.new_bool_var("") for _ in alternatives]
    for choice, alternative in zip(choices, alternatives, strict=True):
        for before in alternative:
            ops.precede(copy, before).only_enforce_if(choice)
    ops.cp.add_bool_or(choices).only_enforce_if(conditions)
    for before in asked_by_all(alternatives):
        ops.precede(copy, before).only_enforce_if(conditions)
    return True


def limit_many_stages(
    cp: cp_model.CpModel,
    instance: Instance,
    start: Mapping[Node, cp_model.LinearExpr],
    end: Mapping[Node, cp_model.LinearExprT],
    headroom_bytes: int,
    most_counted: int,
    usage_bytes: int = 0,
    place: Mapping[Node, int] | None = None,
    fusions: Mapping[int, Fusion] | None = None,
) -> None:
    """Add the memory limit as counts of ops done, or for many ops as a reservoir.

    Args:
        instance: gives the bytes.
        start: the ops of a rank that are open, by rising number within a kind.
        end: of the same ops.
        most_counted: ops up to which the order of each pair is a literal.
        usage_bytes: usage before all of the ops.
        place: by op, its place in a known order, as a hint.
        fusions: by stage copy, where B and W may be fused; none where a reservoir is needed.
    """
    if len(start) <= most_counted:
        counts = Counts(cp, instance, start, end, place, fusions)
        counts.add(start, headroom_bytes, usage_bytes)
        return
    events: list[UsageEvent] = []
    for node, at in start.items():
        copy, (kind, _) = node
        events += events_of(instance[copy], kind, at, end[node])
    add_reservoir(cp, events, headroom_bytes, usage_bytes)
