"""The installed files, and the cost of importing the package."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from setuptools import find_packages

from synth.cli.schema import FileFormat
from synth.version import __version__

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
HEAVY = ("torch", "ortools", "pulp", "networkx", "numpy", "pandas")


def packages_in_the_tree() -> set[str]:
    """The import name of every folder with an `__init__.py`."""
    found = set()
    for top, prefix in (("synth", ""), ("runtime", "synth."), ("profiles", "synth.")):
        for init in (ROOT / top).rglob("__init__.py"):
            found.add(prefix + ".".join(init.parent.relative_to(ROOT).parts))
    return found


def test_the_packages_found_are_those_of_the_tree() -> None:
    include = SETTINGS["tool"]["setuptools"]["packages"]["find"]["include"]
    assert set(find_packages(str(ROOT), include=include)) == packages_in_the_tree()


def test_every_folder_with_python_files_is_a_package() -> None:
    for top in ("synth", "runtime", "profiles"):
        for module in (ROOT / top).rglob("*.py"):
            assert (module.parent / "__init__.py").exists(), module.parent


def test_type_checkers_find_every_package_by_its_path() -> None:
    """They run no import hooks, so an editable install must be a path: no package is mapped."""
    assert SETTINGS["tool"]["setuptools"]["package-dir"] == {"": "."}
    for name in packages_in_the_tree():
        assert (ROOT / name.replace(".", "/") / "__init__.py").exists(), name


def module_level_imports(path: Path) -> set[str]:
    """The modules that importing a module imports; not those in functions or for type checkers."""
    found: set[str] = set()
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif not isinstance(node, ast.FunctionDef) and not _is_type_checking(node):
                pending.append(node)
    return found


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "synth").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT))
)
def test_synth_never_imports_torch_or_runtime_at_module_level(path: Path) -> None:
    banned = ("torch", "synth.runtime", "runtime", "synth.profiles", "profiles")
    for name in module_level_imports(path):
        assert not any(name == b or name.startswith(f"{b}.") for b in banned), name


def modules_loaded_by(code: str, cwd: Path) -> set[str]:
    """The modules that are loaded after running some code in a fresh interpreter."""
    script = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{code}\nprint('\\0', *sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=cwd, capture_output=True, text=True, check=True
    )
    return set(run.stdout.rpartition("\0")[2].split())


# torch counts as not installed.
BARE = "import sys\nsys.modules['torch'] = None\n"


@pytest.mark.parametrize(
    "arguments", [["profile", "gpt-bytes", "-o", "x.json"], ["run", "plan.json", "--data", "x"]]
)
def test_without_torch_solving_works_and_running_names_the_extra(
    arguments: list[str], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", f"{BARE}import synth.cli; synth.cli.main()"]
    size = ("--ranks", "2", "--micro-batches", "2", "--time-limit", "60s", "--gap", "50%")
    (tmp_path / "x").write_text("text")
    solved = subprocess.run(
        [*command, "solve", "gpt-bytes-cpu", *size, "--placement", "linear", "-o", "plan.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert solved.returncode == 0, solved.stderr
    ran = subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1
    assert "torch, which is not installed; pip install 'synth-pipeline[torch]'" in ran.stderr


SCHEMAS = f"""{BARE}
import sys
import synth.cli
for name in sys.argv[1:]:
    sys.argv = ["synth", "schema", name]
    try:
        synth.cli.main()
    except SystemExit as ended:
        print(name, ended.code or 0, file=sys.stderr)
