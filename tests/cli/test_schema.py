"""The published JSON Schemas: those of the code, and files of every kind fit them."""

import json
from pathlib import Path
from typing import Any

import pytest

from synth.cli.schema import FileFormat
from synth.cli.work.schema import _record_of
from synth.families import generate
from synth.plan.memory_curve.curve_file import MemoryCurve
from synth.profile import Profile
from synth.profiles import find
from synth.records.json_schema import schema_name, schema_of
from synth.records.record import FileRecord
from synth.schedule.files.plan_file import Plan
from tests.cli.conftest import Synth
from tests.synth.schema_check import mistakes

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "docs" / "schemas"
DIGEST = "0" * 64


def make_plan(name: str = "zb-h1") -> Plan:
    profile = Profile.load(find("zb-1.5b-p8-m24"))
    return Plan.of(profile, [6] * 4, generate(name, 4, 4), caps_bytes=(10**11,) * 4)


def make_curve() -> dict[str, Any]:
    plan = make_plan()
    curve = MemoryCurve(
        profile_name=plan.profile_name,
        profile_fingerprint=plan.profile_fingerprint,
        partition=plan.partition,
        placement=plan.placement,
        num_micro_batches=4,
        objective="makespan",
        never_below_bytes=1,
        least_cap_bytes=2,
        points=(plan,),
    )
    return curve.to_data()


def make_checkpoint() -> dict[str, Any]:
    stored = {"file": "rank-0.safetensors", "dtype": "float32", "shape": [1], "sha256": DIGEST}
    state = {"step": 1, "sequences": 4, "seed": 0, "model": "gpt", "layers": ["a"], "plan": "b"}
    return {
        "format": "synth-checkpoint",
        "schema_version": 3,
        **state,
        "files": {"rank-0.safetensors": {"bytes": 1, "header_sha256": DIGEST}},
        "tensors": {"a": stored},
        "aliases": {},
        "checksum": DIGEST,
    }


def record_of(file_format: FileFormat) -> type[FileRecord]:
    """The record of a format; without torch, the test of checkpoints is skipped."""
    if file_format is FileFormat.CHECKPOINT:
        pytest.importorskip("torch")
    return _record_of(file_format)


@pytest.mark.parametrize("file_format", FileFormat)
def test_the_published_schema_is_that_of_the_code(file_format: FileFormat) -> None:
    record = record_of(file_format)
    path = PUBLISHED / f"{schema_name(record)}.json"
    message = "run `make schemas`; a changed schema needs a new version of the format"
    assert json.loads(path.read_text()) == schema_of(record), message


@pytest.mark.parametrize("path", sorted((ROOT / "profiles").glob("*.json")), ids=lambda p: p.stem)
def test_shipped_profiles_fit_their_schema(path: Path) -> None:
    assert mistakes(schema_of(Profile), json.loads(path.read_text())) == []


@pytest.mark.parametrize("name", ["zb-h1", "chimera", "bpipe", "weipipe"])
def test_plans_fit_their_schema(name: str) -> None:
    assert mistakes(schema_of(Plan), make_plan(name).to_data()) == []


@pytest.mark.parametrize("path", sorted((ROOT / "tests/synth/solver/cpsat_aborts").glob("*.json")))
def test_old_plans_fit_the_schema_and_load(path: Path) -> None:
    data = json.loads(path.read_text())
    if data["format"] == Plan.FORMAT:
        assert mistakes(schema_of(Plan), data) == []
        Plan.load(path)


def test_traces_curves_and_checkpoints_fit_their_schemas(synth: Synth, tmp_path: Path) -> None:
    make_plan().save(tmp_path / "plan.json")
    assert synth("show", tmp_path / "plan.json", "--trace", tmp_path / "trace.json").code == 0
    trace = json.loads((tmp_path / "trace.json").read_text())
    for file_format, data in (
        (FileFormat.TRACE, trace),
        (FileFormat.CURVE, make_curve()),
        (FileFormat.CHECKPOINT, make_checkpoint()),
    ):
        record = record_of(file_format)
        record.model_validate_file(data, "it")
        assert mistakes(schema_of(record), data) == []


def test_a_plain_number_fits_as_a_time_and_a_text_does_not() -> None:
    data = json.loads(find("zb-1.5b-p8-m24").read_text())
    times = data["layer_profiles"]["block"]["time_us"]
    times["F"] = 12.5
    assert mistakes(schema_of(Profile), data) == []
    times["F"] = "12.5"
    assert mistakes(schema_of(Profile), data) != []


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("workload", "speed"), 1, "$.workload: speed is unknown"),
        (("capacity_bytes",), 0, "$.capacity_bytes: exclusiveMinimum 0"),
        (("layers",), [], "$.layers: minItems 1"),
        (("schema_version",), 99, "$.schema_version: maximum"),
        (("format",), "synth-schedule", "$.format: const"),
        (("name",), None, "$.name: type string"),
    ],
)
def test_a_wrong_profile_does_not_fit(path: tuple[str, ...], value: Any, message: str) -> None:
    data = json.loads(find("zb-1.5b-p8-m24").read_text())
    *outer, last = path
    place = data
    for key in outer:
        place = place[key]
    place[last] = value
    assert any(found.startswith(message) for found in mistakes(schema_of(Profile), data))


def test_the_command_prints_or_writes_schemas(synth: Synth, tmp_path: Path) -> None:
    ended = synth("schema", "plan")
    assert (ended.code, json.loads(ended.stdout)) == (0, schema_of(Plan))
    pytest.importorskip("torch")
    ended = synth("schema", "--folder", tmp_path / "made")
    assert (ended.code, ended.stdout) == (0, "")
    written = {path.name: path.read_text() for path in (tmp_path / "made").iterdir()}
    assert len(written) == len(FileFormat)
    for name, text in written.items():
        assert text == (PUBLISHED / name).read_text()


def test_a_schema_of_nothing_is_refused(synth: Synth, tmp_path: Path) -> None:
    ended = synth("schema")
    assert (ended.code, ended.stdout) == (2, "")
    assert "give a format (profile, plan, " in ended.stderr
    (tmp_path / "file").write_text("")
    assert "is a file; give a folder" in synth("schema", "--folder", tmp_path / "file").stderr
