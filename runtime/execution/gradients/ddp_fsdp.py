"""DistributedDataParallel and FSDP2 inside a stage: reduced once, after its last backward.

Both reduce gradients while autograd runs, and take every backward for a whole one. A stage has many
backwards for one optimizer step, in any order, and delivers weight gradients outside of autograd.
Therefore a step's backwards accumulate, as under `no_sync`, and the wrappers reduce after the
stage's last one.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward

from synth.errors import SynthError

from ...split import gradient_dtype
from .all_reduce import is_sharded

# Compared as names: importing torch's modules that define these classes takes long.
_DDP = "torch.nn.parallel.distributed"
_FSDP = "torch.distributed.fsdp"


class GradientSync:
    """The wrappers inside one stage's module."""

    def __init__(self, module: nn.Module) -> None:
        """Find the wrappers.

        Raises:
            SynthError: a wrapper is set up such that its reductions cannot be deferred.
        """
        self._replicated = [_Replicated(part) for part in module.modules() if _is_ddp(part)]
        self._sharded = [_Sharded(part) for part in module.modules() if _is_fsdp(part)]
        for part in module.modules():
            if type(part).__name__ == "FullyShardedDataParallel":
                raise SynthError(
                    "a stage is wrapped in FullyShardedDataParallel, whose flat parameters a "
                    "pipeline cannot reduce at the right time; wrap it by fully_shard (FSDP2)"
                )

        self._warn_of_uncovered(module)

    def _warn_of_uncovered(self, module: nn.Module) -> None:
        """Warn of parameters outside of all wrappers, which would differ from rank to rank."""
        if not self.wrappers:
            return
        covered = {id(p) for wrapper in self.wrappers for p in wrapper.parameters()}
        names = [
            name
            for name, p in module.named_parameters()
            if p.requires_grad and id(p) not in covered
        ]
        if names:
            warnings.warn(
                f"a stage is wrapped in part: the gradients of {names[0]}"
                f"{f' and {len(names) - 1} other parameters' if names[1:] else ''} are not reduced "
                f"over data-parallel ranks; wrap the whole stage",
                stacklevel=5,
            )

    @property
    def wrappers(self) -> Sequence["_Replicated | _Sharded"]:
        """All wrappers."""
        return [*self._replicated, *self._sharded]

    @property
    def is_sharded(self) -> bool:
        """True if FSDP2 holds the parameters."""
        return bool(self._sharded)

    def begin(self) -> None:
        """Begin a step: gradients accumulate from here on."""
        for wrapper in self.wrappers:
            wrapper.postpone()

    def reduce(self) -> None:
        """Reduce the stage's complete gradients over the data-parallel pipelines."""
        for replicated in self._replicated:
            replicated.reduce()
        for sharded in self._sharded:
            sharded.allow()
        for sharded in self._sharded:
            sharded.reduce()

    def end(self) -> None:
        """End a step, also if it failed: wrappers reduce by themselves again."""
        for wrapper in self.wrappers:
            wrapper.allow()


class _Replicated:
    """A DistributedDataParallel module."""

    def __init__(self, module: Any) -> None:
        if module.static_graph:
            raise SynthError(
                "a stage is wrapped in DistributedDataParallel(static_graph=True), which counts "
                "the backwards of its first iteration; wrap it without static_graph"
            )
        for parameter in module.parameters():
            if gradient_dtype(parameter) != parameter.dtype:
                raise SynthError(
                    "DistributedDataParallel cannot reduce gradients in another dtype than their "
                    "parameters'; give the plain module and Pipeline(data_parallel=…)"
                )
        self._module = module
        self._syncs = True

    def parameters(self) -> Iterable[Tensor]:
        return self._module.parameters()  # type: ignore[no-any-return]

    def postpone(self) -> None:
        self._syncs = self._module.require_backward_grad_sync  # False within no_sync
        self._module.require_backward_grad_sync = False

    def allow(self) -> None:
        self._module.require_backward_grad_sync = self._syncs

    def reduce(self) -> None:
        """Run a backward that adds zero to every gradient.

        The reducer is notified of each parameter, fills its buckets from the gradients, applies
        communication hooks and waits, as at the end of any backward. Hooks on the parameters have
        seen their gradients already.
        """
        if not self._syncs:
            return
        module = self._module
        parameters = [p for p in module._module_parameters if p.requires_grad]
        if module.find_unused_parameters:
            parameters = [p for p in parameters if p.grad is not None]
        end = _AddZero.apply(torch.empty(0, requires_grad=True), *parameters)  # type: ignore[no-untyped-call]
        module.reducer.prepare_for_backward([end] if module.find_unused_parameters else [])
        with _without_hooks(parameters):
            _engine_run_backward(
                (end,), (torch.zeros_like(end),), False, False, (), allow_unreachable=True,
                accumulate_grad=True,
            )  # fmt: skip
        module.require_forward_param_sync = True  # of buffers, by the next forward


@contextmanager
def _without_hooks(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Disable the hooks on parameters' tensors; those on their AccumulateGrad nodes still run."""
    tables = [
        table
        for parameter in parameters
        for table in (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
        if table
    ]
    kept = [dict(table) for table in tables]
    for table in tables:
        table.clear()
    try:
        yield
    finally:
        for table, hooks in zip(tables, kept, strict=True):
            table.update(hooks)


class _AddZero(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *parameters: Tensor) -> Tensor:
        ctx.like = [(p.shape, p.new_zeros(())) for p in parameters]
        return anchor.new_zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(zero.expand(shape) for shape, zero in ctx.like)


class _Sharded:
    """A module that `fully_shard` was applied to."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def parameters(self) -> Iterable[Tensor]:
        return filter(is_sharded, self._module.parameters())

    def postpone(self) -> None:
        self._set(is_last=False)

    def allow(self) -> None:
        self._set(is_last=True)

    def _set(self, *, is_last: bool) -> None:
        self._module.set_is_last_backward(is_last)
        self._module.set_requires_gradient_sync(is_last, recurse=False)

    def reduce(self) -> None:
        """End the root's backward, as FSDP2 does by an autograd callback at each backward."""
        state = self._module._get_fsdp_state()
        if state._is_root:
            groups = [group for other in state._state_ctx.all_states for group in _groups(other)]
            kept = [group.reshard_after_backward for group in groups]
            for group in groups:
                group.reshard_after_backward = True
            state._root_post_backward_final_callback()
            for group, reshards in zip(groups, kept, strict=True):
                group.reshard_after_backward = reshards


def _groups(state: Any) -> Sequence[Any]:
    """The parameter groups of a state; torch 2.11 has at most one of them."""
    if hasattr(state, "_fsdp_param_groups"):
        found: Sequence[Any] = state._fsdp_param_groups
        return found
    return [state._fsdp_param_group] if state._fsdp_param_group is not None else []


def _is_ddp(module: nn.Module) -> bool:
    return any(
        c.__module__ == _DDP and c.__name__ == "DistributedDataParallel" for c in _mro(module)
    )


def _is_fsdp(module: nn.Module) -> bool:
    return any(c.__name__ == "FSDPModule" and c.__module__.startswith(_FSDP) for c in _mro(module))


def _mro(module: nn.Module) -> tuple[type, ...]:
    return type(module).__mro__
