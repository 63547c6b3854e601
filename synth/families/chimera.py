"""Chimera: two 1F1B pipelines in opposite directions (Li and Hoefler 2021, arXiv 2107.06925).

There are three ways to run more than D micro-batches (section 3.5). *Direct concatenation* runs
units of D one after another. If B takes twice as long as F, it leaves bubbles between them, which
the other two remove. *Forward doubling* runs two micro-batches in each F, so that a slot of F takes
as long as a B, and each B separately; it holds twice the activations. Both equal, op by op, the
authors' program (Shigangli/Chimera). *Backward halving* is the same schedule with micro-batches
half as large, two of which run together in F and one by one in B. Here a micro-batch is the unit of
one B: `halving` therefore makes the programs of `doubling`, for a profile of half micro-batches and
twice as many of them.

Gradients of the two copies are added up eagerly (section 3.2), or, with `late-sync`, at the end.
"""

from synth.errors import SynthError
from synth.families._lib.concatenated_units import check_even, concatenated
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import SYNC, ChoiceOption

_WAYS = ChoiceOption("scale", ("concatenation", "doubling", "halving"), untried=("halving",))


def make(setting: Setting) -> Programs:
    """Each copy takes half of D micro-batches, or pairs of them.

    With F = B the bubble is D − 2 forwards, for any number of units. With B = 2F it is the printed
    share (D − 2) / (1.5 N + D − 2) for one unit of D micro-batches; each further unit adds D − 2
    forwards, since B's and not F's have to fit between. In pairs the bubble is 1.5 (D − 2)
    forwards for any number of units of 2D: no schedule on this placement has less, because a
    middle rank begins D / 2 − 1 forwards after the first one, and as many backwards follow its
    last.
    """
    check_even("chimera", setting)
    if setting.options["scale"] == "halving" and setting.num_micro_batches % 2:
        raise SynthError(
            f"chimera:halving needs an even number of micro-batches, given "
            f"{setting.num_micro_batches}: each is one half of a whole one"
        )
    return concatenated(setting, 1 if setting.options["scale"] == "concatenation" else 2)


FAMILY = Family(
    "chimera",
    "Li and Hoefler 2021, arXiv 2107.06925, section 3",
    make,
    "bidirectional",
    options=(_WAYS, SYNC),
)
