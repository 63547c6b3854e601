"""The profiled workload: the model, its inputs and its optimizer, as a run needs them."""

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from synth.errors import SynthError
from synth.profile.links import MOST_RANKS
from synth.profile.mesh import DeviceGroup
from synth.profile.optimizer import OptimizerSpec
from synth.records.field_types import PlainText
from synth.records.record import BriefRecord

ModelArguments = dict[str, int | float | str | bool]

# Sequences, or tokens of one: more are in no tensor that can be indexed with 32 bits.
_TOO_MANY = 1 << 31


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


_DTYPES = {"bf16": "bfloat16", "fp32": "float32", "f32": "float32", "float": "float32"}


def dtype_name(given: str) -> str:
    """Return PyTorch's name of a dtype: of `bf16`, `BF16` or `torch.bfloat16` it is `bfloat16`."""
    name = given.lower().removeprefix("torch.")
    return _DTYPES.get(name, name)


def _read_dtype(given: object) -> object:
    return dtype_name(given) if isinstance(given, str) else given


_Dtype = Annotated[str, BeforeValidator(_read_dtype)]


class Workload(BriefRecord):
    """The profiled workload: everything that is needed to build the model and a micro-batch."""

    LEFT_OUT: ClassVar[tuple[str, ...]] = (
        "inputs",
        "autocast",
        "recomputed_layers",
        "cut",
        "group",
    )

    model: PlainText = Field(description="a built-in name, or module:function of the user's own")
    arguments: ModelArguments = Field(default_factory=dict)
    micro_batch_size: int = Field(gt=0, lt=_TOO_MANY)
    sequence_length: int = Field(gt=0, lt=_TOO_MANY)
    inputs: PlainText | None = Field(
        default=None,
        description="function of the user's own that makes micro-batches; else token ids",
    )
    dtype: _Dtype = "float32"
    autocast: _Dtype | None = Field(
        default=None, description="dtype in which the layers compute where torch.autocast says so"
    )
    recomputed_layers: tuple[str, ...] | None = Field(
        default=None, description="patterns of layer names: they keep only their input in F"
    )
    cut: PlainText | None = Field(
        default=None,
        description="modules at which layers of a whole model begin, as `embed | blocks.* | head`; "
        "else its blocks",
    )
    group: DeviceGroup | None = Field(
        default=None, description="the devices that a rank is, of which the layers are; None: one"
    )
    optimizer: _WrittenOptimizer = OptimizerSpec()
    threads: int = Field(
        default=1, gt=0, le=MOST_RANKS, description="CPU threads per rank, where CPUs compute"
    )
    runnable: bool = Field(
        default=True, description="false for a published profile without code to run"
    )

    @property
    def unit(self) -> str:
        """The unit of throughput: tokens, or samples of other inputs."""
        return "samples" if self.inputs is not None and self.sequence_length == 1 else "tokens"

    @property
    def tokens(self) -> int:
        """The tokens of a micro-batch; the samples, if they are no token ids."""
        return self.micro_batch_size * self.sequence_length
