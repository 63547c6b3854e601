"""Options of a pipeline, as an object or as keywords."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Self, TypedDict, Unpack

import torch
from torch import nn

from synth.errors import SynthError

from ..execution.base.clock import OpClock
from ..execution.program.progress import RankProgress
from ..execution.stage.stage import Loss
from .groups import PipelineGroups, Ranks


class PipelineKeywords(TypedDict, total=False):
    """The fields of `PipelineOptions`, as keyword arguments of `Pipeline`."""

    group: Ranks | None
    loss: Loss | None
    tied: Mapping[str, nn.Parameter | Sequence[nn.Parameter]] | None
    data_parallel: Ranks | None
    on_gradients: Callable[[int], None] | None
    device: torch.device | str | None
    changing_shapes: bool
    timeout_s: float
    clock: OpClock | None
    progress: RankProgress | None
    warm_up: bool | None
    look_ahead: int
    caps_bytes: Sequence[int] | None


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """Options of a pipeline; all of them have defaults.

    Attributes:
        group: the pipeline's processes: a process group, or one dimension of a device mesh; None:
            all processes; or threads of this process (`run_ranks`). The group's rank r runs the
            schedule's rank r.
        loss: the loss function of the last stage's output and the targets; None: the last stage's
            module takes the targets as its last argument and returns the loss itself.
        tied: parameters that this rank shares with others, by names common to all of them (an
            embedding and a head), or that several of its stages have one each of: they start equal
            and their gradients are added up. With weight passing each rank names those of all its
            stages.
        data_parallel: the processes that hold the same stages in the data-parallel pipelines: a
            process group, or the other dimension of the mesh. They start with equal parameters and
            buffers, and gradients are averaged over all pipelines, those of a stage right after its
            last backward, or with weight passing at the rank's last STEP. None: there is one
            pipeline, or the stages are wrapped in DistributedDataParallel or FSDP2.
        on_gradients: called with a stage's number after its last backward of a step that updates,
            to start a reduction of the caller's. Sums over copies, tied parameters and
            `data_parallel` come later. With weight passing it is called at the rank's last STEP,
            for each stage that is updated here, after the sums over tied parameters.
        device: the device of this rank; None: that of its parameters.
        changing_shapes: True if inputs change their shapes from step to step. The rank with the
            first stage then announces them at every step, else at the first one only.
        timeout_s: the longest that ranks wait for each other, in seconds.
        clock: records the times of ops and of waits for transfers; None: not recorded.
        progress: updated before each instruction, for a post-mortem.
        warm_up: True runs the stages on zeros ahead of the first step, see `WarmUp`; None: on NCCL
            only, where the first use of a kernel may wait for a posted receive.
        look_ahead: while the next op waits for a receive, one of this many ops after it may run if
            its inputs are there and the memory limit allows it (see synth.schedule.look_ahead); 0:
            the plan's order. It needs a plan, or a schedule that is lowered on its costs.
        caps_bytes: the ranks' memory limits for `look_ahead` if the schedule is not a plan, which
            contains them; None: each rank's planned peak.
    """

    group: Ranks | None = None
    loss: Loss | None = None
    tied: Mapping[str, nn.Parameter | Sequence[nn.Parameter]] | None = None
    data_parallel: Ranks | None = None
    on_gradients: Callable[[int], None] | None = None
    device: torch.device | str | None = None
    changing_shapes: bool = False
    timeout_s: float = 300.0
    clock: OpClock | None = None
    progress: RankProgress | None = None
    warm_up: bool | None = None
    look_ahead: int = 0
    caps_bytes: Sequence[int] | None = None

    def __post_init__(self) -> None:
        """Refuse values of other types."""
        if isinstance(self.loss, type):
            name = self.loss.__name__
            raise SynthError(f"loss is the class {name}; give an instance, such as {name}()")
        for name in ("loss", "on_gradients"):
            if not (getattr(self, name) is None or callable(getattr(self, name))):
                raise _refused(name, getattr(self, name), "a function")
        if not _is_time(self.timeout_s):
            raise _refused("timeout_s", self.timeout_s, "a number of seconds above 0")
        if not (isinstance(self.look_ahead, Integral) and self.look_ahead >= 0):
            raise _refused("look_ahead", self.look_ahead, "a whole number, 0 or more")
        if not isinstance(self.tied, Mapping | None):
            raise _refused("tied", self.tied, "parameters by name")
        for name, found in self.tied_parameters.items():
            if not all(isinstance(each, nn.Parameter) for each in found):
                given = (self.tied or {})[name]
                raise _refused(f"tied[{name!r}]", given, "a parameter, or a list of them")

    @property
    def tied_parameters(self) -> dict[str, tuple[nn.Parameter, ...]]:
        """By name this rank's tied parameters, each once."""
        given = (self.tied or {}).items()
        return {
            name: tuple(dict.fromkeys(found)) if isinstance(found, Sequence) else (found,)
            for name, found in given
        }

    def join_groups(self, keywords: PipelineKeywords) -> PipelineGroups:
        """Return the groups that the keywords name, or else these options; all ranks call this.

        No value is refused yet: once in its groups, a rank can announce what it refuses.

        Raises:
            SynthError: there is no such group, or this process is not in it.
            TypeError: there is no such option.
        """
        if unknown := keywords.keys() - {field.name for field in fields(self)}:
            raise TypeError(f"a Pipeline has no option {', '.join(sorted(unknown))}")
        timeout_s = keywords.get("timeout_s", self.timeout_s)
        return PipelineGroups.of(
            keywords.get("group", self.group),
            keywords.get("data_parallel", self.data_parallel),
            timeout_s if _is_time(timeout_s) else self.timeout_s,
        )

    def updated(self, **keywords: Unpack[PipelineKeywords]) -> Self:
        """Return a copy with some fields changed."""
        return replace(self, **keywords)


def _is_time(given: object) -> bool:
    """True for a number of seconds above 0."""
    return isinstance(given, Real) and float(given) > 0


def _refused(name: str, value: object, needed: str) -> SynthError:
    return SynthError(f"{name} is {value!r:.60}; give {needed}")
