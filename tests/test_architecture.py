"""The architecture, read from the source by `ast`: nothing of the project is imported.

The imports between packages, and between the parts of `runtime` and of its executor, are those of
the tables in `docs/architecture.md`. Lists of exceptions may only shrink: one that the code no
longer needs fails too.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
FOLDERS = ("synth", "runtime", "profiles")  # installed as synth, synth.runtime, synth.profiles

# Modules of `synth` itself that name what programs import (`docs/library.md`); none of ours does.
PUBLIC = (
    "synth",
    "synth.integrations",
    "synth.interop.torch",
    "synth.layer_times",
    "synth.links",
    "synth.partition_costs",
)

# The fields of statements that hold other statements.
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")

# Libraries that take long to import, and the packages that may import them at module level.
HEAVY = {"torch": {"runtime"}, "ortools": {"solver"}, "pulp": {"solver"}}

# Packages whose parts (folders and modules directly in them) import those of a table of the page,
# by the heading of the table.
DIVIDED = {
    "synth.runtime": "### Inside `runtime`",
    "synth.runtime.execution": "### Inside `runtime/execution`",
}

# Parts of the solver: modules of the first import none of the second.
APART = [
    ("synth.solver.bounds", "synth.solver.improve"),
    ("synth.solver.improve", "synth.solver.bounds"),
    ("synth.solver.modulo", "synth.solver.bounds"),
    ("synth.solver.modulo", "synth.solver.improve"),
    ("synth.solver.cpsat", "synth.solver.bounds"),
    ("synth.solver.cpsat", "synth.solver.improve"),
    ("synth.solver.evaluate", "synth.solver.bounds"),
    ("synth.solver.evaluate", "synth.solver.improve"),
    ("synth.solver.search_state", "synth.solver.improve"),
    ("synth.solver.order_pool", "synth.solver.improve"),
    ("synth.solver.weight_passing", "synth.solver.bounds"),
    ("synth.solver.weight_passing", "synth.solver.improve"),
    ("synth.solver.instance", "synth.solver.bounds"),
    ("synth.solver.instance", "synth.solver.cpsat"),
    ("synth.solver.instance", "synth.solver.evaluate"),
    ("synth.solver.instance", "synth.solver.improve"),
]

# Parts whose numbers are in a module `tuning`.
TUNED = ("synth.solver", "synth.plan")

# Their numbers that are no tuning: sentinels, conversions of units, encodings of kinds and of
# seeds, and tolerances of rounding.
NUMBERS = {
    "NEVER",
    "NONE",
    "NOTHING_US",
    "ROUNDING",
    "_COUNTED",
    "_DOES",
    "_DOES_BY_CODE",
    "_EXACT_TO",
    "_NEVER",
    "_NOTHING_YET",
    "_NS_PER_US",
    "_ROUNDING",
    "_ROUNDING_US",
    "_SEEDS",
    "_TINY_US",
}
# The worker's program imports little, to start quickly.
WITH_NUMBERS = (
    "synth.solver.tuning",
    "synth.solver.cpsat.worker_program",
    "synth.solver.evaluate.order_arrays",  # numbers of columns, also the next ones
    "synth.solver.evaluate.move_arrays",
    "synth.solver.evaluate.path_arrays",
    "synth.solver.evaluate.block_arrays",
    "synth.solver.evaluate.block_kernel",
    "synth.solver.evaluate.list_arrays",
    "synth.solver.evaluate.list_kernel",
)


class Import(NamedTuple):
    """One name that a module imports, and whether it does so when it is itself imported."""

    module: str
    at_module_level: bool


class Source(NamedTuple):
    """The imports and the public classes of one module."""

    imports: list[Import]
    public_classes: list[str]


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "synth" else ("synth", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _modules() -> dict[str, Path]:
    return {_name(path): path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}


def _statements(node: ast.AST, at_module_level: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    """Imports below a node; those in functions and under TYPE_CHECKING are not at module level."""
    for child in (child for block in _BLOCKS for child in getattr(node, block, ())):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, at_module_level
        else:
            later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or (
                isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            )
            yield from _statements(child, at_module_level and not later)


def _base(module: str, statement: ast.ImportFrom) -> str:
    """The module after `from`, with leading dots resolved."""
    if not statement.level:
        return statement.module or ""
    package = module.split(".")
    if _modules()[module].name != "__init__.py":
        package.pop()
    parts = package[: len(package) - statement.level + 1]
    return ".".join([*parts, statement.module] if statement.module else parts)


@cache
def _source(module: str) -> Source:
    tree = ast.parse(_modules()[module].read_text(encoding="utf-8"))
    imports = []
    for statement, early in _statements(tree):
        if isinstance(statement, ast.Import):
            imports += [Import(alias.name, early) for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            base = _base(module, statement)
            names = [f"{base}.{alias.name}" for alias in statement.names]
            imports += [Import(name if name in _modules() else base, early) for name in names]
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    return Source(imports, [name for name in classes if not name.startswith("_")])


def _imports(module: str) -> list[Import]:
    return _source(module).imports


@cache
def _package(module: str) -> str:
    """The folder below `synth`; `base` for the files beside the folders."""
    if module == "synth.__main__":
        return "cli"
    if module in PUBLIC:
        return "api"
    part = module.split(".")[1] if "." in module else ""
    is_folder = part in FOLDERS or (part != "" and (ROOT / "synth" / part).is_dir())
    return part if is_folder else "base"


def _is_in(module: str, folder: str) -> bool:
    return module == folder or module.startswith(f"{folder}.")


def _imports_of_the_page(heading: str = "## Packages") -> dict[str, set[str]]:
    """The table under a heading of the page: a part, and in the last column what it imports."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n{heading}\n")[1].split("\n#")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| `")]
    return {cells[0].strip(" `"): set(re.findall(r"`(\w+)`", cells[-1])) for cells in rows}


