"""The profile file: the costs of one model's layers on one device, in microseconds and bytes."""

import datetime
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, ValidationError, model_validator

from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.profile.estimate import Estimate
from synth.profile.layer_profile import Layer, LayerProfile, Timing
from synth.profile.layer_tensors import SharedMemory, shared_inputs
from synth.profile.layer_times import MOST_LAYERS, LayerTimes
from synth.profile.links import Links
from synth.profile.measurement_conditions import Conditions
from synth.profile.model_flops import ModelFlops, PeakFlops
from synth.profile.tied_parameters import GradientSum, TiedParameters, check_tied
from synth.profile.workload import Workload
from synth.records.field_types import PlainText, Whole, check_plain
from synth.records.record import BriefRecord, FileRecord, describe
from synth.system.display import Displayed
from synth.units import MOST_SUMMABLE, counted, format_us, shown

# The slowest and the fastest rank, as multiples of the device that was measured.
_Speed = Annotated[float, Field(ge=1e-3, le=1e3)]
RankSpeeds = Annotated[tuple[_Speed, ...], Field(min_length=1)]


class Provenance(BriefRecord):
    """The origin of the numbers: machine, versions, date, conditions."""

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("estimate",)

    source: PlainText = Field(description="'measured', or the publication")
    device: PlainText
    date: str
    command: str | None = None
    cores: int | None = None
    driver: str | None = None
    cuda: str | None = None
    torch: str | None = None
    commit: str | None = None
    notes: str | None = None
    conditions: Conditions | None = None
    estimate: Estimate | None = Field(
        default=None, description="how the numbers were computed; None: they were measured"
    )


def _names_of_each(layers: Sequence[LayerTimes]) -> list[list[str]]:
    """Return the names of the `count` layers that each entry stands for.

    Raises:
        SynthError: there are no layers or too many, two have the same name, or a name is not plain
            text.
    """
    total = sum(layer.count for layer in layers)
    if total > MOST_LAYERS:
        raise SynthError(
            f"the counts add up to {total:,} layers; at most {MOST_LAYERS:,} make a profile: give "
            f"smaller counts, or let a layer stand for several"
        )
    names = [
        [layer.name]
        if layer.count == 1
        else [f"{layer.name}.{number}" for number in range(layer.count)]
        for layer in layers
    ]
    counts = (Counter(layer.name for layer in layers), Counter(chain(*names)))
    twice = next((each for one in counts for each, count in one.items() if count > 1), None)
    if twice is not None:
        raise SynthError(
            f"two layers are called {twice!r}; layer names must differ, and `count` repeats "
            f"one layer"
        )
    if not layers:
        raise SynthError("there are no layers to make a profile of; give one at least")
    for layer in layers:
        try:
            check_plain(layer.name)
        except ValueError as error:
            raise SynthError(f"layer {error}") from None
    return names


def _layer_profiles(layers: Sequence[LayerTimes]) -> dict[str, LayerProfile]:
    """Return the profile of each entry, by its name."""
    profiles: dict[str, LayerProfile] = {}
    input_bytes = 0
    for layer in layers:
        largest = max(input_bytes, layer.output_bytes if layer.count > 1 else 0)
        profiles[layer.name] = LayerProfile(
            time_us={kind: Timing.exactly(us) for kind, us in layer.time_us.items()},
            rise_bytes=layer.rise_bytes(largest),
            input_until=OpKind.F,
            forward_flops=layer.forward_flops,
            pair_us=None if layer.pair_us is None else Timing.exactly(layer.pair_us),
            **layer.sizes,
        )
        input_bytes = layer.output_bytes
    return profiles


# What a schedule depends on, too, where there is any.
_IF_KNOWN = ("tied_parameters", "rank_speeds")


