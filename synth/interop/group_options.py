"""The options with which other frameworks make ranks groups of devices, as those of a plan are."""

from collections.abc import Iterator

from synth.profile.mesh import DeviceGroup


def megatron_group(group: DeviceGroup) -> Iterator[str]:
    """Yield Megatron-LM's options of a group; by default it divides experts as other matrices."""
    yield f"--tensor-model-parallel-size {group.tensor}"
    if group.tensor > 1 and group.sequence:
        yield "--sequence-parallel"
    if group.context > 1:
        yield f"--context-parallel-size {group.context}"
    if group.expert > 1:
        yield f"--expert-model-parallel-size {group.expert}"
    has_experts = group.expert > 1 or group.expert_tensor is not None
    if has_experts and max(group.tensor, group.parts_of_expert) > 1:
        yield f"--expert-tensor-parallel-size {group.parts_of_expert}"


def torchtitan_group(group: DeviceGroup) -> Iterator[str]:
    """Yield the lines of a group in torchtitan's section `[parallelism]`."""
    yield f"tensor_parallel_degree = {group.tensor}"
    yield f"context_parallel_degree = {group.context}"
    yield f"expert_parallel_degree = {group.expert}"
