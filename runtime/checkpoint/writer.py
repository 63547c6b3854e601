"""Writing a rank's file, with the disk's own words where it fails."""

from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner


class CheckpointWriter(FileSystemWriter):
    """torch's writer; of a full disk its archive says no more than `unexpected pos`."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        """As the writer above.

        Raises:
            OSError: what the system said, if it did.
        """
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            raise _root(error) from None


def _root(error: BaseException) -> BaseException:
    """The system's error behind another, for it does not travel to other ranks with that."""
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, OSError):
            return behind
        behind = behind.__cause__ or behind.__context__
    return error
