"""Makes layers from a spec: all as the factory makes them, or a rank's own, initialised."""

import hashlib
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from synth.errors import Mismatch, SynthError

from .imports import import_function
from .layers import layer_names
from .sizes import SIZES
from .spec import ModelSpec
from .ties import find_ties, keep_tied

Factory = Callable[..., list[nn.Module]]


def load_layers(spec: ModelSpec) -> list[nn.Module]:
    """All layers of the model, initialised from torch's current random state.

    SynthError: no such model, file, module or function; arguments it does not take; or a result
    that is not a list of modules, at least one.
    """
    size = SIZES.get(spec.factory)
    if size is not None:
        _check_arguments(spec, size.factory)
        return size.factory(**{**size.arguments, **spec.arguments})
    return _checked(spec, _call(spec, _own_factory(spec)))


def check_spec(spec: ModelSpec) -> None:
    """Check a spec as far as possible before anything is built.

    Raises:
        SynthError: the model, file, module or function does not exist, or does not take the
            arguments.
    """
    size = SIZES.get(spec.factory)
    if size is not None:
        _check_arguments(spec, size.factory)
    else:
        _bind(spec, _own_factory(spec))


@dataclass(frozen=True)
class BuiltModel:
    """Some of a model's layers by index, and their shared parameters by name."""

    layers: dict[int, nn.Module]
    tied: dict[str, nn.Parameter]


def build_layers(
    spec: ModelSpec,
    *,
    seed: int,
    indices: Iterable[int] | None = None,
    names: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> dict[int, nn.Module]:
    """The layers alone; see `build_model`."""
    return build_model(
        spec, seed=seed, indices=indices, names=names, device=device, dtype=dtype
    ).layers


def build_model(
    spec: ModelSpec,
    *,
    seed: int,
    indices: Iterable[int] | None = None,
    names: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> BuiltModel:
    """Build the layers at `indices` (all if None), by index, on `device`, reproducibly by seed.

    Layers do not depend on the device or on the choice of layers. Of a built-in model no memory is
    allocated for the other layers. A user's model is built as a whole on the CPU, and the other
    layers are dropped. torch's random state is left unchanged.

    Raises:
        SynthError: as `load_layers`; an index is out of range; `names` are given and differ from
            the names of the layers.
    """
    built_in = spec.factory in SIZES
    if built_in:
        with torch.device("meta"):
            layers = load_layers(spec)
    else:
        with _seeded(seed):
            layers = load_layers(spec)
    ties = find_ties(layers)
    if names is not None:
        _check_names(spec, names, layer_names(layers))
    chosen = range(len(layers)) if indices is None else list(indices)
    _check_indices(spec, chosen, len(layers))
    built = {
        index: (_materialise(layers[index], seed, index) if built_in else layers[index]).to(
            device=device, dtype=dtype
        )
        for index in chosen
    }
    return BuiltModel(built, keep_tied(built, ties))


def _materialise(layer: nn.Module, seed: int, index: int) -> nn.Module:
    """Allocate and initialise a built-in layer, whose `reset_parameters` sets all its values."""
    layer.to_empty(device="cpu")
    digest = hashlib.sha256(f"{seed}/{index}".encode()).digest()
    with _seeded(int.from_bytes(digest[:8], "big") >> 1):
        layer.reset_parameters()  # type: ignore[operator]
    return layer


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    # Layers are initialised on the CPU, so no device's generator is touched.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _check_names(spec: ModelSpec, needed: Sequence[str], found: Sequence[str]) -> None:
    if list(needed) != list(found):
        raise Mismatch(
            f"the model {spec.factory!r} has changed: it has {len(found)} layers "
            f"({', '.join(found[:4])}, …), {len(needed)} were profiled ({', '.join(needed[:4])}, "
            f"…); profile and solve again"
        )


def _check_indices(spec: ModelSpec, indices: Iterable[int], count: int) -> None:
    wrong = [index for index in indices if not 0 <= index < count]
    if wrong:
        raise SynthError(
            f"layers {wrong} of {spec.factory!r} were asked for; it has layers 0 to {count - 1}"
        )


def _check_arguments(spec: ModelSpec, factory: Factory) -> None:
    known = inspect.signature(factory).parameters
    for name, value in spec.arguments.items():
        if name not in known:
            raise SynthError(
                f"{spec.factory!r} takes no argument {name!r}; it takes {', '.join(known)}"
            )
        needed = type(known[name].default)
        fits = isinstance(value, needed) and isinstance(value, bool) == (needed is bool)
        if not (fits or (needed is float and type(value) is int)):
            raise SynthError(
                f"{spec.factory!r}: {name} = {value!r} is a {type(value).__name__}; "
                f"it needs to be of type {needed.__name__}, such as {known[name].default!r}"
            )


def _own_factory(spec: ModelSpec) -> Factory:
    if ":" not in spec.factory:
        raise SynthError(
            f"no model is called {spec.factory!r}; there are {', '.join(SIZES)}, or a function of "
            "your own, as path/to/file.py:function or package.module:function"
        )
    return import_function(spec.factory)


def _bind(spec: ModelSpec, factory: Factory) -> None:
    """Check that the arguments fit the function."""
    signature = inspect.signature(factory)
    try:
        signature.bind(**spec.arguments)
    except TypeError as error:
        raise SynthError(
            f"{spec.factory} could not be called with {dict(spec.arguments)}: {error}; "
            f"it is declared {signature}"
        ) from None


def _call(spec: ModelSpec, factory: Factory) -> object:
    _bind(spec, factory)
    try:
        return factory(**spec.arguments)
    except Exception as error:
        frame = _last_of_the_user(traceback.extract_tb(error.__traceback__))
        raise SynthError(
            f"{spec.factory} failed: {type(error).__name__}: {error} "
            f"(in {frame.filename}, line {frame.lineno}, {frame.name})"
        ) from error


def _last_of_the_user(frames: Sequence[traceback.FrameSummary]) -> traceback.FrameSummary:
    """The last place in the user's code before a failure in torch."""
    of_torch = str(Path(torch.__file__).parent)
    return next((f for f in reversed(frames) if not f.filename.startswith(of_torch)), frames[-1])


def _checked(spec: ModelSpec, layers: object) -> list[nn.Module]:
    if not isinstance(layers, list) or not layers:
        given = "an empty list" if layers == [] else f"a {type(layers).__name__}"
        raise SynthError(
            f"{spec.factory} returned {given}; return a list of nn.Module, the pipeline's layers "
            "in order (list(sequential) makes one of an nn.Sequential)"
        )
    for index, layer in enumerate(layers):
        if not isinstance(layer, nn.Module):
            raise SynthError(
                f"{spec.factory} returned a {type(layer).__name__} as layer {index}; "
                "every layer needs to be an nn.Module: wrap functions in one"
            )
    return layers
