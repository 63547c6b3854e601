"""The library: for any boundary, gradients equal those of one process and plain autograd."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.errors import SynthError
from synth.families import generate
from synth.schedule.model import Schedule
from tests.runtime.gradients import gradient_of

WIDTH, CLASSES, MICRO_BATCHES = 8, 5, 4
COPIED = [("chimera", 2), ("chimera:late-sync", 2), ("gems", 2), ("dualpipe", 2), ("bitpipe", 4)]


class Start(nn.Module):
    """Two inputs and a keyword; gives on a tuple: activations, a whole-number mask, a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(
        self, tokens_BT: Tensor, where_BT: Tensor, *, gain: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        x_BTD = self.table(tokens_BT) * self.scale * gain
        return x_BTD, where_BT, x_BTD.mean(1)


class Middle(nn.Module):
    """Takes and gives the same tuple; passes the mask on as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(
        self, x_BTD: Tensor, where_BT: Tensor, skip_BD: Tensor, *, gain: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return torch.tanh(self.inner(x_BTD)) * where_BT[..., None] * gain, where_BT, skip_BD


class End(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(
        self, x_BTD: Tensor, where_BT: Tensor, skip_BD: Tensor, *, gain: Tensor
    ) -> dict[str, Tensor]:
        return {"logits": self.out(x_BTD.sum(1) + skip_BD), "gain": gain}


def loss_of(output: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
    loss = nn.functional.cross_entropy(output["logits"], targets["labels"])
    return loss * targets["weight"].mean()


def build_stages(count: int) -> list[nn.Module]:
    torch.manual_seed(3)
    return [Start(), *(Middle() for _ in range(count - 2)), End()]


def build_micro_batches(length: int, seed: int = 5) -> list[tuple[Any, Any, Any]]:
    """(inputs, targets, keywords) of each micro-batch; lengths grow by one each."""
    draw = torch.Generator().manual_seed(seed)
    made = []
    for j in range(MICRO_BATCHES):
        shape = (2, length + j)
        tokens = torch.randint(16, shape, generator=draw)
        where = torch.randint(2, shape, generator=draw)
        labels = torch.randint(CLASSES, (2,), generator=draw)
        targets = {"labels": labels, "weight": torch.rand(2, generator=draw)}
        made.append(((tokens, where), targets, {"gain": torch.rand((), generator=draw)}))
    return made


def plain_autograd(count: int, steps: list[list[tuple[Any, Any, Any]]]) -> list[list[Tensor]]:
    """Each stage's gradients, of the sum over the steps of the mean loss."""
    torch.set_num_threads(1)
    stages = build_stages(count)
    for step in steps:
        for inputs, targets, keywords in step:
            x: Any = inputs
            for stage in stages:
                x = stage(*x, **keywords)
            (loss_of(x, targets) / MICRO_BATCHES).backward()
    return [[gradient_of(p) for p in stage.parameters()] for stage in stages]


def run_trees(rank: int, size: int, schedule: Schedule, lengths: list[int]) -> Any:
    """Steps with sequences of these lengths; the rank's gradients by stage."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    stages = build_stages(schedule.placement.num_stages)
    mine = {stage for stage, _ in schedule.placement.held[rank]}
    mine_modules = {s: stages[s] for s in mine}
    changing = len(set(lengths)) > 1
    pipeline = Pipeline(schedule, mine_modules, loss=loss_of, changing_shapes=changing)
    losses = []
    for length in lengths:
        inputs, targets, keywords = zip(*build_micro_batches(length), strict=True)
        losses.append(pipeline.step(Batch(inputs, targets, keywords)))
    return losses, {s: [p.grad for p in stages[s].parameters()] for s in mine}


def assert_close(found: list[Any], wanted: list[list[Tensor]]) -> None:
    for _, by_stage in found:
        for stage, gradients in by_stage.items():
            for mine, true in zip(gradients, wanted[stage], strict=True):
                torch.testing.assert_close(mine, true)


def run_trees_strictly(rank: int, world_size: int, schedule: Schedule) -> bool:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*LeafSpec")
        run_trees(rank, world_size, schedule, [6])
    return True


def test_trees_cross_stages_without_warnings_that_are_not_the_users(pool: Any) -> None:
    assert pool.run(run_trees_strictly, 2, generate("1f1b", 2, MICRO_BATCHES)) == [True, True]


@pytest.mark.parametrize("name", ["1f1b", "zb-h2", "zb-v"])
def test_trees_keywords_and_changing_lengths_cross_stages(pool: Any, name: str) -> None:
    schedule = generate(name, 2, MICRO_BATCHES)
    lengths = [4, 9, 4]
    found = pool.run(run_trees, 2, schedule, lengths)
    steps = [build_micro_batches(length) for length in lengths]
    assert_close(found, plain_autograd(schedule.placement.num_stages, steps))


@pytest.mark.parametrize(("name", "num_ranks"), COPIED)
def test_copies_of_stages_add_up_to_autograds_gradients(
    pool: Any, name: str, num_ranks: int
) -> None:
    schedule = generate(name, num_ranks, MICRO_BATCHES)
    found = pool.run(run_trees, num_ranks, schedule, [6])
    assert_close(found, plain_autograd(schedule.placement.num_stages, [build_micro_batches(6)]))
    assert sorted(s for _, held in found for s in held) == sorted(
        [*range(schedule.placement.num_stages)] * 2
    )


def refuse_copies(rank: int, size: int) -> str:
    from synth.runtime.pipeline import Pipeline

    schedule = generate("chimera", 2, MICRO_BATCHES)
    stages = {0: nn.Linear(2, 2, bias=rank == 0), 1: nn.Linear(2, 2)}
    with pytest.raises(SynthError) as caught:
        Pipeline(schedule, stages, loss=nn.functional.mse_loss)
    return str(caught.value)


def test_copies_of_a_stage_that_differ_are_refused_on_all_ranks(pool: Any) -> None:
    said = "copies of stage 0 differ: rank 0 has [2, 2] torch.float32, [2] torch.float32, rank 1"
    assert all(said in told for told in pool.run(refuse_copies, 2))


def run_evaluation(rank: int, size: int, schedule: Schedule) -> Any:
    """The losses of evaluate, step and evaluate again; True if gradients stayed."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    stages = build_stages(schedule.placement.num_stages)
    mine = {stage: stages[stage] for stage, _ in schedule.placement.held[rank]}
    pipeline = Pipeline(schedule, mine, loss=loss_of)
    batch = Batch(*zip(*build_micro_batches(5), strict=True))
    before = pipeline.evaluate(batch)
    untouched = all(p.grad is None for stage in mine.values() for p in stage.parameters())
    stepped = pipeline.step(batch)
    gradients = [gradient_of(p).clone() for stage in mine.values() for p in stage.parameters()]
    after = pipeline.evaluate(batch)
    kept = [gradient_of(p) for stage in mine.values() for p in stage.parameters()]
    same = all(torch.equal(a, b) for a, b in zip(gradients, kept, strict=True))
    return (before, stepped, after), untouched and same, pipeline.held_values


@pytest.mark.parametrize("name", ["zb-h2", "zb-v", "chimera", "interleaved:2"])
def test_evaluation_gives_the_loss_and_leaves_everything(pool: Any, name: str) -> None:
    for losses, untouched, held in pool.run(run_evaluation, 2, generate(name, 2, MICRO_BATCHES)):
        assert untouched and held == 0
        if losses[0] is not None:
            torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=0)
            torch.testing.assert_close(losses[1], losses[2], rtol=0, atol=0)


