"""Profiles that are computed and not measured: from a model's config and a device's numbers.

A config becomes the operations of each layer (`layer_ops`), these become times by tables of
measured rates (`op_times`) and bytes by formulas (`memory`), and both an ordinary profile
(`estimated_profile`).
"""
