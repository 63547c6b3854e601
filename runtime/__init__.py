"""Everything that uses torch: models, the split backward, channels, executor, trainer, profiler."""

from synth.extras import require

require("torch", ("torch", "safetensors"), "profiling, running and emulating need")