class Table(nn.Module):
    """An embedding and a head share its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CLASSES, WIDTH))


class Embed(Table):
    def forward(self, tokens_B: Tensor) -> Tensor:
        return nn.functional.embedding(tokens_B, self.weight)


class Unembed(Table):
    def forward(self, x_BD: Tensor) -> Tensor:
        return nn.functional.linear(torch.tanh(x_BD), self.weight)


def run_tied(rank: int, size: int, name: str) -> Any:
    from synth.runtime.pipeline import Pipeline

    torch.manual_seed(rank)  # they start from rank 0's value all the same
    schedule = generate(name, size, 2)
    ends: dict[int, Table] = {0: Embed(), size - 1: Unembed()}
    held = {stage for stage, _ in schedule.placement.held[rank]}
    if len(held & set(ends)) == 2:
        ends[size - 1].weight = ends[0].weight
    stages = {s: ends.get(s, nn.Tanh()) for s in held}
    weights = [ends[s].weight for s in sorted(held & set(ends))]
    tied = {"table": weights[0]} if weights else None
    pipeline = Pipeline(schedule, stages, loss=nn.functional.cross_entropy, tied=tied)
    tokens, labels = torch.tensor([0, 1, 4, 2]), torch.tensor([3, 1, 1, 0])
    pipeline.step(pipeline.split(tokens, targets=labels))
    return [(w.detach(), w.grad, pipeline.owns(w)) for w in weights[:1]]


@pytest.mark.parametrize("name", ["zb-h1", "chimera"])
def test_tied_weights_start_equal_and_get_the_sum_of_their_gradients(pool: Any, name: str) -> None:
    found = [entry for rank in pool.run(run_tied, 2, name) for entry in rank]
    weight = found[0][0].clone().requires_grad_()
    tokens, labels = torch.tensor([0, 1, 4, 2]), torch.tensor([3, 1, 1, 0])
    x = nn.functional.embedding(tokens, weight)
    nn.functional.cross_entropy(torch.tanh(x) @ weight.T, labels).backward()
    assert [owned for _, _, owned in found] == [True, False]
    for value, gradient, _ in found:
        torch.testing.assert_close(value, weight.detach(), rtol=0, atol=0)
        torch.testing.assert_close(gradient, weight.grad)


def run_frozen(rank: int, size: int) -> Any:
    from synth.runtime.pipeline import Pipeline

    torch.manual_seed(1)
    layers = [nn.Linear(4, 4), nn.Linear(4, 4)]
    layers[0].requires_grad_(False)
    pipeline = Pipeline(generate("zb-h1", 2, 2), layers[rank], loss=nn.functional.mse_loss)
    x = torch.arange(8.0).reshape(2, 4)
    pipeline.step(pipeline.split(x, targets=x))
    return [p.grad for p in layers[rank].parameters()], layers


def test_no_gradient_goes_back_to_a_frozen_first_stage(pool: Any) -> None:
    (frozen, _), (found, layers) = pool.run(run_frozen, 2)
    x = torch.arange(8.0).reshape(2, 4)
    for half in x.chunk(2):
        (nn.functional.mse_loss(layers[1](layers[0](half)), half) / 2).backward()
    assert frozen == [None, None]
    for mine, parameter in zip(found, layers[1].parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad)


def run_repetitions(rank: int, size: int) -> Any:
    """The same mini-batch in one step, and as two halves that add up."""
    from synth.runtime.pipeline import Pipeline

    x = torch.arange(32.0).reshape(8, 4) / 32
    gradients = []
    for halves in (1, 2):
        torch.manual_seed(2)
        layers = [nn.Linear(4, 4), nn.Linear(4, 4)]
        schedule = generate("chimera", 2, 4 // halves)
        pipeline = Pipeline(schedule, dict(enumerate(layers)), loss=nn.functional.mse_loss)
        for k, part in enumerate(x.chunk(halves)):
            batch = pipeline.split(part, targets=part)
            pipeline.step(batch, weight=1 / halves, update=k == halves - 1)
        gradients.append([p.grad for layer in layers for p in layer.parameters()])
    return gradients


def test_gradients_add_up_over_repetitions_and_are_reduced_once(pool: Any) -> None:
    for whole, halves in pool.run(run_repetitions, 2):
        for one, two in zip(whole, halves, strict=True):
            torch.testing.assert_close(one, two)


def run_mesh(rank: int, size: int) -> Any:
    """Two pipelines of two ranks beside each other."""
    from torch.distributed.device_mesh import init_device_mesh

    from synth.runtime.pipeline import Pipeline

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    torch.manual_seed(2)
    layers = [nn.Linear(4, 4), nn.Linear(4, 4)]
    mine = layers[mesh["pp"].get_local_rank()]
    schedule = generate("1f1b", 2, 2)
    pipeline = Pipeline(schedule, mine, group=mesh["pp"], loss=nn.functional.mse_loss)
    x = torch.full((2, 4), float(mesh["dp"].get_local_rank()))
    return pipeline.step(pipeline.split(x, targets=-x)), layers


def test_pipelines_run_beside_each_other_on_a_mesh(pool: Any) -> None:
    found = pool.run(run_mesh, 4)
    for replica in (0, 1):
        (nothing, _), (loss, layers) = found[2 * replica : 2 * replica + 2]
        x = torch.full((2, 4), float(replica))
        assert nothing is None
        torch.testing.assert_close(loss, nn.functional.mse_loss(layers[1](layers[0](x)), -x).data)


def run_precision(rank: int, size: int) -> Any:
    """Under autocast bfloat16 crosses; so do complex numbers, and layers in a list take a mask."""
    from synth.runtime.pipeline import Pipeline

    torch.manual_seed(1)
    x = torch.randn(4, 4)
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    pipeline = Pipeline(generate("zb-h1", 2, 2), (first, last)[rank], loss=nn.functional.mse_loss)
    with torch.autocast("cpu", torch.bfloat16):
        lower = pipeline.step(pipeline.split(x, targets=x))
    rotated = (Rotated(), Flattened())[rank]
    pipeline = Pipeline(generate("zb-h1", 2, 2), rotated, loss=nn.functional.mse_loss)
    pipeline.step(pipeline.split(x, targets=x))
    layers: list[list[nn.Module]] = [[Masked(4), Masked(4)], [Masked(4), First()]]
    masked = layers[rank]
    pipeline = Pipeline(generate("1f1b", 2, 2), masked, loss=nn.functional.mse_loss)
    pipeline.step(pipeline.split(x, x.abs(), targets=x))
    parameters = [p for m in (first, last) for p in m.parameters()]
    own = [p for m in (rotated, *masked) for p in m.parameters()]
    return lower, [p.grad for p in parameters if p.grad is not None], [p.grad for p in own]


class Rotated(nn.Module):
    """Gives complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.turn = nn.Parameter(torch.randn(4))

    def forward(self, x_BD: Tensor) -> Tensor:
        return torch.polar(x_BD.abs() + 1, x_BD * self.turn)


