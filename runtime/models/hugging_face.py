"""Models of transformers from a config alone, without weights."""

from typing import Any

import torch
from torch import nn

from synth.errors import SynthError
from synth.system.extras import require

from ..conversion import Conversion
from .spec import ModelSpec

_PREFIX = "hf:"


def is_hugging_face(factory: str) -> bool:
    """True for `hf:` with a name of the hub, a folder, or a config.json."""
    return factory.startswith(_PREFIX)


def load_config(spec: ModelSpec) -> Any:
    """Return the config, changed by the spec's arguments.

    transformers and huggingface_hub find it, with their own cache, token and offline rules. Code of
    a repository is not run.

    Raises:
        SynthError: transformers is missing, there is no such config, or it has no such field.
    """
    require("hf", ("transformers",), f"{spec.factory} needs")
    from transformers import AutoConfig

    place = spec.factory.removeprefix(_PREFIX)
    try:
        config = AutoConfig.from_pretrained(place, trust_remote_code=False)
    except Exception as error:  # transformers checks fields by errors of many classes
        raise SynthError(
            f"{spec.factory}: transformers finds no config that it can use: {_short(error)}"
        ) from error
    fields = config.to_dict()
    for name in spec.arguments:
        if name not in fields:
            raise SynthError(
                f"{spec.factory}: its config has no {name!r}; it has {', '.join(fields)}"
            )
    if spec.arguments:
        try:  # anew, so that fields which follow from others do so
            raw, _ = type(config).get_config_dict(place)
            config = type(config).from_dict({**raw, **spec.arguments})
        except Exception as error:
            given = ", ".join(f"{name}={value}" for name, value in spec.arguments.items())
            raise SynthError(
                f"{spec.factory}: its config does not take {given}: {_short(error)}"
            ) from error
    attention = getattr(config, "_attn_implementation_internal", None)
    if attention not in (None, "eager", "sdpa"):
        raise SynthError(
            f"{spec.factory}: its config has attn_implementation={attention!r}, which is code of "
            f"other packages or of the hub; sdpa and eager are supported"
        )
    return config


def _short(error: Exception) -> str:
    """Return an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def make_whole(spec: ModelSpec) -> nn.Module:
    """Make the whole model, initialised as transformers does, in float32.

    Raises:
        SynthError: as `load_config`; transformers has no such model, or its inputs are unknown.
    """
    config = load_config(spec)
    kind = _class_of(spec, config)
    model: nn.Module
    try:
        model = kind._from_config(config, dtype=torch.float32)
    except Exception as error:  # of fields that do not fit, of any class
        raise SynthError(
            f"{spec.factory}: transformers cannot make it: {_short(error)}; check the fields of "
            f"its config{''.join(f', {name}={value}' for name, value in spec.arguments.items())}"
        ) from error
    needed: Any = model.main_input_name
    if spec.cut.batch is None and (needed != "input_ids" or config.is_encoder_decoder):
        both = "input_ids and decoder_input_ids" if config.is_encoder_decoder else needed
        raise SynthError(
            f"{spec.factory} is a {type(model).__name__}, which takes {both}, and token ids alone "
            f"are not enough: give --inputs FILE.py:FUNCTION that returns the pair of a "
            f"dictionary with {both}, and the labels"
        )
    return model.train()


def convert_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert parameters and buffers to a dtype, as `from_pretrained(dtype=…)` makes them.

    Tables that are not in files of weights, such as frequencies of rotary angles, stay as they are.
    """
    saved = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    tables = [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and id(buffer) not in saved
    ]
    Conversion(dtype).apply(model)
    for module, name, buffer in tables:
        module._buffers[name] = buffer


def _class_of(spec: ModelSpec, config: Any) -> Any:
    """Return the class that the config names, else the one that transformers has for its kind.

    Raises:
        SynthError: there is none with a head.
    """
    import transformers
    from transformers.models.auto import modeling_auto as kinds

    named = [getattr(transformers, name, None) for name in config.architectures or ()]
    mappings = (
        kinds.MODEL_FOR_CAUSAL_LM_MAPPING,
        kinds.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        kinds.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    )
    known = [mapping[type(config)] for mapping in mappings if type(config) in mapping]
    found = next((each for each in (*named, *known) if each is not None), None)
    if found is None:
        raise SynthError(
            f"{spec.factory}: the installed transformers {transformers.__version__} has no model "
            f"with a head for {config.model_type!r}: causal language models, encoder-decoders and "
            f"image classifiers are cut"
        )
    return found
