"""Profiles of times that another program has measured: from Python, and from a CSV file."""

import json

import pytest

from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.interop.times_csv import from_times_csv
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profile.layer_profile import Timing
from synth.profile.layer_times import LayerTimes
from synth.profile.tied_parameters import TiedParameters
from synth.profiles import find

TIMES = """
name,       count, forward_ms, backward_us, backward_weight_s, parameter_MB, saved_MiB, output_kB
embedding,  1,     0.4,        500,         ,                  206,          12,        12

block,      3,     3.1,        6000,        0.002,             50,           180,       12
head,       1,     2.9,        5700,        ,                  206,          410,       0
"""


def medians(profile: Profile, name: str) -> list[float]:
    return [timing.median_us for timing in profile.layer_profiles[name].time_us.values()]


def test_a_backward_is_halved_unless_a_part_of_it_is_given() -> None:
    whole = LayerTimes(name="a", forward_us=10, backward_us=30)
    parts = LayerTimes(name="b", forward_us=10, backward_input_us=5, backward_weight_us=7)
    one = LayerTimes(name="c", forward_us=10, backward_us=30, backward_input_us=20, step_us=3)
    profile = Profile.from_times("mine", [whole, parts, one])
    assert medians(profile, "a") == [10, 15, 15, 30, 0]
    assert medians(profile, "b") == [10, 5, 7, 12, 0]
    assert medians(profile, "c") == [10, 20, 10, 30, 3]
    assert not profile.workload.runnable


def test_a_table_that_two_layers_share_counts_once_on_a_rank_with_both() -> None:
    table = {"parameter_bytes": 100, "gradient_bytes": 100, "optimizer_bytes": 200}
    ends = [LayerTimes(name=name, forward_us=1, backward_us=2, **table) for name in ("in", "out")]
    block = LayerTimes(name="block", forward_us=1, backward_us=2, parameter_bytes=10)
    shared = TiedParameters(layers=("in", "out"), **table)
    layers = [ends[0], block, ends[1]]
    apart, tied = (
        partition_costs(Profile.from_times("mine", layers, tied_parameters=each), [1, 1, 1])
        for each in ([], [shared])
    )
    assert apart.static_bytes([0, 2]) == tied.static_bytes([0, 2]) + 400
    assert apart.static_bytes([0, 1]) == tied.static_bytes([0, 1])
    with pytest.raises(SynthError, match="name layer 'head', which does not exist"):
        wrong = shared.replace(layers=("in", "head"))
        Profile.from_times("mine", layers, tied_parameters=[wrong])
    with pytest.raises(SynthError, match="micro_batch_size: Input should be greater than"):
        Profile.from_times("mine", layers, micro_batch_size=0)


def test_sizes_that_are_not_given_follow_from_those_that_are() -> None:
    first = LayerTimes(name="a", forward_us=1, backward_us=1, output_bytes=8)
    second = LayerTimes(
        name="b", forward_us=1, backward_us=1, parameter_bytes=100, saved_bytes=40, output_bytes=6
    )
    made = Profile.from_times("mine", [first, second]).layer_profiles["b"]
    assert (made.gradient_bytes, made.optimizer_bytes, made.saved_w_bytes) == (100, 200, 40)
    assert made.rise_bytes[OpKind.F] == 40 + 6
    assert made.rise_bytes[OpKind.B] == 8  # the gradient of its input


def test_a_stage_costs_what_its_layers_were_measured_to_cost() -> None:
    block = LayerTimes(name="block", count=4, forward_us=10, backward_us=20, saved_bytes=100)
    profile = Profile.from_times("mine", [block])
    assert [layer.name for layer in profile.layers] == ["block.0", "block.1", "block.2", "block.3"]
    two, _ = partition_costs(profile, [2, 2]).stages
    assert (two.duration_us[OpKind.F], two.duration_us[OpKind.BW], two.saved_bytes) == (20, 40, 200)


def test_a_csv_may_have_the_flops_of_a_forward() -> None:
    text = "name, forward_ms, backward_ms, forward_TFLOP\na, 1, 2, 0.25\nb, 1, 2,\n"
    assert [layer.forward_flops for layer in from_times_csv(text)] == [250_000_000_000, None]
    with pytest.raises(SynthError, match="forward_GFLOP"):
        from_times_csv(text.replace("TFLOP", "FLIP"))


