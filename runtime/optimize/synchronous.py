"""The synchronous step: every rank waits for the norm of all ranks' gradients, then updates."""

from collections.abc import Mapping

from .gradients import Gradients
from .norm import GradientNorm, NormVerdict
from .settings import StepSettings
from .stage_optimizer import StageOptimizer


class SynchronousStep:
    """Carries out STEP in lock-step: scaled by the global norm, or skipped, on all ranks alike."""

    late = False

    def __init__(
        self,
        optimizers: Mapping[int, StageOptimizer],
        gradients: Gradients,
        settings: StepSettings,
        norm: GradientNorm | None,
    ) -> None:
        """Prepare a rank.

        Args:
            optimizers: the optimizers of this rank's stages, by number.
            gradients: the gradients of the same stages.
            settings: the settings of the next steps; assign to `settings` to change them.
            norm: the norm over all ranks' gradients; None: neither clip nor look for infinities.
        """
        self.optimizers = optimizers
        self._gradients = gradients
        self._norm = norm
        self.settings = settings
        self._verdict: NormVerdict | None = None

    def begin(self) -> None:
        self._verdict = None
        self._gradients.open()

    def validate(self) -> bool:
        """See `Stepper`: a synchronous step is valid when it is taken."""
        return True

    def synchronize(self) -> None:
        """See `Stepper`: wait for the norm, once per step."""
        self._gradients.consume()
        if self._norm is not None and self._verdict is None:
            self._norm.start(self._gradients.counted())
            self._verdict = self._norm.verdict()
            if self._verdict.scale is not None:
                self._gradients.scale(self._verdict.scale)

    def step(self, stage: int) -> None:
        found_inf = self._verdict.found_inf if self._verdict is not None else None
        self.optimizers[stage].step(self.settings, found_inf)
        self.optimizers[stage].show()

    def finish(self) -> bool:
        """See `Stepper`: nothing is open between steps."""
        return True
