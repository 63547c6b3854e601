"""The training state: sufficient to resume, and to refuse another model, data or optimizer."""

from typing import ClassVar, Self

from pydantic import NonNegativeInt, PositiveInt, model_validator

from synth.errors import Mismatch, SynthError
from synth.records.record import FileRecord, Record
from synth.run_options.checkpoint_options import CheckpointOptions


class DataFingerprint(Record):
    """Identifies data: the number of tokens, and a digest of some or all of their ids."""

    tokens: PositiveInt
    sha256: str

    def __str__(self) -> str:
        """Return the number of tokens and the beginning of the digest."""
        return f"{self.tokens} tokens, fingerprint {self.sha256[:12]}"


class TrainingState(FileRecord):
    """The state of training after `step` optimizer steps, besides its tensors.

    There is no generator state: every random number of a run is a function of the seed and of its
    purpose (a layer's weights, the n-th sequence, a layer's dropout in a micro-batch of a step).
    The seed and the two counts are therefore sufficient, under any partition.

    As a file it is the `training.json` of format version 1.
    """

    FORMAT: ClassVar[str] = "synth-checkpoint"
    VERSION: ClassVar[int] = 1
    MADE_BY: ClassVar[tuple[str, ...]] = ("synth run --checkpoint",)

    step: NonNegativeInt
    sequences: NonNegativeInt
    """The data position: the number of sequences that have been trained on."""
    seed: NonNegativeInt
    model: str
    layers: tuple[str, ...]
    plan: str
    optimizer: str | None = None
    """The form in options, without `+post-validation`, which changes no result; None: unknown."""
    data: DataFingerprint | None = None
    """None: unknown."""
    updates: tuple[NonNegativeInt, ...] | None = None
    """By layer the number of its updates, of which a step has several if its plan has no flush;
    None: unknown."""

    @model_validator(mode="after")
    def _one_count_for_each_layer(self) -> Self:
        if self.updates is not None and len(self.updates) != len(self.layers):
            raise ValueError(
                f"updates has {len(self.updates)} counts; needed: one for each of the "
                f"{len(self.layers)} layers"
            )
        return self

    def check_goes_on(
        self, found: "TrainingState", steps: int, options: CheckpointOptions | None = None
    ) -> None:
        """Refuse a checkpoint from which this run cannot continue.

        Args:
            steps: the steps of this run, from its very beginning.
            options: say which differences to ignore; None: none of them.

        Raises:
            SynthError: layers, data, seed or optimizer differ, or it has more steps than this run.
        """
        self._check_layers(found)
        if found.seed != self.seed:
            raise SynthError(
                f"the checkpoint was made with seed {found.seed}, this run has {self.seed}: its "
                f"data would come in another order; give --seed {found.seed}"
            )
        if options is None or not options.ignore_data:
            self._check_data(found)
        if options is None or not options.ignore_optimizer:
            self._check_optimizer(found)
        if found.step > steps:
            raise SynthError(
                f"the checkpoint already holds {found.step} steps, this run has only {steps}; give "
                f"more --steps or --epochs"
            )

    def _check_layers(self, found: "TrainingState") -> None:
        if found.layers != self.layers:
            raise Mismatch(
                f"the checkpoint is of {found.model!r} with {len(found.layers)} layers "
                f"({', '.join(found.layers[:3])}, …), the plan of {self.model!r} with "
                f"{len(self.layers)} ({', '.join(self.layers[:3])}, …)"
            )

    def _check_data(self, found: "TrainingState") -> None:
        if None not in (found.data, self.data) and found.data != self.data:
            raise SynthError(
                f"the checkpoint was trained on other data ({found.data}) than this run's "
                f"({self.data}); give the same --data, or --ignore-data to continue at the same "
                f"position of this one"
            )

    def _check_optimizer(self, found: "TrainingState") -> None:
        if None not in (found.optimizer, self.optimizer) and found.optimizer != self.optimizer:
            raise SynthError(
                f"the checkpoint was made with optimizer {found.optimizer}, this run has "
                f"{self.optimizer}; give --optimizer {found.optimizer}, or --ignore-optimizer to "
                f"reset the state that differs"
            )
