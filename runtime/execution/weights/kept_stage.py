"""The part of a stage that a rank keeps with weight passing: all of it, a share, or nothing.

    homes      rank          parameters between visits   gradients        its STEP updates
    one        home          kept                        kept             all of them
    one        another       –                           –                nothing
    one        its host      in the host's memory        there            all of them, there
    one        another, of   –                           –                nothing
               that host
    n          home, ZeRO-3  a share                     a share          that share
    n          home, ZeRO-2  kept                        a share          its share of them
    n          home, ZeRO-1  kept                        kept             its share of them

A share is the same n-th part of each flat buffer of the stage. Updates work element by element, so
that the shares together are updated as the whole would be. A stage in the host's memory is a single
share of everything, and its parameters are updated one by one.
"""

import warnings
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from synth.schedule.lowering.collectives import Collective
from synth.schedule.ops import Value
from synth.schedule.weight_flow import Route, Sharded, WeightFlow

from ...split import gradient_dtype
from ..base.boundary import Tensors
from ..gradients.all_reduce import broadcast_from_first
from ..gradients.early_gradients import move_gradients, set_gradients
from ..gradients.unused import begin_sums, have_no_terms, leave_out_without_terms
from ..transport.host.host_memory import host_memory
from ..transport.host.shared_host import SharedHost
from .flat_layout import FlatPlace, share
from .host_stage import HostStage
from .kept_protocol import StartedCollective
from .parameter_changes import gradient_taken
from .share_collectives import start_all_gather, start_reduce_scatter
from .shared_tensor import SharedParameter
from .stage_weights import StageWeights


