"""Options of measuring a model's layers, as an object or as keywords."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict

from synth.profile import Profile
from synth.profile.links import Links
from synth.profile.whole_step import WholeStep

from .machine_watch import MachineWatch
from .pace import ProfilingProgress
from .rank_processes import RankProcesses

Tell = Callable[[str], None]
OnProgress = Callable[[ProfilingProgress], None]


class ProfilingKeywords(TypedDict, total=False):
    """The fields of `ProfilingOptions`, as keyword arguments."""

    warmup: int
    iterations: int
    separate: bool
    pairs: bool
    policies: Sequence[str]
    links: Links | Callable[[], Links] | None
    watch: MachineWatch | None
    processes: RankProcesses | None
    tell: Tell
    on_progress: OnProgress
    on_profile: Callable[[Profile], None]
    on_whole_step: Callable[[WholeStep], None] | None


@dataclass(frozen=True, kw_only=True)
class ProfilingOptions:
    """Options of measuring a model's layers; all of them have defaults.

    Attributes:
        warmup: warm-up iterations per layer.
        iterations: measured iterations per layer.
        separate: measure each layer, those too that are identical to another one.
        pairs: measure F and BW of two micro-batches at once, too, on two streams of a CUDA device.
        policies: of recomputation within a layer: each layer is measured under each of them, too.
        links: between ranks and to the host, as `probe_links` measures them; or a function that
            measures them, which is called after the layers were measured; None: transfers take no
            time.
        watch: a watch of the machine that was begun before; None: a new one.
        processes: that divide each layer and measure it together; None: this one measures alone.
        tell: called with a line per measured layer.
        on_progress: called after each round of each layer.
        on_profile: called with the profile before the whole step is measured.
        on_whole_step: called with a step of a few layers of each kind, which is measured after the
            layers; None: it is not measured.
    """

    warmup: int = 3
    iterations: int = 20
    separate: bool = False
    pairs: bool = False
    policies: Sequence[str] = ()
    links: Links | Callable[[], Links] | None = None
    watch: MachineWatch | None = None
    processes: RankProcesses | None = None
    tell: Tell = lambda line: None
    on_progress: OnProgress = lambda progress: None
    on_profile: Callable[[Profile], None] = lambda profile: None
    on_whole_step: Callable[[WholeStep], None] | None = None
