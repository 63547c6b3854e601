"""A topic model (latent Dirichlet allocation) by collapsed Gibbs sampling, words rotating.

The documents are divided among the ranks, and the words into as many parts. In round t rank r draws
the topics of its tokens of part (t + r) mod ranks. No two ranks draw tokens of one word at once, so
the counts of topics by word that they read are exact, and only the totals of topics miss what the
others draw, as in the STRADS papers. Without rotation (`rotates=False`) every rank draws all its
tokens in a round, and reads counts that miss all that the others draw.
"""

from typing import Any

import torch
from torch import Tensor

from synth.runtime.execution.transport.rank_group import RankGroup
from synth.runtime.strads import ScheduledModel, StaticScheduler


class TopicModel(ScheduledModel):
    """One rank's tokens, and the topics of all words."""

    def __init__(
        self,
        documents: Tensor,
        words: Tensor,
        num_words: int,
        group: RankGroup,
        *,
        num_topics: int,
        seed: int,
        rotates: bool = True,
        document_prior: float = 0.1,
        word_prior: float = 0.01,
    ) -> None:
        """Begin with random topics; all ranks call this at the same time.

        Args:
            documents: of each token of this rank, counted from 0 on each rank.
            words: of each token.
            num_words: of the vocabulary.
            group: the ranks.
            num_topics: of the model.
            seed: equal on all ranks; the draws of the ranks differ.
            rotates: words rotate among the ranks.
            document_prior: α of the Dirichlet distributions of documents.
            word_prior: β of those of topics.
        """
        self._documents, self._words = documents.tolist(), words.tolist()
        self._rank, self._size, self._rotates = group.rank, group.size, rotates
        self._priors = document_prior, word_prior
        self._draw = torch.Generator().manual_seed(seed * group.size + group.rank)
        self._sums: Any = group.subgroup(range(group.size), purpose="strads-topics")
        self._topics = torch.randint(num_topics, words.shape, generator=self._draw).tolist()
        count = max(self._documents, default=-1) + 1
        self._by_document = torch.zeros(count, num_topics, dtype=torch.float64)
        self.by_word = torch.zeros(num_words, num_topics, dtype=torch.float64)
        """Counts of topics by word over all ranks, [words, topics]."""
        for document, word, topic in zip(self._documents, self._words, self._topics, strict=True):
            self._by_document[document, topic] += 1
            self.by_word[word, topic] += 1
        self._sums.allreduce([self.by_word]).wait()
        # All parts change in a round, each on another rank.
        self._scheduler = StaticScheduler([torch.arange(num_words)])
        self._round = 0

    def schedule(self, in_flight: Tensor) -> Tensor:
        """Choose all words; `push` knows this rank's part of them."""
        return self._scheduler.next_block(in_flight)

    def push(self, block: Tensor) -> Tensor:
        """Draw topics; return this rank's changes of the counts by word."""
        part = (self._round + self._rank) % self._size
        self._round += 1
        local = self.by_word.clone()
        totals = local.sum(dim=0)
        alpha, beta = self._priors
        for place, word in enumerate(self._words):
            if self._rotates and word % self._size != part:
                continue
            document, topic = self._documents[place], self._topics[place]
            for counts in (self._by_document[document], local[word], totals):
                counts[topic] -= 1
            likely = (self._by_document[document] + alpha) * (local[word] + beta)
            likely /= totals + beta * len(local)
            topic = int(torch.multinomial(likely.clamp(min=0), 1, generator=self._draw))
            self._topics[place] = topic
            for counts in (self._by_document[document], local[word], totals):
                counts[topic] += 1
        return local - self.by_word

    def pull(self, block: Tensor, total: Tensor) -> Tensor:
        """Add the changes of all ranks."""
        self.by_word += total
        return total

    def log_likelihood(self) -> float:
        """Return log p(words | topics) per token; all ranks call this at the same time."""
        beta, words = self._priors[1], len(self.by_word)
        each = torch.lgamma(self.by_word + beta).sum(dim=0)
        each -= torch.lgamma(self.by_word.sum(dim=0) + beta * words)
        priors = torch.lgamma(torch.tensor(beta * words)) - words * torch.lgamma(torch.tensor(beta))
        total = each.sum() + self.by_word.shape[1] * priors
        return float(total / self.by_word.sum())
