"""Policies of recomputation: what F keeps of a layer, and what B computes again.

`full` keeps the layer's input alone. `selective` computes the attention core again and keeps the
rest, as Megatron-LM's granularity of this name does (Korthikanti et al. 2022, arXiv 2205.05198,
section 5). `ops` keeps the results of attention and of every other matrix product, as torchtitan's
`selective_ac_option = "op"` does. A function of the user's own, `FILE.py:FUNCTION`, is a policy as
PyTorch's `create_selective_checkpoint_contexts` takes it.

    F                 under checkpointing; the policy says op by op what is kept
    B of the layer    F again up to the last tensor that is needed, kept results taken as they are
    W                 as without: B gives it the tensors that it needs
"""

import itertools
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from synth.costs.recomputation import FULL
from synth.errors import SynthError

from .user_function import import_function, run_user_code

SELECTIVE, OPS = "selective", "ops"


class PolicyFailed(SynthError):
    """A layer cannot be recomputed under a policy; `cause` is torch's error."""

    def __init__(self, policy: str, cause: RuntimeError, layer: str = "a layer") -> None:
        self.cause = cause
        reason = str(cause).strip().partition("\n")[0]
        super().__init__(
            f"{layer} cannot be recomputed under the policy {policy}: {reason}; leave the policy "
            f"out, or change the layer"
        )


_Run = Callable[..., Any]
_Block = Callable[[], AbstractContextManager[object]]

_PRODUCTS = frozenset(("aten::mm", "aten::addmm"))
_KEPT = ("aten::_scaled_dot_product_", "_c10d_functional::reduce_scatter_tensor")


def check_policy(policy: str) -> None:
    """Refuse what is no policy of a part of a layer.

    Raises:
        SynthError: no such name, or a user's function that is not there.
    """
    if policy == FULL:
        raise SynthError(f"the policy {FULL} needs no measurement; leave it out")
    if ":" in policy:
        import_function(policy)
    elif policy not in (SELECTIVE, OPS):
        raise SynthError(
            f"there is no policy {policy!r}; give {SELECTIVE}, {OPS}, or FILE.py:FUNCTION"
        )


def check_is_imported(policies: Iterable[str]) -> None:
    """Refuse policies whose code a plan would import, as no program has done so before."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    known = {os.path.realpath(file) for file in files if file}
    for policy in policies:
        place = policy.rpartition(":")[0]
        is_there = (
            os.path.realpath(place) in known if place.endswith(".py") else place in sys.modules
        )
        if place and not is_there:
            raise SynthError(
                f"the plan recomputes layers under {policy!r}, a function, and to import it runs "
                f"its code; import {place} in your program to say that it may"
            )


def run_recomputed(
    policy: str,
    run: _Run,
    arguments: tuple[Any, ...],
    first: _Block = nullcontext,
    again: _Block = nullcontext,
) -> Any:
    """Run a part of F of which B will compute again what the policy says.

    Args:
        policy: `full`, `selective`, `ops`, or the address of a user's function.
        run: called with the arguments now, and perhaps again within B.
        arguments: positional ones.
        first: makes the context in which `run` runs now; the policy is not asked about its ops.
        again: makes that of `run` within B, likewise. It makes random numbers those of the first.

    Raises:
        PolicyFailed: of the repetition within B.
        SynthError: see `check_policy`.
    """
    if policy == SELECTIVE:
        with _CoreAttentionAgain():
            return run(*arguments)
    contexts = _contexts(policy)

    def made() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
        inner, inner_again = contexts()
        return _Nested(first, inner), _Nested(again, inner_again)

    return checkpoint(
        run, *arguments, use_reentrant=False, preserve_rng_state=False, context_fn=made
    )


class _Nested(AbstractContextManager[None]):
    """A context in another one, which is made each time."""

    def __init__(self, outer: _Block, inner: AbstractContextManager[object]) -> None:
        """Take what makes the outer one, and the inner one."""
        self._outer, self._inner = outer, inner
        self._entered = ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as entered:
            entered.enter_context(self._outer())
            entered.enter_context(self._inner)
            self._entered = entered.pop_all()

    def __exit__(self, *error: Any) -> bool | None:
        return self._entered.__exit__(*error)


def _contexts(policy: str) -> Callable[[], Any]:
    """Return the function that makes the contexts of an F and of its repetition."""
    if policy == FULL:
        return lambda: (nullcontext(), nullcontext())
    contexts: Any = create_selective_checkpoint_contexts  # without annotations in torch
    if policy != OPS:
        check_policy(policy)

    def made() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
        first, again = contexts(_EveryOtherProduct() if policy == OPS else _of_user(policy))
        return first, _Repetition(policy, again)

    return made


class _Repetition(AbstractContextManager[None]):
    """The context of a repetition within B, whose errors name the policy."""

    def __init__(self, policy: str, context: AbstractContextManager[object]) -> None:
        self._policy, self._context = policy, context

    def __enter__(self) -> None:
        self._context.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: Any
    ) -> None:
        self._context.__exit__(kind, error, at)
        if isinstance(error, RuntimeError):
            raise PolicyFailed(self._policy, error) from error


@cache
def _of_user(address: str) -> Callable[..., Any]:
    """Import a user's policy; its errors and results of other types name it."""
    own = import_function(address)

    def decided(*args: Any, **kwargs: Any) -> Any:
        found = run_user_code(address, lambda: own(*args, **kwargs))
        if not isinstance(found, bool | CheckpointPolicy):
            raise SynthError(
                f"{address} returned a {type(found).__name__}; a policy returns True for what is "
                f"kept and False for the rest, or a CheckpointPolicy"
            )
        return found

    return decided


class _EveryOtherProduct:
    """The policy `ops` of one F, which counts its products, and those of its repetition."""

    def __init__(self) -> None:
        self._numbers = {is_again: itertools.count(1) for is_again in (False, True)}

    def __call__(
        self, context: SelectiveCheckpointContext, op: Any, *args: Any, **kwargs: Any
    ) -> CheckpointPolicy:
        name = op._schema.name
        if name in _PRODUCTS:
            is_kept = next(self._numbers[context.is_recompute]) % 2 == 1
        else:
            is_kept = name.startswith(_KEPT)
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


class _CoreAttentionAgain(TorchFunctionMode):
    """Within it, B computes `scaled_dot_product_attention` again from its arguments."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Torch calls this in place of `func`."""
        run = partial(func, **(kwargs or {}))
        if func is not F.scaled_dot_product_attention or not torch.is_grad_enabled():
            return run(*args)
        # Its dropout draws the same numbers again.
        return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=True)
