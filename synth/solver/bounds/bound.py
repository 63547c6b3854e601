"""The interface of a lower bound, and the setting in which bounds are proven."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Protocol, Self, runtime_checkable

from synth.objective import Objective
from synth.schedule.files.certificate import Certificate, ProvenBound, ProverName
from synth.solver.bounds.forward_spacing_model import Spacings
from synth.solver.bounds.idle_time_model import IdleTimes
from synth.solver.bounds.rechecker import Rechecker
from synth.solver.cpsat.run import TimedBounds
from synth.solver.instance.instance import Instance
from synth.solver.instance.timing import TimedOrders
from synth.solver.options import Part, SolveOptions


class Reference(NamedTuple):
    """A value that is known to be attained; proofs need not look above it.

    Attributes:
        value_us: in the model's terms.
        hint: a schedule of that value; restricted to some ranks it solves their relaxation.
    """

    value_us: int
    hint: TimedOrders | None


@dataclass
class ProofState:
    """Proven facts that later proofs begin with.

    Attributes:
        bound_us: the best bound of the objective.
        proven_by: by set of ranks, the bound of the objective, where it raised the best one.
        attained_us: by set of ranks, a value that a model of them alone attains.
        left_open: by set of ranks, values that it was asked to refute in vain, with the effort.
        spacings: distances between forwards of the first stage, and to the end of its rank.
        idle_us: least idle times of ranks at their ends.
    """

    bound_us: int = 0
    proven_by: dict[tuple[int, ...], int] = field(default_factory=dict)
    attained_us: dict[tuple[int, ...], int] = field(default_factory=dict)
    left_open: dict[tuple[int, ...], list[tuple[int, float]]] = field(default_factory=dict)
    spacings: Spacings = field(default_factory=Spacings)
    idle_us: IdleTimes = field(default_factory=dict)


@dataclass(frozen=True)
class BoundSetting:
    """The problem of a bound, and what is known of it.

    Attributes:
        instance: the one that is relaxed for fusion.
        reference: called at the beginning of each proof for the best value known then.
        known: facts proven so far; bounds add to them.
        should_stop: polled during each proof.
    """

    instance: Instance
    objective: Objective
    options: SolveOptions
    reference: Callable[[], Reference]
    known: ProofState
    should_stop: Callable[[], bool]

    @property
    def exact_options(self) -> SolveOptions:
        """The options of a proof, which ends with the least value and not near it."""
        return replace(self.options, gap=0.0)


class LowerBound(Protocol):
    """A kind of lower bounds on every schedule of a problem.

    Attributes:
        part: the part of the search that it is, by which it is ordered and left out.
    """

    part: ClassVar[Part]
    prover: ClassVar[ProverName]

    @classmethod
    def of(cls, setting: BoundSetting) -> Self | None:
        """Begin to bound; return None where this kind does not hold or proves too little."""
        ...

    @property
    def bound_us(self) -> int:
        """The best bound of the objective so far."""
        ...

    def prove(self, limit_s: float) -> TimedBounds:
        """Yield bounds of the objective as they are proven; return the seconds spent.

        A second call keeps the best bound. Kinds that the policy gives several turns, forward
        spacings and idle times, continue their first call; the others begin again.

        Args:
            limit_s: seconds of the clock, or deterministic ones.
        """
        ...

    @classmethod
    def recheck(cls, certificate: Certificate, again: Rechecker) -> None:
        """Prove the claimed bound again, with only the models that the certificate names.

        The certificate is not trusted: it may name ranks and lemmas that do not exist.

        Raises:
            RecheckEnded: a step has no proof.
        """
        ...


@runtime_checkable
class RankwiseBound(Protocol):
    """A bound that is proven for each rank alone first, which takes little time."""

    def one_by_one(self, limit_s: float) -> Iterator[ProvenBound]:
        """Yield bounds from each rank alone.

        Args:
            limit_s: for all of them; seconds of the clock, or deterministic ones.
        """
        ...


def rank_by_rank(
    ranks: Sequence[int],
    first_share: float,
    limit_s: float,
    prove: Callable[[int, float], tuple[ProvenBound, float]],
    should_stop: Callable[[], bool],
) -> Iterator[ProvenBound]:
    """Yield a bound from each rank; ranks share alike the time that the ranks before them leave.

    Args:
        ranks: those that may prove most first.
        limit_s: for all ranks.
        prove: bounds by a rank within a limit; returns the bound and the seconds spent.
    """
    left_s = limit_s
    for place, rank in enumerate(ranks):
        share = first_share if place == 0 else 1 / (len(ranks) - place)
        proven, spent_s = prove(rank, share * left_s)
        left_s -= spent_s
        yield proven
        if left_s <= 0 or should_stop():
            return
