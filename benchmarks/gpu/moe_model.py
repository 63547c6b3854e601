"""A language model of routed experts, for profiles: an embedding, blocks, and a head with loss."""

from torch import nn

from benchmarks.split_cost_layers import RoutedExperts
from synth.runtime.models.head import Head


def layers(width: int, experts: int, blocks: int, vocabulary: int = 1024) -> list[nn.Module]:
    """The layers in order."""
    middle = [RoutedExperts(width, experts) for _ in range(blocks)]
    head = Head(nn.LayerNorm(width), vocabulary, width)
    return [nn.Embedding(vocabulary, width), *middle, head]
