"""The models that the page can name: shipped, estimated, of the working folder, and opened ones."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from synth.errors import SynthError
from synth.estimates.device import devices
from synth.estimates.model_config import shape_of
from synth.estimates.model_shape import ModelShape
from synth.estimates.named import usual_names
from synth.options.arguments.estimate import EstimateArguments
from synth.options.estimator import estimator_of
from synth.profile import Profile
from synth.records.command_option import from_values
from synth.records.safe_read import parse_json, read_text
from synth.schedule.files.plan_file import Plan
from synth.ui.limits import Limits
from synth.ui.setting import PipelineSetting
from synth.units import shown

# Files and plans that are kept in memory; the oldest are dropped.
_MOST_KEPT = 64
# Files of the working folder that are looked at, and bytes of one.
_MOST_FILES, _MOST_BYTES = 200, 64 << 20

_PROFILE, _PLAN, _CONFIG = "profile", "plan", "config"
_FORMATS = {Profile.FORMAT: _PROFILE, Plan.FORMAT: _PLAN}

_Kept = TypeVar("_Kept")


class Recent(Generic[_Kept]):
    """The latest things by their keys, `_MOST_KEPT` at most, and within a budget of their sizes."""

    def __init__(self, size: Callable[[_Kept], int] = lambda _: 0, most: int | None = None) -> None:
        """Keep things; the sizes of all but the latest add up to `most`, if it is given."""
        self._size, self._most = size, most
        self._kept: OrderedDict[Any, _Kept] = OrderedDict()
        self._pinned: dict[Any, _Kept] = {}

    def get(self, key: object) -> _Kept | None:
        """Return what has a key, if it is still there."""
        return self._pinned.get(key) or self._kept.get(key)

    def keys(self) -> list[Any]:
        """Return the keys, the latest first."""
        return [*self._pinned, *reversed(self._kept)]

    def pin(self, key: object) -> None:
        """Keep what has a key for ever."""
        self._pinned[key] = self._kept[key]

    def keep(self, key: object, thing: _Kept) -> _Kept:
        """Keep a thing, and drop the oldest."""
        self._kept[key] = thing
        while len(self._kept) > _MOST_KEPT or self._is_over():
            self._kept.popitem(last=False)
        return thing

    def _is_over(self) -> bool:
        if self._most is None or len(self._kept) == 1:
            return False
        return sum(map(self._size, self._kept.values())) > self._most

    def made(self, key: object, make: Callable[[], _Kept]) -> _Kept:
        """Return what has a key, or make it."""
        found = self.get(key)
        return self.keep(key, make()) if found is None else found


def is_of_model(plan: Plan, profile: Profile) -> bool:
    """Return whether a plan was made from a profile, with these or other links."""
    if plan.profile_fingerprint == profile.fingerprint():
        return True
    linked = profile.model_copy(update={"links": plan.costs.links})
    return plan.profile_fingerprint == linked.fingerprint()


class Models:
    """Finds profiles and plans by the names that the page has for them."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        """Look for files in a folder, unless the server is public."""
        self._folder, self.limits = folder.resolve(), limits
        self._data: Recent[tuple[str, dict[str, Any]]] = Recent()
        self._plans: Recent[Plan] = Recent()
        self._profiles: Recent[Profile] = Recent()

    def listed(self) -> dict[str, list[str]]:
        """Return the names to choose from, by kind."""
        from synth.profiles import names

        found: dict[str, list[str]] = {"shipped": list(names()), "estimated": [*usual_names()]}
        for kind in (_PROFILE, _CONFIG, _PLAN):
            found[kind] = []
        for path in self._files():
            try:
                kind, _ = self._read(path.name)
            except SynthError:
                continue
            found[kind].append(path.name)
        return found

    def profile(self, setting: PipelineSetting) -> Profile:
        """Return the profile of a setting, with the profile's own links.

        Raises:
            SynthError: there is none of this name, or it is wrong.
        """
        from synth.profiles import is_known, load

        if setting.sliders is not None:
            return setting.sliders.profile()
        name = setting.model
        if is_known(name):
            return self._profiles.made(name, lambda: load(name))
        kind, data = self._read(name)
        if kind == _PLAN:
            raise SynthError(f"{shown(name)} is a plan; give the profile that it was made from")
        if kind == _CONFIG:
            key = (name, setting.device, setting.tp, str(data))
            return self._profiles.made(key, lambda: _estimated(data, name, setting, self.limits))
        return _profile(data, name, self.limits)

    def plan(self, name: str) -> Plan:
        """Return a plan that was found or opened, or a file of the working folder.

        Raises:
            SynthError: there is none of this name, or it is wrong.
        """
        kept = self._plans.get(name)
        if kept is not None:
            return kept
        kind, data = self._read(name)
        if kind != _PLAN:
            raise SynthError(f"{shown(name)} is a {kind}; give a plan")
        return Plan.model_validate_file(data, name)

    def model_of(self, plan: Plan) -> str | None:
        """Return the name of the model that a plan was made from; None: it is not here."""
        from synth.profiles import is_known

        names = [plan.profile_name] if is_known(plan.profile_name) else []
        names += [*self._data.keys(), *(path.name for path in self._files())]
        for name in names:
            try:
                if is_of_model(plan, self.profile(PipelineSetting(model=name))):
                    return name
            except SynthError:
                continue  # no profile
        return None

    def keep(self, plan: Plan) -> str:
        """Keep a plan, and return its name."""
        name = f"found-{_digest(plan.to_json())}"
        self._plans.keep(name, plan)
        return name

    def open(
        self, text: str, called: str = "the file", *, is_pinned: bool = False
    ) -> tuple[str, str]:
        """Keep a file that the page sends; return its kind and its name.

        Args:
            is_pinned: keep it for ever, and not only until many others have come.

        Raises:
            SynthError: it is no profile, no plan and no config.
        """
        kind, data = _kind_of(text, called)
        name = f"opened-{_digest(text)}"
        if kind == _PLAN:
            plan = Plan.model_validate_file(data, called)
            self.limits.check_size(plan.placed, plan.num_micro_batches)
            self._plans.keep(name, plan)
        else:
            if kind == _PROFILE:
                _profile(data, called, self.limits)
            else:
                _shape(data, called, self.limits)
            self._data.keep(name, (kind, data))
        if is_pinned:
            (self._plans if kind == _PLAN else self._data).pin(name)
        return kind, name

    def _files(self) -> Iterator[Path]:
        if self.limits.is_public:
            return
        found = sorted(self._folder.glob("*.json"))[:_MOST_FILES]
        yield from (path for path in found if path.is_file() and path.stat().st_size < _MOST_BYTES)

    def _read(self, name: str) -> tuple[str, dict[str, Any]]:
        """Return the kind and the data of an opened file, or of one in the working folder."""
        opened = self._data.get(name)
        if opened is not None:
            return opened
        path = self._inside(name)
        text = read_text(path, "a profile, a plan or a config.json", _MOST_BYTES)
        return _kind_of(text, shown(name))

    def _inside(self, name: str) -> Path:
        """Return a file in the working folder.

        Raises:
            SynthError: there is none of this name there.
        """
        if not self.limits.is_public and "\0" not in name:
            path = (self._folder / name).resolve()
            if path.is_relative_to(self._folder) and path.is_file():
                return path
        way_out = (
            "open it again" if name.startswith(("opened-", "found-")) else "choose one of the list"
        )
        raise SynthError(f"there is no model or plan {shown(name)} here; {way_out}")


def _shape(config: dict[str, Any], name: str, limits: Limits) -> ModelShape:
    shape = shape_of(config, Path(name).stem)
    limits.check_layers(shape.layers + shape.mtp_layers, name)
    return shape


def _profile(data: dict[str, Any], name: str, limits: Limits) -> Profile:
    """Return the profile of a file, whose layers are counted before they are made."""
    layers = data.get("layers")
    if isinstance(layers, list):
        limits.check_layers(len(layers), name)
    return Profile.model_validate_file(data, name)


def _estimated(
    config: dict[str, Any], name: str, setting: PipelineSetting, limits: Limits
) -> Profile:
    known = [device.name for device in devices()]
    if setting.device not in known:
        raise SynthError(
            f"{shown(name)} is a config, of which times are estimated; give a device: "
            f"{', '.join(known)}"
        )
    given = {"model": name, "device": setting.device, "tp": setting.tp}
    arguments = from_values(EstimateArguments, given)
    shape = _shape(config, name, limits)
    return estimator_of(arguments, shape).profile(variants=True)


def _kind_of(text: str, called: str) -> tuple[str, dict[str, Any]]:
    """Return the kind of a file, and its data.

    Raises:
        SynthError: it is none that the page knows.
    """
    try:
        data = parse_json(text)
    except ValueError as error:
        raise SynthError(f"{called} is not JSON: {error}") from None
    if isinstance(data, dict):
        kind = _FORMATS.get(str(data.get("format")))
        if kind is not None:
            return kind, data
        if "model_type" in data:
            return _CONFIG, data
    raise SynthError(
        f"{called} is no profile, no plan and no config.json of a model; give one of these"
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
