"""torch's own layers: norms, recurrence, attention, convolutions, embeddings."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.runtime.zoo.case import Case, Weights, Wrapped, normal, tokens

D = 8
SEQUENCE = normal(3, 4, D)


def between(middle: nn.Module) -> nn.Module:
    """A layer between two linear ones."""
    return nn.Sequential(nn.Linear(D, D), middle, nn.Linear(D, D))


NORMS = [
    Case("layer norm", lambda: between(nn.LayerNorm(D)), SEQUENCE, 0.8),
    Case("layer norm without bias", lambda: between(nn.LayerNorm(D, bias=False)), SEQUENCE, 0.8),
    Case("rms norm", lambda: between(nn.RMSNorm(D)), SEQUENCE, 0.8),
    Case("batch norm", lambda: between(nn.BatchNorm1d(4)), SEQUENCE, 0.8),
    Case("batch norm 2d", lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), normal(2, 3, 5, 5), 0.8),
    Case("group norm", lambda: nn.Sequential(nn.Conv1d(4, 4, 3), nn.GroupNorm(2, 4)), normal(2, 4, 6), 0.8),
    Case("instance norm", lambda: nn.Sequential(nn.Conv1d(4, 4, 3), nn.InstanceNorm1d(4, affine=True)), normal(2, 4, 6), 0.8),
    Case("local response norm", lambda: nn.Sequential(nn.Conv1d(4, 4, 3), nn.LocalResponseNorm(2)), normal(2, 4, 6), 1.0),
]  # fmt: skip

RECURRENT = [
    Case("rnn", lambda: nn.RNN(D, D, batch_first=True), SEQUENCE),
    Case("lstm", lambda: nn.LSTM(D, D, num_layers=2, batch_first=True), SEQUENCE),
    Case("gru", lambda: nn.GRU(D, D, batch_first=True), SEQUENCE),
    Case("bidirectional lstm", lambda: nn.LSTM(D, D, bidirectional=True), SEQUENCE),
    Case("lstm cell", lambda: Wrapped(nn.LSTMCell(D, D), lambda m, x: m(x, m(x))), normal(3, D)),
    Case("gru cell, unrolled", lambda: Wrapped(nn.GRUCell(D, D), lambda m, x: m(x[:, 1], m(x[:, 0]))), SEQUENCE),
    Case("linear, unrolled", lambda: Wrapped(nn.Linear(D, D), lambda m, x: m(torch.tanh(m(torch.tanh(m(x)))))), SEQUENCE, 1.0),
]  # fmt: skip


def channels_last() -> nn.Module:
    # torch has no annotation of this overload of `to`.
    return nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def attend(m: nn.MultiheadAttention, x: Tensor) -> Tensor:
    y: Tensor = m(x, x, x, need_weights=False)[0]
    return y


class Grouped(nn.Module):
    """Grouped queries with rotary positions and a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(D, D), nn.Linear(D, D // 2), nn.Linear(D, D // 2)
        self.out = nn.Linear(D, D, bias=False)
        self.angles: Tensor
        self.register_buffer("angles", torch.arange(4)[:, None] / 3.0)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.q(x).view(b, t, 4, 2).transpose(1, 2)
        k, v = (m(x).view(b, t, 2, 2).transpose(1, 2) for m in (self.k, self.v))
        q, k = self._rotated(q), self._rotated(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).reshape(b, t, D))

    def _rotated(self, x: Tensor) -> Tensor:
        cos, sin = self.angles.cos(), self.angles.sin()
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


