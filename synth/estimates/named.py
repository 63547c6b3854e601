"""Estimated profiles by name, such as `llama3-70b-h100-tp8`: computed when they are asked for.

    MODEL-DEVICE[-tpN][-cpN][-epN][-fp8][-sTOKENS][-bSEQUENCES]

So the tables of kernels and the formulas are the only source, no file can be out of date, and every
combination of a known model and device has a name.
"""

import re
from collections.abc import Iterator
from functools import cache

from pydantic import ValidationError

from synth.errors import SynthError
from synth.estimates.calibration import factors_of
from synth.estimates.device import device_of, devices
from synth.estimates.estimated_profile import NAMED_SOFTWARE, Estimator
from synth.estimates.factors import software_of
from synth.estimates.layout import Layout, Precision
from synth.estimates.model_config import known_model, model_names, model_of
from synth.profile import Profile
from synth.records.record import describe

# The devices of the names that are listed; others have names, too.
_LISTED = ("a100", "h100", "h200", "b200")

# Nine digits at most: names also come from plans that anyone may have written.
_COUNT = r"[1-9]\d{0,8}"
_SIZES = rf"(?:-tp(?P<tp>{_COUNT}))?(?:-cp(?P<cp>{_COUNT}))?(?:-ep(?P<ep>{_COUNT}))?(?P<fp8>-fp8)?"
_LENGTHS = rf"(?:-s(?P<s>{_COUNT}))?(?:-b(?P<b>{_COUNT}))?"


def is_named(name: str) -> bool:
    """True if a name is that of an estimated profile."""
    return _pattern().fullmatch(name) is not None


def estimated(name: str) -> Profile:
    """Compute the profile of a name.

    Raises:
        SynthError: the sizes do not suit the model or the device.
        ValueError: it is no such name.
    """
    match = _pattern().fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is no name of an estimated profile")
    sizes = {key: int(match[key] or 0) for key in ("tp", "cp", "ep", "s", "b")}
    model, device = match["model"], device_of(match["device"])
    tensor, context, expert = (max(1, sizes[key]) for key in ("tp", "cp", "ep"))
    try:
        layout = Layout(
            seq_len=sizes["s"] or known_model(model).sequence_length,
            micro_batch_size=sizes["b"] or 1,
            tensor=tensor,
            context=context,
            expert=expert,
            data=max(1, expert // (tensor * context)),
            precision=Precision.FP8 if match["fp8"] else Precision.BF16,
        )
    except ValidationError as error:
        raise SynthError(f"the sizes of {name} are out of range:\n{describe(error)}") from None
    factors = factors_of(None, device, NAMED_SOFTWARE)
    estimator = Estimator(model_of(model), device, layout, software_of(NAMED_SOFTWARE), factors)
    return estimator.profile(name=name, command=_command(model, device.name, layout), variants=True)


def _command(model: str, device: str, layout: Layout) -> str:
    """Return the command that makes the same profile."""
    options = (("tp", layout.tensor), ("cp", layout.context), ("ep", layout.expert))
    groups = "".join(f" --{option} {size}" for option, size in options if size > 1)
    narrow = " --dtype fp8" if layout.precision is Precision.FP8 else ""
    batch = layout.micro_batch_size
    more = f" --micro-batch-size {batch}" if batch > 1 else ""
    return (
        f"synth estimate {model} --device {device}{groups} --seq-len {layout.seq_len}{narrow}{more}"
    )


def usual_names() -> Iterator[str]:
    """The names of known models on usual devices, with the sizes that they are trained with."""
    for model in model_names():
        known = known_model(model)
        for device in _LISTED:
            for tensor in known.tensor_parallel:
                for expert in known.expert_parallel:
                    experts = f"-ep{expert}" if expert > 1 else ""
                    yield f"{model}-{device}-tp{tensor}{experts}"


def similar_names(name: str) -> Iterator[str]:
    """Yield the names of all known models on all devices, with the sizes of a name."""
    sizes = re.search(rf"{_SIZES}{_LENGTHS}$", name)
    for model in model_names():
        for device in devices():
            yield f"{model}-{device.name}{'' if sizes is None else sizes[0]}"


@cache
def _pattern() -> re.Pattern[str]:
    def either(names: list[str]) -> str:
        return "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))

    models, known = either(list(model_names())), either([device.name for device in devices()])
    return re.compile(f"(?P<model>{models})-(?P<device>{known}){_SIZES}{_LENGTHS}")
