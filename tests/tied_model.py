"""A model whose embedding and head share a table, as a file that tests write and profile."""

TIED = """
from torch import nn
class Head(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.norm, self.table = nn.LayerNorm(16), table
    def forward(self, x, targets):
        logits = nn.functional.linear(self.norm(x), self.table.weight)
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
def layers():
    table = nn.Embedding(256, 16)
    return [table, nn.Linear(16, 16), nn.Tanh(), Head(table)]
"""
