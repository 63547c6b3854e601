"""What `split` cuts, passes whole, and refuses."""

import gc
import weakref
from collections import UserDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import synth
from synth.errors import SynthError
from synth.families import generate
from synth.runtime.batch import Batch
from synth.runtime.cutting import tensors_in
from synth.runtime.execution.transport.in_process.ranks import run_ranks

X = torch.arange(8 * 3).reshape(8, 3)


@dataclass(frozen=True)
class Sample:
    """A dataclass that PyTorch's pytree does not know."""

    x: Tensor
    lengths: list[Tensor]
    scale: float = 1.0


class Attention(nn.Module):
    """Attention with a bias of each head (ALiBi)."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.v = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, slopes: Tensor) -> Tensor:
        b, n, d = x.shape
        q, v = (f(x).view(b, n, 4, 2).transpose(1, 2) for f in (self.q, self.v))
        scores = q @ q.transpose(2, 3) + slopes.view(-1, 1, 1) * torch.arange(n)
        return x + (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d)


def alibi(first: bool, marked: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss and a gradient of a pipeline of two stages, and those of one process."""
    torch.manual_seed(0)
    one, stages = [Attention(), Attention()], [Attention(), Attention()]
    for mine, its in zip(one, stages, strict=True):
        its.load_state_dict(mine.state_dict())
    x, targets = torch.randn(8, 6, 8), torch.randn(8, 6, 8)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    want = nn.functional.mse_loss(one[1](one[0](x, slopes), slopes), targets)
    want.backward()
    schedule = generate("1f1b", 2, 4)

    def train(group: Any) -> Tensor | None:
        pipeline = synth.Pipeline(
            schedule, stages[group.rank], group=group, loss=nn.functional.mse_loss, timeout_s=20
        )
        given = (x,) if first or group.rank == 0 else ()
        also = {"targets": targets} if first or group.rank == 1 else {}
        same = synth.Replicate(slopes) if marked else slopes
        return pipeline.step(pipeline.split(*given, **also, slopes=same))

    got = run_ranks(2, train)[1]
    assert got is not None and stages[0].q.weight.grad is not None
    assert one[0].q.weight.grad is not None
    return got, want.detach(), stages[0].q.weight.grad, one[0].q.weight.grad


@pytest.mark.parametrize("first", [True, False])
def test_slopes_that_every_micro_batch_gets_whole_train_as_one_process(first: bool) -> None:
    got, want, gradient, its = alibi(first, marked=True)
    torch.testing.assert_close((got, gradient), (want, its))


@pytest.mark.parametrize("first", [True, False])
def test_slopes_that_say_nothing_are_refused_by_name(first: bool) -> None:
    with pytest.raises(SynthError, match=r"slopes of shape \[4\].*8.*synth\.Replicate.*synth\.Ch"):
        alibi(first, marked=False)


def test_a_rank_with_keywords_alone_has_the_batch_of_the_others() -> None:
    schedule = generate("gpipe", 2, 4)

    def train(group: Any) -> None:
        pipeline = synth.Pipeline(
            schedule,
            (nn.Linear(3, 3), nn.Bilinear(3, 4, 1))[group.rank],
            group=group,
            loss=lambda y, _: y.sum(),
            timeout_s=20,
        )
        given = {"input2": torch.randn(4, 4)} if group.rank else {}
        batch = Batch.split(4, *(() if group.rank else (X.float(),)), **given)
        pipeline.step(batch)

    with pytest.raises(SynthError, match="was cut from 4 samples, the first stage's from 8"):
        run_ranks(2, train)


def test_nested_values_are_cut() -> None:
    encoding: UserDict[str, Any] = UserDict({"ids": X, "type": "ids"})
    tree = {"pair": [X, (X + 1, None)], "sample": Sample(X, [X[:, 0]]), "encoding": encoding}
    batch = Batch.split(4, tree, True, flag="a")
    ((cut, flag), named) = batch.arguments(3), batch.named(3)
    assert torch.equal(cut["pair"][1][0], X[6:] + 1) and cut["pair"][1][1] is None
    assert isinstance(cut["sample"], Sample) and torch.equal(cut["sample"].x, X[6:])
    assert torch.equal(cut["sample"].lengths[0], X[6:, 0]) and cut["sample"].scale == 1
    assert torch.equal(cut["encoding"]["ids"], X[6:]) and cut["encoding"]["type"] == "ids"
    assert flag is True and named == {"flag": "a"}
    assert len(encoding["ids"]) == 8


