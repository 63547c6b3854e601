"""The processes of PyTorch's runtime."""

from tests.runtime.conftest import pool

__all__ = ["pool"]
