"""Changes of a stage's parameters that a pipeline cannot follow, refused."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from synth.errors import SynthError

from ...state.tensor_numbers import digest_of, storage_key, storage_of
from ..gradients.all_reduce import local_part


def check_same(
    stage: int, module: nn.Module, known: Sequence[nn.Parameter], trained: Sequence[Tensor]
) -> None:
    """Refuse a module that has other parameters, or trains others, than when it was taken over."""
    now = list(module.named_parameters())
    was_known, was_trained = set(map(id, known)), set(map(id, trained))
    if len(now) == len(known) and all(
        id(p) in was_known and p.requires_grad == (id(p) in was_trained) for _, p in now
    ):
        return
    others = [n for n, p in now if id(p) not in was_known]
    turned = [n for n, p in now if id(p) in was_known and p.requires_grad != (id(p) in was_trained)]
    what = (
        f"new parameters ({', '.join(others)})"
        if others
        else f"parameters frozen or unfrozen ({', '.join(turned)})"
        if turned
        else "lost parameters"
    )
    raise SynthError(
        f"stage {stage} has {what} since the Pipeline was made, and this schedule moves or keeps "
        f"versions of those that it knew: make a new Pipeline and optimizer after such a change"
    )


def check_in_place(
    stage: int, module: nn.Module, known: Sequence[nn.Parameter], resting: Sequence[Tensor]
) -> None:
    """Refuse parameters whose memory is another one than the pipeline's.

    Args:
        resting: their tensors in the pipeline's memory.
    """
    for parameter, own in zip(known, resting, strict=True):
        own_memory = local_part(own).data_ptr()
        if local_part(parameter).data_ptr() != own_memory or parameter.dtype != own.dtype:
            name = next(name for name, each in module.named_parameters() if each is parameter)
            raise SynthError(
                f"the parameter {name} of stage {stage} was given other memory (by `.data = …`, "
                f"`to`, or another Pipeline) since the Pipeline was made, whose weights it "
                f"moves: copy values into the parameters of pipeline.updated (`copy_`), or make a "
                f"new Pipeline"
            )


@contextmanager
def unchanged(
    parameters: Sequence[Tensor], where: str, *, by: str = "a forward", is_exact: bool = False
) -> Iterator[None]:
    """Refuse code that changes parameters, whose change would be lost.

    Args:
        parameters: those that it can read.
        where: what becomes of the change.
        by: the code.
        is_exact: True: compare their memory on the CPU, too, which finds changes through `.data`;
            a device would have to be waited for.
    """
    before = _state_of(parameters, is_exact=is_exact)
    yield
    for parameter, now, was in zip(
        parameters, _state_of(parameters, is_exact=is_exact), before, strict=True
    ):
        if now != was:
            raise SynthError(
                f"{by} changes a parameter of shape {list(parameter.shape)}, {where}: change it "
                f"between steps, or make it a buffer"
            )


def gradient_taken(parameter: Tensor) -> SynthError:
    """The error of a hook that takes away a gradient that the pipeline adds up."""
    return SynthError(
        f"a hook in a backward takes the gradient of a parameter of shape "
        f"{list(parameter.shape)} away, which is added up on its way to the rank that updates it: "
        f"use it after the step, from pipeline.updated"
    )


def _state_of(parameters: Sequence[Tensor], *, is_exact: bool) -> list[tuple[int, int, int]]:
    seen = [(p._version, local_part(p).data_ptr()) for p in parameters]
    if not is_exact:
        return [(*state, 0) for state in seen]
    digests = _digests(parameters)
    return [
        (*state, digests.get(storage_key(p), 0)) for state, p in zip(seen, parameters, strict=True)
    ]


def _digests(parameters: Sequence[Tensor]) -> dict[int | None, int]:
    """The digest of each storage, of which several parameters may be parts."""
    on_cpu = [p for p in parameters if p.device.type == "cpu"]
    storages = {key: p for p in on_cpu if (key := storage_key(p)) is not None}
    return {key: digest_of(storage_of(p)) for key, p in storages.items()}
