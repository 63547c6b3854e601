"""The data of a run: tokens of files, or micro-batches that a user's function makes."""

from synth.profile.workload import Workload
from synth.run_options.train_options import TrainOptions

from ..execution.stage.stage import Stage
from ..models import vocabulary_size
from .data import TokenData, check_ids, load_tokens
from .function_data import FunctionData

RunData = TokenData | FunctionData


def open_data(options: TrainOptions, workload: Workload, first_stage: Stage | None) -> RunData:
    """Open the data that the options of a run name.

    Args:
        workload: the size of micro-batches and the length of sequences.
        first_stage: the first stage, on a rank that holds it. Its embedding has the vocabulary, so
            only these ranks check token ids.

    Raises:
        SynthError: no data is named, it cannot be read, it is too small, or an id is not in the
            vocabulary.
    """
    if options.inputs is not None:
        return FunctionData(
            options.inputs,
            workload.micro_batch_size,
            options.seed,
            options.epochs,
            workload.sequence_length,
        )
    options.check_source()
    assert options.data is not None
    tokens = load_tokens(options.data, workload.sequence_length)
    if first_stage is not None:
        check_ids(options.data, tokens, vocabulary_size(first_stage.layers[0]))
    return TokenData(tokens, workload.sequence_length, options.seed, options.epochs)
