"""The house's own rules: layers, configurations, one clock, packaging, and what CI promises."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from draftgym import __main__ as entry
from draftgym.configuration import load_yaml

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("draftgym", "envs", "policies")
SCRIPTS = ("train.py", "evaluate.py")

# The class that reads the files of each folder under configs/. A new folder needs a line here.
CONFIG_CLASSES = {
    "train": "policies.config:TrainConfig",
    "evaluate": "draftgym.benchmark.config:EvaluateConfig",
    "drafter": "draftgym.drafter_training.config:DrafterConfig",
    "trace": "draftgym.traces.config:TraceConfig",
    "study": "draftgym.studies.rejoin.config:RejoinConfig",
}
CONFIGS = sorted((ROOT / "configs").rglob("*.y*ml"))


@cache
def tracked() -> tuple[Path, ...]:
    """Files of the project; outside a clone, everything but hidden and generated folders."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=False
    )
    if listed.returncode == 0 and listed.stdout:
        names = [ROOT / name for name in listed.stdout.split("\0") if name]
        return tuple(path for path in names if path.is_file())
    return tuple(
        path
        for folder in (*PACKAGES, "tests", "configs", "docs", ".ci")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    )


def product_files() -> list[Path]:
    """Python files of the project, tests left out."""
    packages = [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))]
    return [*packages, *(ROOT / name for name in SCRIPTS)]


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )


def test_runtime_works_with_torch_blocked() -> None:
    blocked = ("torch", "transformers", "gymnasium", "stable_baselines3", "wandb", "datasets")
    finished = run_python(
        "import sys\n"
        f"for name in {blocked!r}: sys.modules[name] = None\n"
        "import draftgym.runtime, draftgym.features, draftgym.state\n"
        "assert callable(draftgym.runtime.load)\n"
    )
    assert finished.returncode == 0, finished.stderr


