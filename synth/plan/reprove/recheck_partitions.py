"""Proving a lower bound over all partitions again, from its certificate.

Closed forms of runs of layers are computed on demand, along the path of the least bound. If they
leave a path open, the certificate names the run of it, or the partition, that models have to prove.
"""

from collections.abc import Iterator

from synth.plan.partition.bounds import PartitionBounds
from synth.plan.partition.path_dp import RankLayers, Sizes, runs_of
from synth.plan.reprove.claim_search import ClaimSearch
from synth.schedule.files.certificate import Certificate, ProverName
from synth.solver.bounds.recheck import recheck
from synth.solver.bounds.rechecker import Recheck, refute_below


def own_certificate(certificate: Certificate | None, sizes: Sizes) -> Certificate | None:
    """Find the certificate of one partition; None: there is none."""
    if certificate is None or certificate.prover != ProverName.PARTITIONS:
        return certificate
    proofs = (proof.certificate for proof in certificate.partitions if proof.sizes == sizes)
    return next(proofs, None)


class PartitionsRecheck:
    """Proves a bound of all partitions from its certificate."""

    def __init__(
        self, bounds: PartitionBounds, certificate: Certificate, search: ClaimSearch
    ) -> None:
        """Begin without any proof.

        Args:
            bounds: without any bound yet.
            search: the search for the claimed bound, which this serves and with which it ends.
        """
        self.bounds, self.claimed_us, self.search = bounds, search.claimed_us, search
        self.runs = {RankLayers(run.rank, run.first, run.end) for run in certificate.layer_runs}
        self.partitions = {proof.sizes: proof.certificate for proof in certificate.partitions}
        self.proven: set[Sizes] = set()

    def run(self) -> Recheck:
        """Prove path by path, until none is left below the bound."""
        while True:
            least = self.bounds.least(self.proven)
            if least.sizes is None or least.bound_us >= self.claimed_us:
                return Recheck.PROVEN
            if self.search.is_over():
                return Recheck.OPEN
            if any([self.bounds.close(run) for run in runs_of(least.sizes)]):
                continue
            found = self._prove_path(least.sizes)
            if found != Recheck.PROVEN:
                return found

    def _prove_path(self, sizes: Sizes) -> Recheck:
        """Prove a path that closed forms leave open: by one of its runs, or else as a whole."""
        for found in self._of_path(sizes):
            if found != Recheck.REFUTED:
                return found
        return Recheck.REFUTED

    def _of_path(self, sizes: Sizes) -> Iterator[Recheck]:
        for run in runs_of(sizes):
            if run in self.runs:
                self.runs.remove(run)
                yield self._prove_run(run)
        certificate = self.partitions.pop(sizes, None)
        if certificate is not None:
            problem = self.bounds.problem_on(sizes)
            found = recheck(
                problem, certificate, self.claimed_us, self.search.remaining, self.search.is_over
            )
            if found == Recheck.PROVEN:
                self.proven.add(sizes)
            yield found

    def _prove_run(self, run: RankLayers) -> Recheck:
        model = self.bounds.model_of(run, self.claimed_us - 1)
        found = refute_below(model, self.claimed_us, self.search.remaining, self.search.is_over)
        if found == Recheck.PROVEN:
            self.bounds.paths[run] = max(self.bounds.paths[run], self.claimed_us)
        return found
