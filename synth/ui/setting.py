"""What the page asks for: the model, the pipeline, and a schedule, in the words of the commands."""

from typing import Annotated

from pydantic import Field, StringConstraints

from synth.options.arguments.solve import SolveArguments
from synth.profile import Profile
from synth.profile.layer_times import LayerTimes
from synth.records.command_option import from_values
from synth.records.record import Record
from synth.schedule.placements import placement
from synth.ui.limits import MOST_LAYERS, Limits

_Text = Annotated[str, StringConstraints(min_length=1, max_length=200)]
_Ms = Annotated[float, Field(ge=0, le=1e6)]
_Megabytes = Annotated[float, Field(ge=0, le=1e7)]
_Sizes = Annotated[tuple[int, ...], Field(max_length=4096)]
_Program = Annotated[str, StringConstraints(max_length=8 << 20)]

_US_PER_MS, _BYTES_PER_MB = 1000.0, 10**6


class Sliders(Record):
    """A model of equal layers, whose times and sizes are set by sliders; per micro-batch."""

    layers: Annotated[int, Field(ge=1, le=MOST_LAYERS)] = 32
    forward_ms: Annotated[float, Field(gt=0, le=1e6)] = 10.0
    backward_ms: _Ms = 10.0
    weight_ms: _Ms = 10.0
    saved_mb: _Megabytes = 100.0
    output_mb: _Megabytes = 10.0
    parameter_mb: _Megabytes = 400.0

    def profile(self) -> Profile:
        """Return the profile of these layers."""
        layer = LayerTimes(
            name="layer",
            count=self.layers,
            forward_us=self.forward_ms * _US_PER_MS,
            backward_input_us=self.backward_ms * _US_PER_MS,
            backward_weight_us=self.weight_ms * _US_PER_MS,
            saved_bytes=round(self.saved_mb * _BYTES_PER_MB),
            output_bytes=round(self.output_mb * _BYTES_PER_MB),
            parameter_bytes=round(self.parameter_mb * _BYTES_PER_MB),
        )
        return Profile.from_times("sliders", [layer], source="chosen by hand")


class PipelineSetting(Record):
    """The model and its pipeline.

    Attributes:
        model: a profile's name, a file in the working folder, or one that the page has opened.
        device: of a `config.json`, with `tp` ranks of tensor parallelism.
        sliders: equal layers instead of the model.
        micro_batches: per iteration.
        placement: where a search looks; a published schedule has its own.
        partition: layers per stage, for schedules with as many stages; None: even.
        link: as of `--link`; None: the profile's.
        objective: the time to minimize.
        time_limit: of a search, or of each point of a curve, in seconds.
    """

    model: _Text = "zb-1.5b-p8-m24"
    device: _Text | None = None
    tp: Annotated[int, Field(ge=1, le=1024)] = 1
    sliders: Sliders | None = None
    ranks: Annotated[int, Field(ge=1, le=1024)] = 8
    micro_batches: Annotated[int, Field(ge=1, le=1 << 20)] = 24
    placement: _Text = "auto"
    partition: _Sizes | None = None
    mem_limit: _Text = "none"
    link: _Text | None = None
    objective: _Text = "makespan"
    recompute: _Text = "none"
    time_limit: Annotated[float, Field(gt=0)] = 10.0

    @property
    def links(self) -> list[str] | None:
        """The links, as the options of commands have them."""
        return None if self.link is None else [each.strip() for each in self.link.split(";")]

    def check_size(self, limits: Limits, micro_batches: int = 1) -> None:
        """Refuse a placement of too many stages; of `auto` linear is judged.

        Raises:
            SynthError: its schedules of so many micro-batches would have too many ops.
        """
        name = "linear" if self.placement == "auto" else self.placement
        limits.check_named(name, self.ranks, micro_batches)

    def check_search(self, limits: Limits) -> None:
        """Refuse a search that is too large.

        Raises:
            SynthError: the schedules would have too many ops, or there is no such placement.
        """
        self.check_size(limits, self.micro_batches)
        name = "linear" if self.placement == "auto" else self.placement
        limits.check_size(placement(name, self.ranks), self.micro_batches)

    def arguments(self, profile: Profile, limits: Limits) -> SolveArguments:
        """Return the arguments of the search.

        Raises:
            SynthError: one is wrong.
        """
        values = {
            "profile": profile,
            "ranks": self.ranks,
            "micro_batches": self.micro_batches,
            "mem_limit": self.mem_limit,
            "placement": self.placement,
            "partition": self.partition or "even",
            "recompute": self.recompute,
            "link": self.links,
            "objective": self.objective,
            "time_limit": min(self.time_limit, limits.search_s),
            "workers": limits.workers,
        }
        return from_values(SolveArguments, values)


class ShownSchedule(Record):
    """A schedule that the page shows.

    Attributes:
        schedule: the name of a published one.
        plan: a plan that was found, opened, or is a file in the working folder.
        programs: another order of its ops, a line for each rank; None: its own.
    """

    schedule: _Text | None = None
    plan: _Text | None = None
    programs: Annotated[tuple[_Program, ...], Field(max_length=4096)] | None = None