MASK = torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)
ATTENTION = [
    Case("self-attention", lambda: Wrapped(nn.MultiheadAttention(D, 2), attend), SEQUENCE, 1.0),
    Case("self-attention, batch first", lambda: Wrapped(nn.MultiheadAttention(D, 2, batch_first=True), attend), SEQUENCE, 1.0),
    Case("attention without bias", lambda: Wrapped(nn.MultiheadAttention(D, 2, bias=False), attend), SEQUENCE, 1.0),
    Case("attention with bias_kv", lambda: Wrapped(nn.MultiheadAttention(D, 2, add_bias_kv=True, add_zero_attn=True), attend), SEQUENCE, 0.8),
    Case("attention with weights and mask", lambda: Wrapped(nn.MultiheadAttention(D, 2, batch_first=True), lambda m, x: m(x, x, x, attn_mask=MASK)), SEQUENCE, 1.0),
    Case("cross-attention", lambda: Wrapped(nn.MultiheadAttention(D, 2), lambda m, x: m(x, x.flip(0), x.flip(0))[0]), SEQUENCE, 1.0),
    Case("attention, other keys", lambda: Wrapped(nn.MultiheadAttention(D, 2, kdim=4, vdim=2), lambda m, x: m(x, x[..., :4], x[..., :2])[0]), SEQUENCE, 1.0),
    Case("attention with dropout", lambda: Wrapped(nn.MultiheadAttention(D, 2, dropout=0.5), attend), SEQUENCE, 1.0),
    Case("grouped-query attention", Grouped, SEQUENCE, 1.0),
    Case("encoder layer", lambda: nn.TransformerEncoderLayer(D, 2, 16, batch_first=True), SEQUENCE, 0.9),
    Case("encoder layer, norm first", lambda: nn.TransformerEncoderLayer(D, 2, 16, norm_first=True, activation="gelu"), SEQUENCE, 0.9),
    Case("encoder", lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 2, 16, batch_first=True), 2), SEQUENCE, 0.9),
    Case("decoder layer", lambda: Wrapped(nn.TransformerDecoderLayer(D, 2, 16), lambda m, x: m(x, x.flip(0))), SEQUENCE, 0.9),
    Case("whole transformer", lambda: Wrapped(nn.Transformer(D, 2, 1, 1, 16, batch_first=True), lambda m, x: m(x, x)), SEQUENCE, 0.8),
]  # fmt: skip

CONVOLUTIONS = [
    Case("conv1d, same", lambda: nn.Conv1d(4, 4, 3, padding="same"), normal(2, 4, 6), 1.0),
    Case("conv1d, uneven same", lambda: nn.Conv1d(4, 4, 4, padding="same"), normal(2, 4, 6)),
    Case("conv1d, valid", lambda: nn.Conv1d(4, 4, 3, padding="valid"), normal(2, 4, 6), 1.0),
    Case("conv1d, no batch", lambda: nn.Conv1d(4, 4, 3), normal(4, 6), 1.0),
    Case("conv1d, reflect", lambda: nn.Conv1d(4, 4, 3, padding=1, padding_mode="reflect"), normal(2, 4, 6), 1.0),
    Case("conv2d, depthwise", lambda: nn.Conv2d(4, 8, 3, groups=4), normal(2, 4, 6, 6), 1.0),
    Case("conv2d, dilated and strided", lambda: nn.Conv2d(4, 4, 3, stride=2, dilation=2, padding=2), normal(2, 4, 7, 7), 1.0),
    Case("conv2d, channels last", channels_last, lambda g: (torch.randn(2, 4, 6, 6, generator=g).contiguous(memory_format=torch.channels_last),), 1.0),
    Case("conv3d", lambda: nn.Conv3d(2, 2, 2), normal(2, 2, 4, 4, 4), 1.0),
    Case("conv transposed 1d", lambda: nn.ConvTranspose1d(4, 4, 3), normal(2, 4, 6)),
    Case("conv transposed 2d", lambda: nn.ConvTranspose2d(4, 4, 3, stride=2), normal(2, 4, 5, 5)),
    Case("patches", lambda: Wrapped(nn.Conv2d(3, D, 2, stride=2), lambda m, x: m(x).flatten(2).mT), normal(2, 3, 4, 4), 1.0),
]  # fmt: skip

EMBEDDINGS = [
    Case("embedding", lambda: nn.Embedding(16, D), tokens(3, 4), 1.0),
    Case("embedding, padded", lambda: nn.Embedding(16, D, padding_idx=2), tokens(3, 4), 1.0),
    Case("embedding, max norm", lambda: nn.Embedding(16, D, max_norm=1.0), tokens(3, 4)),
    Case("embedding, scaled by frequency", lambda: nn.Embedding(16, D, scale_grad_by_freq=True), tokens(3, 4), 1.0),
    Case("embedding, sparse", lambda: nn.Embedding(16, D, sparse=True), tokens(3, 4)),
    Case("embedding, sparse and tied", lambda: Wrapped(nn.Embedding(16, D, sparse=True), lambda m, x: F.linear(torch.tanh(m(x)), m.weight)), tokens(3, 4), 1.0, reason="a part of the sum is autograd's"),
    Case("embedding bag", lambda: nn.EmbeddingBag(16, D), tokens(3, 4)),
    Case("embedding and head, tied", lambda: Wrapped(nn.Embedding(16, D), lambda m, x: F.linear(torch.tanh(m(x)), m.weight)), tokens(3, 4), 1.0),
]  # fmt: skip


