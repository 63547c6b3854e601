"""Rounds of connecting links: in each round a rank is an end of at most one link.

Connecting a link occupies both its ends. In rounds, links without a common rank connect at the same
time. A chain of any length takes four rounds:

    ranks    0 → 1 → 2 → 3 → 4
    round 0  (0, 1)  (2, 3)          round 2  (1, 2)  (3, 4)
    round 1  (1, 0)  (3, 2)          round 3  (2, 1)  (4, 3)
"""

from collections.abc import Iterable

Link = tuple[int, int]


def connection_rounds(links: Iterable[Link]) -> list[list[Link]]:
    """Divide directed links into rounds; the same ones on every rank that has the same links.

    Pairs of ranks are coloured in sorted order, each with the first colour that neither of its ends
    has (a greedy edge colouring: fewer than twice as many colours as a rank has neighbours). A
    colour is one round for each direction.
    """
    wanted = set(links)
    used: dict[int, set[int]] = {}
    colours: dict[int, list[Link]] = {}
    for low, high in sorted({(min(link), max(link)) for link in wanted}):
        taken = used.setdefault(low, set()) | used.setdefault(high, set())
        colour = next(c for c in range(len(taken) + 1) if c not in taken)
        used[low].add(colour)
        used[high].add(colour)
        colours.setdefault(colour, []).append((low, high))
    rounds = []
    for _, pairs in sorted(colours.items()):
        for directed in (pairs, [(high, low) for low, high in pairs]):
            rounds.append([link for link in directed if link in wanted])
    return [each for each in rounds if each]
