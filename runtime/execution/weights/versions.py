"""The versions of a rank's weights: the newest one in its parameters, older ones in the table.

If an op still reads the version that a STEP replaces, the STEP continues with a copy: the old
tensors stay as weights(s, v) in the table until their last reader frees them, and the parameters
get new ones. An op that reads an older version runs with the parameters pointing to it.

Autograd checks that saved tensors are unchanged when it uses them. Of the weights a forward saves
either tensors of the version that it read, or the parameter itself, which in the backward points to
the version that the plan says. So both read the right version, and the parameters' version counters
are kept unchanged to satisfy the check.
"""

from collections.abc import Callable, Iterable
from functools import partial

from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.schedule.ops import Op, Value, ValueKind
from synth.schedule.weight_versions import BackwardReads, ForwardReads

from ..base.rank_context import RankContext
from ..base.stepper import ForwardPredictor, WeightRead
from ..gradients.early_gradients import EarlyGradients
from .parameter_changes import unchanged

Work = Callable[[], None]

# In so many forwards the memory of weights is compared.
_NUM_EXACT_FORWARDS = 2


class VersionedWeights:
    """Gives each op of a rank the version that the plan says, and stashes versions at STEPs."""

    def __init__(self, context: RankContext) -> None:
        """Find the ops of a rank that read older versions, and the STEPs that stash one.

        Args:
            context: the rank, of a schedule whose weights have versions.

        Raises:
            SynthError: backwards read the newest version and forwards an older one, which autograd
                cannot do.
        """
        lowered, rank, stages = context.lowered, context.rank, context.stages
        accesses = lowered.versions
        assert accesses is not None
        rule = accesses.rule
        if rule.backward == BackwardReads.NEWEST and rule.forward != ForwardReads.NEWEST:
            raise SynthError(
                f"forwards read an older version of the weights ({rule.forward}) and backwards the "
                f"newest one, which autograd cannot do; let both read the same, or both the newest"
            )
        self._slots, self._table, self._stages = context.slots, context.table, stages
        self._first_copies = lowered.schedule.placement.first_copies
        self._predictor: ForwardPredictor | None = None
        self._parameters = {number: tuple(stage.parameters()) for number, stage in stages.items()}
        self._early = EarlyGradients(lowered, rank, self._parameters)
        self._num_compared = dict.fromkeys(stages, 0)
        first = lowered.first_node[rank]
        numbered = list(enumerate(lowered.ops[rank], first))
        self._older = {
            op: int(accesses.version[node])
            for node, op in numbered
            if op.kind != OpKind.STEP and 0 <= accesses.version[node] < accesses.newest[node]
        }
        sizes = lowered.schedule.update_sizes
        self._forward_reads = {
            op: WeightRead(
                op.stage,
                op.microbatch // sizes[op.stage] - int(accesses.version[node]),
                op not in self._older,
            )
            for node, op in numbered
            if op.kind == OpKind.F
        }
        self._recomputes = any(op.kind == OpKind.R for ops in lowered.ops for op in ops)
        makers = set(accesses.makes.node.tolist())
        self._stashing = {op for node, op in numbered if node in makers}

    def begin(self) -> None:
        """Begin a step.

        Raises:
            SynthError: a stage trains other parameters than when its pipeline was made.
        """
        for number, known in self._parameters.items():
            now = tuple(self._stages[number].parameters())
            if len(now) != len(known) or any(a is not b for a, b in zip(now, known, strict=True)):
                raise SynthError(
                    f"stage {number} trains other parameters than when the Pipeline was made, and "
                    f"this schedule keeps versions of those that it knew: make a new Pipeline and "
                    f"optimizer after such a change"
                )

    def predict_by(self, predictor: ForwardPredictor | None) -> None:
        """Let a stepper change the weights during each forward; None: they stay unchanged.

        Raises:
            SynthError: some forwards run again, for which the prediction would differ.
        """
        if predictor is not None and self._recomputes:
            raise SynthError(
                "weights are predicted for each forward, and this schedule runs forwards again to "
                "recompute activations; leave the prediction out, or run a schedule without R"
            )
        self._predictor = predictor

    def running(self, op: Op, work: Work) -> Work:
        """Return the work of an op with the version that it reads or, if a STEP, stashes."""
        if op.kind == OpKind.STEP:
            slot = self._slot(op, op.microbatch) if op in self._stashing else None
            return partial(self._update, op.stage, slot, work)
        if op.kind == OpKind.F:
            work = partial(self._predict, self._forward_reads[op], work)
        work = self._early.running(op, work)
        if op not in self._older:
            return work
        slot = self._slot(op, self._older[op])
        work = partial(self._keeping, op, work)
        return partial(self._read, self._parameters[op.stage], slot, work)

    def forget(self) -> None:
        """Drop what a step that failed has left."""
        self._early.forget()

    def _slot(self, op: Op, version: int) -> int:
        first = self._first_copies[op.replica][op.stage]  # copies on a rank share weights
        return self._slots.number(Value(ValueKind.WEIGHTS, op.stage, version, first))

    def _update(self, number: int, slot: int | None, work: Work) -> None:
        parameters = self._parameters[number]
        if slot is not None:
            copied = tuple(map(self._stages[number].copy_of, parameters))
            self._table.values[slot] = tuple(parameter.data for parameter in parameters)
            _point(parameters, copied)
        with _unsafe_preserve_version_counter(parameters):
            work()

    def _predict(self, read: WeightRead, work: Work) -> None:
        if self._predictor is None:
            work()
            return
        with self._predictor.around_forward(read):
            work()

    def _keeping(self, op: Op, work: Work) -> None:
        is_forward = op.kind in (OpKind.F, OpKind.R)
        self._num_compared[op.stage] += is_forward
        with unchanged(
            self._parameters[op.stage],
            "of which it reads an older version that is dropped later",
            by="a forward" if is_forward else "a hook in a backward",
            is_exact=is_forward and self._num_compared[op.stage] <= _NUM_EXACT_FORWARDS,
        ):
            work()

    def _read(self, parameters: tuple[Tensor, ...], slot: int, work: Work) -> None:
        older = self._table.values[slot]
        if older is None:
            raise RuntimeError("a version of the weights was freed before its last reader")
        newest = tuple(parameter.data for parameter in parameters)
        _point(parameters, older)
        try:
            work()
        finally:
            _point(parameters, newest)


def renew(parameters: Iterable[Tensor]) -> int:
    """Move parameters to new memory, so that a measurement on CPU observes when it is freed.

    Returns:
        The bytes that they take.
    """
    num_bytes = 0
    for parameter in parameters:
        parameter.data = parameter.data.clone()
        num_bytes += parameter.numel() * parameter.element_size()
    return num_bytes


def _point(parameters: tuple[Tensor, ...], tensors: tuple[Tensor, ...]) -> None:
    for parameter, tensor in zip(parameters, tensors, strict=True):
        parameter.data = tensor
