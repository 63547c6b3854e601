"""The layers that the rules of torchtitan and Megatron-LM recompute, counted by hand."""

import pytest

from synth.costs.recomputation import FULL
from synth.profile.model_parts import model_parts
from synth.schedule.placements import placement
from synth.schedule.recomputation_rules import (
    MEGATRON,
    TORCHTITAN,
    RecomputationKind,
    RecomputationMenu,
)

#         0            1–6                                 7      8
NAMES = ["embedding", *(f"block.{i}" for i in range(6)), "mtp", "head"]
PARTS = model_parts(NAMES)


def layers(menu: RecomputationMenu, kind: RecomputationKind, number: int) -> tuple[int, ...]:
    """On a V of two ranks: stages 0 and 3 (layers 0–1, 6–8) on rank 0, 1 and 2 on rank 1."""
    sizes, where = (2, 3, 1, 3), placement("v", 2)
    rules = menu.rules(sizes, where)
    (rule,) = (one for one in rules if one[:2] == (kind, number) and one.policy == FULL)
    return rule.layers(sizes, where, PARTS)


@pytest.mark.parametrize(
    ("number", "recomputed"),
    [
        # Rank 0 counts layers 1, 6, 7, rank 1 layers 2, 3, 4, 5: neither embedding nor head.
        (2, (3, 5, 6)),
        (3, (4, 7)),
        (4, (5,)),
        (5, ()),
    ],
)
def test_torchtitan_counts_the_decoder_layers_of_a_rank_through_its_stages(
    number: int, recomputed: tuple[int, ...]
) -> None:
    assert layers(TORCHTITAN, RecomputationKind.OF_RANK, number) == recomputed


@pytest.mark.parametrize(("number", "recomputed"), [(1, (1, 2, 5, 6)), (2, (1, 2, 3, 5, 6))])
def test_megatron_recomputes_the_first_decoder_layers_of_each_stage(
    number: int, recomputed: tuple[int, ...]
) -> None:
    assert layers(MEGATRON, RecomputationKind.OF_STAGE, number) == recomputed


@pytest.mark.parametrize("menu", [TORCHTITAN, MEGATRON])
def test_full_recomputation_leaves_out_the_embedding_and_the_head(menu: RecomputationMenu) -> None:
    assert layers(menu, RecomputationKind.ALL, 1) == tuple(range(1, 8))


def test_each_choice_of_layers_is_listed_once_with_its_first_rule() -> None:
    found = TORCHTITAN.choices((3, 3, 3), placement("linear", 3), PARTS)
    assert list(found) == [(), tuple(range(1, 8)), (2, 4, 7), (5,)]
    numbers = [None if rule is None else rule.number for rule in found.values()]
    assert numbers == [None, 1, 2, 3]


@pytest.mark.parametrize(("menu", "policy"), [(TORCHTITAN, "ops"), (MEGATRON, "selective")])
def test_a_policy_is_a_rule_of_all_decoder_layers(menu: RecomputationMenu, policy: str) -> None:
    sizes, where = (5, 4), placement("linear", 2)
    (rule,) = (one for one in menu.rules(sizes, where) if one.policy != FULL)
    assert (rule.policy, rule.words) == (policy, f"all {policy}")
    assert rule.layers(sizes, where, PARTS) == menu.every_layer(sizes, where, PARTS)
    assert rule not in menu.choices(sizes, where, PARTS).values()
