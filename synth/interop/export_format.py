"""The formats in which a schedule is exported."""

from enum import StrEnum


class ExportFormat(StrEnum):
    """Format of the exported file."""

    TORCH = "torch"
    TORCHTITAN = "torchtitan"
    MEGATRON = "megatron"
    JAXPP = "jaxpp"
