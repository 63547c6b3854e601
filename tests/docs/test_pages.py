"""README and the pages: every command runs, or says why not and is at least understood."""

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from synth.cli.commands import app
from synth.estimates.model_config import model_of
from tests.cli.forked_command import run_forked
from tests.docs import option_tables
from tests.docs.pages import PAGES, ROOT, Block, blocks, is_quick, spans

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
LONGEST_S = 600
LONGEST_LINE = 200
SEARCH_S = 2
# A search that ends before it has judged a layout fails, and machines may be busy.
LAYOUTS_S = 10
STEPS = 2

# The others run whole by night only, and their quick blocks with all tests.
README, TUTORIAL = ROOT / "README.md", ROOT / "docs" / "tutorial.md"
# Its searches need more than SEARCH_S to find a layout.
LLAMA = ROOT / "docs" / "llama3-70b.md"
OTHERS = [page for page in PAGES if page not in (README, TUTORIAL, LLAMA)]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def of_synth(commands: list[str]) -> Iterator[list[str]]:
    """Yield the words behind `synth` of each of its commands."""
    for command in commands:
        words = shlex.split(re.sub(r'"\$\(.*?\)"', "TEXT", command))
        if words[0] == "synth":
            yield words[1:]


def unknown_options(words: list[str]) -> set[str]:
    """Return the options of a command that it does not have."""
    group: Any = typer.main.get_command(app)
    _, command, _ = group.resolve_command(group.make_context("synth", words[:1]), words[:1])
    known = {name for parameter in command.params for name in parameter.opts}
    given = {word.split("=")[0] for word in words[1:] if word.startswith("-") and word != "-"}
    return given - known - {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_option_that_a_page_names_exists(page: Path) -> None:
    commands = [command for block in blocks(page) for command in block.commands]
    for words in of_synth([*commands, *spans(page)]):
        assert not unknown_options(words), words


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name_of)
def test_sentences_of_a_page_are_short(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text)  # targets of links are not read
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "<!--"))]
    assert not [line for line in lines if len(line) > LONGEST_LINE]


def test_tables_of_options_are_those_of_the_program() -> None:
    text = option_tables.PAGE.read_text(encoding="utf-8")
    assert option_tables.filled(text) == text, "make schemas"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_to_a_heading_of_a_page_lead_there(page: Path) -> None:
    links = re.findall(r"\]\(([^):#]*\.md|)#([^)]+)\)", page.read_text())
    wrong = [
        (name, heading)
        for name, heading in links
        if heading not in anchors(page.parent / name if name else page)
    ]
    assert not wrong


def anchors(page: Path) -> set[str]:
    """Return the headings of a page as links name them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_readme_shows_the_commands_of_make_demo() -> None:
    def options(text: str) -> list[list[str]]:
        lines = text.replace("\\\n", " ").replace("$(BIN)/", "").replace("$(OUT)", "out")
        found = [line.split() for line in lines.splitlines() if line.strip().startswith("synth ")]
        return [[word for word in words if word.startswith("-")] for words in found]

    recipe = (ROOT / "Makefile").read_text().split("\ndemo:")[1].split("\n\n")[0]
    shown = next(b for b in blocks(README) if "synth run out/plan.json" in b.text)
    for made, said in zip(options(recipe), options(shown.text), strict=True):
        assert set(made) == set(said) - {"-c"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_programs_of_a_page_import_exists(page: Path) -> None:
    missing = [
        f"from {module} import {name}"
        for block in blocks(page)
        if block.language == "python"
        for module, name in _imported(block.text)
        if name not in _names(module)
    ]
    assert not missing


def _imported(program: str) -> Iterator[tuple[str, str]]:
    """Yield module and name of what a program imports from synth."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "synth":
            yield from ((node.module or "", alias.name) for alias in node.names)


