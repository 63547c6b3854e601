"""Rounds in which links are connected: each link once, and no rank twice in a round."""

import pytest

from synth.families import generate
from synth.runtime.execution.transport.nccl.channels import Link, connection_rounds


def both_ways(pairs: list[Link]) -> list[Link]:
    return [*pairs, *((b, a) for a, b in pairs)]


def chain(size: int) -> list[Link]:
    return both_ways([(r, r + 1) for r in range(size - 1)])


def ring(size: int) -> list[Link]:
    return both_ways([(r, (r + 1) % size) for r in range(size)])


def links_of(family: str, size: int) -> list[Link]:
    """The links between neighbouring stages of a published placement."""
    placement = generate(family, size, size).placement
    found = {
        (ranks[s], ranks[s + 1])
        for ranks in placement.ranks
        for s in range(len(ranks) - 1)
        if ranks[s] != ranks[s + 1]
    }
    return both_ways(sorted(found))


@pytest.mark.parametrize(
    ("links", "num_rounds"),
    [
        ([], 0),
        ([(0, 1)], 1),
        (chain(2), 2),
        (chain(5), 4),
        (chain(64), 4),
        (ring(8), 4),
        (ring(9), 6),  # an odd ring has no two colours
        (links_of("zb-v", 8), 4),
        (links_of("interleaved", 8), 4),
        (links_of("chimera", 8), 4),
        (both_ways([(0, r) for r in range(1, 6)]), 10),  # a star
        (both_ways([(a, b) for b in range(6) for a in range(b)]), 14),  # all pairs; 10 would do
    ],
)
def test_each_link_is_connected_once_and_no_rank_twice_in_a_round(
    links: list[Link], num_rounds: int
) -> None:
    rounds = connection_rounds(links)
    assert sorted(link for each in rounds for link in each) == sorted(set(links))
    for each in rounds:
        ranks = [rank for link in each for rank in link]
        assert len(ranks) == len(set(ranks))
    assert len(rounds) <= num_rounds


def test_rounds_do_not_depend_on_the_order_of_the_links() -> None:
    assert connection_rounds(reversed(chain(6))) == connection_rounds(chain(6))


def test_a_chain_connects_even_pairs_first() -> None:
    assert connection_rounds(chain(4)) == [
        [(0, 1), (2, 3)],
        [(1, 0), (3, 2)],
        [(1, 2)],
        [(2, 1)],
    ]
