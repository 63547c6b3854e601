"""The weights of a run that come from a folder, and go to one."""

import sys
from collections.abc import Mapping

import torch.distributed as dist
from torch import nn

from synth.run_options.weight_files import WeightFiles, WeightFormat

from ..optimize import StageSteps
from ..pipeline import Pipeline
from ..pretrained import AllRanks, load_weights, save_weights


class RunWeights:
    """Loads and exports the weights of one rank, if the run does; all ranks call the same."""

    def __init__(
        self, files: WeightFiles, layers: Mapping[str, nn.Module], pipeline: Pipeline
    ) -> None:
        """Take the layers whose parameters this rank updates, by name."""
        self._files, self._layers, self._pipeline = files, layers, pipeline

    def load(self, optimizer: StageSteps) -> None:
        """Load the weights to begin from, if there are any.

        Raises:
            SynthError: there are none in the folder, or they are of another model.
        """
        source = self._files.weights_from
        if source is None:
            return
        shared = self._pipeline.shared_parameters
        load_weights(source, self._layers, steps=optimizer, shared=shared, ranks=_all_ranks())
        _tell(f"began from the weights in {source}")

    def export(self, optimizer: StageSteps) -> None:
        """Write the weights, if they are wanted.

        Raises:
            SynthError: they cannot be written.
        """
        folder = self._files.export_weights
        if folder is None:
            return
        optimizer.finish()
        save_weights(
            folder,
            self._layers,
            kind=self._files.export_format or WeightFormat.HF,
            shared=self._pipeline.shared_parameters,
            ranks=_all_ranks(),
            source=self._files.weights_from,
        )
        _tell(f"weights written to {folder}")


def _all_ranks() -> AllRanks:
    return AllRanks.of_processes() if dist.is_initialized() else AllRanks()


def _tell(line: str) -> None:
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(line, file=sys.stderr, flush=True)
