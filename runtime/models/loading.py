"""Makes layers from a spec: all as the factory makes them, or a rank's own, initialised."""

import copy
import inspect
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from synth.errors import Mismatch, SynthError
from synth.suggestions import did_you_mean

from ..conversion import Conversion
from ..dtypes import dtype_of
from ..seeds import derive_seed, seeded
from .checks import check_has_sizes
from .cut import CutModel, cut_model
from .empty import (
    allocate_parameters,
    empty_parameters,
    has_empty_parameters,
    lost_tensors,
)
from .hugging_face import convert_weights, is_hugging_face, load_config, make_whole
from .layers import base_name, num_safe_ids, unique_names
from .sizes import SIZES
from .spec import ModelSpec
from .ties import Tie, TieFinder, keep_tied
from .user_function import failure_of, import_function, run_user_code

Factory = Callable[..., Iterable[nn.Module]]


def load_layers(spec: ModelSpec) -> list[nn.Module]:
    """All layers of the model, initialised from torch's current random state; see `each_layer`."""
    return list(each_layer(spec))


def each_layer(spec: ModelSpec) -> Iterator[nn.Module]:
    """Yield the layers of the model in order; a function that yields them makes one at a time.

    A whole module, of a user's function or of transformers, is cut into layers.

    Raises:
        SynthError: no such model, file, module or function; arguments it does not take; a result
            that is neither a module nor a list of modules nor yields any; or a whole module that
            cannot be cut.
    """
    size = SIZES.get(spec.factory)
    if size is not None:
        _check_arguments(spec, size.factory)
        yield from size.factory(**{**size.arguments, **spec.arguments})
        return
    made = _make_empty(spec)
    made = _make(spec) if made is None else made
    if isinstance(made, CutModel):
        yield from made
        return
    if not isinstance(made, list | nn.ModuleList | Generator):
        raise SynthError(
            f"{spec.factory} returned a {type(made).__name__}; return the whole model, an "
            "nn.Module; or a list of nn.Module, the pipeline's layers in order; or yield these one "
            "by one"
        )
    layers, index = iter(made), 0
    while (layer := run_user_code(spec.factory, lambda: next(layers, _ENDED))) is not _ENDED:
        if not isinstance(layer, nn.Module):
            raise SynthError(
                f"{spec.factory} returned a {type(layer).__name__} as layer {index}; "
                "every layer needs to be an nn.Module: wrap functions in one"
            )
        check_has_sizes(layer, f"layer {index} of {spec.factory}")
        is_outline = spec.empty or torch.get_default_device().type == "meta"
        if has_empty_parameters(layer) and not is_outline:
            raise SynthError(
                f"layer {index} of {spec.factory} has parameters without values, on the meta "
                f"device, and would be trained from zeros: make it with values, which "
                f"--weights-from replaces without taking memory for them"
            )
        yield layer
        index += 1
    if index == 0:
        how = "an empty list" if isinstance(made, list) else "no layers"
        raise SynthError(f"{spec.factory} returned {how}; the pipeline needs one layer at least")


def _make_empty(spec: ModelSpec) -> Any:
    """Return what the factory makes, with parameters without values; None: it cannot do so."""
    if not spec.empty:
        return None
    try:
        with empty_parameters():
            made = _make(spec)
    except Exception:  # of the user's code or of torch, of any class; with values it may work
        return None
    # A generator makes its layers later, with values.
    layers = made if isinstance(made, list | nn.ModuleList) else ()
    modules = (layer for layer in layers if isinstance(layer, nn.Module))
    without = next((name for module in modules for name in lost_tensors(module)), None)
    if without is None:
        return made
    print(
        f"{spec.factory}: {without} is computed from parameters when it is made, so the whole "
        f"model is made with values before its weights are read",
        file=sys.stderr,
        flush=True,
    )
    return None


def _make(spec: ModelSpec) -> Any:
    """Return what the factory makes; of a whole module its pieces.

    Raises:
        SynthError: as `each_layer`.
    """
    if is_hugging_face(spec.factory):
        return _cut(spec, make_whole(spec))
    factory = _own_factory(spec)
    _bind(spec, factory)
    made = run_user_code(spec.factory, lambda: factory(**spec.arguments))
    is_whole = isinstance(made, nn.Module) and not isinstance(made, nn.ModuleList)
    return _cut(spec, made) if is_whole else made


def _cut(spec: ModelSpec, model: nn.Module) -> CutModel:
    """Cut a whole model into layers for the micro-batches of the spec.

    With `check` they are compared with the whole; of token ids on a few, which are cut for, too.

    Raises:
        SynthError: the model cannot be cut.
    """
    cut, (size, length) = spec.cut, spec.cut.shape
    if is_hugging_face(spec.factory):
        convert_weights(model, dtype_of(cut.dtype))
    else:
        Conversion(dtype_of(cut.dtype)).apply(model)
    batches = [_tokens(model, size, length)] if cut.batch is None else [cut.batch()]
    if cut.batch is None and cut.check:
        batches.insert(0, _tokens(model, min(size, 2), min(length, _CHECKED_LENGTH)))
    autocast = None if cut.autocast is None else dtype_of(cut.autocast)
    for index, (inputs, targets) in enumerate(batches):
        with torch.autocast("cpu", autocast, enabled=autocast is not None):
            try:
                layers = cut_model(
                    model, inputs, targets, at=cut.at, check=cut.check and index == 0
                )
            except SynthError as error:
                raise type(error)(f"{spec.factory}: {error}") from error
            except Exception as error:
                advice = _ADVICE_OF_CONFIG if is_hugging_face(spec.factory) else _ADVICE
                advice = "" if cut.batch is not None else advice
                raise failure_of(spec.factory, error, advice) from error
    return layers


