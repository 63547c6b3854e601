"""Common kinds of module, each replayed with its backward split."""
