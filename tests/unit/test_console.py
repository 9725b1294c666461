"""Progress, results, atomic files, configuration errors, provenance and the verb list."""

from __future__ import annotations

import io
import json
import math
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from draftgym import __main__ as entry
from draftgym import console, provenance, storage
from draftgym.configuration import load_yaml
from draftgym.errors import ConfigurationError


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["rate", "emitted"] = "rate"
    steps: int = Field(10, ge=1)


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    learning_rate: float = Field(3e-4, gt=0)
    inner: Inner = Inner()
    many: list[Inner] = []


def test_result_is_one_strict_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_result(
        "draftgym.bench/1", {"ratio": np.float32(1.5), "bad": math.nan, "V": {4: 2}}
    )
    captured = capsys.readouterr()
    assert captured.err == ""
    line = {"schema": "draftgym.bench/1", "ratio": 1.5, "bad": None, "V": {"4": 2}}
    assert captured.out == json.dumps(line) + "\n"


def test_result_refuses_a_second_schema() -> None:
    with pytest.raises(ValueError, match="expected 'a/1'"):
        console.print_result("a/1", {"schema": "b/1"})


def test_quiet_progress_is_ten_lines_and_leaves_stdout_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert list(console.track(range(1000), "work")) == list(range(1000))
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("work: 10% (100/1000), ")
    assert lines[0].endswith(" left")
    assert lines[-1].startswith("work: 100% (1000/1000), done in ")


def test_quiet_progress_without_a_total_starts_with_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert sum(console.track(iter(range(5)), "searching")) == 10
    assert capsys.readouterr().err == "searching ...\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_nest_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    console._console.cache_clear()
    with console.progress("outer", 2) as outer:
        for _ in range(2):
            assert list(console.track("abc", "inner")) == ["a", "b", "c"]
            outer.advance()
        outer.describe("finished")
    console._console.cache_clear()
    assert "finished" in terminal.getvalue()
    assert "2/2" in terminal.getvalue()


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = storage.write_text(tmp_path / "deep" / "file.txt", "old")

    def full_disk(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        storage.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_written_files_have_ordinary_rights(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        path = storage.write_bytes(tmp_path / "file", b"x")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@dataclass(frozen=True)
class Point:
    x: float
    where: Path


def test_plain_reduces_what_results_hold() -> None:
    assert storage.plain(
        {
            "array": np.arange(3),
            "flag": np.bool_(True),
            "point": Point(math.inf, Path("a/b")),
            "model": Inner(),
            "set": {2, 1},
            "tuple": (1, 2.5, None),
        }
    ) == {
        "array": [0, 1, 2],
        "flag": True,
        "point": {"x": None, "where": "a/b"},
        "model": {"kind": "rate", "steps": 10},
        "set": [1, 2],
        "tuple": [1, 2.5, None],
    }
    with pytest.raises(TypeError, match="object"):
        storage.plain(object())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_json_is_strict_whatever_comes(value: object) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = storage.dump_json(value)
    assert storage.dump_json(json.loads(text, parse_constant=refuse)) == text


def write_yaml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_good_configuration(tmp_path: Path) -> None:
    path = write_yaml(tmp_path, "name: x\nlearning_rate: 3e-4\ninner: {kind: emitted}\n")
    assert load_yaml(path, Outer) == Outer(
        name="x", learning_rate=3e-4, inner=Inner(kind="emitted")
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\nlerning_rate: 1\n", r"lerning_rate: unknown field; fields here: inner, learn"),
        ("name: x\ninner: {stepz: 1}\n", r"inner\.stepz: unknown field; fields here: kind, steps"),
        ("name: x\nmany: [{stepz: 1}]\n", r"many\.0\.stepz: unknown field; fields here: kind"),
        ("name: x\ninner: {kind: speed}\n", r"inner\.kind: .*'rate' or 'emitted'; got 'speed'"),
        ("name: x\ninner: {steps: 0}\n", r"inner\.steps: .*greater than or equal to 1; got 0"),
        ("learning_rate: 1\n", r"name: must be given"),
        ("name: x\nname: y\n", r"'name' is given twice"),
        ("- 1\n", r"must hold fields, not a list"),
        ("name: [\n", r"not valid YAML"),
        ("name: !!python/object/apply:os.getcwd []\n", r"not valid YAML"),
        ("? [a]\n: 1\n", r"must be a single word"),
        ("", r"name: must be given"),
    ],
)
def test_bad_configuration_names_file_field_and_choices(
    tmp_path: Path, text: str, message: str
) -> None:
    path = write_yaml(tmp_path, text)
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_yaml(path, Outer)
    assert str(path) in str(caught.value)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    path = write_yaml(tmp_path, "learning_rate: -1\nextra: 1\n")
    with pytest.raises(ConfigurationError) as caught:
        load_yaml(path, Outer)
    for field in ("name", "learning_rate", "extra"):
        assert f"  {field}: " in str(caught.value)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such configuration file"):
        load_yaml(tmp_path / "none.yaml", Outer)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_yaml(tmp_path / "binary.yaml", Outer)


def test_provenance_is_plain_and_complete() -> None:
    found = provenance.provenance("cpu", "float32", {"prompts": 3})
    assert json.loads(storage.dump_json(found)) == found
    assert found["versions"]["torch"].startswith("2.")
    assert found["command"].startswith("python ")
    assert found["cores"] >= 1
    assert found["prompts"] == 3
    assert found["date"].endswith("+00:00")
    with pytest.raises(ValueError, match="commit"):
        provenance.provenance(extra={"commit": "mine"})


def test_no_verb_or_an_unknown_one_lists_the_verbs(
    capsys: pytest.CaptureFixture[str], commands: Path
) -> None:
    assert entry.main([]) == 2
    assert entry.main(["dance"]) == 2
    assert entry.main(["__init__"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "unknown verb 'dance'" in captured.err
    assert "  train-things  Train things." in captured.err


def test_help_lists_the_verbs(capsys: pytest.CaptureFixture[str], commands: Path) -> None:
    assert entry.main(["--help"]) == 0
    assert "  train-things  Train things." in capsys.readouterr().out


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one verb whose import would fail: the list must not import it."""
    (tmp_path / "train_things.py").write_text('"""Train things.\n\nMore."""\nimport nowhere\n')
    (tmp_path / "__init__.py").write_text('"""Not a verb."""\n')
    monkeypatch.setattr(entry, "COMMANDS", tmp_path)
    return tmp_path


def test_options_out_of_a_configurations_range_are_told_in_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert entry.main(["study", "cost", "--tokens", "9999999"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: max_new_tokens: ") and "9999999" in captured.err
    assert "Traceback" not in captured.err
