"""The profile file: what is refused names the field and the way out."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from synth.errors import SynthError
from synth.profile import Profile
from synth.profile.links import Link, Links, NodeLink, PairLink
from synth.profile.workload import Workload, dtype_name
from synth.profiles import find

NAME = "zb-1.5b-p8-m24"


@pytest.fixture
def data() -> dict[str, Any]:
    return json.loads(find(NAME).read_text())


def refusal(data: Any) -> str:
    with pytest.raises(SynthError) as raised:
        Profile.from_json(json.dumps(data), "my.json")
    return str(raised.value)


def test_a_file_survives_a_round_trip(tmp_path: Path) -> None:
    profile = Profile.load(find(NAME))
    profile.save(tmp_path / "again.json")
    assert Profile.load(tmp_path / "again.json") == profile
    assert (tmp_path / "again.json").read_text() == find(NAME).read_text()


def test_an_unknown_key_is_named(data: dict[str, Any]) -> None:
    data["layer_profiles"]["block"]["speed"] = 3
    assert "layer_profiles.block.speed: Extra inputs are not permitted" in refusal(data)


@pytest.mark.parametrize("field", ["name", "provenance", "workload", "layer_profiles", "layers"])
def test_a_missing_field_is_named(data: dict[str, Any], field: str) -> None:
    del data[field]
    assert f"{field}: Field required" in refusal(data)


def test_a_missing_op_s_time_is_named(data: dict[str, Any]) -> None:
    del data["layer_profiles"]["block"]["time_us"]["W"]
    message = refusal(data)
    assert "layer_profiles.block: time_us lacks W; needed: F, B, W, BW, STEP" in message


@pytest.mark.parametrize("value", [-1, 1.5, "many", None, True, "5", 1e20, 2**50 + 1])
def test_bytes_that_are_no_count_are_named(data: dict[str, Any], value: Any) -> None:
    data["layer_profiles"]["head"]["saved_bytes"] = value
    assert "layer_profiles.head.saved_bytes" in refusal(data)


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ({"default": {"bandwidth_bytes_per_s": 1e-300}}, "default.bandwidth_bytes_per_s: Input"),
        ({"pairs": [{"source": 2, "target": 2}]}, "source and target are both rank 2"),
        ({"pairs": [{"source": 0, "target": 1}] * 2}, "two links from rank 0 to rank 1"),
        ({"pairs": [{"source": 0, "target": 10**9}]}, "pairs.0.target: Input should be less"),
        ({"pairs": [{"source": True, "target": 0}]}, "pairs.0.source: Input should be a valid int"),
    ],
)
def test_links_that_cannot_be_are_named(
    data: dict[str, Any], links: dict[str, Any], words: str
) -> None:
    data["links"] = links
    assert words in refusal(data)


def test_bytes_may_be_written_with_an_exponent(data: dict[str, Any]) -> None:
    data["capacity_bytes"] = 80e9
    assert Profile.from_json(json.dumps(data), "my.json").capacity_bytes == 80_000_000_000


@pytest.mark.parametrize("value", [-5, 0, 1e300, 80.5, True, "5"])
def test_a_capacity_that_none_has_is_named(data: dict[str, Any], value: Any) -> None:
    data["capacity_bytes"] = value
    assert "capacity_bytes: Input should be" in refusal(data)


@pytest.mark.parametrize(("p10", "p90"), [(9, 8), (6, 7), (3, 4)])
def test_percentiles_out_of_order_are_refused(data: dict[str, Any], p10: int, p90: int) -> None:
    times = data["layer_profiles"]["block"]["time_us"]
    times["F"] = {"median_us": 5, "p10_us": p10, "p90_us": p90, "n": 3}
    assert f"p10_us is {p10}, median_us 5, p90_us {p90}; each must be" in refusal(data)


@pytest.mark.parametrize(("text", "code"), [("a\ud800b", "D800"), ("\x1b[31mred", "001B")])
def test_text_that_cannot_be_shown_is_refused(data: dict[str, Any], text: str, code: str) -> None:
    for at, key in ((data, "name"), (data["layers"][0], "name"), (data["provenance"], "device")):
        kept, at[key] = at[key], text
        message = refusal(data)
        assert f"{key}: {text!r} has U+{code} in it, which cannot be shown" in message
        assert message.encode() and "\x1b" not in message
        at[key] = kept


def test_a_newer_version_says_upgrade(data: dict[str, Any]) -> None:
    data["schema_version"] = 13
    assert "schema_version is 13, this synth reads 1 to 12; upgrade synth" in refusal(data)


@pytest.mark.parametrize("version", [0, None, "1"])
def test_any_other_version_says_how_to_make_the_file_anew(
    data: dict[str, Any], version: Any
) -> None:
    data["schema_version"] = version
    assert "make the file again with `synth profile`" in refusal(data)


def test_a_file_of_another_format_is_refused_with_what_makes_the_right_one(
    data: dict[str, Any],
) -> None:
    data["format"] = "synth-schedule"
    message = refusal(data)
    assert "\"format\" is 'synth-schedule', needed 'synth-profile'" in message
    assert "`synth profile`" in message


@pytest.mark.parametrize(
    ("body", "shown"), [([], "[]"), (3, "3"), (None, "null"), ("text", "'text'")]
)
def test_json_that_is_no_object_is_refused(body: Any, shown: str) -> None:
    assert f"holds {shown}, needed an object of the format 'synth-profile'" in refusal(body)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("layers", [], "layers: Input should have 1 or more items"),
        ("layers", {}, "layers: Input should be a list"),
        ("workload", 3, "workload: Input should be an object"),
    ],
)
def test_no_type_of_python_is_named(
    data: dict[str, Any], field: str, value: Any, words: str
) -> None:
    message = refusal({**data, field: value})
    assert words in message
    assert not any(word in message for word in ("Tuple", "tuple", "dictionary", "instance"))


def test_a_profile_without_times_is_refused(data: dict[str, Any]) -> None:
    for layer in data["layer_profiles"].values():
        layer["time_us"] = dict.fromkeys(layer["time_us"], 0)
    assert "all passes of all layers of my.json take 0 µs" in refusal(data)


def test_what_is_no_json_is_refused_with_its_name() -> None:
    with pytest.raises(SynthError, match=r"my\.json is not JSON: .*line 1 column 2"):
        Profile.from_json("{", "my.json")


def test_a_missing_file_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(SynthError, match=r"cannot read .*gone\.json: No such file"):
        Profile.load(tmp_path / "gone.json")


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SynthError, match="is not a text file"):
        Profile.load(tmp_path / "x.json")


def test_two_layers_of_one_name_are_refused(data: dict[str, Any]) -> None:
    data["layers"][2]["name"] = "block.0"
    assert "two layers are called 'block.0'; layer names must differ" in refusal(data)


def test_a_layer_without_its_profile_is_refused_with_the_known_ones(data: dict[str, Any]) -> None:
    data["layers"][2]["profile"] = "attention"
    message = refusal(data)
    assert "has profile 'attention'; known: embedding, block, head" in message


def test_many_mistakes_are_counted(data: dict[str, Any]) -> None:
    for index in range(9):
        data[f"extra{index}"] = 1
    assert "… and 4 more" in refusal(data)


def test_the_fingerprint_changes_with_what_a_schedule_depends_on_only() -> None:
    profile = Profile.load(find(NAME))
    faster = profile.replace(links=Links())
    renamed = profile.replace(name="renamed")
    assert faster.fingerprint() != profile.fingerprint()
    assert renamed.fingerprint() == profile.fingerprint()


def test_a_pair_s_own_link_wins_over_the_default() -> None:
    links = Links(default=Link(latency_us=9), pairs=(PairLink(source=0, target=1, latency_us=2),))
    assert links.between(0, 1).transfer_us(1) == 2
    assert links.between(1, 0).transfer_us(1) == 9


def test_between_nodes_the_largest_that_two_are_not_in_together_counts() -> None:
    links = Links(
        default=Link(latency_us=1),
        nodes=(NodeLink(ranks_per_node=2, latency_us=3), NodeLink(ranks_per_node=4, latency_us=7)),
        pairs=(PairLink(source=3, target=4, latency_us=5),),
    )
    ends = [(0, 1), (1, 2), (2, 3), (5, 4), (3, 4), (4, 3), (0, 7)]
    assert [links.between(*pair).latency_us for pair in ends] == [1, 3, 1, 1, 5, 7, 7]
    assert not links.are_free
    assert Links(nodes=(NodeLink(ranks_per_node=8),), host=Link(latency_us=1)).are_free


def test_two_links_between_nodes_of_one_size_are_refused() -> None:
    with pytest.raises(ValidationError, match="two links between nodes of 8 ranks; give one"):
        Links(nodes=(NodeLink(ranks_per_node=8), NodeLink(ranks_per_node=8, latency_us=1)))


def test_links_without_nodes_are_written_as_before_there_were_any() -> None:
    assert set(Links().model_dump()) == {"default", "pairs"}
    nodes = (NodeLink(ranks_per_node=8, latency_us=2, bandwidth_bytes_per_s=1e9),)
    written = Links(nodes=nodes).model_dump_json()
    assert Links.model_validate_json(written).nodes == nodes


@pytest.mark.parametrize("given", ["bf16", "BF16", "bfloat16", "torch.bfloat16"])
def test_common_names_of_a_dtype_are_read_as_pytorch_s_own(given: str) -> None:
    workload = Workload(
        model="gpt", micro_batch_size=1, sequence_length=1, dtype=given, autocast=given
    )
    assert (workload.dtype, workload.autocast) == ("bfloat16", "bfloat16")
    assert dtype_name("fp32") == dtype_name("torch.float32") == dtype_name("float") == "float32"
