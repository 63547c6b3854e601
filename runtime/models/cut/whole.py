"""Calling a whole model with inputs and targets, and finding the loss among its outputs."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from synth.errors import SynthError

_TARGETS = ("targets", "target", "labels", "label", "y")


def loss_call(model: nn.Module) -> Callable[[Any, Any], Tensor]:
    """Return a function of inputs and targets that runs the model and returns its loss.

    Inputs that are a tuple are positional arguments. A dictionary is one of keywords if the model
    is of transformers, or if it has several keys, all parameters of `forward`. Others are one
    argument. A model of transformers is called without labels and without a cache. Another gets the
    targets if its `forward` has a parameter for them.
    What it returns is the loss, a scalar, or has one scalar in it if it got the targets; or it is
    the logits, of which the loss is the mean cross entropy, as in `nn.functional.cross_entropy`.
    """
    call = _call_of_transformers if is_of_transformers(model) else _call_of_anyone
    return lambda inputs, targets: _loss(model, *call(model, inputs, targets), targets)


def is_of_transformers(model: nn.Module) -> bool:
    """True for a model whose class is of transformers, or derived from one."""
    return _is_a(model, "PreTrainedModel", "transformers.")


def inside_peft(model: nn.Module) -> nn.Module:
    """Return the model that a `PeftModel` has its adapters in; others are returned as they are.

    Raises:
        SynthError: PEFT computes beside the model, too.
    """
    if not _is_a(model, "PeftModel", "peft."):
        return model
    peft_model: Any = model
    config = peft_model.active_peft_config
    beside = ""
    if config.is_prompt_learning:
        beside = "gives its model other inputs than it is given"
    elif "forward" in vars(type(peft_model.base_model)):  # AdaLoRA, Poly, X-LoRA
        beside = "computes beside its model, such as a term of the loss"
    elif getattr(config, "alora_invocation_tokens", None) is not None:
        beside = "finds in each input where its adapter begins"
    if beside:
        raise SynthError(
            f"{type(model).__name__} with a {type(config).__name__} {beside}, which cannot be cut: "
            f"take adapters in the model's layers, such as LoRA"
        )
    inner: nn.Module = peft_model.get_base_model()
    return inner


def _is_a(model: nn.Module, name: str, package: str) -> bool:
    """True if a class of the model's has a name, in a package that need not be there."""
    bases = type(model).__mro__
    return any(base.__name__ == name and base.__module__.startswith(package) for base in bases)


def _call_of_transformers(model: nn.Module, inputs: Any, targets: Any) -> tuple[Any, bool]:
    """Return the logits, and that the model did not get the targets.

    Raises:
        SynthError: it leaves out layers at random, or returns no logits.
    """
    keywords: dict[str, Any] = {"return_dict": True}
    config: Any = getattr(model, "config", None)
    if model.training:
        _check_keeps_layers(model, config)
    language = config.get_text_config() if hasattr(config, "get_text_config") else None
    if any(getattr(each, "use_cache", None) is not None for each in (config, language)):
        keywords["use_cache"] = False
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    if isinstance(inputs, Mapping):
        given, keywords = (), {**inputs, **keywords}
    with _without_warnings(model):
        output = model(*given, **keywords)
    if not hasattr(output, "logits"):
        raise _no_loss(model, f"a {type(output).__name__} without logits")
    return output.logits, False


def _check_keeps_layers(model: nn.Module, config: Any) -> None:
    """Refuse a model of transformers that leaves out layers at random."""
    for name in ("layerdrop", "encoder_layerdrop", "decoder_layerdrop"):
        if share := getattr(config, name, 0):
            raise SynthError(
                f"{type(model).__name__} leaves out layers at random ({name} is {share}), so its "
                f"steps differ from batch to batch: set {name} to 0 in its config, as --arg "
                f"{name}=0 does of an hf: model"
            )


@contextmanager
def _without_warnings(model: nn.Module) -> Iterator[None]:
    """Within it no part of the model reads ids, to warn of padding without a mask."""
    name = "warn_if_padding_and_no_attention_mask"
    parts = [vars(part) for part in model.modules() if hasattr(part, name)]
    for attributes in parts:
        attributes[name] = lambda *_: None
    try:
        yield
    finally:
        for attributes in parts:
            del attributes[name]


@contextmanager
def of_language_models(model: nn.Module, inputs: Any) -> Iterator[None]:
    """Say in a refusal that a model of several modalities is cut for its text part alone.

    Raises:
        SynthError: one was raised within, and the model got images or sound.
    """
    try:
        yield
    except SynthError as error:
        given = _of_other_modalities(model, inputs)
        if not given:
            raise
        raise SynthError(
            f"{type(model).__name__} is given {', '.join(given)}, which cannot be cut: between its "
            f"layers it places what another model makes of them by numbers of the inputs. Cut the "
            f"text part alone: give input_ids of text, or inputs_embeds in which your program has "
            f"placed what that model, frozen, makes"
        ) from error


def _of_other_modalities(model: nn.Module, inputs: Any) -> list[str]:
    """Name the inputs of a language model of transformers that are images or sound."""
    if not isinstance(inputs, Mapping) or not is_of_transformers(model):
        return []
    whole: Any = model
    has_text = "text_config" in getattr(whole.config, "sub_configs", ())
    if not has_text or whole.get_output_embeddings() is None:
        return []
    return [name for name in inputs if name.startswith(_OTHER_MODALITIES)]