class Flattened(nn.Module):
    """Takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, z_BD: Tensor) -> Tensor:
        return (z_BD.real + 2 * z_BD.imag) * self.scale


class Masked(nn.Module):
    """Two in, two out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.inner = nn.Linear(width, width)

    def forward(self, x_BD: Tensor, mask_BD: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(self.inner(x_BD)) * mask_BD, mask_BD


class First(nn.Module):
    """The first of two."""

    def forward(self, x_BD: Tensor, mask_BD: Tensor) -> Tensor:
        return x_BD


def test_precision_complex_numbers_and_layers_with_masks_are_autograds(pool: Any) -> None:
    (_, one, own_one), (lower, two, own_two) = pool.run(run_precision, 2)
    torch.manual_seed(1)
    x = torch.randn(4, 4)
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    rotated, masked = nn.Sequential(Rotated(), Flattened()), [Masked(4) for _ in range(3)]
    total = 0.0
    for half in x.chunk(2):
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.mse_loss(last(first(half)), half) / 2
        loss.backward()
        total += float(loss.detach())
        (nn.functional.mse_loss(rotated(half), half) / 2).backward()
        y, mask = half, half.abs()
        for layer in masked:
            y, mask = layer(y, mask)
        (nn.functional.mse_loss(y, half) / 2).backward()
    assert float(lower) == pytest.approx(total, rel=1e-3)
    wanted = [p.grad for m in (first, last) for p in m.parameters()]
    for mine, true in zip([*one, *two], wanted, strict=True):
        torch.testing.assert_close(mine, true, rtol=2e-2, atol=1e-3)
    # Rank 0: the turn, two masked layers; rank 1: the scale, one masked layer.
    layers = [[p.grad for p in m.parameters()] for m in masked]
    turn, scale = (p.grad for p in rotated.parameters())
    wanted_own = [turn, *layers[0], *layers[1], scale, *layers[2]]
    for mine, true in zip([*own_one, *own_two], wanted_own, strict=True):
        torch.testing.assert_close(mine, true)


class Unsteady(nn.Module):
    """Gives other shapes when autograd is on, and remembers what it saw."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.rows = rows
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x_BD: Tensor) -> Tensor:
        if not hasattr(self, "cache"):
            self.cache = x_BD.detach() * 0
        y_BD = self.inner(x_BD) + self.cache
        return y_BD[: self.rows] if torch.is_grad_enabled() else y_BD


def run_unsteady(rank: int, size: int, what: str) -> Any:
    """The errors of the first and the second call, on each rank; and the copies' frozen state."""
    from synth.runtime.pipeline import Pipeline

    torch.manual_seed(rank)
    rows = 1 if what == "shrinks" else 2
    broken = nn.Linear(3, 3) if what == "misfits" else Unsteady(rows)
    module = broken if rank == 0 else nn.Linear(4, 4)
    pipeline = Pipeline(generate("1f1b", 2, 2), module, loss=nn.functional.mse_loss)
    said = []
    for rows in (4, 6) if what == "grows" else (4, 4):
        x = torch.ones(rows, 4)
        try:
            pipeline.step(pipeline.split(x, targets=x))
            said.append("nothing")
        except SynthError as error:
            said.append(str(error))
        if what == "grows" and rank == 1:
            break
    return said


@pytest.mark.parametrize(
    ("what", "messages"),
    [
        ("shrinks", ["stage 0 gave [1, 4] torch.float32, where its trial gave [2, 4]", "failed"]),
        ("misfits", ["stage 0 cannot be run on what it is given", "stage 0 cannot be run"]),
        ("grows", ["nothing", "make the Pipeline with changing_shapes=True"]),
        ("keeps", ["nothing", "nothing"]),
    ],
)
def test_what_does_not_fit_between_stages_is_said(
    pool: Any, what: str, messages: list[str]
) -> None:
    found = pool.run(run_unsteady, 2, what)
    for said, message in zip(found[0], messages, strict=True):
        assert message in said
    if what == "misfits":  # all ranks are told
        assert "stage 0 cannot be run" in found[1][0]


def run_frozen_copies(rank: int, size: int) -> Any:
    from synth.runtime.pipeline import Pipeline

    torch.manual_seed(rank)
    modules = {s: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for s in (0, 1)}
    modules[0][0].requires_grad_(False)
    modules[1].get_buffer("1.running_mean").fill_(rank)
    Pipeline(generate("chimera", 2, 2), modules, loss=nn.functional.mse_loss)
    shared = nn.Linear(4, 4)
    try:
        Pipeline(generate("chimera", 2, 2), {0: shared, 1: nn.Sequential(shared)})
    except SynthError as error:
        return [t.detach() for m in modules.values() for t in m.state_dict().values()], str(error)
    return [], ""


def test_copies_start_equal_frozen_weights_and_buffers_too(pool: Any) -> None:
    (one, said), (other, _) = pool.run(run_frozen_copies, 2)
    assert "stages 0 and 1 share a parameter and have copies on other ranks" in said
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def run_mistake(rank: int, size: int, mistake: str) -> str:
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    x = torch.zeros(4, 4)
    tries: dict[str, Callable[[], Any]] = {
        "ranks": lambda: Pipeline(generate("1f1b", 2, 4), nn.Linear(4, 4)),
        "stages": lambda: Pipeline(generate("gpipe", 1, 4), {1: nn.Linear(4, 4)}),
        "split": lambda: Batch.split(3, x),
        "count": lambda: one_rank(nn.Linear(4, 4)).step(Batch([x])),
        "loss": lambda: one_rank(nn.Linear(4, 4)).step(Batch([x, x])),
    }

    def one_rank(module: nn.Module) -> Pipeline:
        return Pipeline(generate("gpipe", 1, 2), module)

    try:
        tries[mistake]()
    except SynthError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("ranks", "the schedule is for 2 ranks, the group has 1; start as many processes"),
        ("stages", "rank 0 holds stage 0; it was given modules for [1]"),
        ("split", "a mini-batch of 4 cannot be cut into 3 equal micro-batches; give a multiple"),
        ("count", "the batch has inputs for 1 micro-batches, the schedule has 2"),
        ("loss", "it must give the loss, one number: give the pipeline a loss function"),
    ],
)
def test_a_mistake_gets_one_clear_sentence(pool: Any, mistake: str, message: str) -> None:
    (found,) = pool.run(run_mistake, 1, mistake)
    assert message in found
