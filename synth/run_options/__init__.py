"""Options of runs: training, checkpoints, late gradients, emulation. Ranks read them, too."""
