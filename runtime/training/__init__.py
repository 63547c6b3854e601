"""Training under a plan, for `synth run`: from the data to the report."""
