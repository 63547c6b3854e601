"""Custom autograd functions of weights: their backward runs in B without the weights' products.

A function gets copies of its weights as leaves of their own, so that B does not go on to the
parameters, whether or not its backward asks `needs_input_grad`. See `late_products`.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .apply_rule import Owners, Queue, can_defer, in_function_transform
from .derived import leaves_of, owner_of
from .late_products import Postponing, Product, Watching, value_of
from .regions import is_region, leaf_of
from .rule import Call, Gradients, Rule
from .weight_task import WeightTask

Apply = Callable[..., Any]

_SPLIT = "_synth_split"


@dataclass(frozen=True)
class _Record:
    """One call of a custom function, for its backward.

    `parameters` are those among the weights, each with the leaf that the function got;
    `of_backward` says that B has made the call.
    """

    queue: Queue
    key: tuple[Any, ...]
    places: tuple[int, ...]
    owners: Owners
    parameters: tuple[tuple[nn.Parameter, nn.Parameter], ...]
    of_backward: bool


def weights_of(function: Any, arguments: tuple[Any, ...], queue: Queue) -> tuple[int, ...]:
    """The places of the arguments whose gradients can wait for W; none: leave it to autograd."""
    # Those of torch checkpoint, compile and communicate.
    if function.__module__.startswith("torch.") or not torch.is_grad_enabled():
        return ()
    if function.vjp is not torch.autograd.Function.vjp:
        return ()
    if torch.compiler.is_compiling() or in_function_transform():
        return ()
    trained = {i: a for i, a in enumerate(arguments) if isinstance(a, Tensor) and a.requires_grad}
    weights = [i for i, a in trained.items() if _is_weight(a)]
    if not weights or len(weights) == len(trained):
        return ()
    if not all(can_defer(arguments[i], queue.left, queue.listened) for i in weights):
        return ()
    found = tuple(weights)
    return () if queue.functions.get(_key(function, arguments, found)) == () else found


def _is_weight(tensor: Tensor) -> bool:
    if tensor.is_leaf or is_region(tensor):
        return isinstance(leaf_of(tensor), nn.Parameter)
    return bool(leaves_of(tensor))


def _key(function: Any, arguments: tuple[Any, ...], places: tuple[int, ...]) -> tuple[Any, ...]:
    """What a backward can depend on but for values of tensors: another call may take other ways."""
    leaves, spec = pytree.tree_flatten(arguments)
    return function, places, str(spec), *map(_form, leaves)


def _without_shapes(key: tuple[Any, ...]) -> Hashable:
    """The key without shapes and strides of tensors, which differ where lengths do."""
    return (*key[:3], *(form[2:] or form for form in key[3:]))


def _form(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.requires_grad, type(leaf)
    known = isinstance(leaf, bool | int | float | complex | str | bytes | torch.dtype | type(None))
    return (type(leaf), leaf) if known else (type(leaf), id(leaf))


def apply_function(
    queue: Queue, function: Any, arguments: tuple[Any, ...], places: tuple[int, ...], apply: Apply
) -> Any:
    """Run a custom function, recorded such that the gradients at some places wait for W."""
    owners = tuple([owner_of(arguments[i]) for i in places])
    given = list(arguments)
    for i in places:
        given[i] = _leaf_like(arguments[i])
    split = _split(function)
    key = _key(function, arguments, places)
    outputs = apply(split, *given)
    tensors = [output for output in pytree.tree_leaves(outputs) if isinstance(output, Tensor)]
    for output in tensors:
        if isinstance(output.grad_fn, split._backward_cls):
            pairs = tuple(
                (arguments[i], given[i]) for i in places if isinstance(given[i], nn.Parameter)
            )
            output.grad_fn._synth = _Record(queue, key, places, owners, pairs, queue.is_in_backward)
            return outputs
    queue.functions[key] = ()
    if not any(output.requires_grad for output in tensors):
        return outputs
    return apply(function, *arguments)


def _leaf_like(weight: Tensor) -> Tensor:
    """A leaf with the values and the attributes of a weight."""
    leaf = weight.detach().requires_grad_()
    if isinstance(weight, nn.Parameter):
        leaf = nn.Parameter(leaf)
        vars(leaf).update(vars(weight))
    return leaf


def _split(function: Any) -> Any:
    """The function with a backward that leaves products to W; made once, and gone with it."""
    known = vars(function).get(_SPLIT)
    if known is not None:
        return known

    def backward(ctx: Any, *gradients: Any) -> Any:
        return _backward(function, ctx, gradients)

    made = type(function.__name__, (function,), {"backward": staticmethod(backward)})
    setattr(function, _SPLIT, made)
    return made


def _backward(function: Any, ctx: Any, gradients: tuple[Any, ...]) -> Any:
    record: _Record = ctx._synth
    known = record.queue.functions
    products, kind = known.get(record.key), _without_shapes(record.key)
    mode = Watching(is_exact=known.get(kind, True)) if products is None else Postponing(products)
    with mode, _grads_in(record.parameters):
        found = function.backward(ctx, *gradients)
    results = list(found) if isinstance(found, tuple) else [found]
    inputs = [g for i, g in enumerate(results) if i not in record.places]
    weights = [results[i] for i in record.places]
    if isinstance(mode, Watching):
        # A backward that gives a weight no gradient may add it itself, to the parameter.
        is_whole = all(isinstance(g, Tensor) for g in weights)
        known[record.key] = mode.late(inputs, weights) if is_whole else ()
        known.setdefault(kind, mode.overwrites)
    else:
        weights = [mode.result(g) for g in weights]
        results = [value_of(mode.result(g)) if i not in record.places else g
                   for i, g in enumerate(results)]  # fmt: skip
    _push(record, weights)
    return tuple(None if i in record.places else g for i, g in enumerate(results))


@contextmanager
def _grads_in(parameters: tuple[tuple[nn.Parameter, nn.Parameter], ...]) -> Iterator[None]:
    """Let a backward that writes to `grad` itself write to the parameters'."""
    pairs = [(p, leaf) for p, leaf in parameters if p.grad is None or p.grad.dtype == leaf.dtype]
    for parameter, leaf in pairs:
        leaf.grad = parameter.grad
    yield
    for parameter, leaf in pairs:
        if leaf.grad is not parameter.grad:
            parameter.grad = leaf.grad
        leaf.grad = None


def _push(record: _Record, weights: list[Any]) -> None:
    given = [(o, g) for o, g in zip(record.owners, weights, strict=True) if g is not None]
    if given:
        owners, results = zip(*given, strict=True)
        call = Call(_NOTHING, owners, results)
        task = WeightTask(_RULE, owners, call, _NOTHING)
        record.queue.push(task, of_backward=record.of_backward)


class _ResultsRule(Rule):
    """Computes what a backward left to W."""

    reads_weights_in_w = False

    def bind(self, *args: Any, **kwargs: Any) -> Call | None:
        """Not called: no function has this rule."""
        raise NotImplementedError

    def forward(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Not called."""
        raise NotImplementedError

    def input_gradient(self, grad: Tensor, call: Call) -> Tensor:
        """Not called."""
        raise NotImplementedError

    def weight_gradients(self, grad: Tensor, call: Call, needs: tuple[bool, ...]) -> Gradients:
        """One for each weight that got one; of what B computed, a copy.

        Others may hold that, or it may be the gradient of two weights, and gradients add up in
        place.
        """
        return tuple([r.clone() if isinstance(r, Tensor) else value_of(r) for r in call.options])


_RULE = _ResultsRule()
_NOTHING = torch.empty(0)
Products = dict[Hashable, tuple[Product | None, ...]]
