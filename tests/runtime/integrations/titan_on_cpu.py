"""torchtitan's trainer on CPUs, with its Llama 3 debug model, under its own 1F1B or a plan.

    PYTHONPATH=. SEED=1 torchrun --nproc-per-node 1 -m tests.runtime.integrations.titan_on_cpu own
    PYTHONPATH=. torchrun --nproc-per-node 2 -m tests.runtime.integrations.titan_on_cpu own
    PYTHONPATH=. torchrun --nproc-per-node 2 -m tests.runtime.integrations.titan_on_cpu planned

The first one writes the weights from which the others begin, and `planned` reads `plan.toml`, both
in the working folder. Where torchtitan 0.3.0 needs a GPU, or a PyTorch later than 2.13, it is
changed here: what `torch.cpu` lacks, a `step` that takes micro-batches, the compiled kernel of flex
attention, and the time limits of process groups.
"""

import json
import os
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import torch
import torch._utils
from torch.distributed.pipelining import schedules
from torch.nn.attention import flex_attention as flex

MODULE = "tests.runtime.integrations.titan_on_cpu"


def on_cpu() -> None:
    """Give torchtitan what it takes of a GPU; to be called before it is imported."""
    found: dict[str, Any] = {
        "get_device_name": lambda *_: "cpu",
        "get_device_properties": lambda *_: types.SimpleNamespace(total_memory=2**34, name="cpu"),
        "reset_peak_memory_stats": lambda *_: None,
        "empty_cache": lambda *_: None,
        "memory_stats": lambda *_: {},
    }
    for name, value in found.items():
        setattr(torch.cpu, name, value)
    torch._utils._get_available_device_type = lambda: "cpu"
    flex._validate_device = lambda *_: None
    for kind in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
        kind.step = _step  # type: ignore[method-assign, assignment]


def _step(
    self: Any, *, arg_mbs: Any, kwarg_mbs: Any, target_mbs: Any, losses: Any, **keywords: Any
) -> None:
    for stage in getattr(self, "_stages", None) or [self._stage]:
        stage.has_backward = self._has_backward
        stage.clear_runtime_states()
    self._step_microbatches(arg_mbs, kwarg_mbs, target_mbs, losses, **keywords)


def write_data() -> None:
    """Write a tokenizer of bytes, and the sources of this project as text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: number for number, symbol in enumerate([*symbols, "<s>", "</s>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    Path("tokenizer").mkdir(exist_ok=True)
    tokenizer.save("tokenizer/tokenizer.json")
    ends = {"bos_token": "<s>", "eos_token": "</s>"}
    Path("tokenizer/tokenizer_config.json").write_text(json.dumps(ends))
    Path("text").mkdir(exist_ok=True)
    texts = sorted(Path(json.__file__).parent.glob("*.py"))
    lines = (json.dumps({"text": path.read_text()}) for path in texts)
    Path("text/data.json").write_text("\n".join(lines))


def own() -> Any:
    """Return the config of the debug model in float32, with torchtitan's own 1F1B."""
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    config = llama3_debugmodel()
    config.loss = config.loss.loss_fn
    config.hf_assets_path, config.dataloader.dataset_path = "./tokenizer", "./text"
    config.training.seq_len, config.training.local_batch_size = 64, 8
    config.training.steps, config.training.disable_cuda_graphs = 12, True
    config.training.mixed_precision_param = "float32"
    config.validator.enable, config.activation_checkpoint = False, None
    config.debug.seed = 0
    config.parallelism.pipeline_parallel_schedule = "1F1B"
    config.parallelism.pipeline_parallel_degree = int(os.environ["WORLD_SIZE"])
    config.checkpoint.enable, config.checkpoint.async_mode = True, "disabled"
    config.dump_folder = "seed"
    if os.environ.get("SEED"):
        config.checkpoint.create_seed_checkpoint = True
    else:
        config.checkpoint.initial_load_path = str(Path("seed/checkpoint/step-0").resolve())
        config.checkpoint.load_only = True
        config.dump_folder = "out"
    return config


def planned() -> Any:
    """Return the config of a plan's options."""
    config = own()
    options = tomllib.loads(Path("plan.toml").read_text())
    for section in ("parallelism", "training"):
        for name, value in options[section].items():
            assert hasattr(getattr(config, section), name), name
            setattr(getattr(config, section), name, value)
    return config


if __name__ == "__main__":
    on_cpu()
    if os.environ.get("SEED"):
        write_data()
    from torchtitan.distributed import utils
    from torchtitan.models.common.attention import FlexAttention
    from torchtitan.train import main

    FlexAttention._compiled_flex_attn = staticmethod(flex.flex_attention)
    utils.set_pg_timeouts = lambda *_, **__: None
    sys.argv[1:] = ["--module", MODULE, "--config", sys.argv[1]]
    main()
