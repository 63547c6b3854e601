"""The options with which other frameworks recompute the layers of a plan."""

from synth.schedule.files.plan_file import Plan
from synth.schedule.recomputation_rules import (
    MEGATRON,
    TORCHTITAN,
    Parts,
    RecomputationKind,
    RecomputationMenu,
    RecomputationRule,
)


def torchtitan_checkpointing(plan: Plan, parts: Parts) -> list[str] | None:
    """Return the section `[activation_checkpoint]` of a plan; None: no section says its layers.

    Args:
        plan: the plan.
        parts: what its layers are there; only what is a decoder layer, in `layers`, is recomputed.
    """
    if not plan.recomputed_layers:
        return ["[activation_checkpoint]", 'mode = "none"']
    rule = _rule(plan, TORCHTITAN, parts)
    if rule is None:
        return None
    if rule.kind == RecomputationKind.ALL:
        return ["[activation_checkpoint]", 'mode = "full"']
    option = f'selective_ac_option = "{rule.number}"'
    return ["[activation_checkpoint]", 'mode = "selective"', option]


def megatron_recomputation(plan: Plan, parts: Parts) -> str | None:
    """Return Megatron-LM's options of a plan; None: it has none, or no options say its layers.

    Args:
        plan: the plan.
        parts: what its layers are there.
    """
    rule = _rule(plan, MEGATRON, parts)
    if rule is None:
        return None
    method = "uniform" if rule.kind == RecomputationKind.ALL else "block"
    return (
        f"--recompute-granularity full --recompute-method {method} "
        f"--recompute-num-layers {rule.number}"
    )


def _rule(plan: Plan, menu: RecomputationMenu, parts: Parts) -> RecomputationRule | None:
    """Return the first rule that recomputes just the layers of a plan."""
    choices = menu.choices(plan.partition, plan.placed, parts)
    return choices.get(plan.recomputed_layers or ())
