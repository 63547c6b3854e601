"""Opens the channels for a schedule's transfers, on the transport of the group and the device."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta

import torch

from synth.costs.costs import HOST
from synth.errors import SynthError
from synth.schedule.lowering.lower import Lowered, Transfer

from ..base.channels import Channels
from .calls import CallNotes, Link
from .gloo.channels import GlooChannels
from .gloo.eager_links import EagerLinks, most_posted
from .groups import Group
from .host.host_link import HostedStage, HostLink
from .host.with_host import WithHost
from .in_process.ranks import InProcessGroup
from .nccl.channels import NcclChannels
from .watched_channels import WatchedChannels, WatchedReceives


def open_channels(
    device: torch.device,
    transfers: Iterable[Transfer],
    timeout_s: float = 300.0,
    group: Group | InProcessGroup | None = None,
    lowered: Lowered | None = None,
    watched: WatchedReceives | None = None,
    on_host: Mapping[int, HostedStage] | None = None,
    notes: CallNotes | None = None,
) -> Channels:
    """Open the channels for a schedule's transfers; every rank calls this at the same time.

    Args:
        transfers: all transfers of the lowered schedule, the same list on every rank.
        timeout_s: the time limit of a transfer; gloo takes that of `group`, if given.
        group: the pipeline's ranks; None: all processes.
        lowered: the programs that will use the channels; None: unknown.
        watched: watches the receives from other ranks; None: they are only waited for.
        on_host: the stages of this rank that its host keeps, by number; None: there are none.
        notes: of the calls that the messages belong to, which are connected here; None: there is
            one call.

    Raises:
        SynthError: receives are to be watched on NCCL, where the host does not wait for them.
    """
    group = group or Group.world(timeout_s)
    transfers = list(transfers)
    ends = {(t.source, t.target) for t in transfers}
    links = sorted(link for link in ends if HOST not in link)
    between: Channels
    if isinstance(group, InProcessGroup):
        between = group.channels()
        if notes is not None:
            between = notes.over(between, carrier=between)
    elif group.backend(device) == "nccl":
        if watched is not None:
            raise SynthError(
                "look-ahead needs to know on the host when a receive has arrived, which NCCL does "
                "not tell; leave it out, or run on gloo"
            )
        between = NcclChannels(group, links, device, timedelta(seconds=timeout_s))
        if notes is not None:
            carrier = _on_gloo(group, torch.device("cpu"), notes.links, Counter(), timeout_s)
            between = notes.over(between, carrier, at_post=True)
    else:
        posted = most_posted(transfers, lowered, group.rank)
        if notes is None:
            between = _on_gloo(group, device, links, posted, timeout_s)
        else:
            posted.update(notes.links)  # a note each
            carrier = _on_gloo(group, device, notes.links, posted, timeout_s)
            between = notes.over(carrier, carrier, on_begin=carrier.begin_call)
    if watched is not None:
        between = WatchedChannels(between, watched)
    uses_host = any(HOST in link and group.rank in link for link in ends)
    return WithHost(between, HostLink(device, on_host)) if uses_host else between


def _on_gloo(
    group: Group, device: torch.device, links: list[Link], posted: Counter[Link], timeout_s: float
) -> GlooChannels:
    return GlooChannels(group, device, EagerLinks(group, links, posted, timeout_s))
