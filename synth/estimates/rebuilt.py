"""The estimator of a profile that was estimated: its model, device, layout and program again."""

from pydantic import ValidationError

from synth.errors import SynthError
from synth.estimates.device import Device, devices
from synth.estimates.estimated_profile import Estimator
from synth.estimates.factors import KINDS, SOFTWARE, Factors
from synth.estimates.layout import Layout
from synth.estimates.model_config import model_of
from synth.estimates.model_shape import ModelShape
from synth.profile import Profile
from synth.profile.estimate import ESTIMATED, Estimate


def estimator_of(profile: Profile) -> Estimator | None:
    """Return what computes the profile.

    A profile names its model, device, layout and factors; its program is the one whose times are
    the profile's.

    Returns:
        None: the profile was measured, is of a model or device that is not known by name, or was
        changed since.
    """
    estimate = profile.provenance.estimate
    if estimate is None:
        return None
    shape, device, layout = _shape(profile), _device(profile), _layout(estimate)
    if shape is None or device is None or layout is None:
        return None
    factors = _factors(estimate)
    for software in SOFTWARE.values():
        optimizer = profile.workload.optimizer
        found = Estimator(shape, device, layout, software, factors, optimizer)
        if _is_of(found, profile):
            return found
    return None


def _is_of(estimator: Estimator, profile: Profile) -> bool:
    try:
        found = estimator.profile()
    except SynthError:
        return False
    kinds = profile.layer_profiles
    return found.layer_profiles.keys() == kinds.keys() and all(
        abs(time.median_us - kinds[kind].time_us[op].median_us) <= 1e-3 * time.median_us + 0.01
        for kind, layer in found.layer_profiles.items()
        for op, time in layer.time_us.items()
    )


def _shape(profile: Profile) -> ModelShape | None:
    try:
        return model_of(profile.workload.model)
    except SynthError:
        return None


def _device(profile: Profile) -> Device | None:
    title = (profile.provenance.device or "").removesuffix(ESTIMATED)
    return next((device for device in devices() if device.title == title), None)


def _layout(estimate: Estimate) -> Layout | None:
    pairs = (text.rpartition(" ") for text in estimate.layout.split(", "))
    try:
        return Layout.model_validate_json(
            "{" + ", ".join(f'"{name}": {_json(value)}' for name, _, value in pairs) + "}"
        )
    except ValidationError:
        return None


def _json(value: str) -> str:
    words = {"True": "true", "False": "false"}
    return words.get(value, value if value.isdigit() else f'"{value}"')


def _factors(estimate: Estimate) -> Factors:
    found = [estimate.factors[kind] for kind in KINDS if kind in estimate.factors]
    if len(found) != len(KINDS):
        return Factors()
    values, deviations = zip(*((one.value, one.uncertainty) for one in found), strict=True)
    return Factors(values, deviations, estimate.calibration, estimate.scatter)
