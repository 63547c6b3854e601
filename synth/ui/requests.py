"""What the page sends to the server."""

from typing import TypeVar

from pydantic import ValidationError

from synth.errors import SynthError
from synth.records.record import Record, describe
from synth.records.safe_read import parse_json
from synth.ui.exports import Download
from synth.ui.setting import PipelineSetting, ShownSchedule

Given = TypeVar("Given", bound=Record)


class DrawRequest(Record):
    """A request for schedules, one above the other.

    Attributes:
        points: of a memory curve.
        is_quick: schedules that take as long as a search are left for a later request.
    """

    setting: PipelineSetting
    sources: tuple[ShownSchedule, ...] = ()
    points: int = 6
    is_quick: bool = False


class ScheduleRequest(Record):
    """A request about one schedule."""

    setting: PipelineSetting
    source: ShownSchedule


class SaveRequest(ScheduleRequest):
    """A request for a file of a schedule."""

    kind: Download


class StartRequest(Record):
    """A request for a search."""

    setting: PipelineSetting


class CurveRequest(StartRequest):
    """A request for a memory curve."""

    points: int = 6


class OpenRequest(Record):
    """A file that the page sends."""

    text: str


def read_request(record: type[Given], body: bytes) -> Given:
    """Read the body of a request.

    Raises:
        SynthError: it is no such record.
    """
    try:
        return record.model_validate(parse_json(body))
    except ValidationError as error:
        raise SynthError(f"the request is not understood: {describe(error, 1).strip()}") from None
    except ValueError as error:
        raise SynthError(f"the request is not JSON: {error}") from None
