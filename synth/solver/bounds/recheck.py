"""Proving a lower bound again from its certificate, with only the models that it names.

The certificate is not trusted; it only says what to solve. Each model is asked for a solution below
the claimed value, and only the proof that there is none counts. A proven lemma helps the next
models, as it did when the bound was found.
"""

from collections.abc import Callable, Mapping

from synth.schedule.files.certificate import Certificate, ProverName, Relaxation
from synth.solver.bounds import bounds
from synth.solver.bounds.closed_form import work_bounds
from synth.solver.bounds.rechecker import Recheck, RecheckEnded, Rechecker, judged
from synth.solver.cpsat.model import ExactModel
from synth.solver.cpsat.op_variables import can_fuse_all
from synth.solver.crosscheck.milp import run_milp
from synth.solver.instance.memory_models import relaxed_for_fusion, relaxed_memory
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.tuning import RECHECK

# Proves the bound of a certificate again.
_Prove = Callable[[Certificate, Rechecker], None]


def recheck(
    problem: Problem,
    certificate: Certificate,
    claimed_us: int,
    options: SolveOptions,
    should_stop: Callable[[], bool],
) -> Recheck:
    """Prove a bound of one partition from its certificate.

    Args:
        options: time limit, workers and seed.
        should_stop: polled during each proof.
    """
    instance = relaxed_for_fusion(problem)
    work = work_bounds(instance)
    if problem.objective.value_us(work) >= claimed_us:
        return Recheck.PROVEN  # which costs nothing, whatever the certificate names
    prove = _provers().get(certificate.prover)
    if prove is None:
        return Recheck.REFUTED
    try:
        prove(certificate, Rechecker(problem, claimed_us, options, should_stop, instance, work))
    except RecheckEnded as ended:
        return ended.reason
    return Recheck.PROVEN


def _provers() -> Mapping[ProverName, _Prove]:
    """The provers of a given partition: the bounds, and the two models of all ranks."""
    of_all_ranks = {ProverName.EXACT: _by_exact_model, ProverName.MILP: _by_milp}
    by_bounds = {bound.prover: bound.recheck for bound in bounds().values()}
    if twice := by_bounds.keys() & of_all_ranks.keys():
        raise RuntimeError(f"{', '.join(twice)}: a bound has the name of a model of all ranks")
    return by_bounds | of_all_ranks


def _by_exact_model(certificate: Certificate, again: Rechecker) -> None:
    """Prove that no schedule of all ranks is below the claim."""
    is_fusible = certificate.relaxation == Relaxation.FUSIBLE
    instance = relaxed_memory(again.problem) if is_fusible else again.instance
    again.require(can_fuse_all(instance) or not is_fusible)
    again.require_size(instance, range(instance.num_ranks), RECHECK.most_ops)
    model = ExactModel(instance, again.objective, again.claimed_us - 1, fusible=is_fusible)
    model.both_at_least(again.work)
    again.refute_below(model, again.claimed_us)


def _by_milp(certificate: Certificate, again: Rechecker) -> None:
    """Prove the same with the mixed-integer program."""
    instance = again.instance
    again.require_size(instance, range(instance.num_ranks), RECHECK.most_milp_ops)
    again.require_time()
    found = run_milp(instance, again.objective, again.claimed_us - 1, again.left_s)
    again.require_proof(judged(found))