class Columns(nn.Module):
    """A matrix laid out by columns."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, D).t())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


OTHERS = [
    Case("bilinear", lambda: Wrapped(nn.Bilinear(D, D, 4), lambda m, x: m(x, x.flip(0))), SEQUENCE),
    Case("prelu", lambda: between(nn.PReLU()), SEQUENCE, 0.9),
    Case("in-place activation", lambda: between(nn.ReLU(inplace=True)), SEQUENCE, 1.0),
    Case("glu", lambda: nn.Sequential(nn.Linear(D, 2 * D), nn.GLU()), SEQUENCE, 1.0),
    Case("dropout", lambda: between(nn.Dropout(0.5)), SEQUENCE, 1.0),
    Case("alpha dropout", lambda: between(nn.AlphaDropout(0.5)), SEQUENCE, 1.0),
    Case("stochastic depth", lambda: Wrapped(nn.Linear(D, D), lambda m, x: x + m(x) if torch.rand(()) < 0.5 else x + 0 * m(x)), SEQUENCE, 1.0),
    Case("linear of a vector", lambda: nn.Linear(D, D), normal(D)),
    Case("adaptive softmax", lambda: Wrapped(nn.AdaptiveLogSoftmaxWithLoss(D, 16, [4, 8], div_value=2.0), lambda m, x: m(x[:, 0], torch.tensor([1, 5, 9])).loss), SEQUENCE, 0.8),
    Case("functional mlp", lambda: Weights(lambda w, b, v, x: torch.addmm(b, F.linear(x, w).relu_(), v), torch.float32, (D, D), (D,), (D, D)), normal(4, D), 1.0),
    Case("weight on the left", lambda: Weights(lambda w, x: w @ x.mT, torch.float32, (6, D)), SEQUENCE, 1.0),
    Case("weight on the left of a stack", lambda: Weights(lambda w, x: (w @ x[:, None].mT).relu_(), torch.float32, (6, D)), SEQUENCE, 1.0),
    Case("weight on the left of a matrix", lambda: Weights(lambda w, v, x: torch.mm(v, w @ x.mT), torch.float32, (D, D), (3, D)), normal(4, D), 1.0),
    Case("transposed weight", lambda: Weights(lambda w, x: torch.tanh(x @ w.T), torch.float32, (6, D)), SEQUENCE, 1.0),
    Case("transposed weight, strided", lambda: Weights(lambda w, x: torch.tanh(x.mT @ w.t()), torch.float32, (6, 4)), SEQUENCE, 1.0),
    Case("transposed weight of one row", lambda: Weights(lambda w, x: torch.mm(x, w.T), torch.float32, (1, D)), normal(4, D), 1.0),
    Case("transposed weight and bias", lambda: Weights(lambda b, w, x: torch.addmm(b, x, w.t()), torch.float32, (6,), (6, D)), normal(4, D), 1.0),
    Case("weight and its transpose on the left", lambda: Weights(lambda w, x: w.T @ torch.tanh(w @ x.mT), torch.float32, (6, D)), SEQUENCE, 1.0),
    Case("transposed part of a weight", lambda: Weights(lambda w, x: x @ w[1].T @ w[0], torch.float32, (2, 6, D)), SEQUENCE, 1.0),
    Case("column-major weight", lambda: Columns(), SEQUENCE, 1.0),
    Case("embedding and head, tied and transposed", lambda: Wrapped(nn.Embedding(16, D), lambda m, x: torch.tanh(m(x)) @ m.weight.t()), tokens(3, 4), 1.0),
    Case("two trainable factors", lambda: Weights(lambda a, b, x: F.linear(x, a @ b), torch.float32, (D, 2), (2, D)), SEQUENCE),
]  # fmt: skip

CASES = [*NORMS, *RECURRENT, *ATTENTION, *CONVOLUTIONS, *EMBEDDINGS, *OTHERS]
