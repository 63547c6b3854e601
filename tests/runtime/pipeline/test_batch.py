"""A mini-batch divided into micro-batches."""

from typing import NamedTuple

import torch
from torch import Tensor

from synth.runtime.batch import Batch


class Labels(NamedTuple):
    """A tree of a user-defined class."""

    classes: Tensor
    weights: Tensor


def test_micro_batches_are_of_the_types_that_were_given() -> None:
    labels = Labels(torch.arange(4), torch.ones(4))
    batch = Batch.split(2, torch.zeros(4, 3), targets=labels, mask={"keep": [torch.ones(4)]})
    assert batch.inputs is not None and batch.targets is not None
    assert batch.arguments(1)[0].shape == (2, 3)
    assert [type(target) for target in batch.targets] == [Labels, Labels]
    assert batch.targets[1].classes.tolist() == [2, 3]
    assert batch.named(0)["mask"]["keep"][0].shape == (2,)


def test_inputs_of_other_shapes_dtypes_or_structure_have_other_signatures() -> None:
    given = [torch.zeros(2, 3), torch.zeros(2, 4), torch.zeros(2, 3, dtype=torch.int64)]
    plain = [Batch(inputs=[x]).signature(0) for x in given]
    others = [
        Batch(inputs=[(given[0], given[0])]).signature(0),
        Batch(inputs=[[given[0]]]).signature(0),
        Batch(inputs=[given[0]], keywords=[{"mask": given[0]}]).signature(0),
    ]
    assert len({*plain, *others}) == 6
    assert Batch(inputs=[(given[0],)]).signature(0) == plain[0]  # the same positional arguments
