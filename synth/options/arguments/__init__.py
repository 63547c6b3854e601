"""The arguments of `synth solve`, `compare` and `frontier`: one record each, and shared groups.

The commands parse their options into these records, and the functions of the library make them.
"""
