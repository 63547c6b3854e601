"""The legal layouts of a question, one after the other."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby, product

from synth.errors import SynthError
from synth.estimates.layout import AttentionKernel, Layout, Recompute, Sharding
from synth.layouts.question import LayoutQuestion, RunLayout
from synth.layouts.tuning import LEGAL
from synth.plan.runtimes import Runtime


def legal_layouts(question: LayoutQuestion) -> Iterator[RunLayout]:
    """Yield every layout that the model, the devices and the batch admit.

    Tensor parallelism stays within a node and has sequence parallelism. Sizes of groups are
    divisors of the number of devices, and micro-batches have a power of two of sequences. Layouts
    that differ in the stages per rank alone follow each other.
    """
    for tensor in _divisors(min(question.gpus, question.device.ranks_per_node)):
        for context, ranks in _pairs(question.gpus // tensor, question.gpus % tensor):
            if context > LEGAL.most_context or ranks > question.num_layers:
                continue
            data = question.gpus // (tensor * context * ranks)
            if question.global_batch % data:
                continue
            for groups in _groups(question, tensor, context, data, ranks):
                with suppress(SynthError):  # the model or the runtime does not admit the sizes
                    question.check_groups(groups, ranks)
                    yield from _with_rounds(question, groups, ranks)


def alike_layouts(question: LayoutQuestion) -> Iterator[list[RunLayout]]:
    """Yield the legal layouts in lists of those with the same groups and ranks."""
    every = groupby(legal_layouts(question), lambda one: (one.groups, one.ranks))
    yield from (list(alike) for _, alike in every)


def _groups(
    question: LayoutQuestion, tensor: int, context: int, data: int, ranks: int
) -> Iterator[Layout]:
    sizes = product(
        _expert_groups(question, tensor, tensor * context * data),
        _micro_batches(question.global_batch // data),
        _shardings(data * context, ranks),
        _recomputations(question),
    )
    for (expert, parts), size, sharding, recompute in sizes:
        yield Layout(
            seq_len=question.seq_len,
            micro_batch_size=size,
            tensor=tensor,
            context=context,
            expert=expert,
            expert_tensor=parts,
            data=data,
            precision=question.precision,
            sharding=sharding,
            recompute=recompute,
            narrow_gather=question.narrow_gather and sharding is Sharding.ZERO1,
        )


def _with_rounds(question: LayoutQuestion, groups: Layout, ranks: int) -> Iterator[RunLayout]:
    count = question.global_batch // (groups.data * groups.micro_batch_size)
    for rounds in LEGAL.rounds if ranks > 1 else (1,):
        layout = RunLayout(groups, ranks, rounds, count)
        if ranks * rounds <= question.num_layers and question.has_order(layout):
            yield layout


def _expert_groups(question: LayoutQuestion, tensor: int, ranks: int) -> list[tuple[int, int]]:
    """Ranks that share the experts, and that divide each, which are a part of those of `tensor`."""
    experts = question.shape.experts
    if experts is None:
        return [(1, 1)]
    divides = question.allowed.runtime in (Runtime.SYNTH, Runtime.MEGATRON)
    parts = _divisors(tensor) if divides else [1]
    pairs = product(_divisors(experts.count), parts)
    return [(size, divided) for size, divided in pairs if ranks % (size * divided) == 0]


def _micro_batches(sequences: int) -> Iterator[int]:
    size = 1
    while size <= min(sequences, LEGAL.most_micro_batch) and sequences % size == 0:
        yield size
        size *= 2


def _shardings(state_ranks: int, ranks: int) -> list[Sharding]:
    """ZeRO-1 and none, and without a pipeline FSDP; one rank has nothing to share."""
    if state_ranks == 1:
        return [Sharding.ZERO1]
    return [Sharding.ZERO1, Sharding.NONE] + ([Sharding.FSDP] if ranks == 1 else [])


def _recomputations(question: LayoutQuestion) -> list[Recompute]:
    """What the program can compute again within layers; whole layers are chosen by judging."""
    found = [Recompute.NONE]
    if question.software.attention is AttentionKernel.UNFUSED:
        found.append(Recompute.SELECTIVE)
    if question.allowed.runtime in ("torch", "torchtitan"):
        found.append(Recompute.OPS)
    return found


def _pairs(number: int, rest: int) -> Iterator[tuple[int, int]]:
    """Yield pairs of divisors whose product divides a number; none with a rest."""
    for first in _divisors(number) if not rest else ():
        for second in _divisors(number // first):
            yield first, second


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
