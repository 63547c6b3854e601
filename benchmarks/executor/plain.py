"""The same autograd work without a pipeline: the part that both runtimes have in common."""

from torch import Tensor, nn

from benchmarks.executor.case import Case
from benchmarks.executor.stages import WholeBatch, build_stage, loss_of


class Plain:
    """A rank's stages, called in a loop over micro-batches; nothing is sent.

    The received tensors are tensors of the batch, which have the same shape. The backward is
    autograd's ordinary one, without a split into B and W.
    """

    def __init__(self, case: Case, rank: int, batch: WholeBatch) -> None:
        held = case.make_schedule().placement.held[rank]
        self._modules = {stage: nn.Sequential(*build_stage(case, stage)) for stage, _ in held}
        self._last = case.make_schedule().placement.num_stages - 1
        inputs, targets = batch
        count = case.num_micro_batches
        self._pairs = list(zip(inputs.chunk(count), targets.chunk(count), strict=True))
        self._share = 1 / count

    def step(self) -> Tensor | None:
        """One mini-batch; the gradients mean nothing, and there is no loss to tell."""
        for x, target in self._pairs:
            for stage, module in self._modules.items():
                entry = x.detach().requires_grad_() if stage else x
                output = module(entry)
                if stage == self._last:
                    (loss_of(output, target) * self._share).backward()
                else:
                    output.backward(target)
        return None

    def parameters(self) -> dict[int, list[nn.Parameter]]:
        """By stage."""
        return {stage: list(module.parameters()) for stage, module in self._modules.items()}
