"""The stages whose activations and gradients an op reads: a chain, or with a divided vocabulary.

In a chain, F of stage s reads the output of stage s − 1, and its backward makes the gradient of
that output. Vocabulary parallelism (Yeung et al. 2024, arXiv 2411.05288) divides the embedding and
the head by vocabulary over all p ranks, as parts that are stages of their own:

    stage   0 … p − 1        p … 2p − 1            2p … 3p − 1
    is      part of the      stage of decoder      part of the
            embedding        layers                head

- F of an embedding's part makes a part of the sum that is the first decoder stage's input. Its
  backward reads the gradient of that sum.
- F of a head's part (the paper's S) reads the output of the last decoder stage. Its backward (T)
  reads what all parts know of the softmax, its largest logits and sums of exponentials.
- The backward of the last decoder stage adds up the parts of its output's gradient. With one
  barrier (algorithm 2) S makes them, and T is the weight gradient alone; with two (algorithm 1) T
  makes them.

ACT is a part's main result and GRAD its other one, so each of them has its own size:

    barriers   ACT, by S                GRAD
    1          part of the gradient     of the softmax, by S
    2          of the softmax           part of the gradient, by T
"""

from typing import NamedTuple

from synth.schedule.ops import ValueKind

ACT, GRAD = ValueKind.ACT, ValueKind.GRAD

# A kind of value, and the stage that it is of.
OfStage = tuple[ValueKind, int]


class StageFlow(NamedTuple):
    """The number of stages, and the barriers of a divided vocabulary; 0: the stages are a chain."""

    num_stages: int
    barriers: int = 0

    @property
    def num_parts(self) -> int:
        """The number of parts of the head, one on each rank."""
        return self.num_stages // 3

    @property
    def heads(self) -> range:
        """The stages that are parts of the head."""
        return range(2 * self.num_parts, self.num_stages)

    def is_part(self, stage: int) -> bool:
        """True for parts of the embedding and of the head."""
        return self.barriers > 0 and not self.num_parts <= stage < 2 * self.num_parts

    def has_output(self, stage: int) -> bool:
        """True if F makes what another stage reads; the last stage of a chain ends in the loss."""
        return self.barriers > 0 or stage < self.num_stages - 1

    def inputs(self, stage: int) -> list[OfStage]:
        """The tensors that F reads."""
        if not self.barriers:
            return [(ACT, stage - 1)] if stage else []
        first = self.num_parts
        if stage < first:
            return []
        if stage == first:
            return [(ACT, part) for part in range(first)]
        return [(ACT, min(stage, self.heads.start) - 1)]

    def gradients(self, stage: int) -> list[OfStage]:
        """The tensors that the backward reads besides values of its own stage's F and B."""
        if not self.barriers:
            return [(GRAD, stage)] if self.has_output(stage) else []
        first, heads, has_one = self.num_parts, self.heads, self.barriers == 1
        if stage < first:
            return [(GRAD, first - 1)]
        if stage < heads.start - 1:
            return [(GRAD, stage)]
        is_last = stage not in heads
        return [(ACT if has_one == is_last else GRAD, part) for part in heads]

    def made_forward(self, stage: int) -> list[OfStage]:
        """The tensors that F makes for other stages."""
        made = [(ACT, stage)] if self.has_output(stage) else []
        return [*made, (GRAD, stage)] if self.barriers == 1 and stage in self.heads else made

    def made_backward(self, stage: int) -> list[OfStage]:
        """The tensors that the backward of the input makes for other stages."""
        if not self.is_part(stage):
            return [(GRAD, stage - 1)] if stage else []
        return [(GRAD, stage)] if self.barriers == 2 and stage in self.heads else []