class Profile(Displayed, FileRecord):
    """A whole profile file.

    Version 2 added the function that makes the inputs, and times that are plain numbers. Version 3
    added the FLOPs of layers and the peak FLOP/s of the device, version 4 the gradients of outputs,
    version 5 tied parameters, version 6 how estimated numbers were computed, and ranks of unequal
    speed, version 7 variants of layers of which B computes a part again, version 8 the time of F
    and BW of two micro-batches at once, version 9 the time of the reduction of gradients, version
    10 the rises of B, W and BW before another layer of the stage, version 12 the tensors of layers
    that take, return or change several or the same. Version 11, which no release had, did not say
    which of their gradients share memory; of such layers it is refused.
    """

    FORMAT: ClassVar[str] = "synth-profile"
    VERSION: ClassVar[int] = 12
    SINCE: ClassVar[Mapping[str, int]] = {
        "workload.inputs": 2,
        "peak_flops_per_s": 3,
        "tied_parameters": 5,
        "provenance.estimate": 6,
        "rank_speeds": 6,
        "layer_profiles.*.variants": 7,
        "layer_profiles.*.pair_us": 8,
        "layer_profiles.*.reduce_us": 9,
        "layer_profiles.*.inner_rise_bytes": 10,
        "layer_profiles.*.variants.*.inner_rise_bytes": 10,
        "layer_profiles.*.tensors": 12,
        "layer_profiles.*.variants.*.tensors": 12,
        "tied_parameters.reduce_us": 9,
        "workload.group": 7,
    }
    MADE_BY: ClassVar[tuple[str, ...]] = ("synth profile", "synth estimate")

    name: PlainText
    provenance: Provenance
    workload: Workload
    capacity_bytes: Whole | None = Field(
        default=None,
        gt=0,
        le=MOST_SUMMABLE,
        description="memory of the device, for `--mem-limit auto`",
    )
    peak_flops_per_s: PeakFlops | None = Field(
        default=None, description="of the device, in the dtype of the layers, for the MFU"
    )
    rank_speeds: RankSpeeds | None = Field(
        default=None,
        description="by rank, its speed relative to the device that was measured; None: all are "
        "such devices",
    )
    links: Links = Links()
    layer_profiles: dict[str, LayerProfile]
    layers: tuple[Layer, ...] = Field(min_length=1, max_length=MOST_LAYERS)
    tied_parameters: tuple[TiedParameters, ...] | None = Field(
        default=None, description="parameters that several layers share; None: not known, or none"
    )

    @model_validator(mode="after")
    def _layers_known(self) -> Self:
        names = Counter(layer.name for layer in self.layers)
        for name, count in names.items():
            if count > 1:
                raise ValueError(f"two layers are called {name!r}; layer names must differ")
        for layer in self.layers:
            if layer.profile not in self.layer_profiles:
                known = ", ".join(self.layer_profiles)
                raise ValueError(
                    f"layer {layer.name!r} has profile {layer.profile!r}; known: {known}"
                )
        profiles = [self.layer_profiles[layer.profile] for layer in self.layers]
        for number, (before, after) in enumerate(pairwise(profiles)):
            if not after.can_follow(before):
                one, other = self.layers[number : number + 2]
                raise ValueError(
                    f"layer {other.name!r} takes {after.boundary_tensors.shown_taken}, and layer "
                    f"{one.name!r} before it returns {before.boundary_tensors.shown_returned}; "
                    f"list layers in the order in which they were measured, or profile the model "
                    f"again"
                )
        if self.tied_parameters:
            by_name = {layer.name: self.layer_profiles[layer.profile] for layer in self.layers}
            check_tied(self.tied_parameters, by_name)
        return self

    @classmethod
    def model_validate_file(cls, data: Any, name: str) -> Self:
        """Check a file as others, and that its layers take time."""
        return super().model_validate_file(data, name)._timed(name)

    def _timed(self, called: str) -> Self:
        """Return the profile; only a part of a model may have no times.

        Raises:
            SynthError: all passes of all layers take 0 µs.
        """
        if not any(self.layer_profile(index).work_us() for index in range(len(self.layers))):
            raise SynthError(
                f"all passes of all layers of {called} take 0 µs; needed: their measured times"
            )
        return self

    @classmethod
    def from_times(
        cls,
        name: str,
        layers: Sequence[LayerTimes],
        *,
        micro_batch_size: int = 1,
        sequence_length: int = 1,
        links: Links | None = None,
        capacity_bytes: int | None = None,
        peak_flops_per_s: float | None = None,
        device: str = "unknown",
        source: str = "measured elsewhere",
        tied_parameters: Sequence[TiedParameters] = (),
    ) -> Self:
        """Make a profile of times (µs) and sizes (bytes) that another program has measured.

        It names no model that `synth run` could build; it serves for solving.

        Args:
            name: the name of the profile.
            layers: the model's layers in order; each counts `count` times.
            micro_batch_size: samples of the micro-batch that was measured.
            sequence_length: tokens of a sample, for throughput in tokens.
            links: between ranks; None: transfers take no time.
            capacity_bytes: memory of a device, for `--mem-limit auto`, the default.
            peak_flops_per_s: FLOP/s of a device at its peak, for the MFU.
            device: on which it was measured, for display.
            source: the source of the numbers, for display.
            tied_parameters: those that several layers share, which each of these layers counts.

        Raises:
            SynthError: there are no layers or too many, two have the same name, a name is not
                plain text, or layers are no LayerTimes; or another value is out of its range, or no
                layer takes time.
        """
        if not isinstance(name, str):
            raise SynthError(f"the name of the profile is {name!r:.40}; give a text")
        if not isinstance(layers, Sequence) or not all(isinstance(x, LayerTimes) for x in layers):
            raise SynthError(f"layers is {layers!r:.60}; give a list of LayerTimes")
        names = _names_of_each(layers)
        try:
            found = cls(
                name=name,
                provenance=Provenance(
                    source=source, device=device, date=datetime.date.today().isoformat()
                ),
                workload=Workload(
                    model=name,
                    micro_batch_size=micro_batch_size,
                    sequence_length=sequence_length,
                    runnable=False,
                ),
                capacity_bytes=capacity_bytes,
                peak_flops_per_s=peak_flops_per_s,
                links=links or Links(),
                layer_profiles=_layer_profiles(layers),
                layers=tuple(
                    Layer(name=each, profile=layer.name)
                    for layer, own_names in zip(layers, names, strict=True)
                    for each in own_names
                ),
                tied_parameters=tuple(tied_parameters) or None,
            )
        except ValidationError as error:
            raise SynthError(f"this is no profile:\n{describe(error)}") from None
        return found._timed(shown(name))

    def __repr__(self) -> str:
        """Name the profile, its layers and its origin, on two lines."""
        return (
            f"Profile {self.name}: {counted(len(self.layers), 'layer')} of "
            f"{counted(len(self.layer_profiles), 'kind')}, F + B + W {format_us(self.work_us)} per "
            f"micro-batch\n"
            f"  {self.provenance.source} on {self.provenance.device}, {self.provenance.date}"
        )

    __str__ = __repr__

    def layer_profile(self, index: int) -> LayerProfile:
        """The profile of the layer at a place of the model's list."""
        return self.layer_profiles[self.layers[index].profile]

    @property
    def work_us(self) -> float:
        """F + B + W of all layers for one micro-batch, without recomputation."""
        return sum(self.layer_profile(place).work_us() for place in range(len(self.layers)))

    def ideal_us(self, num_micro_batches: int, num_ranks: int) -> float:
        """Return the time of an iteration on ranks that do F, B and W only and are never idle."""
        return num_micro_batches * self.work_us / sum(self.rank_speeds or (1.0,) * num_ranks)

    @property
    def tied_places(self) -> tuple[tuple[int, ...], ...]:
        """By tied parameters, the places of their layers in the model's list."""
        places = {layer.name: place for place, layer in enumerate(self.layers)}
        # A part of a model has a part of the layers.
        return tuple(
            tuple(places[name] for name in tied.layers if name in places)
            for tied in self.tied_parameters or ()
        )

    def stage_layers(self, first: int, end: int) -> list[LayerProfile]:
        """The profiles of layers first … end − 1 as one stage, which counts tied parameters once.

        They count for the first layer that has them.
        """
        profiles = [self.layer_profile(index) for index in range(first, end)]
        for tied, places in self._tied_within(first, end):
            for place in places[1:]:
                profiles[place] = tied.taken_from(profiles[place])
        return profiles

    def gradient_sums(self, first: int, end: int) -> tuple[GradientSum, ...]:
        """The sums of gradients in the backwards of layers first … end − 1 as one stage."""
        within = self._tied_within(first, end)
        return tuple(tied.gradient_sum(places) for tied, places in within)

    def _tied_within(
        self, first: int, end: int
    ) -> Iterator[tuple[TiedParameters, tuple[int, ...]]]:
        """The parameters that several layers of a stage share, with the layers' places in it."""
        for tied, places in zip(self.tied_parameters or (), self.tied_places, strict=True):
            within = tuple(place - first for place in places if first <= place < end)
            if len(within) > 1:
                yield tied, within

    @property
    def changed_inputs(self) -> frozenset[int]:
        """The places of layers of which the layer or a later one changes an input in place.

        A later layer does so where those between pass the input on. The number of layers stands for
        the targets.
        """
        return self._changed_inputs

    # The underscore keeps the cached value out of `dict(self)`, that is, out of `replace`.
    @cached_property
    def _changed_inputs(self) -> frozenset[int]:
        found, after, last = set[int](), frozenset[int](), len(self.layers) - 1
        for place in reversed(range(len(self.layers))):
            tensors = self.layer_profile(place).boundary_tensors
            returned, before = tensors.returned, after
            memories = {one.memory for at, one in enumerate(returned) if at in before}
            after = frozenset(
                at for at, one in enumerate(tensors.taken) if one.is_changed or at in memories
            )
            is_given_on = any(one.is_given for at, one in enumerate(returned) if at in before)
            if after or tensors.changes_given or is_given_on:
                found.add(place)
            if place == last and tensors.changes_given:
                found.add(len(self.layers))
        return frozenset(found)

    def shared_inputs(self, place: int) -> tuple[SharedMemory, ...]:
        """The memory of what a layer takes, where it is not that of each tensor alone.

        It is so where all layers are on one rank; who receives tensors has them apart.
        """
        return self._shared_inputs[place]

    @cached_property
    def _shared_inputs(self) -> tuple[tuple[SharedMemory, ...], ...]:
        places = range(len(self.layers))
        return shared_inputs([self.layer_profile(place).boundary_tensors for place in places])

    @property
    def has_pairs(self) -> bool:
        """True if the time of F and BW at once is known of a layer."""
        return any(self.layer_profile(i).pair_us for i in range(len(self.layers)))

    @property
    def flops(self) -> ModelFlops | None:
        """The FLOPs of a micro-batch; None: those of a layer are not known, or there are none."""
        forwards = [self.layer_profile(i).forward_flops for i in range(len(self.layers))]
        return ModelFlops.of_forwards(forwards, self.peak_flops_per_s)

    def fingerprint(self) -> str:
        """A short hash of everything that a schedule depends on."""
        parts = {"workload", "links", "layer_profiles", "layers"}
        relevant = self.model_dump_json(
            include=parts | {name for name in _IF_KNOWN if getattr(self, name)},
            exclude={"layer_profiles": {"__all__": {"forward_flops"}}},
        )
        return hashlib.sha256(relevant.encode()).hexdigest()[:16]
