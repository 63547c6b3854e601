"""`synth export` and `synth import`: out to PyTorch's format and in again."""

import errno
import json
import os
import tomllib
from pathlib import Path

import pytest

from synth import simulate
from synth.interop.stage_table import beside
from synth.schedule.files.plan_file import Plan
from tests.cli.conftest import Synth


def test_what_is_exported_and_imported_is_the_same_schedule(
    synth: Synth, plan_file: Path, tmp_path: Path
) -> None:
    csv, again = tmp_path / "zb.csv", tmp_path / "again.json"
    assert synth("export", plan_file, "-o", csv).code == 0
    ended = synth("import", csv, "zb-1.5b-p8-m24", "-o", again, "--partition", "6,6,6,6")
    assert ended.code == 0
    before, after = Plan.load(plan_file), Plan.load(again)
    assert (after.programs, after.placement) == (before.programs, before.placement)
    assert after.claim.makespan_us == before.claim.makespan_us
    assert synth("check", again).code == 0


def test_without_a_file_the_schedule_is_on_stdout(synth: Synth, plan_file: Path) -> None:
    rows = synth("export", plan_file).stdout.splitlines()
    assert len(rows) == 4 and rows[0].startswith("0F0,")


def test_a_csv_that_is_no_schedule_is_a_message(synth: Synth, tmp_path: Path) -> None:
    csv = tmp_path / "bad.csv"
    csv.write_text("0F0,hello\n")
    ended = synth("import", csv, "zb-1.5b-p8-m24", "-o", tmp_path / "plan.json")
    assert ended.code != 0 and "'hello' is not understood" in ended.stderr


def test_a_schedule_that_cannot_run_is_refused(synth: Synth, tmp_path: Path) -> None:
    csv = tmp_path / "late.csv"
    csv.write_text("0B0,0F0\n")
    ended = synth("import", csv, "zb-1.5b-p8-m24", "-o", tmp_path / "plan.json")
    assert ended.code == 5 and not (tmp_path / "plan.json").exists()


def test_beside_the_csv_are_the_layers_and_the_rank_of_each_stage(
    synth: Synth, plan_file: Path, tmp_path: Path
) -> None:
    assert synth("export", plan_file, "-o", tmp_path / "zb.csv").code == 0
    table = json.loads((tmp_path / "zb.stages.json").read_text())
    plan = Plan.load(plan_file)
    assert [stage["rank"] for stage in table["stages"]] == list(plan.placement[0])
    assert [name for stage in table["stages"] for name in stage["layers"]] == list(plan.layers)


def test_torchtitans_options_name_the_csv_beside_them(
    synth: Synth, plan_file: Path, tmp_path: Path
) -> None:
    toml = tmp_path / "plan.toml"
    for _ in range(2):  # its own files may be replaced
        assert synth("export", plan_file, "--to", "torchtitan", "-o", toml).code == 0
    options = tomllib.loads(toml.read_text())["parallelism"]
    assert options["pipeline_parallel_schedule_csv"] == str(tmp_path / "plan.csv")
    assert (tmp_path / "plan.csv").read_text().startswith("0F0,")
    ended = synth("export", plan_file, "--to", "torchtitan")
    assert (ended.code, ended.stdout) == (2, "") and "give -o plan.toml" in ended.stderr
    toml.write_text("# of a user\n[parallelism]\ntensor_parallel_degree = 2\n")
    ended = synth("export", plan_file, "--to", "torchtitan", "-o", toml)
    assert ended.code == 2 and "would replace a file that is not torchtitan's" in ended.stderr


def test_megatron_and_jaxpp_are_written_to_stdout(synth: Synth, plan_file: Path) -> None:
    ended = synth("export", plan_file, "--to", "megatron")
    assert ended.stdout.startswith("E") and ended.stdout.endswith("L\n")
    assert "its own order" in ended.stderr
    assert "class SynthSchedule(BaseSchedule)" in synth("export", plan_file, "--to", "jaxpp").stdout


def test_torchtitans_options_need_another_name_than_the_csv(
    synth: Synth, plan_file: Path, tmp_path: Path
) -> None:
    ended = synth("export", plan_file, "--to", "torchtitan", "-o", tmp_path / "a.csv")
    assert ended.code == 2 and not any(tmp_path.glob("a.*"))
    assert f"need two names; give -o {tmp_path / 'a.toml'}" in ended.stderr


