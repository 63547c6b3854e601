"""The options with which other frameworks recompute the layers of a plan."""

from synth.profile.model_parts import model_parts
from synth.schedule.files.plan_file import Plan
from synth.schedule.recomputation_rules import (
    MEGATRON,
    TORCHTITAN,
    RecomputationKind,
    RecomputationMenu,
    RecomputationRule,
)


def torchtitan_checkpointing(plan: Plan) -> list[str] | None:
    """Return the section `[activation_checkpoint]` of a plan; None: no section says its layers."""
    if not plan.recomputed_layers:
        return ["[activation_checkpoint]", 'mode = "none"']
    rule = _rule(plan, TORCHTITAN)
    if rule is None:
        return None
    if rule.kind == RecomputationKind.ALL:
        return ["[activation_checkpoint]", 'mode = "full"']
    option = f'selective_ac_option = "{rule.number}"'
    return ["[activation_checkpoint]", 'mode = "selective"', option]


def megatron_recomputation(plan: Plan) -> str | None:
    """Return Megatron-LM's options of a plan; None: it has none, or no options say its layers."""
    rule = _rule(plan, MEGATRON)
    if rule is None:
        return None
    method = "uniform" if rule.kind == RecomputationKind.ALL else "block"
    return (
        f"--recompute-granularity full --recompute-method {method} "
        f"--recompute-num-layers {rule.number}"
    )


def _rule(plan: Plan, menu: RecomputationMenu) -> RecomputationRule | None:
    """Return the first rule that recomputes just the layers of a plan."""
    choices = menu.choices(plan.partition, plan.placed, model_parts(plan.layers))
    return choices.get(plan.recomputed_layers or ())
