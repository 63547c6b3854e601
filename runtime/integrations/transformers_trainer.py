"""`transformers.Trainer` of a pipeline: the overrides that its loop needs."""

import copy
import shutil
from pathlib import Path
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from transformers import Trainer, TrainingArguments
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME

from synth.errors import SynthError

from ..checkpoint import CheckpointOptions, TrainingState
from ..checkpoint.checkpointer import Checkpointer
from ..pipeline import Pipeline
from ..pretrained.all_ranks import AllRanks
from ..pretrained.of_pipeline import layers_of, load_weights, save_weights
from .loop import IGNORED, RankModel, loss_on_all_ranks, next_token_targets, token_weights


class PipelineTrainer(Trainer):
    """A `transformers.Trainer` whose steps are those of a pipeline, with one process for each rank.

    Loss, gradient norm and learning rate are those of a `Trainer` in one process: the loss is the
    mean over the tokens of a batch, also over `gradient_accumulation_steps`. Every rank reads the
    same batches, which the pipeline cuts into micro-batches. `save_model` writes the weights of the
    whole model. Beside them a checkpoint has those of `Checkpointer` with the optimizer, so it can
    be resumed from under any plan of the same layers.
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
                size: of training, the last samples that fill none are left out.
            replica: the number of this pipeline, if several train data-parallel.
            num_replicas: their number.
            **keywords: of `Trainer`, such as `train_dataset` and `data_collator`.

        Raises:
            SynthError: the arguments want what the steps of a pipeline do not do.
        """
        _check_arguments(args, keywords)
        self.pipeline, self._replica, self._num_replicas = pipeline, replica, num_replicas
        self._is_training_data = True
        super().__init__(RankModel(pipeline), copy.copy(args), **keywords)

    def batch_of(self, inputs: dict[str, Any]) -> tuple[Any, Tensor]:
        """Return the first layer's inputs, and the targets, of what the collator makes.

        Override this for a model that was cut for other inputs than token ids.

        Raises:
            SynthError: tokens follow padding, which the model would attend to without the mask.
        """
        mask = inputs.get("attention_mask")
        if mask is not None and bool((mask[:, 1:] > mask[:, :-1]).any()):
            raise SynthError(
                "tokens follow padding in a batch, and the model was cut for token ids alone: pad "
                "on the right, or cut it with attention_mask and override batch_of"
            )
        return inputs["input_ids"], next_token_targets(inputs["labels"])

    def create_accelerator_and_postprocess(self) -> None:
        """Make an accelerator that wraps no model, and divides data among pipelines only."""
        super().create_accelerator_and_postprocess()
        accelerator = self.accelerator
        accelerator.prepare_model = lambda model, *args, **keywords: model
        self.gather_function = accelerator.gather_for_metrics = self._without_repeated
        accelerator.prepare_data_loader = lambda loader, *args, **keywords: prepare_data_loader(
            loader,
            accelerator.device,
            num_processes=self._num_replicas if self._is_training_data else 1,
            process_index=self._replica if self._is_training_data else 0,
            put_on_device=accelerator.device_placement,
            rng_types=accelerator.rng_types.copy(),
            even_batches=accelerator.even_batches,
            use_seedable_sampler=accelerator.use_seedable_sampler,
            data_seed=accelerator.dataloader_config.data_seed,
            non_blocking=accelerator.non_blocking,
        )

    def _without_repeated(self, values: Tensor, *args: Any, **keywords: Any) -> Tensor:
        """Return a batch's values without those beyond its samples, of which the last has fewer."""
        state = self.accelerator.gradient_state
        return (
            values[: state.remainder] if state.end_of_dataloader and state.remainder > 0 else values
        )

    def _get_dataloader(self, *args: Any, **keywords: Any) -> Any:
        """Return batches: equal ones of this pipeline in training, else all of all pipelines."""
        self._is_training_data = self.args.dataloader_drop_last = bool(keywords.get("is_training"))
        return super()._get_dataloader(*args, **keywords)

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
        """Return the loss of a batch; the last one is filled with samples that do not count."""
        given, targets = self.batch_of(self._prepare_inputs(inputs))
        given, targets = _filled(given, targets, self.args.eval_batch_size)
        weights = token_weights(targets, self.pipeline.num_micro_batches)
        loss = self.pipeline.evaluate(self._split(given, targets), weights=weights)
        return loss_on_all_ranks(self.pipeline, loss).float(), None, None

    def _track_num_input_tokens(self, inputs: dict[str, Any]) -> None:
        """Count the tokens of each pipeline once, and not on each of its ranks."""
        before = self.state.num_input_tokens_seen
        super()._track_num_input_tokens(inputs)  # type: ignore[no-untyped-call]
        seen = self.state.num_input_tokens_seen - before
        self.state.num_input_tokens_seen = before + seen // self.pipeline.ranks.size

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the weights of the whole model for `from_pretrained`; all ranks call this."""
        folder = Path(output_dir or self.args.output_dir or "trained")
        written, ranks = folder / ".weights", AllRanks.of_processes()
        if self.args.should_save:  # of a run that ended meanwhile
            shutil.rmtree(written, ignore_errors=True)
        save_weights(written, self.pipeline)
        ranks.together(lambda: self._replace_weights(folder, written))

    def _replace_weights(self, folder: Path, written: Path) -> None:
        """Move weights into a folder that may have others, and write the tokenizer beside them."""
        if not self.args.should_save:
            return
        for old in folder.glob("model*.safetensors*"):
            old.unlink()
        for new in written.iterdir():
            new.replace(folder / new.name)
        written.rmdir()
        tokenizer = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Write the optimizer of all ranks beside the weights of a checkpoint.

        Raises:
            SynthError: it cannot be written; the checkpoints before it stay.
        """
        if self.args.should_save:  # of an earlier run
            shutil.rmtree(Path(output_dir, _RANKS), ignore_errors=True)
        checkpoints, state = self._checkpoints(output_dir, resume=False)
        checkpoints.save(state)
        checkpoints.close()
        if checkpoints.failed_step is not None:
            raise SynthError(f"the optimizer could not be written to {output_dir}: see the warning")
        if self.args.should_save:
            scheduler: Any = self.lr_scheduler
            torch.save(scheduler.state_dict(), Path(output_dir, SCHEDULER_NAME))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        load_weights(resume_from_checkpoint, self.pipeline)

    def _load_best_model(self) -> None:
        load_weights(str(self.state.best_model_checkpoint), self.pipeline)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load the layers and the optimizer of this rank, if the checkpoint has one (a Trainer's
        `save_only_model` writes none).

        Raises:
            SynthError: the optimizer is that of a `Trainer` in one process, or is not complete.
        """
        if checkpoint is None:
            return
        if not Path(checkpoint, _RANKS).exists():
            if Path(checkpoint, OPTIMIZER_NAME).exists():
                raise SynthError(
                    f"{checkpoint} has the optimizer of a Trainer, which a pipeline cannot take: "
                    f"resume from a checkpoint of PipelineTrainer, or load the weights alone "
                    f"(synth.load_weights) and train without resume_from_checkpoint"
                )
            return
        checkpoints, own = self._checkpoints(checkpoint, resume=True)
        found = checkpoints.restore(lambda found: own.check_goes_on(found, found.step))
        checkpoints.close()
        if found is None:
            raise SynthError(
                f"{checkpoint} has no complete optimizer in {_RANKS!r}: resume from an earlier one"
            )
        optimizer: Any = self.optimizer
        scheduler: Any = self.lr_scheduler
        scheduler.load_state_dict(torch.load(Path(checkpoint, SCHEDULER_NAME)))
        for group, rate in zip(optimizer.param_groups, scheduler.get_last_lr(), strict=True):
            group["lr"] = rate

    def _checkpoints(self, folder: str, *, resume: bool) -> tuple[Checkpointer, TrainingState]:
        """Return what saves or restores this rank's part in a folder, and where training is."""
        own = layers_of(self.pipeline)
        names = sorted({name for rank in self.pipeline.ranks.gather([*own]) for name in rank})
        state = TrainingState(
            step=self.state.global_step,
            sequences=self.state.global_step * self.get_total_train_batch_size(self.args),
            seed=0,
            model="of a Trainer",
            layers=tuple(names),
            plan=self.pipeline.lowered.schedule.name,
        )
        options = CheckpointOptions(folder=Path(folder, _RANKS), resume=resume)
        optimizer: Any = getattr(self.optimizer, "optimizer", self.optimizer)  # accelerate's own
        made = Checkpointer(options, own, optimizer, timeout_s=self.args.ddp_timeout)
        return made, state


