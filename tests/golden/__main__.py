"""Compare what synth finds and says with what is recorded, or record it anew.

python -m tests.golden             # what differs; exit code 1 if anything does
python -m tests.golden --record    # after a change that is meant to change it
python -m tests.golden plans help  # only these sets
python -m tests.golden plans ring  # only cases whose names contain one of the other words
"""

import json
import os
import sys
from typing import Any

from tests.golden.golden_set import GoldenSet
from tests.golden.sets import SETS


def main(arguments: list[str]) -> int:
    """Run the cases; see the docstring of this module."""
    unknown = [word for word in arguments if word.startswith("-") and word != "--record"]
    if unknown:
        print(f"{', '.join(unknown)}: no such option\n\n{__doc__}", file=sys.stderr)
        return 2
    is_recording = "--record" in arguments
    names = {each.name for each in SETS} & set(arguments)
    words = [word for word in arguments if word not in names and word != "--record"]
    chosen = [each for each in SETS if not names or each.name in names]
    if not any(_is_chosen(case, words) for each in chosen for case in each.cases):
        print(f"no case has a name with {' or '.join(words)}", file=sys.stderr)
        return 2
    differing = sum(_differing(each, words, is_recording) for each in chosen)
    return 1 if differing and not is_recording else 0


def _is_chosen(case: str, words: list[str]) -> bool:
    return not words or any(word in case for word in words)


def _differing(golden: GoldenSet, words: list[str], is_recording: bool) -> int:
    """Compare the cases of a set that the words choose; return how many differ."""
    chosen = [case for case in golden.cases if _is_chosen(case, words)]
    recorded, found, differing = golden.recorded(), {}, 0
    with golden.folder():
        for case in chosen:
            began_s = _processor_s()
            found[case] = golden.found(case)
            same = found[case] == recorded.get(case)
            differing += not same
            taken_s = _processor_s() - began_s
            said = "same" if same else "DIFFERS"
            print(f"{said:8}{taken_s:6.1f} s  {golden.name}: {case}", flush=True)
            if not same:
                _show("recorded", recorded.get(case))
                _show("found", found[case])
    if is_recording and found:
        golden.record(found)
    return differing


def _show(title: str, value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
    print(f"    {title}", *text.splitlines(), sep="\n      ", flush=True)


def _processor_s() -> float:
    """Return the processor time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
