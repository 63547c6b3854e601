"""Parameters that several layers share, which a stage of these layers counts once."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Self

from pydantic import Field

from synth.op_kinds import OpKind
from synth.profile.layer_profile import LayerProfile, Timing
from synth.records.field_types import PlainText, TimeUs, Whole
from synth.records.record import BriefRecord
from synth.units import MOST_SUMMABLE


class TiedParameters(BriefRecord):
    """The parameters that the same layers share, such as the table of an embedding and a head.

    The profile of each of these layers counts them. A rank that holds several of the layers has
    the parameters, their gradient and their optimizer state once, and updates them once.

    Attributes:
        layers: the names of the layers, in the order of the model.
        largest_bytes: of the largest of them; None: of one.
        optimizer_bytes: of their optimizer state.
        step_us: the part of a layer's STEP that updates them, in µs.
        reduce_us: the part of a layer's `reduce_us` that reduces their gradients, in µs; 0 in files
            before version 9.
    """

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("reduce_us",)

    layers: tuple[PlainText, ...] = Field(min_length=2)
    parameter_bytes: Whole = Field(ge=0, le=MOST_SUMMABLE)
    largest_bytes: Whole | None = Field(default=None, ge=0, le=MOST_SUMMABLE)
    gradient_bytes: Whole = Field(ge=0, le=MOST_SUMMABLE)
    optimizer_bytes: Whole = Field(ge=0, le=MOST_SUMMABLE)
    step_us: TimeUs = 0.0
    reduce_us: TimeUs = 0.0

    def gradient_sum(self, places: tuple[int, ...]) -> "GradientSum":
        """The sum of gradients of one backward of a stage, whose layers have these places in it.

        It takes nothing if the parameters are frozen.
        """
        largest = self.parameter_bytes if self.largest_bytes is None else self.largest_bytes
        is_trained = self.gradient_bytes > 0
        return GradientSum(self.parameter_bytes * is_trained, largest * is_trained, places)

    @property
    def static_bytes(self) -> int:
        """Bytes held all the time: parameters, gradients, optimizer state."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes

    def together_with(self, other: Self) -> Self:
        """These parameters and others of the same layers."""
        return self.replace(
            parameter_bytes=self.parameter_bytes + other.parameter_bytes,
            largest_bytes=max(
                one.parameter_bytes if one.largest_bytes is None else one.largest_bytes
                for one in (self, other)
            ),
            gradient_bytes=self.gradient_bytes + other.gradient_bytes,
            optimizer_bytes=self.optimizer_bytes + other.optimizer_bytes,
            step_us=self.step_us + other.step_us,
            reduce_us=self.reduce_us + other.reduce_us,
        )

    def share_of_optimizer(self, count: int) -> Self:
        """The same where ranks keep and update one of `count` equal parts of the optimizer state.

        The part is rounded down.
        """
        return self.replace(
            optimizer_bytes=self.optimizer_bytes // count, step_us=self.step_us / count
        )

    def taken_from(self, layer: LayerProfile) -> LayerProfile:
        """A layer without these parameters, because another layer of its stage counts them.

        The gradients that B computes itself are others: they stay, as far as gradients are left.
        """
        step = layer.time_us[OpKind.STEP]
        own_step = Timing(
            median_us=max(0.0, step.median_us - self.step_us),
            p10_us=max(0.0, step.p10_us - self.step_us),
            p90_us=max(0.0, step.p90_us - self.step_us),
            n=step.n,
        )
        gradient_bytes = layer.gradient_bytes - self.gradient_bytes
        early_bytes = min(layer.early_gradient_bytes, gradient_bytes)
        return layer.replace(
            time_us={**layer.time_us, OpKind.STEP: own_step},
            parameter_bytes=layer.parameter_bytes - self.parameter_bytes,
            gradient_bytes=gradient_bytes,
            optimizer_bytes=layer.optimizer_bytes - self.optimizer_bytes,
            reduce_us=max(0.0, layer.reduce_us - self.reduce_us),
            deferred_share=1 - early_bytes / gradient_bytes if gradient_bytes else 1.0,
        )


class GradientSum(NamedTuple):
    """A sum of gradients within one backward of a stage.

    Where several layers of a stage share a parameter, its gradients are added up in each backward
    before they are added to the accumulated gradient, as autograd does.

    Attributes:
        num_bytes: of the sums of all these parameters.
        places: of the layers among those of the stage.
    """

    num_bytes: int
    largest_bytes: int
    places: tuple[int, ...]

    def exists_at(self, place: int) -> bool:
        """True if there is a sum when the backward of a layer begins; it runs last to first."""
        return self.places[0] <= place < self.places[-1]

    def grows_at(self, place: int) -> bool:
        """True if a layer adds to a sum that there is."""
        return place in self.places[:-1]


def check_tied(tied: Sequence[TiedParameters], profiles: Mapping[str, LayerProfile]) -> None:
    """Check tied parameters against the layers that share them.

    Args:
        profiles: by name of the layer, in the order of the model.

    Raises:
        ValueError: there is no such layer, the layers are not in the order of the model, or a layer
            has fewer bytes than it shares.
    """
    places = {name: place for place, name in enumerate(profiles)}
    for one in tied:
        unknown = [name for name in one.layers if name not in places]
        if unknown:
            raise ValueError(f"tied parameters name layer {unknown[0]!r}, which does not exist")
        ordered = sorted({places[name] for name in one.layers})
        if [places[name] for name in one.layers] != ordered:
            raise ValueError(
                f"the layers of tied parameters are {', '.join(one.layers)}; name each once, in "
                f"the order of the model"
            )
    for name in {name for one in tied for name in one.layers}:
        layer, own = profiles[name], [one for one in tied if name in one.layers]
        for size in ("parameter_bytes", "gradient_bytes", "optimizer_bytes"):
            shared, whole = sum(getattr(one, size) for one in own), getattr(layer, size)
            if shared > whole:
                raise ValueError(
                    f"layer {name!r} has {whole} {size}, and {shared} of them tied; the tied ones "
                    f"are a part of the layer's"
                )