# Of a checkpoint's folder, what `Checkpointer` writes.
_RANKS = "pipeline"


def _filled(given: Any, targets: Tensor, size: int) -> tuple[Any, Tensor]:
    """Repeat the last sample up to a number of samples; the loss leaves the repeated ones out."""
    missing = size - len(targets)
    if missing <= 0:
        return given, targets

    def fill(x: Any) -> Any:
        is_batch = isinstance(x, Tensor) and len(x) == len(targets)
        return torch.cat([x, x[-1:].expand(missing, *x.shape[1:])]) if is_batch else x

    ignored = torch.full_like(targets[-1:], IGNORED).expand(missing, *targets.shape[1:])
    return tree_map(fill, given), torch.cat([targets, ignored])


_PRECISION = "give the model the dtype (model.to(torch.bfloat16)), and leave this out"
_RECOMPUTED = "the plan says which layers are computed again (synth solve --recompute)"
# What the forward of a whole model has, by the argument, with what to do instead.
_OF_ONE_MODEL = {
    "fp16": _PRECISION,
    "bf16": _PRECISION,
    "fp16_full_eval": _PRECISION,
    "bf16_full_eval": _PRECISION,
    "label_smoothing_factor": "give the pipeline a loss with it",
    "neftune_noise_alpha": "leave it out",
    "torch_compile": "compile the layers before the pipeline is made",
    "activation_checkpointing": _RECOMPUTED,
    "gradient_checkpointing": _RECOMPUTED,
    "use_liger_kernel": "apply its kernels before the model is cut",
    "auto_find_batch_size": "the plan has the micro-batch; leave it out",
    "push_to_hub": "push the folder of save_model",
    "model_init": "make the model, cut it, and give the pipeline",
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