"""


def test_without_torch_every_schema_but_that_of_checkpoints_is_printed() -> None:
    command = [sys.executable, "-c", SCHEMAS, *FileFormat]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
    codes = [f"{name} {2 if name is FileFormat.CHECKPOINT else 0}" for name in FileFormat]
    (refusal,) = set(told) - set(codes)
    assert [line for line in told if line != refusal] == codes
    assert "synth-pipeline[torch]" in refusal
    assert told[told.index(refusal) + 1] == f"{FileFormat.CHECKPOINT} 2"


def test_without_torch_a_pipeline_is_an_import_error_that_names_the_extra(tmp_path: Path) -> None:
    code = f"{BARE}import synth\ntry:\n    synth.Pipeline\nexcept ImportError as e:\n    print(e)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "synth-pipeline[torch]" in run.stdout


def test_the_makefile_installs_every_extra_that_tests_and_demo_use() -> None:
    extras = set(SETTINGS["project"]["optional-dependencies"])
    found = re.search(r"--editable \"\.\[([\w,]+)\]\"", MAKEFILE)
    assert found is not None
    assert extras - set(found[1].split(",")) == {"browser"}


def test_the_oldest_versions_that_are_tested_are_those_declared() -> None:
    project = SETTINGS["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *extras["test"], *extras["picture"]]
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    pins = map(Requirement, (line for line in lines if not line.startswith("#")))
    tested = {pin.name: Version(str(pin.specifier).removeprefix("==")) for pin in pins}
    assert tested.pop("click")  # of typer
    assert tested == {
        each.name: Version(bound.version)
        for each in map(Requirement, declared)
        for bound in each.specifier
        if bound.operator == ">="
    }


def test_the_citation_has_the_version_and_the_licence() -> None:
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"version: {__version__}" in lines
    assert f"license: {SETTINGS['project']['license']}" in lines


def test_workflows_pin_actions_by_commit_and_have_no_permission_but_to_read() -> None:
    workflows = list((ROOT / ".github/workflows").glob("*.yml"))
    assert workflows
    for path in workflows:
        workflow = path.read_text()
        used = re.findall(r"uses: (.*)", workflow)
        assert used
        for action in used:
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v[\d.]+", action), action
        assert "\npermissions: {}\n" in workflow
        assert set(re.findall(r"^ {6}(\w+: \w+)$", workflow, re.MULTILINE)) == {"contents: read"}


def test_the_workflow_runs_targets_that_exist_on_the_versions_of_python_that_are_declared() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    targets = set(re.findall(r"\btest-[a-z]+", workflow))
    assert targets == {"test-oldest", "test-newest", "test-nightly", "test-thorough"}
    for target in targets:
        assert re.search(rf"^{target}\b.*: install$|^test-oldest test-newest:$", MAKEFILE, re.M)
    tested = {f"3.{minor}" for minor in re.findall(r'python(?:-version)?: "3\.(\d+)"', workflow)}
    declared = [c.rpartition(" ")[2] for c in SETTINGS["project"]["classifiers"] if "3." in c]
    assert tested == {declared[0], declared[-1]}


def test_the_page_of_the_package_index_has_no_relative_links() -> None:
    page = SETTINGS["project"]["readme"]["text"]
    assert not re.findall(r"\]\((?!https?:)", page)


COMMANDS = sorted(path.stem.rstrip("_") for path in (ROOT / "synth/cli/work").glob("[a-z]*.py"))

HELP = """
import synth.cli
sys.argv = ["synth", *{arguments!r}]
try:
    synth.cli.main()
except SystemExit as end:
    assert end.code in (0, None), end.code
"""


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
)
def test_help_loads_the_options_of_a_command_at_most(arguments: list[str], tmp_path: Path) -> None:
    loaded = modules_loaded_by(HELP.format(arguments=arguments), tmp_path)
    assert "typer" in loaded
    assert not loaded & {*HEAVY, "synth.solver.solver", "synth.cli.work"}
    assert ("pydantic" in loaded) == (len(arguments) == 2)  # --help alone imports no command


@pytest.mark.parametrize(
    "code",
    [
        "import synth; synth.Profile; synth.Plan",
        "import synth.plan.compare, synth.solver.solver, synth.options.solve_task",
    ],
)
def test_or_tools_is_imported_when_it_is_used(code: str, tmp_path: Path) -> None:
    loaded = modules_loaded_by(code, tmp_path)
    assert not loaded & {"ortools", "pandas", "torch"}
    assert ("synth.solver.solver" in loaded) == ("solver" in code)


def test_reading_and_checking_plans_loads_nothing_heavy(tmp_path: Path) -> None:
    loaded = modules_loaded_by("import synth.schedule.files.plan_file, synth.families", tmp_path)
    assert loaded & set(HEAVY) <= {"numpy"}  # schedules are checked with it


def test_runtime_and_profiles_are_found_as_parts_of_synth(tmp_path: Path) -> None:
    loaded = modules_loaded_by("import synth.profiles\nassert synth.profiles.names()", tmp_path)
    assert "synth" in loaded
    assert "profiles" not in loaded


def test_a_user_s_own_runtime_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "__init__.py").write_text("MINE = True")
    code = "sys.path.insert(0, '')\nimport synth.profiles, runtime\nassert runtime.MINE"
    modules_loaded_by(code, tmp_path)


def test_the_license_and_typing_marker_are_there() -> None:
    assert (ROOT / "synth" / "py.typed").exists()
    assert (ROOT / "LICENSE").exists()


def test_the_shipped_profiles_are_package_data() -> None:
    assert SETTINGS["tool"]["setuptools"]["package-data"]["synth.profiles"] == ["*.json"]
    assert list((ROOT / "profiles").glob("*.json"))


def test_the_parts_of_the_page_are_package_data() -> None:
    patterns = SETTINGS["tool"]["setuptools"]["package-data"]["synth.report.html"]
    folder = ROOT / "synth" / "report" / "html"
    parts = {path.name for path in folder.iterdir() if path.suffix not in (".py", "")}
    assert parts == {path.name for pattern in patterns for path in folder.glob(pattern)}
    assert parts