def _names(module: str) -> set[str]:
    """Names that a module defines or imports; it is read only, as some import torch."""
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    nodes = list(ast.walk(ast.parse(source.read_text(encoding="utf-8"))))
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return (
        {node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        | {node.id for node in nodes if isinstance(node, ast.Name)}
        | {alias.asname or alias.name for node in imports for alias in node.names}
    )


@pytest.mark.slow
def test_what_the_tutorial_shows_runs(tmp_path: Path) -> None:
    run_in_order(blocks(TUTORIAL), tmp_path, forked=True)


@pytest.mark.slow
def test_what_the_readme_shows_beside_the_tutorial_runs(tmp_path: Path) -> None:
    known = {command for block in blocks(TUTORIAL) for command in block.commands}
    run_in_order((b for b in blocks(README) if not b.commands or set(b.commands) - known), tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("page", OTHERS, ids=name_of)
def test_what_a_page_shows_runs(page: Path, tmp_path: Path) -> None:
    run_in_order(blocks(page), tmp_path)


@pytest.mark.nightly
def test_what_the_page_of_a_70b_model_shows_runs(tmp_path: Path) -> None:
    run_in_order(blocks(LLAMA), tmp_path, search_s=60)
    for name in ("megatron.json", "titan.json", "titan.toml", "titan.csv", "titan.html"):
        assert (tmp_path / name).exists(), name


def test_the_config_of_the_page_is_that_of_the_known_model(tmp_path: Path) -> None:
    write_files(blocks(LLAMA), tmp_path)
    assert model_of(str(tmp_path / "llama3-70b.json")) == model_of("llama3-70b")


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in OTHERS if any(map(is_quick, blocks(p)))], ids=name_of)
def test_quick_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    run_in_order(filter(is_quick, blocks(page)), tmp_path)


def run_in_order(
    found: Iterable[Block], folder: Path, search_s: int = SEARCH_S, forked: bool = False
) -> None:
    """Write the files of blocks, and run their programs and commands."""
    for number, block in enumerate(found):
        if block.why_not_run is not None:
            continue
        write_files([block, *(blocks(ROOT / block.files_of) if block.files_of else [])], folder)
        for command in filter(None, (block.before, *block.commands)):
            run(command, folder, search_s, forked)
        if block.language == "python" and block.file is None:
            (folder / f"block{number}.py").write_text(block.text)
            run(f"python block{number}.py", folder)


def write_files(found: list[Block], folder: Path) -> None:
    for block in found:
        if block.file is not None:
            (folder / block.file).write_text(block.text)


def shortened(command: str, search_s: int) -> str:
    """Lower limits of time, steps and rounds: the test is of the commands, not of their figures."""
    most_s = max(search_s, LAYOUTS_S) if command.startswith("synth plan ") else search_s

    def limit(found: re.Match[str]) -> str:
        seconds = int(found[1]) * (60 if found[2] == "m" else 1)
        return f"--time-limit {min(seconds, most_s)}s"

    def steps(found: re.Match[str]) -> str:
        return f"--steps {min(int(found[1]), STEPS)}"

    if command.startswith("synth profile ") and not re.search(r"--iters|\.csv", command):
        command = command.replace("synth profile ", "synth profile --iters 2 ", 1)
    return re.sub(r"--steps (\d+)", steps, re.sub(r"--time-limit (\d+)(s|m)", limit, command))


def run(command: str, folder: Path, search_s: int = SEARCH_S, forked: bool = False) -> None:
    """Run a command with the programs of this environment, and fail if it fails.

    Args:
        forked: run `synth` as a fork of a process that has imported torch.
    """
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": LOOPBACK,
    }
    line = shortened(command, search_s)
    if forked and line.startswith("synth "):
        words = shlex.split(line)[1:]
        ended = run_forked(*words, cwd=folder, env=environment, timeout=LONGEST_S)
    else:
        ended = subprocess.run(
            line,
            shell=True,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
        )
    assert ended.returncode == 0, f"{command}\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"


@pytest.mark.slow
def test_the_site_is_built_and_a_broken_link_fails_it(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "sphinx", "-q", "-n", "-W", "-b", "html"]
    docs, copy = ROOT / "docs", tmp_path / "repository" / "docs"
    whole = subprocess.run([*build, docs, tmp_path / "site"], capture_output=True, text=True)
    assert whole.returncode == 0, whole.stderr
    assert (tmp_path / "site" / "tutorial.html").exists()
    copy.mkdir(parents=True)
    (copy / "conf.py").write_text((docs / "conf.py").read_text())
    (copy / "index.md").write_text("# Page\n\n[there](nowhere.md)\n")
    broken = subprocess.run([*build, copy, tmp_path / "broken"], capture_output=True, text=True)
    assert broken.returncode != 0 and "nowhere.md" in broken.stderr