def test_listing_the_verbs_loads_nothing_heavy() -> None:
    finished = run_python(
        "import sys\n"
        "from draftgym.__main__ import main\n"
        "assert main(['--help']) == 0\n"
        "heavy = {'torch', 'transformers', 'numpy', 'gymnasium', 'wandb'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_configuration_loads(path: Path) -> None:
    folder = path.relative_to(ROOT / "configs").parts[0]
    assert folder in CONFIG_CLASSES, f"configs/{folder} has no class in {Path(__file__).name}"
    module, name = CONFIG_CLASSES[folder].split(":")
    model = getattr(import_module(module), name)
    assert isinstance(load_yaml(path, model), model)
    assert model.model_config.get("extra") == "forbid"


def test_no_configuration_lies_outside_the_folders() -> None:
    inside = {path for name in CONFIG_CLASSES for path in (ROOT / "configs" / name).glob("*.yaml")}
    everything = {path for path in (ROOT / "configs").rglob("*") if path.is_file()}
    assert everything == inside
    assert {path.parent.name for path in inside} == set(CONFIG_CLASSES)


def time_sources(tree: ast.AST) -> Iterator[int]:
    """Lines that reach for a time source of their own."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Attribute) and node.attr in ("now", "utcnow", "today"):
            names = ["time"] if "date" in ast.unparse(node.value) else []
        elif isinstance(node, ast.Attribute) and ast.unparse(node).endswith("cuda.Event"):
            names = ["time"]
        if {name.partition(".")[0] for name in names} & {"time", "timeit"}:
            yield node.lineno


def test_the_clock_is_the_only_source_of_time() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in product_files()
        if path != ROOT / "draftgym" / "clock.py"
        for line in time_sources(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []
    clock = (ROOT / "draftgym" / "clock.py").read_text(encoding="utf-8")
    assert list(time_sources(ast.parse(clock))), "the search finds nothing even in the clock"


def test_no_machine_paths() -> None:
    folders = "|".join(("home", "work", "opt", "tmp", "root", "Users", "mnt"))
    machine_path = re.compile(rf"(?<![\w.~$}}>)\]-])/(?:{folders})/[\w.]")
    assert machine_path.search("see /" + "home/x")
    found = []
    for path in tracked():
        content = path.read_bytes()
        if b"\0" in content:  # weights and pictures
            continue
        for number, line in enumerate(content.decode("utf-8").splitlines(), 1):
            if machine_path.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert found == []


def test_every_package_folder_is_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    setuptools = settings["tool"]["setuptools"]
    assert setuptools["packages"]["find"]["include"] == [f"{name}*" for name in PACKAGES]
    patterns = setuptools["package-data"]["draftgym"]
    unpackaged = []
    for path in tracked():
        parts = path.relative_to(ROOT).parts
        if parts[0] not in PACKAGES:
            continue
        if path.suffix == ".py":
            installed = (path.parent / "__init__.py").is_file()
        else:
            inner = "/".join(parts[1:])
            installed = any(fnmatch(inner, pattern.replace("**/", "")) for pattern in patterns)
        if not installed and path.name != "py.typed":
            unpackaged.append(str(path.relative_to(ROOT)))
    assert unpackaged == []


def test_top_level_holds_only_known_python() -> None:
    strangers = {path.relative_to(ROOT).parts[0] for path in tracked() if path.suffix == ".py"} - {
        *PACKAGES,
        *SCRIPTS,
        "tests",
    }
    assert strangers == set()


def test_root_scripts_are_thin() -> None:
    for name in SCRIPTS:
        assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= 60


def test_file_names_say_what_is_inside() -> None:
    vague = {"utils", "util", "helpers", "helper", "misc", "common"}
    assert [path.name for path in tracked() if path.stem in vague] == []


def test_every_verb_explains_itself() -> None:
    known = entry.verbs()
    assert {"train-drafter", "check", "bench", "generate"} <= known.keys()
    for verb, line in known.items():
        assert len(line) > 10, f"{verb} has no docstring"


def readme_commands() -> list[str]:
    """The shell lines of the README's code blocks."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:bash|sh|console)\n(.*?)```", text, flags=re.DOTALL)
    return [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]


def test_ci_runs_the_readme_literally() -> None:
    commands = readme_commands()
    assert "pip install -e . && python train.py" in commands
    test_command = 'pip install -e ".[dev]" && pytest'
    assert test_command in commands
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    for command in (
        f"bash -c '{test_command}'",
        "bash -c 'ruff check . && ruff format --check .'",
        "mypy --strict draftgym envs policies train.py evaluate.py",
        "lint-imports",
    ):
        assert command in script
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100


# Stands in for `python3 -m venv FOLDER`: an environment where one command fails and every
# command leaves its name behind.
FAKE_PYTHON = """#!/usr/bin/env bash
mkdir -p "$3/bin"
echo "PATH=$3/bin:$PATH" > "$3/bin/activate"
for name in pip pytest ruff mypy lint-imports python chromium; do
    printf '#!/bin/sh\necho %s >> "$CALLED"\n[ %s != "$FAILING" ]\n' "$name" "$name" \
        > "$3/bin/$name"
    chmod +x "$3/bin/$name"
done
"""


@pytest.mark.parametrize("failing", ["pip", "pytest", "ruff", "mypy", "lint-imports", "python"])
def test_ci_stops_at_the_first_failure_and_cleans_up(failing: str, tmp_path: Path) -> None:
    order = ["pip", "pytest", "ruff", "ruff", "mypy", "lint-imports", "python"]
    fake = tmp_path / "python3"
    fake.write_text(FAKE_PYTHON)
    fake.chmod(0o755)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    called = tmp_path / "called"
    finished = subprocess.run(
        [str(ROOT / ".ci" / "run")],
        env={
            **os.environ,
            "PYTHON": str(fake),
            "TMPDIR": str(scratch),
            "CALLED": str(called),
            "FAILING": failing,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode != 0
    assert "all passed" not in finished.stderr
    assert (
        called.read_text().split()[: order.index(failing) + 1] == order[: order.index(failing) + 1]
    )
    assert called.read_text().split() == order[: order.index(failing) + 1]
    assert list(scratch.iterdir()) == []


def test_readme_names_only_verbs_that_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"python -m draftgym ([a-z][a-z-]*)", text))
    assert named
    assert named <= entry.verbs().keys()


def has_assertion(function: ast.FunctionDef) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if re.search(r"raises|warns|assert_|check|expect|verify", name):
                return True
    return False


def test_every_test_asserts_and_none_is_skipped() -> None:
    idle, skipped = [], []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
                if not has_assertion(node):
                    idle.append(f"{path.name}::{node.name}")
            elif isinstance(node, ast.Attribute) and node.attr in ("skip", "skipif", "xfail"):
                skipped.append(f"{path.name}:{node.lineno}")
    assert idle == []
    assert skipped == []
