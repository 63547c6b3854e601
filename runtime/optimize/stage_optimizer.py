"""The optimizer of one stage: an update in place, or a preview of it that can be undone."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from synth.profile.optimizer import OptimizerSpec

from ..execution.gradients.all_reduce import local_part
from .rules import UpdateRule, new_state, rule_of
from .settings import StepSettings

# Elements that are copied or widened at a time, so that the workspace stays small; more on a
# device, where each piece costs several launches.
_PIECE_ELEMENTS = {"cpu": 1 << 17, "cuda": 1 << 21}

# Tensors of a piece's size that are alive at once while AdamW's direction is computed.
_DIRECTION_COPIES = 4


@dataclass(frozen=True)
class Weight:
    """A trainable parameter, the tensor that is updated for it, and its optimizer state.

    `master` is the parameter itself, its float32 master copy, or, for steps that can be undone, the
    copy that holds the last valid step.
    """

    live: nn.Parameter
    master: Tensor
    state: Mapping[str, Tensor]

    @property
    def gradient(self) -> Tensor:
        """The accumulated gradient, allocated from the first step's start."""
        if self.live.grad is None:
            raise RuntimeError("a parameter has no gradient; `Gradients.open` allocates them")
        return self.live.grad

    def copied_count(self) -> list[Tensor]:
        """A copy of its step count, if the rule has one."""
        return [self.state["step"].clone()] if "step" in self.state else []

    @property
    def widened(self) -> bool:
        """True if the update uses another dtype than the layers."""
        return self.master.dtype != self.live.dtype


class StageOptimizer:
    """Updates a stage's trainable parameters.

    All its state is allocated at once, so that it is static memory, as the plan counts it.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], spec: OptimizerSpec) -> None:
        self._rule = rule_of(spec)
        self._weights = [_weight_of(p, spec, self._rule) for p in parameters if p.requires_grad]

    @property
    def weights(self) -> list[Weight]:
        """The trainable parameters, in the order given."""
        return self._weights

    @torch.no_grad()
    def step(self, settings: StepSettings, found_inf: Tensor | None = None) -> None:
        """Update the master copies and their moments by the gradients.

        Args:
            found_inf: float32 scalar, on any device; 1: change nothing.
        """
        if found_inf is not None and self._weights:
            found_inf = found_inf.to(self._weights[0].master.device)
        self._step_whole([w for w in self._weights if not w.widened], settings, found_inf)
        for weight in self._weights:
            if weight.widened:
                self._step_in_pieces(weight, settings, found_inf)

    @torch.no_grad()
    def preview(self, settings: StepSettings) -> None:
        """Give the layers the parameters after `step`; master copies and moments stay."""
        for weight in self._weights:
            for piece in _pieces(weight, self._rule):
                updated = piece.master.clone() if weight.widened else piece.live.copy_(piece.master)
                gradient = piece.gradient.to(updated.dtype)
                moments = [[moment.clone()] for moment in piece.moments]
                self._rule.update([updated], [gradient], moments, weight.copied_count(), settings)
                if weight.widened:
                    piece.live.copy_(updated)

    @contextmanager
    def predicted(self, settings: StepSettings, ahead: int, *, from_newest: bool) -> Iterator[None]:
        """Enter a context in which the parameters are as they may be after some more updates.

        They go on by the direction of the last update; before the first one they stay. What is
        saved of them within the context sees them as they are after it.

        Args:
            from_newest: True if the parameters are the newest version, which is predicted from its
                master copy and rounded once. Of an older version only the parameters are left.
        """
        kept = [weight.live.data.clone() for weight in self._weights]
        for weight in self._weights:
            start = weight.master.detach() if from_newest else weight.live.data
            moments = [weight.state[name] for name in self._rule.moments]
            for live, before, *parts in _split([weight.live.data, start, *moments]):
                direction = self._rule.direction(parts, weight.state.get("step"), settings)
                live.copy_(before.sub(direction, alpha=ahead * settings.learning_rate))
        try:
            yield
        finally:
            for weight, before in zip(self._weights, kept, strict=True):
                weight.live.data.copy_(before)

    @torch.no_grad()
    def show(self) -> None:
        """Copy the master copies to the layers."""
        for weight in self._weights:
            if weight.master is not weight.live:
                weight.live.copy_(weight.master)

    def state_bytes(self) -> int:
        """The allocated bytes of optimizer state, parameters and gradients excluded."""
        tensors = [w.master for w in self._weights if w.master is not w.live]
        tensors += [t for w in self._weights for t in w.state.values()]
        return sum(t.numel() * t.element_size() for t in map(local_part, tensors))

    def _step_whole(
        self, weights: list[Weight], settings: StepSettings, found_inf: Tensor | None
    ) -> None:
        rule = self._rule
        if weights:
            rule.update(
                [local_part(weight.master) for weight in weights],
                [local_part(weight.gradient) for weight in weights],
                [[local_part(weight.state[name]) for weight in weights] for name in rule.moments],
                [weight.state["step"] for weight in weights] if rule.counts else [],
                settings,
                found_inf,
            )

    def _step_in_pieces(
        self, weight: Weight, settings: StepSettings, found_inf: Tensor | None
    ) -> None:
        count = weight.copied_count()
        for piece in _pieces(weight, self._rule):
            count = weight.copied_count()
            gradient = piece.gradient.to(piece.master.dtype)
            moments = [[moment] for moment in piece.moments]
            self._rule.update([piece.master], [gradient], moments, count, settings, found_inf)
        for counted in count:
            weight.state["step"].copy_(counted)


@dataclass(frozen=True)
class _Piece:
    """A part of a weight's tensors."""

    live: Tensor
    master: Tensor
    gradient: Tensor
    moments: list[Tensor]


