"""`transformers.Trainer` of a pipeline: the overrides that its loop needs."""

import copy
from typing import Any

from accelerate.data_loader import prepare_data_loader
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from synth.errors import SynthError

from ..pipeline import Pipeline
from ..pretrained.of_pipeline import save_weights
from .loop import IGNORED, RankModel, loss_on_all_ranks, next_token_targets, token_weights


class PipelineTrainer(Trainer):
    """A `transformers.Trainer` whose steps are those of a pipeline, with one process for each rank.

    Loss, gradient norm and learning rate are those of a `Trainer` in one process: the loss is the
    mean over the tokens of a batch, also over `gradient_accumulation_steps`. Every rank reads the
    same batches, which the pipeline cuts into micro-batches. `save_model` writes the weights of the
    whole model. Checkpoints to resume from are those of `Checkpointer`, so `save_strategy` is "no".
    """

    def __init__(
        self,
        pipeline: Pipeline,
        args: TrainingArguments,
        *,
        replica: int = 0,
        num_replicas: int = 1,
        **keywords: Any,
    ) -> None:
        """Take a pipeline in place of a model.

        Args:
            pipeline: of a causal language model that was cut for token ids; see `batch_of`.
            args: of the training; a batch size of a device is that of a pipeline. Batches have one
                size, so the last samples that fill none are left out (`dataloader_drop_last`).
            replica: the number of this pipeline, if several train data-parallel.
            num_replicas: their number.
            **keywords: of `Trainer`, such as `train_dataset` and `data_collator`.

        Raises:
            SynthError: the arguments want checkpoints of the Trainer's own, or the best of them; or
                what the steps of a pipeline do not do.
        """
        if str(getattr(args.save_strategy, "value", args.save_strategy)) != "no":
            raise SynthError(
                f"save_strategy is {args.save_strategy}, and a Trainer saves the optimizer of its "
                f'first process alone: give save_strategy="no", and save by Checkpointer'
            )
        _check_arguments(args, keywords)
        args = copy.copy(args)
        args.dataloader_drop_last = True
        self.pipeline, self._replica, self._num_replicas = pipeline, replica, num_replicas
        self._is_divided = True
        super().__init__(RankModel(pipeline), args, **keywords)

    def batch_of(self, inputs: dict[str, Any]) -> tuple[Any, Tensor]:
        """Return the first layer's inputs, and the targets, of what the collator makes.

        Override this for a model that was cut for other inputs than token ids.
        """
        return inputs["input_ids"], next_token_targets(inputs["labels"])

    def create_accelerator_and_postprocess(self) -> None:
        """Make an accelerator that wraps no model, and divides data among pipelines only."""
        super().create_accelerator_and_postprocess()
        accelerator = self.accelerator
        accelerator.prepare_model = lambda model, *args, **keywords: model
        accelerator.gather_for_metrics = lambda value, *args, **keywords: value
        accelerator.prepare_data_loader = lambda loader, *args, **keywords: prepare_data_loader(
            loader,
            accelerator.device,
            num_processes=self._num_replicas if self._is_divided else 1,
            process_index=self._replica if self._is_divided else 0,
            put_on_device=accelerator.device_placement,
            rng_types=accelerator.rng_types.copy(),
            even_batches=accelerator.even_batches,
            use_seedable_sampler=accelerator.use_seedable_sampler,
            data_seed=accelerator.dataloader_config.data_seed,
            non_blocking=accelerator.non_blocking,
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the batches of an evaluation, all of which each pipeline reads."""
        self._is_divided = False
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self._is_divided = True

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        """Return the samples of an optimizer step, in all pipelines."""
        return int(self._train_batch_size * args.gradient_accumulation_steps * self._num_replicas)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Tensor | None:
        """Return the tokens of an optimizer step, in all pipelines."""
        targets = [self.batch_of(batch)[1] for batch in batch_samples]
        own = sum((each != IGNORED).sum() for each in targets)
        if not isinstance(own, Tensor) or self._num_replicas == 1:
            return own or None
        counts: Tensor = self.accelerator.gather(own.to(device))
        return counts.sum() / self.pipeline.ranks.size

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Tensor:
        """Run the pipeline; gradients add up until the last batch of an optimizer step."""
        model.train()
        given, targets = self.batch_of(self._prepare_inputs(inputs))
        weights = token_weights(targets, self.pipeline.num_micro_batches, num_items_in_batch)
        loss = self.pipeline.step(
            self._split(given, targets),
            weights=weights * self._num_replicas,  # gradients are averaged over pipelines
            update=self.accelerator.sync_gradients,
        )
        return loss_on_all_ranks(self.pipeline, loss).float()

    def _split(self, given: Any, targets: Tensor) -> Any:
        inputs = given if isinstance(given, tuple) else (given,)
        return self.pipeline.split(*inputs, targets=targets)

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        return self.pipeline.clip_grad_norm_(self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Tensor:
        return self.pipeline.clip_grad_norm_(float("inf")) if grad_norm is None else grad_norm

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **keywords: Any
    ) -> tuple[Tensor, None, None]:
        """Return the loss of a batch, which the number of micro-batches divides."""
        given, targets = self.batch_of(self._prepare_inputs(inputs))
        weights = token_weights(targets, self.pipeline.num_micro_batches)
        loss = self.pipeline.evaluate(self._split(given, targets), weights=weights)
        return loss_on_all_ranks(self.pipeline, loss).float(), None, None

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the weights of the whole model for `from_pretrained`; all ranks call this."""
        save_weights(output_dir or self.args.output_dir or "trained", self.pipeline)


_PRECISION = "cut the model under autocast, or give it the dtype, and leave this out"
# What the forward of a whole model has, by the argument, with what to do instead.
_OF_ONE_MODEL = {
    "fp16": _PRECISION,
    "bf16": _PRECISION,
    "fp16_full_eval": _PRECISION,
    "bf16_full_eval": _PRECISION,
    "label_smoothing_factor": "give the pipeline a loss with it",
    "neftune_noise_alpha": "leave it out",
    "torch_compile": "compile the layers before the pipeline is made",
    "deepspeed": "the pipeline divides the model; leave it out",
    "fsdp": "the pipeline divides the model; leave it out",
    "compute_loss_func": "give the pipeline the loss",
    "compute_metrics": "evaluate gives the loss alone; leave it out",
}


def _check_arguments(args: TrainingArguments, keywords: dict[str, Any]) -> None:
    """Refuse what a `Trainer` does to the forward of one model."""
    for name, instead in _OF_ONE_MODEL.items():
        value = keywords.get(name) or getattr(args, name, None)
        if value:
            raise SynthError(
                f"{name} is {getattr(value, '__name__', value)}, which is of the forward of one "
                f"model, and a pipeline's steps do not have it: {instead}"
            )
