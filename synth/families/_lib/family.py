"""A family of schedules, and the setting that one is made for."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from synth.costs.costs import Costs, uniform_costs
from synth.errors import SynthError
from synth.families._lib.options import SYNC, Option, Options, spelled
from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.model import Buffering, Placement, Schedule
from synth.schedule.ops import Op
from synth.schedule.placements import placement
from synth.schedule.weight_flow import WeightFlow
from synth.schedule.weight_versions import WeightVersions

Programs = Sequence[Iterable[Op]]


@dataclass(frozen=True)
class Setting:
    """The input of a generator: placement, micro-batches, costs, memory limits, options.

    Most families use the first two alone. `costs` are those of the given stages, else equal stages
    with F = B = W, as most papers draw them. `caps_bytes` is the memory limit of each rank, if
    given. `options` are all options of the family. From a makespan of `below_us` on, a schedule is
    of no use: families that try many end sooner then, and raise SynthError if they made none.
    Families of several papers' schedules take the best by the `objective`. `outcomes` keeps
    simulations of the setting's schedules.
    """

    placement: Placement
    num_micro_batches: int
    costs: Costs
    caps_bytes: tuple[int, ...] | None = None
    options: Options = field(default_factory=dict)
    below_us: int | None = None
    objective: Objective = Objective.PERIOD
    outcomes: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        where: Placement,
        num_micro_batches: int,
        costs: Costs | None = None,
        caps_bytes: Sequence[int] | None = None,
    ) -> "Setting":
        """Check the numbers against each other; without costs all stages are equal.

        Raises:
            SynthError: there is no micro-batch, or the costs or limits are for other stages or
                ranks.
        """
        if num_micro_batches < 1:
            raise SynthError(
                f"a schedule needs at least one micro-batch, given {num_micro_batches}"
            )
        if costs is not None and costs.num_stages != where.num_stages:
            raise SynthError(
                f"the placement has {where.num_stages} stages, the costs are of "
                f"{costs.num_stages}; give costs of as many stages"
            )
        if caps_bytes is not None and len(caps_bytes) != where.num_ranks:
            raise SynthError(f"{len(caps_bytes)} caps for {where.num_ranks} ranks; give one each")
        filled = costs or _equal_stages(where.num_stages)
        caps = None if caps_bytes is None else tuple(caps_bytes)
        return cls(where, num_micro_batches, filled, caps)

    @property
    def num_ranks(self) -> int:
        return self.placement.num_ranks

    @property
    def num_stages(self) -> int:
        """The number of stages; copies do not count."""
        return self.placement.num_stages

    def count(self, name: str) -> int:
        """The value of a numeric option."""
        number = self.options[name]
        if not isinstance(number, int):
            raise TypeError(f"the option {name} is {number!r}, not a number")
        return number


@dataclass(frozen=True)
class Family:
    """A published schedule: its name, its source, and the rule that makes each rank's program.

    `layout` is the named placement on which it is defined. It may contain `options`, which stand
    after the family's name (see `options.py`): `looped:{rounds}`. `make` raises SynthError if the
    definition does not admit the setting. `timed` families read costs, so they take longer.
    `reads_limits` marks those whose order depends on the memory limits and may be slower with more
    memory. `averages` marks those that themselves also try, or only read, the means over all
    stages. `offloads` marks those that move activations to the host's memory or to other ranks.
    `searches` marks those that try so many orders that they take about as long as a search.
    `buffering` returns the buffering of a schedule; None: the default. `weights` returns the way of
    weights; None: they stay with their stages. `versions` returns how often weights are updated and
    which versions are read; None: once, at the end. `overlapped` returns the F's that run at once
    with the BW behind them; None: there are none. `vocabulary` returns the barriers of a divided
    vocabulary; None: stages are a chain of whole layers.
    """

    name: str
    source: str
    make: Callable[[Setting], Programs]
    layout: str = "linear"
    options: tuple[Option, ...] = ()
    timed: bool = False
    averages: bool = False
    searches: bool = False
    reads_limits: bool = False
    offloads: bool = False
    buffering: Callable[[Setting, Schedule], Buffering] | None = None
    weights: Callable[[Setting], WeightFlow] | None = None
    versions: Callable[[Setting], WeightVersions] | None = None
    overlapped: Callable[[Setting, Programs], frozenset[Op]] | None = None
    vocabulary: Callable[[Options], int] | None = None

    def place(self, num_ranks: int, options: Options) -> Placement:
        """The placement on which the family is defined.

        Raises:
            SynthError: there are too few ranks.
        """
        return placement(self.layout.format(**options), num_ranks)

    @property
    def orders_chains(self) -> bool:
        """True if the schedules are orders that a search could find: of a chain of stages whose
        weights stay and are updated once."""
        return self.weights is None and self.versions is None and self.vocabulary is None

    def schedule(self, setting: Setting) -> Schedule:
        """The schedule of a setting on the family's own placement.

        Raises:
            SynthError: the definition does not admit the setting.
        """
        programs = tuple(tuple(program) for program in self.make(setting))
        name = spelled(self.name, self.options, setting.options)
        eager = setting.options.get(SYNC.name, SYNC.default) == SYNC.default
        flow = self.weights(setting) if self.weights else None
        count = setting.num_micro_batches
        rule = self.versions(setting) if self.versions else None
        pairs = self.overlapped(setting, programs) if self.overlapped else frozenset()
        made = Schedule(
            setting.placement,
            count,
            programs,
            name,
            eager=eager,
            weights=flow,
            versions=rule,
            overlapped=pairs,
            vocabulary=self.vocabulary(setting.options) if self.vocabulary else 0,
        )
        return replace(made, buffering=self.buffering(setting, made)) if self.buffering else made


def forwards(stage: int, first: int, end: int) -> list[Op]:
    """F of micro-batches first … end − 1."""
    return [Op(OpKind.F, stage, j) for j in range(first, end)]


def _equal_stages(num_stages: int) -> Costs:
    """F = B = W, one activation held until W, transfers that take no time."""
    return uniform_costs(
        num_stages,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        saved_bytes=1,
        saved_w_bytes=1,
        parameter_bytes=1,
        gradient_bytes=1,
        static_bytes=4,
        links=Links(host=Link()),
    )
