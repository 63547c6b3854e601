"""Time-memory plot for the terminal: cells of text in a frame with ticks."""

from collections.abc import Iterable
from string import ascii_lowercase, ascii_uppercase, digits

from synth.report.picture.scale import Scale
from synth.report.text.tables import size_unit, time_unit

_MARGIN = 10

# Columns for each tick of the memory axis, linear and logarithmic.
_TICK, _LOG_TICK = 12, 8


class Canvas:
    """Cells of text, `x` giving the column of a size in bytes, `y` the row of a time in µs."""

    def __init__(
        self, ends_bytes: tuple[float, float], ends_us: tuple[float, float], width: int, height: int
    ) -> None:
        columns = max(20, width - _MARGIN - 1)
        self.x = Scale.fitting(*ends_bytes, 0, columns - 1)
        self.y = Scale.fitting(*ends_us, height - 1, 0)
        self.cells = [[" "] * columns for _ in range(height)]

    def cell(self, num_bytes: float, time_us: float) -> tuple[int, int]:
        """Return row and column of a schedule."""
        return round(self.y.at(time_us)), round(self.x.at(num_bytes))

    def mark(self, num_bytes: float, time_us: float, sign: str) -> None:
        """Put a sign at the position of a schedule."""
        row, column = self.cell(num_bytes, time_us)
        for place, part in enumerate(sign, min(column, len(self.cells[0]) - len(sign))):
            self.cells[row][place] = part

    def bytes_of(self, column: int) -> float:
        """Return the largest size of a column."""
        return self.x.value(column + 0.5)

    def draw_line(self, times_us: Iterable[float | None]) -> None:
        """Draw a falling line, column by column, with its risers; None: nothing in this column."""
        before: int | None = None
        for column, time_us in enumerate(times_us):
            if time_us is not None:
                row = round(self.y.at(time_us))
                for passed in range(before + 1, row) if before is not None else ():
                    self.cells[passed][column] = "│"
                self.cells[row][column] = "─"
                before = row

    def lines(self, legend: list[str]) -> list[str]:
        """Return the plot in its frame, followed by the legend's lines."""
        unit_us, unit = time_unit(self.y.high)
        ticks = self.y.ticks(len(self.cells) // 3)
        labels = {round(self.y.at(tick)): f"{tick / unit_us:g} {unit}" for tick in ticks}
        rows = []
        for row, cells in enumerate(self.cells):
            edge = "┤" if row in labels else "│"
            rows.append(f"{labels.get(row, ''):>{_MARGIN - 1}} {edge}{''.join(cells)}".rstrip())
        return [*rows, *self._memory_axis(), *(" " * (_MARGIN + 1) + line for line in legend)]

    def _memory_axis(self) -> tuple[str, str]:
        x, columns = self.x, len(self.cells[0])
        factor, unit = size_unit(x.high)
        ruler, labels = ["─"] * columns, [" "] * (columns + _MARGIN)
        free = 0
        for tick in x.ticks(columns // (_LOG_TICK if x.log else _TICK)):
            column = round(x.at(tick))
            text = f"{tick / factor:g} {unit}"
            if column >= free:
                ruler[column] = "┬"
                labels[column : column + len(text)] = text
                free = column + len(text) + 1
        return f"{'':>{_MARGIN}}└{''.join(ruler)}", f"{'':>{_MARGIN + 1}}{''.join(labels).rstrip()}"


# The signs of schedules, in the order of a table: 86 of one column each.
_SIGNS = ascii_lowercase + ascii_uppercase + digits + "αβγδεζηθικλμνξοπρστυφχψω"


def letter(number: int) -> str:
    """Return the sign of a number: a … z, A … Z, 0 … 9, α … ω, then two: aa, ab, …"""
    before, last = divmod(number, len(_SIGNS))
    return (letter(before - 1) if before else "") + _SIGNS[last]
