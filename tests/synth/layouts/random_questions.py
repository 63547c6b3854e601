"""Random small models, devices and batches to choose layouts for."""

import random

from synth.estimates.device import device_of
from synth.estimates.factors import Factors, software_of
from synth.estimates.model_shape import Experts, ModelShape
from synth.layouts.question import LayoutQuestion
from synth.plan.runtimes import Allowed, Runtime


def random_question(seed: int) -> LayoutQuestion:
    """Return a question of few layers and devices, with a memory limit that often matters."""
    rng = random.Random(seed)
    heads = rng.choice([4, 8])
    hidden = 128 * heads
    experts = None
    if rng.random() < 0.4:
        experts = Experts(
            count=rng.choice([4, 8]),
            per_token=2,
            ffn=256 * rng.randint(1, 4),
            shared_ffn=rng.choice([0, 512]),
            dense=tuple(range(rng.randint(0, 1))),
        )
    shape = ModelShape(
        name=f"random-{seed}",
        layers=rng.randint(2, 9),
        hidden=hidden,
        ffn=512 * rng.randint(1, 8),
        heads=heads,
        kv_heads=rng.choice([2, heads]),
        head_dim=128,
        vocab=rng.choice([1024, 32_768, 131_072]),
        tied=rng.random() < 0.3,
        experts=experts,
        mtp_layers=rng.choice([0, 0, 1]) if experts else 0,
    )
    device = device_of(rng.choice(["a100", "h100", "b200"]))
    device = device.replace(
        ranks_per_node=rng.choice([2, 4]),
        nic_bytes_per_s=device.nic_bytes_per_s * rng.choice([0.1, 1.0]),
    )
    software = rng.choice(["megatron", "megatron-plain", "megatron-2021", "torchtitan"])
    runtime = rng.choice([Runtime.SYNTH, Runtime.MEGATRON, Runtime.TORCHTITAN])
    question = LayoutQuestion(
        shape=shape,
        device=device,
        gpus=rng.choice([2, 4, 8]),
        global_batch=rng.choice([4, 8, 16]),
        seq_len=rng.choice([512, 2048]),
        software=software_of(software),
        factors=Factors(
            values=(rng.uniform(0.7, 1.5), rng.uniform(0.7, 1.5), rng.uniform(0.7, 1.5))
        ),
        allowed=Allowed(runtime),
    )
    states = 18 * shape.parameters
    activations = 40 * question.seq_len * hidden * shape.layers
    share = rng.choice([0.3, 0.6, 1.5])
    cap = round(share * (states / question.gpus + activations + 6 * question.seq_len * shape.vocab))
    return question.within(cap if rng.random() < 0.8 else None)
