"""Longest paths to and from all ops and transfers, kept as an order changes; compiled by Numba.

The longest path to the end of an op is when it ends (its head); that from there on is the least
time that the iteration takes after it (its tail). A change of order gives a few nodes other
neighbours; only nodes whose paths become longer or shorter are looked at (Michel and Van
Hentenryck, Maintaining longest paths incrementally, CP 2003). A head and a tail that are together
above the limit end it, as in the neighbourhoods of the job shop (Taillard, ORSA Journal on
Computing 6, 1994). Tails are without the places where receives are posted, the moves to the host's
memory and the reductions, and so may be too short.

Arrays are passed one by one: taking them from a tuple costs more than what is done with them here.
"""

from synth.solver.evaluate.compiled import compiled
from synth.solver.evaluate.op_table import NONE
from synth.solver.evaluate.order_arrays import (
    AT_RANK,
    DURATION,
    LAG,
    LEAD,
    LENGTH,
    NEXT,
    NUM_STEPS,
    PLACE,
    POST,
    PREVIOUS,
    READER,
    SOURCE,
    Ints,
    OrderArrays,
)
from synth.solver.evaluate.path_arrays import (
    BEFORE,
    CHANGE,
    CHANGED,
    EARLIER,
    HAS_TAILS,
    IS_QUEUED,
    KEY,
    KEYED,
    LATER,
    MOST_AGAIN,
    NODE_BITS,
    NUM_CHANGED,
    NUM_QUEUED,
    NUM_RELINKED,
    TAIL,
)
from synth.solver.evaluate.time_kernel import value_of_ends


@compiled
def _push(nodes: Ints, queue: Ints, counts: Ints, key: int, node: int) -> None:
    """Queue a node, unless it is."""
    if nodes[node, IS_QUEUED]:
        return
    nodes[node, IS_QUEUED] = 1
    at = counts[NUM_QUEUED]
    counts[NUM_QUEUED] = at + 1
    entry = (key << NODE_BITS) + node
    while at > 0:
        above = (at - 1) >> 1
        if queue[above] <= entry:
            break
        queue[at] = queue[above]
        at = above
    queue[at] = entry


@compiled
def _pop(nodes: Ints, queue: Ints, counts: Ints) -> int:
    """Take the node with the least key from the queue."""
    last = counts[NUM_QUEUED] - 1
    counts[NUM_QUEUED] = last
    node = queue[0] & ((1 << NODE_BITS) - 1)
    entry, at, below = queue[last], 0, 1
    while below < last:
        if below + 1 < last and queue[below + 1] < queue[below]:
            below += 1
        if queue[below] >= entry:
            break
        queue[at] = queue[below]
        at = below
        below = 2 * at + 1
    queue[at] = entry
    nodes[node, IS_QUEUED] = 0
    return int(node)


@compiled
def _push_head(nodes: Ints, queue: Ints, counts: Ints, heads: Ints, node: int) -> None:
    """Queue a node whose head may change, at the place of its head before the change of order."""
    is_keyed = nodes[node, KEYED] == counts[CHANGE]
    _push(nodes, queue, counts, nodes[node, KEY] if is_keyed else 2 * heads[node], node)


@compiled
def _push_posted(
    nodes: Ints, queue: Ints, counts: Ints, heads: Ints, ops: Ints, reader: int, post: int
) -> None:
    """Queue the transfers that are posted before a place.

    Args:
        reader: the op so far behind the place as receives are posted ahead.
    """
    sender = ops[reader, SOURCE]
    if sender != NONE and ops[sender, POST] == NONE:
        _push_head(nodes, queue, counts, heads, len(ops) + sender)
        return
    while sender != NONE and ops[sender, POST] == post:
        _push_head(nodes, queue, counts, heads, len(ops) + sender)
        sender = ops[sender, PREVIOUS]


@compiled
def _set_key(nodes: Ints, counts: Ints, node: int, key: int) -> None:
    """Give a node a place in the queue for a change of order."""
    nodes[node, KEYED], nodes[node, KEY] = counts[CHANGE], key


