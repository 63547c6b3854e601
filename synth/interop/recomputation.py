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

# torchtitan's default computes a layer again beyond the last result that B needs (0.2.2).
_STOPS_EARLY = "early_stop = true"


def torchtitan_checkpointing(plan: Plan, parts: Parts) -> list[str] | None:
    """Return the section `[activation_checkpoint]` of a plan; None: no section says its layers.

    Args:
        parts: what its layers are there; only what is a decoder layer, in `layers`, is recomputed.
    """
    if not plan.recomputed_layers:
        return ["[activation_checkpoint]", 'mode = "none"']
    if plan.recompute_policies:
        return torchtitan_ops() if _is_of_every_layer(plan, TORCHTITAN, parts) else None
    rule = _rule(plan, TORCHTITAN, parts)
    if rule is None:
        return None
    if rule.kind == RecomputationKind.ALL:
        return torchtitan_full()
    return _torchtitan_selective(str(rule.number))


def torchtitan_full() -> list[str]:
    """Return the section with which torchtitan recomputes all decoder layers."""
    return ["[activation_checkpoint]", 'mode = "full"', _STOPS_EARLY]


def torchtitan_ops() -> list[str]:
    """Return the section of its policy of ops in all decoder layers."""
    return _torchtitan_selective("op")


def _torchtitan_selective(option: str) -> list[str]:
    lines = ["[activation_checkpoint]", 'mode = "selective"', f'selective_ac_option = "{option}"']
    return [*lines, _STOPS_EARLY]


def megatron_recomputation(plan: Plan, parts: Parts) -> str | None:
    """Return Megatron-LM's options of a plan; None: it has none, or no options say its layers."""
    if plan.recompute_policies:
        options = "--recompute-granularity selective --recompute-modules core_attn"
        return options if _is_of_every_layer(plan, MEGATRON, parts) else None
    rule = _rule(plan, MEGATRON, parts)
    if rule is None:
        return None
    method = "uniform" if rule.kind == RecomputationKind.ALL else "block"
    return (
        f"--recompute-granularity full --recompute-method {method} "
        f"--recompute-num-layers {rule.number}"
    )


def _is_of_every_layer(plan: Plan, menu: RecomputationMenu, parts: Parts) -> bool:
    """True if a framework's policy, and nothing else, is that of every layer it recomputes."""
    layers = menu.every_layer(plan.partition, plan.placed, parts)
    named = [{policy: layers} for policy in menu.policies]
    return plan.recomputed_layers == layers and plan.recompute_policies in named


def _rule(plan: Plan, menu: RecomputationMenu, parts: Parts) -> RecomputationRule | None:
    """Return the first rule that recomputes just the layers of a plan."""
    choices = menu.choices(plan.partition, plan.placed, parts)
    return choices.get(plan.recomputed_layers or ())