def test_hugging_face_outputs_are_cut() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    given = outputs.BaseModelOutput(last_hidden_state=X, hidden_states=(X, X))
    (cut,) = Batch.split(2, given).arguments(1)
    assert type(cut) is type(given)
    assert torch.equal(cut.last_hidden_state, X[4:]) and torch.equal(cut.hidden_states[1], X[4:])


def test_chunks_are_cut_along_their_dimension() -> None:
    rotary = torch.arange(3 * 8 * 5).reshape(3, 8, 5)
    batch = Batch.split(
        2,
        X,
        targets=synth.Chunk(torch.arange(40)),
        positions=synth.Chunk(rotary, dim=1),
        names=synth.Chunk(list("abcdefgh")),
        table=synth.Replicate({"slopes": torch.ones(5)}),
        array=synth.Chunk(np.arange(16).reshape(2, 8), -1),
    )
    named = batch.named(1)
    assert batch.targets is not None and torch.equal(batch.targets[1], torch.arange(20, 40))
    assert torch.equal(named["positions"], rotary[:, 4:])
    assert named["names"] == list("efgh") and named["table"]["slopes"].shape == (5,)
    assert named["array"].tolist() == [[4, 5, 6, 7], [12, 13, 14, 15]]


def test_a_batch_along_another_dimension_is_what_others_are_measured_by() -> None:
    sequence_first = synth.Chunk(torch.zeros(6, 8, 3), dim=1)
    with pytest.raises(SynthError, match=r"mask of shape \[6, 6\].*inputs\[0\]\) has 8"):
        Batch.split(2, sequence_first, mask=torch.ones(6, 6))
    assert Batch.split(2, sequence_first, mask=torch.ones(8, 6)).named(0)["mask"].shape == (4, 6)


