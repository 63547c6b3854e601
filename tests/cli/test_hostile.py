"""Malicious files, names and numbers: one clear error each, and nothing is written."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import NAME, Ended, Synth

COMMAND = [sys.executable, "-m", "synth"]
SOLVE = ("solve", NAME, "--ranks", "4", "--micro-batches", "4", "--time-limit", "1s")


def refused(ended: Ended, part: str, code: int = 2) -> None:
    """The command ended in one line that can be shown, and said so."""
    assert (ended.code, ended.stdout) == (code, ""), ended
    assert part in ended.stderr
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.removesuffix("\n").isprintable(), ended.stderr
    assert len(ended.stderr) < 5000


def damaged(plan_file: Path, folder: Path, damage: Callable[[dict[str, Any]], object]) -> Path:
    """A plan file with something else in it."""
    data = json.loads(plan_file.read_text())
    damage(data)
    path = folder / "damaged.json"
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize("command", ["check", "show", "export", "emulate"])
def test_control_characters_of_a_key_do_not_reach_the_terminal(
    synth: Synth, plan_file: Path, tmp_path: Path, command: str
) -> None:
    if command == "emulate":
        pytest.importorskip("torch")
    path = damaged(plan_file, tmp_path, lambda data: data.update({"\x1b]0;owned\x07\r\u202e": 1}))
    ended = synth(command, path)
    assert ended.code == 2
    assert "\\x1b]0;owned\\x07\\r\\u202e" in ended.stderr
    assert ended.stderr.replace("\n", "").isprintable()


def test_control_characters_of_a_text_do_not_reach_the_terminal(
    synth: Synth, plan_file: Path, tmp_path: Path
) -> None:
    path = damaged(plan_file, tmp_path, lambda data: data["claim"].update(objective="\x1b[31m"))
    refused(synth("check", path), "is not an objective", code=5)


def test_a_file_name_is_shown_without_its_control_characters(synth: Synth, tmp_path: Path) -> None:
    refused(synth("check", tmp_path / "\x1b[31mred.json"), "\\x1b[31mred.json: No such file")


@pytest.mark.parametrize("name", ["two\nlines.json", "\n  indented\r.json", "\u2028.json"])
def test_a_file_name_of_several_lines_is_shown_in_one(
    synth: Synth, tmp_path: Path, name: str
) -> None:
    ended = synth("check", tmp_path / name)
    assert ended.code == 2
    said = ended.stderr.removesuffix("\n")
    assert said.isprintable() or name.startswith("\n  ")
    assert "No such file" in said


def test_a_long_key_and_a_long_text_are_cut(synth: Synth, plan_file: Path, tmp_path: Path) -> None:
    path = damaged(plan_file, tmp_path, lambda data: data.update({"k" * 100_000: "v" * 100_000}))
    ended = synth("check", path)
    assert ended.code == 2
    assert len(ended.stderr) < 1000


def test_a_long_message_keeps_its_beginning_and_its_way_out(
    synth: Synth, plan_file: Path, tmp_path: Path
) -> None:
    def many_ranks(data: dict[str, Any]) -> None:
        data["placement"] = [list(range(100_000, 200_000))]
        data["partition"] = [1] * 100_000

    ended = synth("check", damaged(plan_file, tmp_path, many_ranks))
    assert ended.code == 2
    assert len(ended.stderr) < 5000


@pytest.mark.parametrize("command", ["check", "show"])
def test_reading_a_device_that_never_ends_is_given_up(synth: Synth, command: str) -> None:
    refused(synth(command, "/dev/zero"), "/dev/zero is larger than 256 MiB, the most that is read")


@pytest.mark.parametrize(
    ("option", "limit"), [(("check",), "256 MiB"), (("show", "PLAN", "--measured"), "2048 MiB")]
)
def test_a_file_larger_than_any_of_ours_is_not_read(
    synth: Synth, plan_file: Path, tmp_path: Path, option: tuple[str, ...], limit: str
) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    words = (str(plan_file) if word == "PLAN" else word for word in option)
    refused(synth(*words, path), f"is larger than {limit}, the most that is read")


def test_data_that_never_ends_is_refused(synth: Synth, run_plan: Path) -> None:
    ended = synth("run", run_plan, "--data", "/dev/zero", "--device", "cpu")
    refused(ended, "data /dev/zero is a pipe or a device")


def test_a_profile_is_read_with_the_same_limits(synth: Synth, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    for content in ("[" * 100_000, "9" * 100_000, '{"format": "synth-profile", "\x1b": 1}'):
        profile.write_text(content)
        ended = synth("solve", profile, *SOLVE[2:])
        assert (ended.code, ended.stdout) == (2, "")
        assert ended.stderr.replace("\n", "").isprintable()
        assert len(ended.stderr) < 1000


def test_a_command_does_not_read_what_it_writes_itself(plan_file: Path) -> None:
    command = f"{sys.executable} -m synth check /dev/stdout | cat"
    run = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert "cannot read /dev/stdout: this command's own output goes there" in run.stderr


def test_a_plan_is_read_from_a_pipe(plan_file: Path) -> None:
    command = f"cat {plan_file} | {sys.executable} -m synth check /dev/stdin | cat"
    run = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert "is valid" in run.stdout, run.stderr


def test_a_plan_is_read_from_a_process_substitution(plan_file: Path) -> None:
    command = f"{sys.executable} -m synth check <(cat {plan_file})"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert "is valid" in run.stdout, run.stderr


@pytest.mark.parametrize("words", [("check",), ("show",), ("solve", NAME, *SOLVE[2:], "--hint")])
def test_a_named_pipe_is_not_waited_for(
    synth: Synth, tmp_path: Path, words: tuple[str, ...]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ended = synth(*words, pipe)
    assert ended.code == 2
    assert f"error: cannot read {pipe}: it is a named pipe" in ended.stderr


@pytest.mark.parametrize("name", ["ids.npy", "text.txt"])
def test_a_named_pipe_as_data_is_not_waited_for(
    synth: Synth, run_plan: Path, tmp_path: Path, name: str
) -> None:
    pipe = tmp_path / name
    os.mkfifo(pipe)
    ended = synth("run", run_plan, "--data", pipe, "--device", "cpu")
    assert ended.code == 2
    assert f"data {pipe} is a pipe or a device" in ended.stderr


@pytest.mark.parametrize("digits", [50, 3000, 100_000])
@pytest.mark.parametrize(
    "place",
    [
        ("num_micro_batches",),
        ("claim", "makespan_us"),
        ("claim", "lower_bound_us"),
        ("claim", "seed"),
        ("workload", "micro_batch_size"),
        ("workload", "threads"),
        ("costs", "stages", 0, "duration_us", "F"),
    ],
    ids=lambda place: str(place[-1]),
)
def test_a_number_of_many_digits_is_one_line(
    synth: Synth, plan_file: Path, tmp_path: Path, place: tuple[Any, ...], digits: int
) -> None:
    def grow(data: dict[str, Any]) -> None:
        *way, last = place
        for key in way:
            data = data[key]
        data[last] = "HERE"

    path = damaged(plan_file, tmp_path, grow)
    path.write_text(path.read_text().replace('"HERE"', "9" * digits))
    ended = synth("check", path)
    assert ended.code in (0, 2, 5) if (place[-1], digits) == ("seed", 50) else ended.code in (2, 5)
    assert len(ended.stderr) < 1000


@pytest.mark.parametrize("depth", [500, 900, 100_000])
@pytest.mark.parametrize("key", ["name", "claim", "arguments", "unknown"])
def test_deeply_nested_text_is_refused(
    synth: Synth, plan_file: Path, tmp_path: Path, depth: int, key: str
) -> None:
    path = damaged(plan_file, tmp_path, lambda data: data.update({key: "HERE"}))
    path.write_text(path.read_text().replace('"HERE"', "[" * depth + "]" * depth))
    ended = synth("check", path)
    assert ended.code == 2
    assert len(ended.stderr) < 1000


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"0F0,0I0,0W0\n\n1F0,1I0,1W0\n", "row 1 has no actions"),
        (b"0F0,0I0,0W0\n\n", "row 1 has no actions"),
        (b"0F0,0I0,0W0\r\r1F0,1I0,1W0", "row 1 has no actions"),
        (b"\n\n\n", "the file holds no actions"),
        (b"", "the file holds no actions"),
        (b"0F0," + b"x" * 200_000, "the file is not a CSV of actions"),
        (b"0F0," + b"x" * 100_000, "is not understood"),
        (b"0F0,\x1b[31m", "is not understood"),
        (b'0F0,"0I0', "is missing"),
        (b"0F0,\0", "is not understood"),
        (b"0F999999999,0I0,0W0", "is missing"),
        (b"999999F0", "has no actions of stage 0"),
    ],
    ids=range(12),
)
def test_an_odd_csv_is_refused_with_one_line(
    synth: Synth, tmp_path: Path, content: bytes, part: str
) -> None:
    (tmp_path / "odd.csv").write_bytes(content)
    output = tmp_path / "plan.json"
    ended = synth("import", tmp_path / "odd.csv", NAME, "--link", "1us,25GB/s", "-o", output)
    assert ended.code in (2, 5), ended.stderr
    refused(ended, part, ended.code)
    assert not output.exists()


def test_lines_of_a_csv_may_end_in_a_lone_carriage_return(synth: Synth, tmp_path: Path) -> None:
    (tmp_path / "old.csv").write_bytes(b"0F0,0I0,0W0\r1F0,1I0,1W0\r")
    ended = synth("import", tmp_path / "old.csv", NAME, "-o", tmp_path / "plan.json")
    assert ended.code == 0, ended.stderr


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (lambda step: step["ops"].pop(), "has the ops of 3 ranks, the plan has 4 ranks"),
        (lambda step: step["ops"].append([]), "has the ops of 5 ranks, the plan has 4 ranks"),
        (lambda step: step["transfers"][0].update(target=77), "has a transfer of rank 77"),
    ],
    ids=["missing", "extra", "transfer"],
)
def test_a_trace_of_other_ranks_than_the_plans_is_not_drawn(
    synth: Synth,
    plan_file: Path,
    tmp_path: Path,
    damage: Callable[[dict[str, Any]], object],
    part: str,
) -> None:
    trace = tmp_path / "trace.json"
    assert synth("show", plan_file, "--trace", trace).code == 0
    data = json.loads(trace.read_text())
    if not data["steps"][0]["transfers"]:
        op = {"value": "act(0,0)", "source": 0, "target": 1, "num_bytes": 1, "planned_us": 1}
        data["steps"][0]["transfers"] = [{**op, "start_us": 0, "end_us": 1}]
    damage(data["steps"][0])
    trace.write_text(json.dumps(data))
    refused(synth("show", plan_file, "--measured", trace), part, code=5)


def test_a_name_that_is_too_long_is_refused_before_the_search(synth: Synth, tmp_path: Path) -> None:
    refused(synth(*SOLVE, "-o", tmp_path / ("x" * 300)), "File name too long")
    refused(synth("check", tmp_path / ("x" * 5000)), "File name too long")


@pytest.mark.parametrize("path", ["/y" * 2500, "x y" * 1700, "z" * 5000])
@pytest.mark.parametrize("words", [("check",), (*SOLVE, "-o"), ("schema", "--folder")])
def test_a_long_path_is_shortened(synth: Synth, words: tuple[str, ...], path: str) -> None:
    ended = synth(*words, path)
    assert ended.code == 2 and len(ended.stderr) < 1600 and "characters left out" in ended.stderr


def test_the_longest_name_that_there_can_be_is_written(
    synth: Synth, plan_file: Path, tmp_path: Path
) -> None:
    longest = 255 - len(".stages.json")  # of the file beside it
    output = tmp_path / ("x" * longest)
    assert synth("export", plan_file, "-o", output).code == 0
    written = {output, output.with_name(f"{output.name}.stages.json")}
    assert set(tmp_path.iterdir()) == written  # no temporary file is left


def test_a_loop_of_links_is_refused_as_input_and_output(synth: Synth, tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    refused(synth("check", loop), "Too many levels of symbolic links")
    refused(synth(*SOLVE, "-o", loop), "Too many levels of symbolic links")
    refused(synth("solve", loop, *SOLVE[2:]), "neither a file nor shipped")
    assert os.readlink(loop) == str(loop)


def test_more_steps_than_can_be_counted_are_refused(
    synth: Synth, run_plan: Path, text: Path
) -> None:
    steps = "1" + "0" * 25
    ended = synth("run", run_plan, "--data", text, "--steps", steps)
    refused(ended, f"--steps {steps} is too large")
    ended = synth("run", run_plan, "--data", text, "--steps", "1" + "0" * 4000)
    assert ended.code == 2
    assert len(ended.stderr) < 10_000


@pytest.mark.parametrize(
    "arguments",
    [
        (*SOLVE, "--ranks", "1" + "0" * 25),
        (*SOLVE, "--micro-batches", "1" + "0" * 25),
        (*SOLVE, "--seed", "1" + "0" * 25),
        ("show", "PLAN", "--width", "1" + "0" * 25),
        ("emulate", "PLAN", "--times", "nan"),
        ("emulate", "PLAN", "--times", "inf"),
        ("emulate", "PLAN", "--steps", "1" + "0" * 25),
    ],
    ids=lambda arguments: arguments[-2],
)
def test_numbers_beyond_all_use_are_refused(
    synth: Synth, plan_file: Path, arguments: tuple[str, ...]
) -> None:
    ended = synth(*(str(plan_file) if word == "PLAN" else word for word in arguments))
    assert (ended.code, ended.stdout) == (2, "")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (("run", "PLAN", "--data", ""), "the value of --data"),
        (("run", "PLAN", "--data=", "--steps", "3"), "the value of --data"),
        (("run", "PLAN", "--data", "x", "--checkpoint", ""), "the value of --checkpoint"),
        (("show", "PLAN", "--trace", ""), "the value of --trace"),
        ((*SOLVE, "-o", ""), "the value of -o"),
        (("check", ""), "the word after check"),
    ],
    ids=range(6),
)
def test_an_empty_value_is_refused_and_does_not_mean_the_current_folder(
    synth: Synth,
    plan_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    place: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = synth(*(str(plan_file) if word == "PLAN" else word for word in arguments))
    refused(ended, f"{place} is empty; give one, or leave it out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("run", "PLAN", "--data", "DATA", "-o", "FILE"), "-o"),
        (("run", "PLAN", "--data", "DATA", "--trace", "FILE"), "--trace"),
        (("compare", NAME, "-r", "2", "-m", "2", "--no-solve", "--svg", "FILE"), "--picture"),
        (("show", "PLAN", "--trace", "FILE"), "--trace"),
        (("show", "PLAN", "--perfetto", "FILE"), "--perfetto"),
        (("export", "PLAN", "-o", "FILE"), "-o"),
        (("profile", "gpt-bytes", "-o", "FILE"), "-o"),
    ],
    ids=range(7),
)
@pytest.mark.parametrize("content", ["dear diary", '{"format": "mine"}', "<svg>mine</svg>"])
def test_a_file_that_is_not_ours_is_not_replaced(
    synth: Synth,
    plan_file: Path,
    text: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    option: str,
    content: str,
) -> None:
    path = tmp_path / "mine"
    path.write_text(content)
    names = {"PLAN": str(plan_file), "DATA": str(text), "FILE": str(path)}
    ended = synth(*(names.get(word, word) for word in arguments))
    refused(ended, f"{option} {path} would replace a file that is not ")
    assert "--force" in ended.stderr
    assert path.read_text() == content


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", NAME, "-r", "2", "-m", "2", "--only", "gpipe", "--no-solve", "--svg", "FILE"),
        ("show", "PLAN", "--trace", "FILE"),
        ("show", "PLAN", "--perfetto", "FILE"),
        ("export", "PLAN", "-o", "FILE"),
    ],
    ids=lambda arguments: " ".join((arguments[0], arguments[-2])),
)
def test_what_synth_made_is_replaced_and_with_force_everything(
    synth: Synth, plan_file: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    path = tmp_path / "file"
    names = {"PLAN": str(plan_file), "FILE": str(path)}
    words = [names.get(word, word) for word in arguments]
    assert synth(*words).code == 0
    first = path.read_text()
    assert synth(*words).code == 0
    assert path.read_text() == first
    path.write_text("dear diary")
    assert synth(*words, "--force").code == 0
    assert path.read_text() == first