def test_megatron_is_told_of_stages_that_recompute(synth: Synth, tmp_path: Path) -> None:
    path = tmp_path / "recomputing.json"
    simulate("1f1b:recompute", "zb-1.5b-p8-m24", ranks=2, micro_batches=2).save(path)
    ended = synth("export", path, "--to", "megatron")
    assert ended.code == 0 and "recomputes whole stages (R)" in ended.stderr


@pytest.mark.parametrize(
    ("name", "table"),
    [("a.csv", "a.stages.json"), ("a.v1", "a.v1.stages.json"), ("a", "a.stages.json")],
)
def test_each_schedule_has_a_table_of_its_own(name: str, table: str) -> None:
    assert beside(Path("out", name)) == Path("out", table)


def test_a_dash_is_stdout(
    synth: Synth, plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert synth("export", plan_file, "-o", "-").stdout == synth("export", plan_file).stdout
    ended = synth("import", plan_file, "zb-1.5b-p8-m24", "-o", "-")
    assert ended.code == 2 and "cannot write -: - as a name would mean stdout" in ended.stderr
    assert not Path("-").exists()


def test_a_table_of_times_beside_torchtitans_options_is_left_alone(
    synth: Synth, plan_file: Path, tmp_path: Path
) -> None:
    times = tmp_path / "x.csv"
    times.write_text("name,count,forward_ms\n")
    ended = synth("export", plan_file, "--to", "torchtitan", "-o", tmp_path / "x.toml")
    assert ended.code == 0 and times.read_text().startswith("name,count")
    options = tomllib.loads((tmp_path / "x.toml").read_text())["parallelism"]
    schedule = tmp_path / "x.schedule.csv"
    assert options["pipeline_parallel_schedule_csv"] == str(schedule)
    assert schedule.read_text().startswith("0F0,")


def test_on_a_full_disk_no_file_is_written(
    synth: Synth, plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def fsync(handle: int) -> None:
        written.append(handle)
        if len(written) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")

    folder = tmp_path / "full"
    folder.mkdir()
    monkeypatch.setattr(os, "fsync", fsync)
    ended = synth("export", plan_file, "-o", folder / "p.csv")
    assert ended.code == 2 and "p.stages.json: No space left on device" in ended.stderr
    assert len(written) == 2 and not any(folder.iterdir())


def test_losses_out_of_order_are_told(synth: Synth, tmp_path: Path) -> None:
    csv, plan = tmp_path / "order.csv", tmp_path / "order.json"
    csv.write_text("0F1,0F0,0F2,0B1,0B0,0B2\n1F1,1B1,1F0,1B0,1F2,1B2\n")
    assert synth("import", csv, "zb-1.5b-p8-m24", "-o", plan).code == 0
    for to in ("torch", "torchtitan"):
        ended = synth("export", plan, "--to", to, "-o", tmp_path / f"{to}.x")
        assert ended.code == 0 and "micro-batches are numbered otherwise than in" in ended.stderr
    assert "numbered" not in synth("export", plan, "--to", "jaxpp").stderr


def test_layers_are_named_by_an_option(synth: Synth, plan_file: Path) -> None:
    ended = synth("export", plan_file, "--to", "megatron", "--layer", "block=m")
    assert ended.code == 2 and "multi-token prediction are on stages 0, 1, 2, 3" in ended.stderr
    for text in ("block", "=t"):
        ended = synth("export", plan_file, "--to", "megatron", "--layer", text)
        assert ended.code == 2 and "write NAME=TARGET, such as mtp=m" in ended.stderr
    ended = synth("export", plan_file, "--layer", "block=t")
    assert ended.code == 2 and "--layer is for --to torchtitan and --to megatron" in ended.stderr


def test_what_an_import_reads_between_the_lines_is_told(synth: Synth, tmp_path: Path) -> None:
    csv = tmp_path / "old.csv"
    csv.write_text("0F0,0BW0\n1F0,1B0,1W0\n")
    ended = synth("import", csv, "zb-1.5b-p8-m24", "-o", tmp_path / "plan.json")
    assert ended.code == 0 and "the letters from before PyTorch 2.6" in ended.stderr