_CHECKED_LENGTH = 16
_ADVICE = "; it was called with random token ids, --inputs FILE.py:FUNCTION makes other inputs"

_ADVICE_OF_CONFIG = "; the whole model fails so with token ids: check the fields of its config"


def _tokens(model: nn.Module, size: int, length: int) -> tuple[Tensor, Tensor]:
    """Return random token ids and targets."""
    generator = torch.Generator().manual_seed(0)
    shape, most = (size, length), num_safe_ids(model) or 256
    ids = torch.randint(most, shape, generator=generator)
    return ids, torch.randint(most, shape, generator=generator)


def check_spec(spec: ModelSpec) -> None:
    """Check a spec as far as possible before anything is built.

    Raises:
        SynthError: the model, file, module or function does not exist, or does not take the
            arguments.
    """
    size = SIZES.get(spec.factory)
    if size is not None:
        _check_arguments(spec, size.factory)
    elif is_hugging_face(spec.factory):
        load_config(spec)
    else:
        _bind(spec, _own_factory(spec))


_ENDED = object()


def makes_one_at_a_time(spec: ModelSpec) -> bool:
    """True for a user's function that yields its layers.

    Raises:
        SynthError: there is no such function.
    """
    if spec.factory in SIZES or is_hugging_face(spec.factory):
        return False
    return inspect.isgeneratorfunction(_own_factory(spec))


@dataclass(frozen=True)
class BuiltModel:
    """Some of a model's layers by index, and their shared parameters by name.

    Attributes:
        ties: those of the whole model; None: they are unknown.
    """

    layers: dict[int, nn.Module]
    tied: dict[str, nn.Parameter]
    ties: tuple[Tie, ...] | None = None


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
    allocated for the other layers. A user's model is made on the CPU, and the other layers are
    dropped: one by one if the function yields them. torch's random state is left unchanged. On the
    meta device a built-in model's layers have no values and take no memory. Parameters that have no
    values as the spec says (`empty`) are zeros on the device.

    Raises:
        SynthError: as `each_layer`; an index is out of range; `names` are given and differ from
            the names of the layers.
    """
    wanted = None if indices is None else list(indices)
    built_in, has_values = spec.factory in SIZES, torch.device(device).type != "meta"
    if built_in:
        picked = _pick(outline_of(spec), wanted)
    else:
        with seeded(seed):
            picked = _pick(each_layer(spec), wanted)
    if names is not None:
        _check_names(spec, names, picked.names)
    chosen = range(len(picked.names)) if wanted is None else wanted
    _check_indices(spec, chosen, len(picked.names))
    layers = {index: picked.layers[index] for index in chosen}
    built: dict[int, nn.Module] = {}
    for index, layer in layers.items():
        made = materialise(layer, seed, index) if has_values and built_in else layer
        built[index] = made if dtype is None else Conversion(dtype).apply(made)
    if has_values:
        allocate_parameters(built.values(), device)
    built = {index: layer.to(device) for index, layer in built.items()}
    return BuiltModel(built, keep_tied(built, picked.ties), picked.ties)


def outline_of(spec: ModelSpec) -> list[nn.Module]:
    """All layers without data, on the meta device.

    Raises:
        SynthError: as `each_layer`; a user's function may not be able to make them so.
    """
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return load_layers(spec)


class _Picked(NamedTuple):
    """Some layers by index, and the names and ties of all."""

    layers: dict[int, nn.Module]
    names: list[str]
    ties: tuple[Tie, ...]


def _pick(layers: Iterable[nn.Module], indices: Collection[int] | None) -> _Picked:
    """Keep the layers at the indices, all if None."""
    kept, bases, finder = {}, [], TieFinder()
    for index, layer in enumerate(layers):
        bases.append(base_name(layer))
        finder.add(index, layer)
        if indices is None or index in indices:
            kept[index] = layer
    return _Picked(kept, unique_names(bases), finder.ties())


def materialise(layer: nn.Module, seed: int, index: int) -> nn.Module:
    """Allocate and initialise a built-in layer, whose `reset_parameters` sets all its values."""
    layer.to_empty(device="cpu")
    with seeded(derive_seed(seed, index)):
        layer.reset_parameters()  # type: ignore[operator]
    return layer


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
            "your own, as path/to/file.py:function or package.module:function; or hf:NAME or "
            f"hf:config.json of Hugging Face{did_you_mean(spec.factory, SIZES)}"
        )
    found = import_function(spec.factory)
    return _copier(found) if isinstance(found, nn.Module) else found


def _copier(module: nn.Module) -> Factory:
    """Return a function without parameters, which copies a module."""

    def copied() -> Any:
        return copy.deepcopy(module)

    return copied


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
