"""The post-validated step: update at once, and correct the update later if it was wrong.

Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 4. There the global state passes along
the ranks, and a wrong step is undone by computing backwards. Here the master copy stays unchanged
until the norm is known, so that undoing restores the same bits:

    layers see  | p ........ | p' = preview of (master, moments, gradients) | p'  (or p'' if redone)
    master      | p ................................................... p   | p' = the same kernels
    gradients   | g accumulates | ... must not change until then ...    g   | zeroed
                             STEP (no waiting)                       validation
"""

from collections.abc import Mapping

from .gradients import Gradients
from .norm import GradientNorm
from .settings import StepSettings
from .snapshot import IterationSnapshot
from .stage_optimizer import StageOptimizer


class PostValidatedStep:
    """Carries out STEP without waiting for other ranks.

    The layers' parameters are final only after `validate` or `finish`.
    """

    late = True

    def __init__(
        self,
        optimizers: Mapping[int, StageOptimizer],
        gradients: Gradients,
        settings: StepSettings,
        norm: GradientNorm,
        snapshot: IterationSnapshot,
    ) -> None:
        """Prepare a rank.

        Args:
            optimizers: this rank's stage optimizers, by number; made with `post_validation`.
            gradients: the gradients of the same stages.
            settings: the settings of the next steps; assign to `settings` to change them.
            snapshot: a snapshot of the other state that an iteration changes.
        """
        self.optimizers = optimizers
        self._gradients = gradients
        self._norm = norm
        self._snapshot = snapshot
        self.settings = settings
        self._taken: StepSettings | None = None
        self.num_redone = 0
        self.num_skipped = 0

    def begin(self) -> None:
        self._snapshot.mark()

    def validate(self) -> bool:
        was_right = self.finish()
        if not was_right:
            self._snapshot.restore()
        self._gradients.open()
        return was_right

    def synchronize(self) -> None:
        """See `Stepper`: start gathering the norm, once per step."""
        if self._taken is None:
            self._taken = self.settings
            self._gradients.consume()
            self._norm.start(self._gradients.counted())

    def step(self, stage: int) -> None:
        if self._taken is None:
            raise RuntimeError("a STEP before `synchronize`")
        self.optimizers[stage].preview(self._taken)

    def finish(self) -> bool:
        """Make the last step final; waits for all ranks to have taken it.

        Returns:
            True if it was right as it was taken; if not, the parameters have changed.
        """
        if self._taken is None:
            return True
        settings, self._taken = self._taken, None
        verdict = self._norm.verdict()
        skips, clips = verdict.read()
        if skips:
            self.num_skipped += 1
        elif clips and verdict.scale is not None:
            self.num_redone += 1
            self._gradients.scale(verdict.scale)
            self._commit(settings)
        else:
            self._commit(settings)
            return True
        for optimizer in self.optimizers.values():
            optimizer.show()
        return False

    def _commit(self, settings: StepSettings) -> None:
        """Apply the update to the master copies, with the kernels and numbers of the preview.

        The layers' parameters, which the preview wrote, are left alone, because ops of the next
        iteration have saved them for their backward.
        """
        for optimizer in self.optimizers.values():
            optimizer.step(settings)