class KeptStage:
    """A stage's weights, and what this rank keeps of its state.

    Attributes:
        weights: the module's parameters.
        updated: the module whose parameters this rank's STEP updates; None: it is no home.
        group: the homes that share the stage; None: there is only one.
        index: the index of this rank among them.
        host: the stage's buffers in the host's memory; None: they are not there.
    """

    def __init__(
        self,
        module: nn.Module,
        flow: WeightFlow,
        stage: int,
        rank: int,
        group: Any = None,
        *,
        device: torch.device,
        sums: Collection[Value] = (),
        tied: Collection[int] = (),
        shared: SharedHost | None = None,
    ) -> None:
        """Take over a module; if several ranks share the stage, all of them call this together.

        Args:
            module: the stage's module, with its values on each home. Homes that share it start from
                the values of the first of them.
            group: the group of the stage's homes, if there are several.
            sums: those of the stage's REDUCE_GRADs in a step, in the order in which they are added
                up, if the host keeps it.
            tied: the places, among the module's parameters, of those that other stages have too.
            shared: the host's memory, if several ranks use stages that it keeps.
        """
        homes = flow.homes[stage]
        self._flow, self._num_shares, self._number = flow, len(homes), stage
        self._was_checked = False
        apart = tied if len(homes) > 1 else ()  # so that all stages have the same share of it
        self.weights = StageWeights(module, len(homes), apart, device=device)
        self.group, self.index = group, homes.index(rank) if rank in homes else 0
        self.updated: nn.Module | None = None
        self._share: Share | None = None
        self._totals: Tensors | None = None
        self._total_views: list[Tensor] = []
        """The parameters' places in the totals."""
        self.host: HostStage | None = None
        if not flow.keeps_all(stage, rank):
            for parameter in self.weights.parameters:
                parameter.grad = None  # it is elsewhere, or in a flat part
        if flow.weights == Route.HOST:
            self.host = HostStage(stage, self.weights.layout, sums, device, shared)
        if rank not in homes:
            self.weights.release()
        elif self.host is not None:
            self._keep_in_host(self.host)
        elif len(homes) == 1:
            self.weights.keep(self.weights.gather())
            self.updated = module
        else:
            self._keep_share()

    @property
    def is_shared(self) -> bool:
        """True if several ranks keep a share each."""
        return self._num_shares > 1

    @property
    def is_wrapped(self) -> bool:
        """False: with weight passing no stage is wrapped for data parallelism."""
        return False

    def parameters(self) -> Iterable[Tensor]:
        """The trainable parameters that this rank updates."""
        updated = () if self.updated is None else self.updated.parameters()
        return (parameter for parameter in updated if parameter.requires_grad)

    def state(self) -> Iterable[Tensor]:
        """The weights that are kept here, whole or in part, and the buffers."""
        parts = () if self._share is None else self.own_part
        return (*(self.weights.kept or parts), *self.weights.module.buffers())

    def updated_parameter(self, place: int) -> nn.Parameter:
        """The parameter whose update is that of one of the module's; this rank is a home.

        Args:
            place: of the module's parameter among all of them. If several homes share the stage, it
                is a tied one, which has a buffer of its own.
        """
        if self._share is None:
            return self.weights.parameters[place]
        if self.host is None:
            place = self.weights.layout.weights.places[place].buffer
        found: nn.Parameter = self._share.parts[place]
        return found

    @property
    def own_part(self) -> Tensors:
        """The share of the weights that is kept here."""
        assert self._share is not None
        return tuple(part.detach() for part in self._share.parts)

    @property
    def shared_host(self) -> SharedHost | None:
        """The host's memory that this rank shares with others; None: it shares none."""
        return None if self.host is None else self.host.shared

    @property
    def totals(self) -> Tensors | None:
        """The whole gradients, if they are kept here (ZeRO-1)."""
        return self._totals

    def shared_parameters(self) -> dict[nn.Parameter, SharedParameter]:
        """The module's parameters of which this rank updates a part; none if it updates them all.

        They are the keys as objects; their values may be absent.
        """
        if self._share is None:
            return {}
        parts, rest = list(self._share.parts), (self.group, self.index, self._num_shares)
        parameters, places = self.weights.parameters, self.weights.layout.weights.places
        if self.host is not None:
            places = tuple(FlatPlace(n, 0, each.shape) for n, each in enumerate(parameters))
        return {
            parameter: SharedParameter(parts[place.buffer], place, *rest)
            for parameter, place in zip(parameters, places, strict=True)
        }

    def share_of(self, buffers: Tensors) -> Tensors:
        """This rank's share of whole buffers, as views."""
        return share(buffers, self.index, self._num_shares)

    def start_all_gather(self, collective: Collective) -> StartedCollective:
        """Start gathering the weights, into the buffers that are kept or into those of a visit."""
        kept = self.weights.kept
        buffers = self._visit_with_own_share() if kept is None else kept
        return StartedCollective(
            buffers, start_all_gather(self.group, buffers) if self.is_shared else ()
        )

    def start_reduce_scatter(self, collective: Collective, sums: Tensors) -> StartedCollective:
        """Start adding up the sums; the buffers' other shares become garbage.

        Raises:
            SynthError: a hook has taken a gradient out of sums that are kept whole.
        """
        for parameter, total in zip(self.weights.trained, self._total_views, strict=False):
            if parameter.grad is None or parameter.grad.data_ptr() != total.data_ptr():
                raise gradient_taken(parameter)
        return StartedCollective(
            sums, start_reduce_scatter(self.group, sums) if self.is_shared else ()
        )

    @torch.no_grad()
    def _visit_with_own_share(self) -> Tensors:
        """The buffers of a visit, with this rank's own share in place."""
        buffers = self.weights.layout.weights.empty(self.weights.device)
        for own, part in zip(self.share_of(buffers), self.own_part, strict=True):
            own.copy_(part)
        return buffers

    def _keep_in_host(self, host: HostStage) -> None:
        self.weights.copy_to(host.weights)
        self.weights.release()
        parts = self.weights.layout.weights.flat_views(host.weights)
        dtypes = [gradient_dtype(p) if p.requires_grad else None for p in self.weights.parameters]
        self._share = self.updated = Share(parts, dtypes)
        # No copy of a device's reads or writes them, so they need no pinned memory.
        layout = self.weights.layout.gradients
        gradients = layout.within(host_memory(torch.device("cpu")))
        begin_sums(gradients)
        set_gradients(self._share.trained, layout.flat_views(gradients))

    def _keep_share(self) -> None:
        whole = self.weights.gather()
        for buffer in whole:
            broadcast_from_first(self.group, buffer)
        parts = self.share_of(whole)
        if self._flow.sharded == Sharded.WEIGHTS:
            parts = tuple(part.clone() for part in parts)
            self.weights.release()
        else:
            self.weights.keep(whole)
        dtypes = self.weights.layout.gradients.dtypes
        frozen = [None] * (len(parts) - len(dtypes))
        self._share = self.updated = Share(parts, [*dtypes, *frozen])
        if self._flow.sharded == Sharded.OPTIMIZER:
            self._totals = self.weights.layout.gradients.sums(self.weights.device)
            self._total_views = self.weights.layout.gradients.views(self._totals)
            self.begin()

    @torch.no_grad()
    def begin(self) -> None:
        """Begin a step: where whole gradients are kept, those of the parameters are parts of them.

        One that was set to None, on the stage's module or on the share that STEP updates, begins
        with zeros; one that was replaced by another tensor begins with its values.

        Raises:
            SynthError: the stage's parameters are other ones than those that were taken over.
        """
        self.weights.check_same(self._number)
        if self._totals is None or self._share is None:
            return
        move_gradients(self.weights.trained, self._total_views)
        move_gradients(self._share.trained, self.share_of(self._totals))

    @torch.no_grad()
    def add(self, sums: Tensors) -> None:
        """Add the gradient of a step to the one that STEP uses.

        Args:
            sums: buffers of the whole gradient, of which only this rank's share is complete if
                several ranks share the stage.
        """
        layout = self.weights.layout.gradients
        if self._share is None:
            into, parts = self.weights.trained, tuple(layout.views(sums))
        elif self.host is None:
            into, parts = self._share.trained, self.share_of(sums)
        else:
            into, parts = self._share.trained, layout.flat_views(sums)
        for parameter, part in zip(into, parts, strict=True):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(part)
                begin_sums([parameter.grad])
            parameter.grad.add_(part)

    @torch.no_grad()
    def add_from_below(self, total: Tensors, sums: Tensors) -> None:
        """Add the sum of a rank below on the tree to the total of this one."""
        for into, part in zip(total, sums, strict=True):
            into.add_(part)

    def synchronize(self) -> None:
        """Wait until nothing reads the weights that the host keeps."""
        if self.host is not None:
            self.host.synchronize()

    def add_arrived(self) -> None:
        """Add the sums that have left for the host; wait until its weights may be updated."""
        if self.host is not None:
            for sums in self.host.arrived():
                self.add(sums)
            self.host.synchronize()

    @torch.no_grad()
    def clear_other_shares(self) -> None:
        """Zero the part of the kept gradients that other homes have taken over."""
        for total in self._totals or ():
            for index in range(self._num_shares):
                if index != self.index:
                    begin_sums(share([total], index, self._num_shares))

    def leave_out_unused(self) -> None:
        """Remove the complete gradients of parameters that no op has used.

        Those in a share are only parts of a flat parameter: a warning names them, once.
        """
        if not self.is_shared:
            leave_out_without_terms(self.parameters())
        elif not self._was_checked:
            self._was_checked = True
            if unused := self._unused_in_share():
                warnings.warn(
                    f"no micro-batch used {', '.join(unused)} of stage {self._number}: several "
                    f"ranks share its weights, so these gradients are zeros, where one process has "
                    f"None, and weight decay and momentum move the parameters; freeze them by "
                    f"requires_grad_(False), or take a schedule without shared weights",
                    stacklevel=2,
                )

    def _unused_in_share(self) -> list[str]:
        """The names of trained parameters without a gradient in this rank's share."""
        assert self._share is not None
        gradients, parts, names = [part.grad for part in self._share.trained], [], []
        named = [n for n, p in self.weights.module.named_parameters() if p.requires_grad]
        layout = self.weights.layout.gradients
        for name, place in zip(named, layout.places, strict=True):
            gradient = gradients[place.buffer]
            if gradient is None:
                continue
            begin = self.index * len(gradient)
            part = gradient[max(0, place.offset - begin) : max(0, place.end - begin)]
            if len(part):
                parts.append(part)
                names.append(name)
        return [n for n, lacks in zip(names, have_no_terms(parts), strict=True) if lacks]


class Share(nn.Module):
    """A rank's share of a stage, as flat parameters.

    There is one for each buffer of the stage, or, in the host's memory, for each of its parameters.
    """

    def __init__(self, parts: Tensors, gradient_dtypes: Sequence[torch.dtype | None]) -> None:
        """Make parameters of parts of buffers; one without a dtype of its gradient is frozen."""
        super().__init__()
        kinds = list(zip(parts, gradient_dtypes, strict=True))
        self.parts = nn.ParameterList(nn.Parameter(p, requires_grad=bool(d)) for p, d in kinds)
        for parameter, (part, dtype) in zip(self.parts, kinds, strict=True):
            if dtype not in (None, part.dtype):
                parameter.grad_dtype = dtype

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that are not frozen."""
        return [part for part in self.parts if part.requires_grad]
