"""The profile file: the costs of one model's layers on one device, in microseconds and bytes."""

import datetime
import hashlib
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from synth.display import Displayed
from synth.errors import SynthError
from synth.field_types import PlainText, TimeUs, Whole, check_plain
from synth.layer_times import LayerTimes
from synth.links import MOST_RANKS, Links
from synth.measurement_conditions import Conditions
from synth.model_flops import Flops, ModelFlops, PeakFlops
from synth.op_kinds import MEASURED, OpKind
from synth.optimizer import OptimizerSpec
from synth.record import FileRecord, Record
from synth.units import MOST_SUMMABLE, MOST_US, format_us

ModelArguments = dict[str, int | float | str | bool]

_Bytes = Annotated[Whole, Field(ge=0, le=MOST_SUMMABLE)]

# Sequences, or tokens of one: more are in no tensor that can be indexed with 32 bits.
_TOO_MANY = 1 << 31


class Timing(Record):
    """One op's time over `n` measurements; a published value has n = 1 and no spread.

    In a file a plain number of µs stands for such a value.
    """

    median_us: TimeUs
    p10_us: TimeUs
    p90_us: TimeUs
    n: Whole = Field(gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.p10_us <= self.median_us <= self.p90_us:
            raise ValueError(
                f"p10_us is {self.p10_us:g}, median_us {self.median_us:g}, p90_us "
                f"{self.p90_us:g}; each must be at least the one before"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _of_number(cls, given: object) -> object:
        """A plain number is a time of which no spread is known."""
        if isinstance(given, int | float) and not isinstance(given, bool):
            return {"median_us": given, "p10_us": given, "p90_us": given, "n": 1}
        return given

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """A plain number, or an object."""
        return {
            "anyOf": [{"type": "number", "minimum": 0, "maximum": MOST_US}, handler(core_schema)]
        }

    @classmethod
    def exactly(cls, time_us: float) -> Self:
        """A time that is stated, not measured here."""
        return cls(median_us=time_us, p10_us=time_us, p90_us=time_us, n=1)


class LayerProfile(Record):
    """The costs of a layer; identical layers share one.

    Bytes, per micro-batch unless said otherwise:

    - `parameter_bytes` (with the module's buffers), `gradient_bytes`, `optimizer_bytes`: static,
      once per layer;
    - `output_bytes`: the boundary activation it returns (0 for the last layer, which ends in the
      loss), and likewise the gradient of that activation;
    - `saved_bytes`: the activations that F saves for the backward, without its input and output;
    - `saved_w_bytes`: the part of them that W needs after B, without input, output and the gradient
      of the output. It may be larger than `saved_bytes`;
    - `rise_bytes[op]`: the rise of memory above its level at the op's start while it runs, results
      included.

    Times and rises are those of F, B, W, BW and STEP. Those of R may be measured too; else they are
    F's.

    `input_until`, `output_until`, `gradient_until` name the last op of this layer (F, B or W) that
    needs its input, its output, and the gradient of its output: until then they cannot be freed.

    `forward_flops` are the floating-point operations of F of a micro-batch, a multiply-add being
    two; None: not counted. They serve for the MFU and change no schedule.
    """

    time_us: dict[OpKind, Timing]
    parameter_bytes: _Bytes
    gradient_bytes: _Bytes
    optimizer_bytes: _Bytes
    output_bytes: _Bytes
    saved_bytes: _Bytes
    saved_w_bytes: _Bytes
    rise_bytes: dict[OpKind, _Bytes]
    input_until: OpKind = OpKind.B
    output_until: OpKind = OpKind.F
    gradient_until: OpKind = OpKind.B
    deferred_share: float = Field(
        default=1.0, ge=0, le=1, description="share of the weight-gradient elements that W computes"
    )
    forward_flops: Flops | None = Field(
        default=None, description="floating-point operations of F, for the MFU"
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for table, name in ((self.time_us, "time_us"), (self.rise_bytes, "rise_bytes")):
            missing = [kind.value for kind in MEASURED if kind not in table]
            if missing:
                raise ValueError(f"{name} lacks {', '.join(missing)}; needed: F, B, W, BW, STEP")
            unknown = [kind.value for kind in table if kind not in (*MEASURED, OpKind.R)]
            if unknown:
                raise ValueError(f"{name} has {', '.join(unknown)}, which no layer is measured for")
        check_held_until(self.input_until, self.output_until, self.gradient_until)
        return self

    @property
    def static_bytes(self) -> int:
        """Bytes held all the time: parameters, gradients, optimizer state."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes

    @property
    def recompute_us(self) -> float:
        """R: as measured, or as F."""
        return self.time_us.get(OpKind.R, self.time_us[OpKind.F]).median_us

    @property
    def recompute_rise_bytes(self) -> int:
        """The rise of memory during R: as measured, or as during F."""
        return self.rise_bytes.get(OpKind.R, self.rise_bytes[OpKind.F])

    def work_us(self) -> float:
        """F + B + W of one micro-batch."""
        return sum(self.time_us[kind].median_us for kind in (OpKind.F, OpKind.B, OpKind.W))


def check_held_until(input_until: OpKind, output_until: OpKind, gradient_until: OpKind) -> None:
    """A layer needs its input and output until F, B or W, and the gradient until B or W.

    Raises:
        ValueError: one of them names another op.
    """
    allowed = (OpKind.F, OpKind.B, OpKind.W)
    for name, kind, kinds in (
        ("input_until", input_until, allowed),
        ("output_until", output_until, allowed),
        ("gradient_until", gradient_until, allowed[1:]),
    ):
        if kind not in kinds:
            raise ValueError(f"{name} is {kind}; needed: {' or '.join(kinds)}")


class Layer(Record):
    """One entry of the model's sequential list: its name, and the profile that it shares."""

    name: PlainText
    profile: PlainText


def _read_optimizer(given: object) -> object:
    if not isinstance(given, str):
        return given
    try:
        return OptimizerSpec.parse(given)
    except SynthError as error:
        raise ValueError(str(error)) from None


_WrittenOptimizer = Annotated[
    OptimizerSpec,
    BeforeValidator(_read_optimizer),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string"}),
]


class Workload(Record):
    """The profiled workload: everything that is needed to build the model and a micro-batch."""

    model: PlainText = Field(description="a built-in name, or module:function of the user's own")
    arguments: ModelArguments = Field(default_factory=dict)
    micro_batch_size: int = Field(gt=0, lt=_TOO_MANY)
    sequence_length: int = Field(gt=0, lt=_TOO_MANY)
    inputs: PlainText | None = Field(
        default=None,
        description="function of the user's own that makes micro-batches; else token ids",
    )
    dtype: str = "float32"
    autocast: str | None = Field(
        default=None, description="dtype in which the layers compute where torch.autocast says so"
    )
    recomputed_layers: tuple[str, ...] | None = Field(
        default=None, description="patterns of layer names: they keep only their input in F"
    )
    optimizer: _WrittenOptimizer = OptimizerSpec()
    threads: int = Field(
        default=1, gt=0, le=MOST_RANKS, description="CPU threads per rank, where CPUs compute"
    )
    runnable: bool = Field(
        default=True, description="false for a published profile without code to run"
    )

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Workloads without them read and count as they did before there were any."""
        fields: dict[str, Any] = handler(self)
        optional = ("inputs", "autocast", "recomputed_layers")
        return {name: value for name, value in fields.items() if name not in optional or value}

    @property
    def unit(self) -> str:
        """The unit of throughput: tokens, or samples of other inputs."""
        return "samples" if self.inputs is not None and self.sequence_length == 1 else "tokens"

    @property
    def tokens(self) -> int:
        """The tokens of a micro-batch; the samples, if they are no token ids."""
        return self.micro_batch_size * self.sequence_length


class Provenance(Record):
    """The origin of the numbers: machine, versions, date, conditions."""

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


def _numbered(name: str, count: int) -> list[str]:
    return [f"{name}.{number}" for number in range(count)]


class Profile(Displayed, FileRecord):
    """A whole profile file.

    Version 2 added the function that makes the inputs, and times that are plain numbers. Version 3
    added the FLOPs of layers and the peak FLOP/s of the device.
    """

    FORMAT: ClassVar[str] = "synth-profile"
    VERSION: ClassVar[int] = 3
    MADE_BY: ClassVar[str] = "synth profile"

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
    links: Links = Links()
    layer_profiles: dict[str, LayerProfile]
    layers: tuple[Layer, ...] = Field(min_length=1)

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
    ) -> Self:
        """Make a profile of times (µs) and sizes (bytes) that another program has measured.

        It names no model that `synth run` could build; it serves for solving.

        Args:
            name: of the profile.
            layers: the model's layers in order; each counts `count` times.
            micro_batch_size: samples of the micro-batch that was measured.
            sequence_length: tokens of a sample, for throughput in tokens.
            links: between ranks; None: transfers take no time.
            capacity_bytes: memory of a device, for `--mem-limit auto`.
            peak_flops_per_s: FLOP/s of a device at its peak, for the MFU.
            device: on which it was measured, for display.
            source: of the numbers, for display.

        Raises:
            SynthError: there are no layers, two have the same name, or a name is not plain text.
        """
        numbered = [
            [layer.name] if layer.count == 1 else _numbered(layer.name, layer.count)
            for layer in layers
        ]
        counts = (Counter(layer.name for layer in layers), Counter(chain(*numbered)))
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
        profiles: dict[str, LayerProfile] = {}
        entries: list[Layer] = []
        input_bytes = 0
        for layer, own_names in zip(layers, numbered, strict=True):
            largest = max(input_bytes, layer.output_bytes if layer.count > 1 else 0)
            profiles[layer.name] = LayerProfile(
                time_us={kind: Timing.exactly(us) for kind, us in layer.time_us.items()},
                rise_bytes=layer.rise_bytes(largest),
                input_until=OpKind.F,
                forward_flops=layer.forward_flops,
                **layer.sizes,
            )
            entries += [Layer(name=each, profile=layer.name) for each in own_names]
            input_bytes = layer.output_bytes
        return cls(
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
            layer_profiles=profiles,
            layers=tuple(entries),
        )

    def __repr__(self) -> str:
        """Name the profile, its layers and its origin, on two lines."""
        work_us = sum(self.layer_profile(i).work_us() for i in range(len(self.layers)))
        return (
            f"Profile {self.name}: {len(self.layers)} layers of {len(self.layer_profiles)} kinds, "
            f"F + B + W {format_us(work_us)} per micro-batch\n"
            f"  {self.provenance.source} on {self.provenance.device}, {self.provenance.date}"
        )

    __str__ = __repr__

    def layer_profile(self, index: int) -> LayerProfile:
        """The profile of the layer at a place of the model's list."""
        return self.layer_profiles[self.layers[index].profile]

    @property
    def flops(self) -> ModelFlops | None:
        """The FLOPs of a micro-batch; None: those of a layer are not known, or there are none."""
        forwards = [self.layer_profile(i).forward_flops for i in range(len(self.layers))]
        return ModelFlops.of_forwards(forwards, self.peak_flops_per_s)

    def fingerprint(self) -> str:
        """A short hash of everything that a schedule depends on."""
        relevant = self.model_dump_json(
            include={"workload", "links", "layer_profiles", "layers"},
            exclude={"layer_profiles": {"__all__": {"forward_flops"}}},
        )
        return hashlib.sha256(relevant.encode()).hexdigest()[:16]