def _imports_between_parts(package: str) -> dict[str, set[str]]:
    """By part of a package those that it imports; parts are the folders and modules directly in it.

    Their names are those without the package's.
    """

    def part(module: str) -> str:
        return module.removeprefix(f"{package}.").split(".")[0]

    inside = {module for module in _modules() if module.startswith(f"{package}.")}
    found: dict[str, set[str]] = {part(module): set() for module in inside}
    for module in inside:
        found[part(module)] |= {part(name) for name, _ in _imports(module) if name in inside}
    return {name: others - {name} for name, others in found.items()}


def _cycle(imports: dict[str, set[str]]) -> list[str] | None:
    """Parts that import each other in a circle; None: there is no circle."""
    try:
        tuple(TopologicalSorter(imports).static_order())
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return None


def test_imports_between_packages_are_those_of_the_page() -> None:
    found: dict[str, set[str]] = {_package(module): set() for module in _modules()}
    for module in _modules():
        targets = {name for name, _ in _imports(module) if _is_in(name, "synth")}
        found[_package(module)] |= {_package(target) for target in targets} - {_package(module)}

    assert found == _imports_of_the_page()


@pytest.mark.parametrize("package", DIVIDED)
def test_imports_between_parts_of_the_runtime_are_those_of_the_page(package: str) -> None:
    assert _imports_between_parts(package) == _imports_of_the_page(DIVIDED[package])


@pytest.mark.parametrize("heading", ["## Packages", *DIVIDED.values()])
def test_each_row_of_the_page_imports_only_rows_above_it(heading: str) -> None:
    above: set[str] = set()
    for name, imported in _imports_of_the_page(heading).items():
        assert imported <= above, name
        above.add(name)


@pytest.mark.parametrize("package", ["synth.plan", "synth.solver"])
def test_parts_of_solver_and_plan_import_each_other_one_way(package: str) -> None:
    assert _cycle(_imports_between_parts(package)) is None


@pytest.mark.parametrize("library", HEAVY)
def test_heavy_libraries_are_imported_at_module_level_only_by_their_package(library: str) -> None:
    importing = {
        module
        for module in _modules()
        for name, early in _imports(module)
        if early and _is_in(name, library) and _package(module) not in HEAVY[library]
    }
    assert not importing


def test_imports_stand_at_the_top_but_for_torch_and_extras() -> None:
    late = (
        "synth.runtime",
        "synth.profiles",
        "synth.ui",  # with Starlette and uvicorn, of an extra
        "synth.cli.commands",  # once Ctrl-C is taken charge of
        "synth.cli.read.parsed_command",  # with pydantic, which the list of commands does not need
        "synth.solver.evaluate.kernel_files",  # with Numba, as are the kernels
        "synth.solver.evaluate.block_kernel",
        "synth.solver.evaluate.list_kernel",
        "synth.solver.evaluate.memory_kernel",
        "synth.solver.evaluate.time_kernel",
        "synth.solver.evaluate.walk_kernel",
        "synth.plan.reprove.reprove",  # with PuLP, which `synth check` needs for --prove only
    )
    inside = {
        (module, name)
        for module in _modules()
        if not _is_in(module, "synth.runtime") and module not in ("synth", "synth.api.notebook")
        for name, early in _imports(module)
        if not early and _is_in(name, "synth") and not any(_is_in(name, each) for each in late)
    }
    assert not inside


