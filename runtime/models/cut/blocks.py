"""Finds the blocks of a whole model, and the modules that are called whole."""

import fnmatch
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch
from torch import nn

from synth.errors import SynthError

_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


def find_blocks(model: nn.Module) -> list[str]:
    """Name the items of the outermost lists of blocks, in the order of their definition.

    A list of blocks is a `ModuleList`, `ModuleDict` or `Sequential` in which two modules or more
    of one class have parameters and sub-modules. Without one, sub-modules are not needed, as in a
    list of linear layers, if they have most of the parameters. Without that, a model that is a
    `Sequential` has its own items as blocks.

    Raises:
        SynthError: there is no such list.
    """
    found = list(_blocks_in(model, "", _is_compound))
    if not found:
        simple = list(_blocks_in(model, "", _has_state))
        own = sum(map(_num_parameters, map(model.get_submodule, simple)))
        found = simple if 2 * own > _num_parameters(model) else []
    if not found and isinstance(model, nn.Sequential):
        found = [name for name, item in _named(model, "") if _has_state(item)]
    if not found:
        raise SynthError(
            f"{type(model).__name__} has no ModuleList, ModuleDict or Sequential of two or more "
            f"blocks of one class, to be cut at: name places, such as "
            f"--cut 'embed | blocks.* | norm | head', or return a list of layers"
        )
    return found


def _blocks_in(
    module: nn.Module, path: str, is_block: Callable[[nn.Module], bool]
) -> Iterator[str]:
    if isinstance(module, _LISTS) and _is_list_of(is_block, module):
        for name, item in _named(module, path):
            inside = list(_blocks_in(item, name, is_block)) if type(item) in _LISTS else []
            if inside:
                yield from inside
            elif is_block(item):
                yield name
        return
    for name, child in _named(module, path):
        yield from _blocks_in(child, name, is_block)


def _is_list_of(is_block: Callable[[nn.Module], bool], items: nn.Module) -> bool:
    modules = items._modules.values()  # one that stands there several times counts so often
    classes = [type(item) for item in modules if item is not None and is_block(item)]
    return len(classes) > len(set(classes))


def _is_compound(item: nn.Module) -> bool:
    return next(item.children(), None) is not None and _has_state(item)


def _has_state(item: nn.Module) -> bool:
    return next(item.parameters(), None) is not None


def _num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def is_callable(module: nn.Module) -> bool:
    """False for a list or dictionary of modules, of which only the items can be called.

    What `torch.compile` returns has its forward itself.
    """
    if isinstance(module, torch.jit.ScriptModule):
        return True
    return type(module).forward is not nn.Module.forward or "forward" in vars(module)


def _named(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        yield f"{path}.{name}" if path else name, child


def closed_modules(model: nn.Module, pieces: Collection[str]) -> dict[str, nn.Module]:
    """Return the modules that are called whole, by name: the pieces, and what is beside them.

    Open are the modules around the pieces, lists of modules, and those without parameters that are
    not torch's, such as tables of rotary angles: what they compute from constants is constant.
    """
    around = {name[:end] for name in pieces for end, c in enumerate(name) if c == "."}
    return dict(_closed_in(model, "", set(pieces), around))


def _closed_in(
    module: nn.Module, path: str, pieces: set[str], around: set[str]
) -> Iterator[tuple[str, nn.Module]]:
    for name, child in _named(module, path):
        is_open = name not in pieces and (name in around or _is_stateless(child))
        if is_open or not is_callable(child):
            yield from _closed_in(child, name, pieces, around)
        else:
            yield name, child


def _is_stateless(module: nn.Module) -> bool:
    is_of_torch = type(module).__module__.startswith("torch.")
    return not is_of_torch and next(module.parameters(), None) is None


def named_pieces(model: nn.Module, at: str) -> dict[str, list[str]]:
    """Return the modules at which `embed | blocks.* | norm` begins pieces, by pattern.

    Raises:
        SynthError: a pattern fits no module, or fits a part of what another one fits.
    """
    names = [name for name, _ in model.named_modules() if name]
    patterns = [pattern.strip() for pattern in at.split("|")]
    found: dict[str, list[str]] = {}
    for pattern in patterns:
        depth = pattern.count(".")
        fits = [
            name
            for name in fnmatch.filter(names, pattern)
            if name.count(".") == depth  # `blocks.*` are the blocks, not their parts
        ]
        if not fits:
            raise SynthError(
                f"--cut: no module of {type(model).__name__} is called {pattern!r}; there are "
                f"{', '.join(_shown(model))}"
            )
        found[pattern] = fits
    _check_apart([name for fits in found.values() for name in fits])
    return found


def _check_apart(names: Sequence[str]) -> None:
    for name in names:
        inner = next((other for other in names if other.startswith(f"{name}.")), None)
        if inner is not None:
            raise SynthError(f"--cut: {inner} is a part of {name}; name one of them")


def _shown(model: nn.Module) -> Mapping[str, None]:
    """Names of modules, the numbers of items as `*`."""
    names = (name for name, _ in model.named_modules() if name)
    starred = (
        ".".join("*" if word.isdigit() else word for word in name.split("."))
        for name in names
        if name.count(".") <= 2
    )
    return dict.fromkeys(starred)
