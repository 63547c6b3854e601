"""Layouts in words: `tp=8,pp=4,dp=2`."""

import re
from collections.abc import Mapping
from typing import TypeVar

from pydantic import ValidationError

from synth.errors import SynthError
from synth.estimates.layout import Layout, Recompute, Sharding
from synth.families import family_placement, may_overlap, vocabulary_barriers
from synth.layouts.question import LayoutQuestion, RunLayout
from synth.layouts.search import NamedLayout
from synth.records.record import describe
from synth.units import counted, shown

_SIZES = ("tp", "cp", "ep", "etp", "pp", "dp", "mbs", "vp")
_WORDS = ("sharding", "recompute", "schedule")
_COUNT = re.compile(r"[1-9]\d{0,8}")


def read_layout(text: str, question: LayoutQuestion) -> NamedLayout:
    """Read a layout; sizes that are not given are 1, and dp has the devices that are left.

    Args:
        text: such as `tp=8,pp=4,vp=5,recompute=full,schedule=interleaved:5`.

    Raises:
        SynthError: it is not understood, or does not go with the question.
    """
    given = _values(text)
    sizes = {name: int(given.get(name, "1")) for name in _SIZES}
    if "dp" not in given:
        others = sizes["tp"] * sizes["cp"] * sizes["pp"]
        sizes["dp"] = max(1, question.gpus // others)
    sharding = _one_of(Sharding, given.get("sharding", Sharding.ZERO1), text)
    try:
        groups = Layout(
            seq_len=question.seq_len,
            micro_batch_size=sizes["mbs"],
            tensor=sizes["tp"],
            context=sizes["cp"],
            expert=sizes["ep"],
            expert_tensor=sizes["etp"],
            data=sizes["dp"],
            precision=question.precision,
            sharding=sharding,
            recompute=_one_of(Recompute, given.get("recompute", Recompute.NONE), text),
            narrow_gather=question.narrow_gather and sharding is Sharding.ZERO1,
        )
    except ValidationError as error:
        raise SynthError(f"the layout {shown(text)} is out of range:\n{describe(error)}") from None
    count = question.global_batch // (sizes["dp"] * sizes["mbs"])
    layout = RunLayout(groups, sizes["pp"], sizes["vp"], count)
    question.check(layout)
    if "schedule" in given:
        _check_schedule(given["schedule"], layout, question)
    return NamedLayout(text, layout, given.get("schedule"))


def _check_schedule(name: str, layout: RunLayout, question: LayoutQuestion) -> None:
    """Refuse a schedule that is unknown, that the runtime lacks, or that has other stages."""
    where, allowed = family_placement(name, layout.ranks), question.allowed
    rounds = where.num_stages // layout.ranks
    if rounds != layout.rounds:
        raise SynthError(
            f"{name} has {counted(rounds, 'stage')} per rank, and {layout.words} has "
            f"{layout.rounds}; give vp={rounds}"
        )
    reason = allowed.why_not_on(where)
    if vocabulary_barriers(name):
        reason = "a layout has whole layers"
    if reason is None and not allowed.runs(name, keeps_saved=True):
        reason = f"{allowed.runtime} does not run it"
    if reason is None and may_overlap(name) and (why := question.why_no_pairs(layout)):
        reason = f"with {layout.words} it does not run F and BW at once, {why}"
    if reason is not None:
        raise SynthError(f"schedule={name} is not for {allowed.runtime}: {reason}; give another")


_Word = TypeVar("_Word", Sharding, Recompute)


def _one_of(words: type[_Word], value: str, text: str) -> _Word:
    """Return the member of an enumeration.

    Raises:
        SynthError: there is none; lists them.
    """
    if value not in (members := [each.value for each in words]):
        raise SynthError(
            f"the layout {shown(text)} is not understood at {shown(value)}; "
            f"{words.__name__.lower()} is one of {', '.join(members)}"
        )
    return words(value)


def _values(text: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for part in re.split(r",(?=[a-z]+=)", text.replace(" ", "")):
        name, equals, value = part.partition("=")
        is_size = name in _SIZES and _COUNT.fullmatch(value)
        if not equals or name in found or not (is_size or (name in _WORDS and value)):
            raise SynthError(
                f"the layout {shown(text)} is not understood at {shown(part)}; write sizes as "
                f"tp=8,pp=4,dp=2 with {', '.join((*_SIZES, *_WORDS))}"
            )
        found[name] = value
    return found