@compiled
def _push_changed(a: OrderArrays, rank: int, first: int, last: int, kind: int) -> None:
    """Queue the nodes that may wait for others than before.

    What is queued comes behind all that it waits for, as long as none of that depends on what was
    moved.
    """
    ops, program, heads, p = a.ops, a.programs[rank], a.heads, a.paths
    nodes, queue, counts, relinked, num_ops = p.nodes, p.queue, p.counts, p.relinked, len(ops)
    end = a.ranks[rank, LENGTH] - a.ranks[rank, NUM_STEPS]
    if kind == EARLIER:
        op = program[first]
        for place in range(first, last):
            _set_key(nodes, counts, program[place], 2 * heads[program[place + 1]])
        _set_key(nodes, counts, program[last], 2 * heads[op])
        sender, behind = ops[op, SOURCE], ops[op, NEXT]
        if sender != NONE:
            key = min(2 * heads[num_ops + sender], nodes[op, KEY] - 1)
            _set_key(nodes, counts, num_ops + sender, key)
        if behind != NONE:
            key = 2 * min(heads[num_ops + op], heads[num_ops + behind]) - 1
            _set_key(nodes, counts, num_ops + op, key)
    elif kind == LATER:
        op = program[last]
        _set_key(nodes, counts, op, 2 * heads[program[last - 1]] + 1)
        before = ops[op, PREVIOUS]
        if before != NONE:
            key = 2 * max(heads[num_ops + op], heads[num_ops + before]) + 1
            _set_key(nodes, counts, num_ops + op, key)
    for place in range(first, min(end, last + a.behind + 2)):
        _push_head(nodes, queue, counts, heads, program[place])
    for place in range(first, last + 1):
        sender = ops[program[place], SOURCE]
        if sender != NONE:
            _push_head(nodes, queue, counts, heads, num_ops + sender)
        if place + 1 + a.ahead < end:
            reader = program[place + 1 + a.ahead]
            _push_posted(nodes, queue, counts, heads, ops, reader, place + 1)
    for at in range(counts[NUM_RELINKED]):
        _push_head(nodes, queue, counts, heads, num_ops + relinked[at])


@compiled
def restore_heads(a: OrderArrays) -> None:
    """Make the heads what they were before they were renewed."""
    nodes, changed, counts, heads = a.paths.nodes, a.paths.changed, a.paths.counts, a.heads
    for at in range(counts[NUM_CHANGED]):
        heads[changed[at]] = nodes[changed[at], BEFORE]
    counts[NUM_CHANGED] = 0


@compiled
def _head_of_op(
    ops: Ints, programs: Ints, heads: Ints, op: int, rank: int, place: int, behind: int
) -> int:
    """Return the end of an op, from those of the nodes that it waits for."""
    at = heads[programs[rank, place - 1]] if place else 0
    sender = ops[op, SOURCE]
    if sender != NONE:
        at = max(at, heads[len(ops) + sender] - ops[op, LEAD])
    if place > behind:
        sender = programs[rank, place - behind - 1]
        if ops[sender, READER] != NONE:
            at = max(at, heads[len(ops) + sender])
    return int(at + ops[op, DURATION])


@compiled
def _head_of_transfer(ops: Ints, programs: Ints, heads: Ints, sender: int, ahead: int) -> int:
    """Return the end of an op's transfer, from those of the nodes that it waits for."""
    at = heads[sender]
    reader, post = ops[sender, READER], ops[sender, POST]
    if post == NONE:
        post = ops[reader, PLACE] - ahead
    if post > 0:
        at = max(at, heads[programs[ops[reader, AT_RANK], post - 1]])
    if ops[sender, PREVIOUS] != NONE:
        at = max(at, heads[len(ops) + ops[sender, PREVIOUS]])
    return int(at + ops[sender, LAG])


