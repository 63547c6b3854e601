"""Everything that uses torch: models, the split backward, channels, executor, trainer, profiler."""

from synth.system.extras import TORCH, require

require("torch", TORCH, "profiling, running and emulating need")