def _pieces(weight: Weight, rule: UpdateRule) -> Iterator[_Piece]:
    moments = [weight.state[name] for name in rule.moments]
    tensors = [weight.live.detach(), weight.master, weight.gradient, *moments]
    for live, master, gradient, *rest in _split(tensors):
        yield _Piece(live, master, gradient, rest)


def _split(tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Split tensors of equal shape into the same pieces; one that is not contiguous stays whole.

    Of sharded ones (DTensor) the pieces are of this process's shards.
    """
    tensors = list(map(local_part, tensors))
    if all(tensor.is_contiguous() for tensor in tensors):
        size = piece_elements(tensors[0].device)
        yield from zip(*(torch.split(tensor.view(-1), size) for tensor in tensors), strict=True)
    else:
        yield tuple(tensors)


def piece_elements(device: torch.device) -> int:
    """The number of elements that are copied or widened at once."""
    return _PIECE_ELEMENTS["cpu" if device.type == "cpu" else "cuda"]


def _weight_of(parameter: nn.Parameter, spec: OptimizerSpec, rule: UpdateRule) -> Weight:
    master = parameter.detach()
    if spec.master_weights and parameter.dtype != torch.float32:
        master = master.float()
    elif spec.post_validation:
        master = master.clone()
    else:
        master = parameter
    return Weight(parameter, master, new_state(rule, master.detach()))


def commit_bytes(modules: Iterable[nn.Module], spec: OptimizerSpec) -> int:
    """The rise of memory while the updates of these modules are made in place, one by one."""
    if not spec.master_weights:
        return 0
    widened = [
        min(local_part(p).numel(), piece_elements(p.device))
        for module in modules
        for p in module.parameters()
        if p.requires_grad and p.dtype != torch.float32
    ]
    return max(widened, default=0) * torch.float32.itemsize


def workspace_bytes(modules: Iterable[nn.Module], spec: OptimizerSpec) -> int:
    """The largest rise of memory in STEP: the copies of the largest piece of a parameter."""
    previewed = len(rule_of(spec).moments) if spec.post_validation else 0
    largest = 0
    for parameter in (p for module in modules for p in module.parameters() if p.requires_grad):
        wide = spec.master_weights and parameter.dtype != torch.float32
        copies = previewed + wide * (2 if spec.post_validation else 1)
        size = torch.float32.itemsize if wide else parameter.element_size()
        largest = max(
            largest,
            copies * size * min(local_part(parameter).numel(), piece_elements(parameter.device)),
        )
    return largest


def prediction_bytes(modules: Iterable[nn.Module]) -> int:
    """The most bytes that predicting the weights of one of these stages takes.

    They are a copy of its trainable parameters, and the direction of one piece of them.
    """
    most = 0
    for module in modules:
        trainable = [p for p in module.parameters() if p.requires_grad]
        copied = sum(p.numel() * p.element_size() for p in trainable)
        pieces = (min(p.numel(), piece_elements(p.device)) for p in trainable)
        piece_bytes = max(pieces, default=0) * torch.float32.itemsize
        most = max(most, copied + _DIRECTION_COPIES * piece_bytes)
    return most


def static_bytes(modules: Iterable[nn.Module], spec: OptimizerSpec) -> int:
    """The bytes of parameters, buffers, gradients and optimizer state.

    A parameter that several of the modules share counts once; of a sharded one (DTensor) this
    process's shard.
    """
    total, seen = 0, set[nn.Parameter]()
    for module in modules:
        total += sum(b.numel() * b.element_size() for b in module.buffers())
        own = [parameter for parameter in module.parameters() if parameter not in seen]
        seen.update(own)
        for parameter in own:
            size = local_part(parameter).numel(), parameter.element_size()
            total += math.prod(size)
            if parameter.requires_grad:
                total += spec.gradient_bytes(*size) + spec.state_bytes(*size)
    return total


def stage_optimizers(
    modules: Mapping[int, nn.Module], spec: OptimizerSpec
) -> dict[int, StageOptimizer]:
    """Make the optimizer of each stage; the first stage of a shared parameter updates it."""
    seen: set[nn.Parameter] = set()
    optimizers = {}
    for number, module in modules.items():
        own = [parameter for parameter in module.parameters() if parameter not in seen]
        seen.update(own)
        optimizers[number] = StageOptimizer(own, spec)
    return optimizers