def test_a_csv_is_read_in_the_units_of_its_columns() -> None:
    embedding, block, head = from_times_csv(TIMES)
    assert (embedding.name, block.count, head.forward_us) == ("embedding", 3, 2900)
    assert (block.backward_us, block.backward_weight_us) == (6000, 2000)
    assert block.time_us[OpKind.B] == 4000
    assert (block.parameter_bytes, block.saved_bytes) == (50_000_000, 180 << 20)
    assert embedding.output_bytes == 12_000


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("forward_ms", "fwd", "column 'fwd'; known columns: name; count; forward, "),
        ("forward_ms", "forward", "column 'forward'; known"),
        ("saved_MiB", "saved_ms", "column 'saved_ms'; known"),
        ("forward_ms", "step_ms", "no column forward_us"),
        ("saved_MiB", "parameter_kB", "two columns for parameter_bytes"),
        ("2.9", "fast", "layer 3: forward_us is 'fast'; needed: a number"),
        ("2.9", "inf", "layer 3: forward_us is 'inf'; needed: a number"),
        ("2.9", "-1", "layer 3: forward_us: Input should be greater"),
        ("206", "1e300", "layer 1: parameter_bytes: Input should be less"),
        ("5700", "", "layer 3: layer 'head' lacks the time of its backward"),
        ("0.002", "0.02", "layer 2: layer 'block': backward is 6000 µs, and a part of it 20000"),
        ("3, ", "2.5, ", "layer 2: count: Input should be a valid integer"),
        ("410, ", "", "layer 3 has 7 cells, and there are 8 columns"),
    ],
)
def test_a_wrong_csv_is_refused_with_the_place(old: str, new: str, message: str) -> None:
    assert old in TIMES
    with pytest.raises(SynthError) as raised:
        from_times_csv(TIMES.replace(old, new, 1), "my.csv")
    assert str(raised.value).startswith("my.csv") and message in str(raised.value)


def test_both_at_once_take_no_less_than_one_alone() -> None:
    text = "name,forward_ms,backward_ms,pair_ms\na,1,2,2\nb,1,2,1.9\n"
    with pytest.raises(SynthError, match=r"layer 'b'.* take 1900 µs, and one of them alone 2000"):
        from_times_csv(text, "my.csv")


@pytest.mark.parametrize("text", ["", "\n\n", "name,forward_ms\n"])
def test_a_csv_without_layers_is_refused(text: str) -> None:
    with pytest.raises(SynthError, match="has no layers"):
        from_times_csv(text)


def test_a_csv_may_come_from_excel_and_have_any_line_ends() -> None:
    plain = from_times_csv(TIMES)
    assert from_times_csv("\ufeff" + TIMES.replace("\n", "\r\n")) == plain
    assert from_times_csv(TIMES.replace("\n", "\r")) == plain


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'{TIMES}"{"x" * 200_000}', "is no CSV: .*is a quote left open"),
        (TIMES.replace("410", "-1e-9"), "layer 3: saved_bytes is '-1e-9'; needed: 0 or more"),
    ],
)
def test_a_damaged_csv_is_refused(text: str, message: str) -> None:
    with pytest.raises(SynthError, match=message):
        from_times_csv(text)


def test_times_far_below_a_microsecond_are_kept() -> None:
    layers = from_times_csv("name,forward_s,backward_s\na,1e-12,1e-12\n")
    assert layers[0].forward_us == pytest.approx(1e-6)


def test_a_counted_layer_and_a_layer_of_its_numbered_name_are_refused() -> None:
    twice = LayerTimes(name="a", count=2, forward_us=1, backward_us=1)
    with pytest.raises(SynthError, match=r"two layers are called 'a\.0'"):
        Profile.from_times("mine", [twice, LayerTimes(name="a.0", forward_us=1, backward_us=1)])


def test_names_that_repeat_and_no_layers_are_refused() -> None:
    block = LayerTimes(name="block", forward_us=1, backward_us=1)
    with pytest.raises(SynthError, match="two layers are called 'block'"):
        Profile.from_times("mine", [block, block])
    with pytest.raises(SynthError, match="no layers to make a profile of"):
        Profile.from_times("mine", [])


def test_a_plain_number_is_a_time_without_a_spread() -> None:
    data = json.loads(find("zb-1.5b-p8-m24").read_text())
    data["layer_profiles"]["head"]["time_us"]["W"] = 12.5
    profile = Profile.from_json(json.dumps(data))
    assert profile.layer_profiles["head"].time_us[OpKind.W] == Timing.exactly(12.5)
    for wrong in (True, "12", -3, None):
        data["layer_profiles"]["head"]["time_us"]["W"] = wrong
        with pytest.raises(SynthError, match=r"layer_profiles\.head\.time_us\.W"):
            Profile.from_json(json.dumps(data))


def test_counts_that_add_up_to_more_layers_than_any_model_has_are_refused() -> None:
    rows = "\n".join(f"b{i}, 65536, 1, 2" for i in range(30))
    layers = from_times_csv(f"name, count, forward_ms, backward_ms\n{rows}\n")
    with pytest.raises(SynthError, match="add up to 1,966,080 layers; at most 65,536"):
        Profile.from_times("mine", layers)
