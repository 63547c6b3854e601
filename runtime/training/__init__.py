"""Training under a plan: what `synth run` does, from the data to the report."""