@compiled
def renew_heads(
    a: OrderArrays, rank: int, first: int, last: int, kind: int, horizon_us: int, limit_us: float
) -> int:
    """Time what a change of a rank's order affects; return the value, `NONE` above the limit.

    It is `NONE`, too, and heads are as before, if many heads change again: ops wait for each other.

    Args:
        first, last: the places that changed.
        kind: what was done to the op at one of them.
        horizon_us: when the ops at these places had ended; tails of later ops are as before.
    """
    ops, programs, ranks, heads, p = a.ops, a.programs, a.ranks, a.heads, a.paths
    nodes, queue, changed, counts = p.nodes, p.queue, p.changed, p.counts
    ahead, behind, makespans, num_ops = a.ahead, a.behind, a.makespans, len(ops)
    change = counts[CHANGE] + 1
    counts[CHANGE], counts[NUM_CHANGED] = change, 0
    _push_changed(a, rank, first, last, kind)
    num_again = 0
    while counts[NUM_QUEUED]:
        node = _pop(nodes, queue, counts)
        is_op = node < num_ops
        op = node if is_op else node - num_ops
        at_rank, place = ops[op, AT_RANK], ops[op, PLACE]
        if is_op:
            head = _head_of_op(ops, programs, heads, op, at_rank, place, behind)
        else:
            head = _head_of_transfer(ops, programs, heads, op, ahead)
        before = heads[node]
        if head == before:
            continue
        if nodes[node, CHANGED] == change:
            num_again += 1
        else:
            nodes[node, CHANGED], nodes[node, BEFORE] = change, before
            changed[counts[NUM_CHANGED]] = node
            counts[NUM_CHANGED] += 1
            if nodes[node, KEYED] != change:
                _set_key(nodes, counts, node, 2 * before)
        is_above = (
            is_op
            and nodes[node, BEFORE] > horizon_us
            and makespans * (head + nodes[node, TAIL]) > limit_us
        )
        if is_above or num_again > MOST_AGAIN:
            for at in range(counts[NUM_QUEUED]):
                nodes[queue[at] & ((1 << NODE_BITS) - 1), IS_QUEUED] = 0
            counts[NUM_QUEUED] = 0
            restore_heads(a)
            return NONE
        heads[node] = head
        end = ranks[at_rank, LENGTH] - ranks[at_rank, NUM_STEPS]
        if not is_op:
            _push_head(nodes, queue, counts, heads, ops[op, READER])
            if ops[op, NEXT] != NONE:
                _push_head(nodes, queue, counts, heads, num_ops + ops[op, NEXT])
            if place + behind + 1 < end:
                _push_head(nodes, queue, counts, heads, programs[at_rank, place + behind + 1])
            continue
        if place + 1 < end:
            _push_head(nodes, queue, counts, heads, programs[at_rank, place + 1])
        if ops[op, READER] != NONE:
            _push_head(nodes, queue, counts, heads, num_ops + op)
        if place + 1 + ahead < end:
            reader = programs[at_rank, place + 1 + ahead]
            _push_posted(nodes, queue, counts, heads, ops, reader, place + 1)
    value_us = value_of_ends(a)
    if value_us > limit_us:
        restore_heads(a)
        return NONE
    return int(value_us)


@compiled
def _tail_of_op(
    ops: Ints, programs: Ints, nodes: Ints, op: int, rank: int, place: int, ends: tuple[int, int]
) -> int:
    """Return the tail of an op, from those of the nodes that wait for it.

    Args:
        ends: the numbers of ops of the rank without and with STEPs.
    """
    tail = 0
    if place + 1 < ends[0]:
        behind = programs[rank, place + 1]
        tail = ops[behind, DURATION] + nodes[behind, TAIL]
    else:
        for at in range(place + 1, ends[1]):
            tail += ops[programs[rank, at], DURATION]
    if ops[op, READER] != NONE:
        tail = max(tail, ops[op, LAG] + nodes[len(ops) + op, TAIL])
    return int(tail)