REFUSED: dict[str, tuple[Any, str]] = {
    "rotary positions": (torch.zeros(3, 8, 5), r"value of shape \[3, 8, 5\] has 3"),
    "positions": (torch.arange(6), "value of shape .6. has 6"),
    "nested in a dictionary": ({"a": [X, torch.ones(9)]}, r"value\['a'\]\[1\] of shape \[9\]"),
    "in a dataclass": (Sample(X, [torch.ones(2)]), r"value\.lengths\[0\] of shape \[2\]"),
    "a scalar": (torch.tensor(1.0), "value is a tensor without dimensions"),
    "texts of samples": (list("abcdefgh"), r"value has 8 items.*synth\.Chunk"),
    "numbers of samples": ({"n": tuple(range(8))}, r"value\['n'\] has 8 items"),
    "an array": (np.zeros((8, 3)), "value is a ndarray"),
    "a set": ({1, 2}, "value is a set"),
    "a function": (lambda b, h, q, k: q >= k, "value is a function"),
    "an object": (nn.Linear(2, 2), "value is a Linear"),
    "packed": (pack_sequence([torch.ones(3), torch.ones(2)]), "value is a PackedSequence"),
    "sparse": (torch.eye(8).to_sparse(), "value is a sparse tensor"),
    "no such dimension": (synth.Chunk(X, 2), r"value of shape \[8, 3\] has no dimension 2"),
    "unequal": (synth.Chunk(X, 1), "value: a mini-batch of 3 cannot be cut into 4"),
    "a chunk of a dictionary": (synth.Chunk({"x": X}), "value is a Chunk of a dict"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("as_target", [False, True])
def test_what_cannot_be_cut_is_refused_by_name(case: str, as_target: bool) -> None:
    value, message = REFUSED[case]
    given = {"targets" if as_target else "value": value}
    with pytest.raises(SynthError, match=message.replace("value", next(iter(given)))):
        Batch.split(4, X, **given)


def test_nested_tensors_are_refused() -> None:
    jagged = torch.nested.nested_tensor([torch.ones(2, 3)] * 8, layout=torch.jagged)
    with pytest.raises(SynthError, match=r"inputs\[0\] is a nested tensor"):
        Batch.split(4, jagged)


def test_lists_without_a_tensor_beside_them_are_refused_if_they_could_be_divided() -> None:
    with pytest.raises(SynthError, match="targets has 8 items"):
        Batch.split(4, targets=list("abcdefgh"))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_block_masks_are_cut_as_pytorchs_pipelines_do() -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    kept = torch.tensor([9, 40, 17, 128, 64, 3, 90, 33])

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (k < kept[b])

    q = torch.randn(8, 2, 128, 8)
    mask = flex.create_block_mask(mask_mod, 8, None, 128, 128, device="cpu", BLOCK_SIZE=32)
    whole = flex.flex_attention(q, q, q, block_mask=mask)
    shared = flex.create_block_mask(mask_mod, 1, 1, 128, 128, "cpu", BLOCK_SIZE=32)
    batch = Batch.split(4, q, mask=mask, shared=shared)
    parts = [
        flex.flex_attention(*batch.arguments(j) * 3, block_mask=batch.named(j)["mask"])
        for j in range(4)
    ]
    torch.testing.assert_close(torch.cat(parts), whole)
    blocks = [batch.named(j)["mask"].to_dense() for j in range(4)]
    assert torch.equal(torch.cat(blocks), mask.to_dense())
    assert batch.named(1)["shared"] is batch.named(0)["shared"]
    held = [table for table in vars(mask).values() if isinstance(table, Tensor)]
    assert {id(table) for table in tensors_in([mask])} == {id(table) for table in held}
    with pytest.raises(SynthError, match="mask, a BlockMask, has 8 in its first dimension"):
        Batch.split(4, q[:4], mask=mask)


class Constant(nn.Module):
    """Gives something besides its tensor."""

    def __init__(self, other: Any) -> None:
        super().__init__()
        self.inner, self.other = nn.Linear(3, 1), other

    def forward(self, x: Tensor) -> Any:
        return self.inner(x), {"mask": self.other}


@pytest.mark.parametrize(
    ("other", "named"), [(None, "None"), (True, "a bool"), (3, "a int"), ("causal", "a str")]
)
def test_what_is_no_tensor_between_stages_is_named_with_its_place(other: Any, named: str) -> None:
    stages, schedule = (Constant(other), nn.Linear(1, 1)), generate("gpipe", 2, 4)

    def train(group: Any) -> None:
        pipeline = synth.Pipeline(
            schedule, stages[group.rank], group=group, loss=nn.functional.mse_loss, timeout_s=20
        )
        pipeline.step(pipeline.split(X.float(), targets=torch.zeros(8, 1)))

    with pytest.raises(SynthError, match=rf"stage 0 gave {named} at \[1\]\['mask'\] in its output"):
        run_ranks(2, train)


def evaluated(loss: Any, last: nn.Module) -> Any:
    """Evaluate a pipeline without targets."""
    stages, schedule = (nn.Linear(3, 1), last), generate("gpipe", 2, 4)

    def evaluate(group: Any) -> Any:
        pipeline = synth.Pipeline(
            schedule, stages[group.rank], group=group, loss=loss, timeout_s=20
        )
        return pipeline.evaluate(pipeline.split(X.float()))

    return run_ranks(2, evaluate)[1]


class OwnLoss(nn.Module):
    """A last stage that computes its loss of targets."""

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return (x - targets).sum()


@pytest.mark.parametrize("last", [nn.Identity(), OwnLoss()])
def test_a_loss_without_its_targets_is_refused(last: nn.Module) -> None:
    loss = None if isinstance(last, OwnLoss) else nn.functional.cross_entropy
    with pytest.raises(SynthError, match=r"the batch has no targets: .*give `split` the targets=…"):
        evaluated(loss, last)


def test_a_model_that_gives_no_loss_without_targets_is_told_of_them() -> None:
    with pytest.raises(SynthError, match=r"it must give the loss.*or give the batch its targets"):
        evaluated(None, nn.Linear(1, 2))


def test_a_loss_that_needs_no_targets_is_computed() -> None:
    assert evaluated(lambda y, _: (y * 0 + 2).mean(), nn.Identity()) == 2


@pytest.mark.parametrize("made", [tuple, list, lambda tensors: {"x": tensors[0]}])
def test_tensors_of_a_tree_live_no_longer_than_the_tree(made: Any) -> None:
    tree = made([torch.zeros(4)])
    (held,) = tensors_in(tree)
    watched = weakref.ref(held)
    gc.disable()
    try:
        del tree, held
        assert watched() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "items",
    [
        [(32, 32), (64, 48), (32, 32), (16, 16)],
        [[1, 2, 3], [4], [5, 6], [7]],
        [{"id": number} for number in range(4)],
    ],
    ids=["sizes", "ragged ids", "records"],
)
def test_a_list_with_a_container_for_each_sample_is_refused(items: list[Any]) -> None:
    with pytest.raises(SynthError, match="as if one for each sample"):
        Batch.split(2, torch.zeros(4, 3), items)
    assert Batch.split(2, torch.zeros(4, 3), synth.Replicate(items)).arguments(1)[1] == items