def test_the_instance_knows_neither_or_tools_nor_a_part_of_the_search() -> None:
    allowed = ("synth.solver.instance", "synth.solver.problem", "synth.solver.tuning")
    others = {
        (module, name)
        for module in _modules()
        if _is_in(module, "synth.solver.instance")
        for name, _ in _imports(module)
        if _is_in(name, "ortools")
        or (_is_in(name, "synth.solver") and not any(_is_in(name, folder) for folder in allowed))
    }
    assert not others


def test_parts_of_the_solver_keep_apart() -> None:
    crossing = {
        (module, name)
        for source, target in APART
        for module in _modules()
        if _is_in(module, source)
        for name, _ in _imports(module)
        if _is_in(name, target)
    }
    assert not crossing


@pytest.mark.parametrize(
    ("folder", "name"), [("synth.solver.bounds", "BOUND"), ("synth.solver.improve", "IMPROVER")]
)
def test_bounds_and_improvers_are_found_by_their_folder(folder: str, name: str) -> None:
    """Outside its folder, the solver imports none by its module."""
    found = {m for m in _modules() if _is_in(m, folder) and name in _assigned(m)}
    assert found
    importing = {
        (module, target)
        for module in _modules()
        if _is_in(module, "synth.solver") and not _is_in(module, folder)
        for target, _ in _imports(module)
        if target in found
    }
    assert not importing


def test_rules_of_the_split_backward_are_found_by_their_folder() -> None:
    """Outside its folder, the runtime imports none by its module."""
    folder = "synth.runtime.split.rules"
    importing = {
        (module, name)
        for module in _modules()
        if not _is_in(module, folder)
        for name, _ in _imports(module)
        if _is_in(name, folder)
    }
    assert not importing


def _assigned(module: str) -> set[str]:
    """The names that a module assigns at its level."""
    body = ast.parse(_modules()[module].read_text(encoding="utf-8")).body
    targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _numeric_constants(module: str) -> Iterator[str]:
    """Yield the names at module level whose values have a number in them."""
    for node in ast.parse(_modules()[module].read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            values = (each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant))
            if any(type(value) in (int, float) for value in values):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = (each for target in targets for each in ast.walk(target))
                yield from (each.id for each in names if isinstance(each, ast.Name))


def test_numbers_of_solver_and_plan_are_in_their_tuning() -> None:
    found = {
        name: module
        for module in _modules()
        if any(_is_in(module, part) for part in TUNED)
        and not any(_is_in(module, part) for part in WITH_NUMBERS)
        for name in _numeric_constants(module)
    }
    new = {name: module for name, module in found.items() if name not in NUMBERS}

    assert not new, "move these to synth/solver/tuning or to synth/plan/tuning"
    assert NUMBERS - set(found) == set(), "remove these from NUMBERS"


def test_no_modules_import_each_other_in_a_cycle() -> None:
    graph = {
        module: {name for name, early in _imports(module) if early and name in _modules()}
        for module in _modules()
    }
    assert _cycle(graph) is None


def test_a_public_class_name_occurs_once() -> None:
    places = defaultdict(set)
    for module in _modules():
        for name in _source(module).public_classes:
            places[name].add(module)
    twice = {name: modules for name, modules in places.items() if len(modules) > 1}

    assert not twice, "rename one of them"


def test_files_that_pages_name_exist() -> None:
    missing = set()
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("notes/*.md")]:
        text = page.read_text(encoding="utf-8")
        links = {path.split("#")[0] for path in re.findall(r"\]\(([^):]+)\)", text)}
        paths = re.findall(r"`((?:synth|runtime|profiles|tests|benchmarks)/[\w/.]+\.\w+)`", text)
        missing |= {(page.name, p) for p in links if p and not (page.parent / p).exists()}
        missing |= {(page.name, p) for p in paths if not (ROOT / p).exists()}

    assert not missing
