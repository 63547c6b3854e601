"""Published training runs as steps to estimate: a row of `data/published.csv`, or one of a user.

Columns are those of the file. A row says the model, the layout, and `tokens_per_s_gpu`. Rows of the
file have the sizes of their models, too, and notes on what their sources say besides.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic import ValidationError

from synth.errors import SynthError
from synth.estimates.device import device_of
from synth.estimates.estimated_layer import DEFAULT_OPTIMIZER
from synth.estimates.estimated_profile import Estimator
from synth.estimates.factors import Factors, software_of
from synth.estimates.layout import Layout, Precision, Recompute, Sharding, Software
from synth.estimates.model_config import model_names, model_of
from synth.estimates.model_shape import Experts, LatentAttention, ModelShape
from synth.estimates.pairs import EXCHANGE_HIDDEN
from synth.estimates.rates import read_table
from synth.estimates.training_step import TrainingStep, micro_batches_of
from synth.profile.model_flops import format_flops
from synth.profile.optimizer import OptimizerSpec
from synth.records.record import describe

# The training program of the runs of a source.
PROGRAM = {
    "automodel": "torchtitan",
    "megatron-deepspeed": "megatron-2021",
    "llm-foundry": "llm-foundry",
    "megatron-2021": "megatron-2021",
    "megatron-ci": "megatron-plain",
    "simumax": "megatron-plain",
    "torchtitan": "torchtitan",
    "zero-bubble": "megatron-2021",
}

# Sources whose recipes keep and reduce gradients in bfloat16 (`grad_reduce_in_fp32 = False` of
# NVIDIA's performance recipes); others have the default of their programs, float32.
_NARROW_GRADIENTS = frozenset(("nemo", "nemo-2025", "mlperf"))

_NARROW = OptimizerSpec.parse("adamw+master")

# Share of the exchanges of tensor parallelism that asynchronous tensor parallelism hides: the three
# pairs of published runs of torchtitan that differ in it alone show 0.30 to 0.40 (rows 173 and 174
# of `published.csv`, 175 and 176, 159 and 160).
_ASYNC_HIDDEN = 0.35

# Share of the host's launches that nothing hides with the `alltoall` dispatcher: with it the ten
# rows of nemo whose layers the host launches one by one are off by least (rows 49 to 98).
_SHOWN_LAUNCHES = 0.45

_Word = TypeVar("_Word")

_FLAGS = {"yes": True, "no": False, "true": True, "false": False, "1": True, "0": False}
_SHARDINGS = {
    "none": Sharding.NONE,
    "zero1": Sharding.ZERO1,
    "zero-1": Sharding.ZERO1,
    "fsdp": Sharding.FSDP,
}
_SCHEDULES = {
    "1f1b": "1f1b",
    "interleaved": "interleaved",
    "interleaved 1f1b": "interleaved",
    "zb-1p": "zb-1p",
    "zb-2p": "zb-2p",
}

_LATENT = LatentAttention(query_rank=1536, key_value_rank=512, nope=128, rope=64, value=128)


@dataclass(frozen=True)
class PublishedRun:
    """A run: where it is from, what is known of it, and its measured time.

    Attributes:
        stack: the source's programs, as a group of rows that one calibration should explain.
        dense: False of a model with experts.
        measured_us: of a step.
        peak_bytes: of the fullest rank; None: not published.
        variant: what a source's runs differ in beside layouts: recipe of precision, release.
        tokens_per_s: of a GPU.
    """

    name: str
    stack: str
    device: str
    dense: bool
    step: TrainingStep
    measured_us: float
    tokens_per_s: float
    peak_bytes: float | None = None
    variant: str = ""

    @property
    def flops_per_s(self) -> float:
        """Of a device, for the matrices alone: six of each token and parameter.

        Embeddings have no product, and are left out.
        """
        shape = self.step.estimator.shape
        tables = shape.vocab * shape.hidden * (0 if shape.tied else 1)
        return 6.0 * (shape.parameters_of_a_token - tables) * self.tokens_per_s


def _software(row: Mapping[str, str]) -> Software:
    """The training program, with what a note says of it."""
    found = software_of(row.get("software") or PROGRAM.get(row.get("stack", ""), "megatron"))
    note = (row.get("note") or "").lower()
    recipe = row.get("recipe") or ""
    has_graphs = row.get("device", "").startswith("gb")  # as NVIDIA's recipes on Grace hosts
    if found == software_of("megatron") and (has_graphs or "graphs" in recipe):
        found = software_of("megatron-graphs")
    if recipe:
        hidden = EXCHANGE_HIDDEN if "overlap" in recipe else 0.0
        waits = "alltoall" in recipe
        found = found.replace(
            sends_once=not waits,
            hidden_experts=hidden,
            shown_launches=_SHOWN_LAUNCHES if waits else 0.0,
        )
    if row.get("stack") == "megatron-ci":
        return found.replace(overlaps_gradients=True)
    if "deepep" in note:
        found = found.replace(sends_once=True)
    if "eager" in note:
        return found.replace(traffic=2.0)
    if "async tp" in note or "asynctp" in note.replace("enabling asynctp", ""):
        return found.replace(hidden_tensor=_ASYNC_HIDDEN)
    return found


@cache
def published_runs() -> tuple[PublishedRun, ...]:
    """The shipped published runs."""
    return tuple(
        _run(_PublishedRow(row), row, _software(row)) for row in read_table("published.csv")
    )


def run_of(row: Mapping[str, str]) -> PublishedRun:
    """Return the run of a user's row.

    Raises:
        SynthError: a value is missing or not understood, the values do not go together, or the
            throughput is more than the device can have.
    """
    try:
        run = _run(_Row(row), row, software_of(row.get("software") or "megatron"))
    except ValidationError as error:
        raise SynthError(f"a row of runs is out of range:\n{describe(error)}") from None
    layout, device = run.step.estimator.layout, run.step.estimator.device
    batch, samples = _Row(row).number("global_batch"), layout.micro_batch_size * layout.data
    if batch % samples:
        raise SynthError(
            f"a row of runs has global_batch {batch}, and micro_batch × dp is {samples}; give a "
            f"multiple"
        )
    used, peak = run.flops_per_s, device.peak(layout.precision.dtype)
    if used > peak:
        raise SynthError(
            f"a row of runs has tokens_per_s_gpu {run.tokens_per_s:.0f}, for which a device "
            f"needs {format_flops(used)}/s, and {device.title} has at most "
            f"{format_flops(peak)}/s; give the throughput of one device"
        )
    return run


def _run(read: "_Row", row: Mapping[str, str], software: Software) -> PublishedRun:
    device = device_of(read.text("device")).filled_by(read.layout().group_size)
    optimizer = _NARROW if row.get("stack") in _NARROW_GRADIENTS else DEFAULT_OPTIMIZER
    estimator = Estimator(read.shape(), device, read.layout(), software, Factors(), optimizer)
    layout = estimator.layout
    layout.check(estimator.shape)
    ranks, rounds = read.number("pp", 1), read.number("vp", 0)
    batch = read.number("global_batch")
    count = micro_batches_of(batch, layout.micro_batch_size, layout.data)
    name = read.schedule(ranks, rounds)
    rate = read.real("tokens_per_s_gpu")
    gpus = read.number("gpus")
    needed = layout.tensor * layout.context * layout.data * ranks
    if gpus != needed:
        raise SynthError(
            f"a row of runs has {gpus} gpus, and tp × pp × cp × dp is {needed}; give those that go "
            f"together"
        )
    memory = read.real("memory_gib") if row.get("memory_gib") else None
    return PublishedRun(
        name=f"{row.get('id') or ''} {row.get('model') or 'model'}".strip(),
        stack=row.get("stack") or row.get("software") or "own",
        device=estimator.device.name,
        dense=estimator.shape.experts is None,
        step=TrainingStep(estimator, ranks, count, name),
        measured_us=batch * layout.seq_len / (rate * gpus) * 1e6,
        tokens_per_s=rate,
        peak_bytes=None if memory is None else memory * 2**30,
        variant=row.get("variant") or "",
    )


class _Row:
    """The values of a row, with an error that names what is missing or wrong."""

    def __init__(self, row: Mapping[str, str]) -> None:
        self._row = row

    def text(self, name: str) -> str:
        value = (self._row.get(name) or "").strip()
        if not value:
            raise SynthError(f"a row of runs lacks {name}; give it")
        return value

    def real(self, name: str) -> float:
        text = self.text(name)
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value < 1e15:
            raise SynthError(f"a row of runs has {name} {text!r:.40}; a positive number is needed")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        if default is not None and not (self._row.get(name) or "").strip():
            return default
        value = self.real(name)
        if value != round(value):
            raise SynthError(
                f"a row of runs has {name} {self.text(name)!r:.40}; a whole number is needed"
            )
        return round(value)

    def word(self, name: str, words: Mapping[str, _Word], default: str) -> _Word:
        """Return the meaning of one of some words, in small or capital letters."""
        text = (self._row.get(name) or "").strip() or default
        found = words.get(text.lower())
        if found is None:
            raise SynthError(
                f"a row of runs has {name} {text!r:.40}, which is not understood; give one of "
                f"{', '.join(words)}"
            )
        return found

    def shape(self) -> ModelShape:
        """The model: a known one, or that of a config.json."""
        if (self._row.get("hidden") or "").strip():
            raise SynthError(
                "a row of runs has the sizes of a model; give its config.json, or a known name, as "
                "model"
            )
        return model_of(self.text("model"))

    def data_ranks(self) -> int:
        """The ranks of data parallelism; those that are left, if the row does not say them."""
        others = self.number("tp", 1) * self.number("cp", 1) * self.number("pp", 1)
        return self.number("dp", max(1, self.number("gpus") // others))

    def layout(self) -> Layout:
        """The sizes of groups and micro-batches."""
        sharding = self.word("sharding", _SHARDINGS, "zero1")
        if sharding is Sharding.FSDP and self.number("pp", 1) > 1:
            raise SynthError(
                "a row of runs has FSDP with pp, which is not estimated; give ZeRO-1, which also "
                "gathers parameters once a step"
            )
        self.text("precision")
        return Layout(
            seq_len=self.number("seq"),
            micro_batch_size=self.number("micro_batch", 1),
            tensor=self.number("tp", 1),
            sequence=self.word("sp", _FLAGS, "yes"),
            context=self.number("cp", 1),
            expert=self.number("ep", 1),
            data=self.data_ranks(),
            precision=self.word("precision", {each.value: each for each in Precision}, "bf16"),
            sharding=sharding,
            recompute=self.word("recompute", {each.value: each for each in Recompute}, "none"),
        )

    def schedule(self, ranks: int, rounds: int) -> str:
        """The family of the schedule."""
        name = self.word("schedule", _SCHEDULES, "interleaved" if rounds > 1 else "1f1b")
        if ranks == 1:
            return "1f1b"
        if name != "interleaved":
            return name
        if rounds < 2:
            raise SynthError("a row of runs has interleaved 1F1B without vp; give at least 2")
        return f"interleaved:{rounds}"


class _PublishedRow(_Row):
    """A row of the shipped table, which has the sizes of its model."""

    def shape(self) -> ModelShape:
        """The model of the sizes."""
        name = self.text("model")
        known = model_names()
        family = next((each for each in known if name.startswith(each)), None)
        heads, hidden = self.number("heads"), self.number("hidden")
        base = None if family is None else model_of(family)
        is_oss, note = name.startswith("gpt-oss"), self._row.get("note") or ""
        of_gpt = ("gpt", "megatron", "mpt", "zb-", "mt-nlg", "bloom")
        is_gpt = not is_oss and any(word in name for word in of_gpt)
        is_gated = not is_gpt and "nemotron" not in name
        is_latent = name.startswith(("deepseek", "kimi"))
        head_dim = hidden // heads if base is None else base.head_dim
        # GPT-OSS: heads of 64, biases, and every other layer local (arXiv 2508.10925, section 2).
        oss: dict[str, Any] = {"attention_biases": True, "mlp_biases": True}
        oss |= {"window": 128, "window_layers": 0.5}
        if is_oss:
            head_dim = 64
        return ModelShape(
            name=name,
            layers=self.number("layers"),
            hidden=hidden,
            ffn=self.number("ffn", 4 * hidden),
            heads=heads,
            kv_heads=self.number("kv_heads", heads),
            head_dim=head_dim,
            vocab=self.number("vocab"),
            gated=is_gated,
            biases=is_gpt,
            tied=is_gpt,
            positions=0,
            dropout=is_gpt and "mpt" not in name,
            latent=_LATENT if is_latent else None,
            experts=self._experts(name),
            mtp_layers=1 if name == "deepseek-v3" and "w/o MTP" not in note else 0,
            **(oss if is_oss else {}),
        )

    def _experts(self, name: str) -> Experts | None:
        count = self.number("experts", 0)
        if not count:
            return None
        ffn = self.number("moe_ffn", self.number("ffn", 1))
        # Models cut to four layers keep one dense layer.
        shared, dense = {"deepseekv2": (2, 1), "deepseekv3": (1, 3), "kimik2": (1, 1)}.get(
            name.replace("-", "").removesuffix("4layers"), (0, 0)
        )
        dense = min(dense, 1) if self.number("layers") <= 4 else dense
        return Experts(
            count=count,
            per_token=self.number("topk"),
            ffn=ffn,
            shared_ffn=shared * ffn,
            dense=tuple(range(dense)),
        )
