"""Cases of one kind, and what is recorded of each."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("recorded")


@dataclass(frozen=True)
class GoldenSet:
    """Cases of one kind, recorded in `NAME.json`, or each as a text in the folder `NAME`.

    `found` returns what is to be recorded of a case; it works within `folder`.
    """

    name: str
    cases: Sequence[str]
    found: Callable[[str], Any]
    folder: Callable[[], AbstractContextManager[object]] = nullcontext
    as_texts: bool = False

    def recorded(self) -> dict[str, Any]:
        """Return what is recorded of each case; of one that was never recorded, nothing."""
        if self.as_texts:
            return {path.stem: path.read_text() for path in (RECORDED / self.name).glob("*.txt")}
        path = RECORDED / f"{self.name}.json"
        return _loaded(path) if path.exists() else {}

    def record(self, found: dict[str, Any]) -> None:
        """Write what was found, in the order of the cases; what else was recorded is kept."""
        all_of_them = self.recorded() | found
        kept = {case: all_of_them[case] for case in self.cases if case in all_of_them}
        if not self.as_texts:
            text = json.dumps(kept, indent=1, ensure_ascii=False)
            (RECORDED / f"{self.name}.json").write_text(f"{text}\n")
            _loaded.cache_clear()
            return
        folder = RECORDED / self.name
        folder.mkdir(exist_ok=True)
        for path in folder.glob("*.txt"):
            path.unlink()
        for case, text in kept.items():
            (folder / f"{case}.txt").write_text(text)


@cache
def _loaded(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found