_OTHER_MODALITIES = ("pixel_", "image_", "video_", "input_features", "audio_")

# Inputs from whose numbers models of transformers make masks.
_MASKING = frozenset({"attention_mask", "position_ids"})


@contextmanager
def as_traced(inputs: Any) -> Iterator[None]:
    """Within it models of transformers make masks without a look at their numbers, as if traced.

    Otherwise they leave out a mask of ones, and a batch with padding would have other steps.
    Without such inputs they are not traced: they would make a mask of positions that are the same
    in each batch, and lose the kernels of attention that need no mask.
    """
    utils: Any = sys.modules.get("transformers.utils.import_utils")
    own = getattr(utils, "is_jit_tracing", None)
    if own is None or not (isinstance(inputs, Mapping) and _MASKING & inputs.keys()):
        yield
        return
    utils.is_jit_tracing = lambda: True
    try:
        yield
    finally:
        utils.is_jit_tracing = own


def _call_of_anyone(model: nn.Module, inputs: Any, targets: Any) -> tuple[Any, bool]:
    """Return the output, and whether the model got the targets.

    Raises:
        SynthError: the targets fit several parameters.
    """
    given, keywords = inputs if isinstance(inputs, tuple) else (inputs,), {}
    parameters = list(inspect.signature(model.forward).parameters.values())
    if isinstance(inputs, Mapping) and _are_keywords(inputs, parameters):
        given, keywords = (), dict(inputs)
    with _named_dictionary(inputs, parameters) if given else nullcontext():
        return _called(model, parameters, given, keywords, targets)


def _called(
    model: nn.Module,
    parameters: Sequence[inspect.Parameter],
    given: tuple[Any, ...],
    keywords: dict[str, Any],
    targets: Any,
) -> tuple[Any, bool]:
    free = [p for p in parameters[len(given) :] if p.kind != p.VAR_POSITIONAL]
    free = [p for p in free if p.name not in keywords]
    named = [p.name for p in free if p.name in _TARGETS]
    if len(named) > 1:
        raise SynthError(
            f"{type(model).__name__}.forward has {' and '.join(named)} beside its "
            f"{len(given) + len(keywords)} inputs, and it is unknown which are the targets: rename "
            f"one of them, or give it among the inputs"
        )
    if named:
        return model(*given, **keywords, **{named[0]: targets}), True
    needed = [p for p in free if p.default is p.empty and p.kind == p.POSITIONAL_OR_KEYWORD]
    if len(needed) == 1:
        return model(*given, **keywords, **{needed[0].name: targets}), True
    return model(*given, **keywords), False


@contextmanager
def _named_dictionary(inputs: Any, parameters: Sequence[inspect.Parameter]) -> Iterator[None]:
    """Say in an error of a model that it was given a dictionary as one argument.

    Raises:
        SynthError: the model failed, and the only key is the name of a parameter.
    """
    try:
        yield
    except SynthError:
        raise
    except Exception as error:  # of the user's code, of any class
        keys = [p.name for p in parameters if isinstance(inputs, Mapping) and p.name in inputs]
        if not keys or len(inputs) != 1:
            raise
        raise SynthError(
            f"the model was given the dictionary of {keys[0]} as its first argument, and failed: "
            f"{type(error).__name__}: {error}; give a lone input as it is, without a dictionary"
        ) from error


def _are_keywords(inputs: Mapping[Any, Any], parameters: Sequence[inspect.Parameter]) -> bool:
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = {p.name for p in parameters if p.kind in by_name}
    # A single key may be the name under which a model takes dictionaries.
    return len(inputs) > 1 and all(key in names for key in inputs)


def _loss(model: nn.Module, output: Any, has_targets: bool, targets: Any) -> Tensor:
    """Return the loss of a model's output.

    Raises:
        SynthError: there is none in it, and it is no logits of whole numbers as targets.
    """
    leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    own = getattr(output, "loss", None)
    scalars = [own] if isinstance(own, Tensor) else [x for x in leaves if x.numel() == 1]
    if len(scalars) == 1 and (has_targets or len(leaves) == 1):
        return scalars[0]
    if scalars and not has_targets:
        raise _no_loss(model, f"a scalar beside {len(leaves) - 1} others, without the targets,")
    logits = leaves[0] if len(leaves) == 1 else getattr(output, "logits", None)
    if isinstance(logits, Tensor) and isinstance(targets, Tensor):
        if logits.shape[:-1] == targets.shape and not targets.is_floating_point():
            return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())
        if logits.shape == targets.shape and targets.is_floating_point():
            raise _no_loss(model, f"of shape {list(logits.shape)}, as the targets")
    raise _no_loss(model, f"a {type(output).__name__} with {len(leaves)} tensors")


def _no_loss(model: nn.Module, returned: str) -> SynthError:
    return SynthError(
        f"{type(model).__name__} returns {returned}, and it is unknown what its loss is: let its "
        f"forward, or that of a module around it, take the targets as its last argument, and "
        f"return the loss, a scalar"
    )
