"""The work of each command. `synth X --help` needs its options only, and does not import this."""