@compiled
def _tail_of_transfer(ops: Ints, nodes: Ints, sender: int, awaiting: int) -> int:
    """Return the tail of an op's transfer, from those of the nodes that wait for it.

    Args:
        awaiting: the op before which the rank awaits it, or `NONE`.
    """
    reader, behind = ops[sender, READER], ops[sender, NEXT]
    tail = max(0, ops[reader, DURATION] - ops[reader, LEAD] + nodes[reader, TAIL])
    if behind != NONE:
        tail = max(tail, ops[behind, LAG] + nodes[len(ops) + behind, TAIL])
    if awaiting != NONE:
        tail = max(tail, ops[awaiting, DURATION] + nodes[awaiting, TAIL])
    return int(tail)


@compiled
def _push_tail(nodes: Ints, queue: Ints, counts: Ints, heads: Ints, node: int) -> None:
    """Queue a node whose tail may change; later ones come first."""
    _push(nodes, queue, counts, -2 * heads[node], node)


@compiled
def _renew_queued_tails(a: OrderArrays) -> None:
    """Renew the tails of all nodes in the queue, and of those before them that change."""
    ops, programs, ranks, heads, p = a.ops, a.programs, a.ranks, a.heads, a.paths
    nodes, queue, counts, behind, num_ops = p.nodes, p.queue, p.counts, a.behind, len(ops)
    while counts[NUM_QUEUED]:
        node = _pop(nodes, queue, counts)
        is_op = node < num_ops
        op = node if is_op else node - num_ops
        rank, place = ops[op, AT_RANK], ops[op, PLACE]
        length = ranks[rank, LENGTH]
        end = length - ranks[rank, NUM_STEPS]
        if is_op:
            tail = _tail_of_op(ops, programs, nodes, op, rank, place, (end, length))
        else:
            at = place + behind + 1
            tail = _tail_of_transfer(ops, nodes, op, programs[rank, at] if at < end else NONE)
        if tail == nodes[node, TAIL]:
            continue
        nodes[node, TAIL] = tail
        if not is_op:
            _push_tail(nodes, queue, counts, heads, op)
            if ops[op, PREVIOUS] != NONE:
                _push_tail(nodes, queue, counts, heads, num_ops + ops[op, PREVIOUS])
            continue
        if place:
            _push_tail(nodes, queue, counts, heads, programs[rank, place - 1])
        if ops[op, SOURCE] != NONE:
            _push_tail(nodes, queue, counts, heads, num_ops + ops[op, SOURCE])
        if place > behind:
            sender = programs[rank, place - behind - 1]
            if ops[sender, READER] != NONE:
                _push_tail(nodes, queue, counts, heads, num_ops + sender)


@compiled
def renew_tails(a: OrderArrays, rank: int, first: int, last: int) -> None:
    """Renew the tails that a change of a rank's order at some places affects; heads are known."""
    ops, program, heads, p = a.ops, a.programs[rank], a.heads, a.paths
    nodes, queue, counts, relinked, num_ops = p.nodes, p.queue, p.counts, p.relinked, len(ops)
    for place in range(max(0, first - a.behind - 1), last + 1):
        op = program[place]
        if place >= first - 1:
            _push_tail(nodes, queue, counts, heads, op)
        if ops[op, READER] != NONE:
            _push_tail(nodes, queue, counts, heads, num_ops + op)
        if place >= first and ops[op, SOURCE] != NONE:  # it may be fused, which takes another time
            _push_tail(nodes, queue, counts, heads, num_ops + ops[op, SOURCE])
    for at in range(counts[NUM_RELINKED]):
        _push_tail(nodes, queue, counts, heads, num_ops + relinked[at])
    _renew_queued_tails(a)


@compiled
def find_tails(a: OrderArrays) -> None:
    """Find the tails of all nodes; heads are known."""
    for rank in range(a.num_ranks):
        end = a.ranks[rank, LENGTH] - a.ranks[rank, NUM_STEPS]
        renew_tails(a, rank, 0, end - 1)
    a.paths.counts[HAS_TAILS] = 1
