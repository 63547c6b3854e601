"""Certificates of lower bounds: the prover and the models that a bound rests on.

A certificate proves nothing by itself. It names the few models that have to be solved again, so
that a bound can be proven without the rest of the search (`synth.solver.bounds.recheck`).
"""

from enum import StrEnum
from typing import Annotated, ClassVar, NamedTuple, Self

from pydantic import Field, PositiveInt, field_validator

from synth.records.record import BriefRecord, Record

# More ranks, lemmas or partitions than any search uses.
MOST_PARTS = 10_000

# Fits into 64 bits.
_Number = Annotated[int, Field(ge=0, lt=1 << 62, strict=True)]
_Rank = Annotated[int, Field(ge=0, lt=1 << 20, strict=True)]
_Ranks = Annotated[tuple[_Rank, ...], Field(max_length=MOST_PARTS)]
_Count = Annotated[PositiveInt, Field(lt=1 << 31, strict=True)]


class ProverName(StrEnum):
    """The prover of a bound.

    closed forms        work, memory and paths of each rank, added up
    of any choice       the same, the minimum over the choices of stages to recompute
    choices             the minimum over parts of the choices of layers and stages to recompute
    exact model         all ranks, by CP-SAT
    MILP                all ranks, by PuLP and CBC
    ranks               some ranks exactly, the others as delays
    forward spacing     least distances of forwards of the first stage, added up
    idle time           the work of a rank and its idle time at both ends
    partition bounds    a bound of every partition, from those of runs of layers
    """

    CLOSED_FORMS = "closed forms"
    ANY_CHOICE = "closed forms of any choice"
    CHOICES = "parts of the choices"
    EXACT = "exact model"
    MILP = "MILP"
    RANKS = "ranks"
    SPACING = "forward spacing"
    IDLE_TIME = "idle time"
    PARTITIONS = "partition bounds"


class Relaxation(StrEnum):
    """The memory and the backwards that a model counts.

    split: B and W apart, neither dearer than BW. fusible: B and W, or BW in their place.
    """

    SPLIT = "split"
    FUSIBLE = "fusible"


class ForwardSpacing(Record):
    """A least time between two forwards of the first stage, or from one to the end of its rank.

    The second forward is the `num_forwards`-th after the first; or `num_forwards` follow before the
    end.

    `ranks` are modelled exactly, with one micro-batch more than `num_forwards`.
    """

    num_forwards: _Count
    least_us: _Number
    ranks: _Ranks
    is_to_end: bool = False


class JointSpacing(Record):
    """A least time within which forwards of a stage start on both copies of the model.

    Any `num_forwards` consecutive micro-batches of each copy, by copy, take that long from the
    first of these starts to the last.

    `ranks` are modelled exactly, with these micro-batches alone.
    """

    stage: _Rank
    num_forwards: tuple[_Number, _Number]
    least_us: _Number
    ranks: _Ranks


class IdleTime(Record):
    """A least idle time of a rank in the first or the last `length_us` of its time.

    `ranks` are modelled exactly, of `num_micro_batches`.
    """

    is_opening: bool
    length_us: _Number
    least_us: _Number
    ranks: _Ranks
    num_micro_batches: _Count


class LayerRun(Record):
    """A rank that holds the layers from `first` to `end` − 1; its exact model has the bound."""

    rank: _Rank
    first: _Rank
    end: _Rank


class Certificate(BriefRecord):
    """The proof of a lower bound in terms of the models to be solved.

    Attributes:
        ranks: those modelled exactly; for the idle-time bound the rank that idles.
        num_micro_batches: the micro-batches of the largest model; None: no model was solved.
        forward_spacings: lemmas, shorter ones first; each helps to prove the next one.
        joint_spacings: lemmas of two copies of the model, of one stage, shorter ones first.
        idle_times: lemmas, of one rank.
        layer_runs: the bound is proven for all partitions that hold one of them.
    """

    LEFT_OUT: ClassVar[tuple[str, ...]] = (
        "ranks",
        "num_micro_batches",
        "forward_spacings",
        "joint_spacings",
        "idle_times",
        "layer_runs",
        "partitions",
    )

    prover: ProverName
    relaxation: Relaxation = Relaxation.SPLIT
    ranks: _Ranks = ()
    num_micro_batches: _Count | None = None
    forward_spacings: tuple[ForwardSpacing, ...] = Field(default=(), max_length=MOST_PARTS)
    joint_spacings: tuple[JointSpacing, ...] = Field(default=(), max_length=MOST_PARTS)
    idle_times: tuple[IdleTime, ...] = Field(default=(), max_length=MOST_PARTS)
    layer_runs: tuple[LayerRun, ...] = Field(default=(), max_length=MOST_PARTS)
    partitions: tuple["PartitionProof", ...] = Field(default=(), max_length=MOST_PARTS)

    @property
    def words(self) -> str:
        """The prover in words: `the exact model of ranks 0 and 6, with 12 forward spacings`."""
        return _words(self)


class PartitionProof(Record):
    """A partition, as layers per stage, and the certificate of the bound on it."""

    sizes: Annotated[tuple[PositiveInt, ...], Field(max_length=MOST_PARTS)]
    certificate: Certificate

    @field_validator("certificate")
    @classmethod
    def _is_of_one(cls, certificate: Certificate) -> Certificate:
        if certificate.partitions or certificate.prover == ProverName.PARTITIONS:
            raise ValueError("the bound of one partition cannot rest on those of others")
        return certificate


CLOSED_FORMS = Certificate(prover=ProverName.CLOSED_FORMS)


class ProvenBound(NamedTuple):
    """A lower bound and its certificate."""

    bound_us: int
    certificate: Certificate

    @classmethod
    def by_closed_forms(cls, bound_us: int) -> Self:
        """Make a bound for which nothing was solved."""
        return cls(bound_us, CLOSED_FORMS)


NOTHING_PROVEN = ProvenBound.by_closed_forms(0)


def _words(certificate: Certificate) -> str:
    """Name the models that are solved, and count the lemmas that they rest on."""
    counts = (
        (len(certificate.forward_spacings), "forward spacing"),
        (len(certificate.joint_spacings), "joint spacing"),
        (len(certificate.idle_times), "idle time"),
        (len(certificate.layer_runs), "run of layers", "runs of layers"),
        (len(certificate.partitions), "partition"),
    )
    lemmas = [_counted(*count) for count in counts if count[0]]
    with_lemmas = f", with {' and '.join(lemmas)}" if lemmas else ""
    return _of_prover(certificate) + with_lemmas


def _of_prover(certificate: Certificate) -> str:
    ranks = [str(rank) for rank in certificate.ranks]
    several = " and ".join([", ".join(ranks[:-1]), ranks[-1]]) if len(ranks) > 1 else "".join(ranks)
    match certificate.prover:
        case ProverName.CLOSED_FORMS:
            return "closed forms"
        case ProverName.ANY_CHOICE:
            return "closed forms over every choice of stages that recompute"
        case ProverName.CHOICES:
            return "models of parts of the choices to recompute"
        case ProverName.EXACT:
            return "the exact model of all ranks"
        case ProverName.MILP:
            return "the mixed-integer program of all ranks"
        case ProverName.RANKS:
            return f"the exact model of rank{'s' * (len(ranks) > 1)} {several}"
        case ProverName.SPACING:
            return "spacings that add up"
        case ProverName.IDLE_TIME:
            return f"the work of rank {several} and its idle time"
        case ProverName.PARTITIONS:
            return "bounds of all partitions"


def _counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"
