"""Prompts: the bundled file, the splits, and what a bad source is told."""

import json
import subprocess
import sys
import types
from collections import Counter, defaultdict
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from draftgym.errors import ConfigurationError
from draftgym.prompts import (
    DEFAULT_WEIGHTS,
    SPLITS,
    Prompt,
    PromptSource,
    Split,
    assign_split,
    check_disjoint,
    load_prompts,
)

DOMAINS = {"code", "maths", "chat", "summary", "extraction", "translation"}
LANGUAGES = {"en", "it", "zh", "es"}
BUNDLED = PromptSource(source="bundled")


def bundled_rows() -> list[dict[str, Any]]:
    text = resources.files("draftgym.prompts").joinpath("bundled.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def all_bundled() -> list[Prompt]:
    return [prompt for split in SPLITS for prompt in load_prompts([BUNDLED], split)]


def write_jsonl(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


def only(source: str, split: Split = "test") -> list[PromptSource]:
    return [PromptSource(source=source, weights={split: 1.0})]


def prompt(id: str, request: str, text: str, split: Split) -> Prompt:
    return Prompt(id, request, "chat", "en", (text,), split)


class TestBundledFile:
    def test_ids_and_texts_are_unique(self) -> None:
        rows = bundled_rows()
        assert len(rows) == 320
        assert len({row["id"] for row in rows}) == len(rows)
        assert len({" ".join(row["turns"][0].split()).casefold() for row in rows}) == len(rows)

    def test_every_request_has_the_four_languages(self) -> None:
        languages = defaultdict(set)
        for row in bundled_rows():
            languages[row["request"]].add(row["language"])
            assert row["id"] == f"{row['request']}-{row['language']}"
            assert row["request"].rsplit("-", 1)[0] == row["domain"]
            assert len(row["turns"]) == 1
        assert len(languages) == 80
        assert all(found == LANGUAGES for found in languages.values())

    def test_domains_are_balanced(self) -> None:
        counts = Counter(row["domain"] for row in bundled_rows())
        assert set(counts) == DOMAINS
        assert all(52 <= count <= 56 for count in counts.values())

    @pytest.mark.parametrize(("language", "low", "high"), [("it", 0.85, 1.25), ("es", 0.85, 1.25)])
    def test_lengths_are_comparable(self, language: str, low: float, high: float) -> None:
        lengths = {row["id"]: len(row["turns"][0]) for row in bundled_rows()}
        for row in bundled_rows():
            if row["language"] == language:
                assert low <= lengths[row["id"]] / lengths[f"{row['request']}-en"] <= high

    def test_chinese_lengths_are_comparable(self) -> None:
        # One Chinese character says about as much as three or four Latin letters; code and the
        # shared log lines stay as they are.
        lengths = {row["id"]: len(row["turns"][0]) for row in bundled_rows()}
        for row in bundled_rows():
            if row["language"] == "zh":
                high = 0.9 if row["domain"] == "code" or row["request"] == "extraction-005" else 0.5
                assert 0.24 <= lengths[row["id"]] / lengths[f"{row['request']}-en"] <= high

    def test_text_is_in_its_language(self) -> None:
        for row in bundled_rows():
            has_chinese = any("一" <= letter <= "鿿" for letter in row["turns"][0])
            assert has_chinese == (row["language"] == "zh"), row["id"]


class TestSplits:
    def test_bundled_splits_are_disjoint_and_complete(self) -> None:
        prompts = all_bundled()
        check_disjoint(prompts)
        assert sorted(p.id for p in prompts) == sorted(row["id"] for row in bundled_rows())

    def test_translations_stay_together(self) -> None:
        splits = defaultdict(set)
        for each in all_bundled():
            splits[each.request_id].add(each.split)
        assert all(len(found) == 1 for found in splits.values())

    def test_bundled_counts(self) -> None:
        counts = Counter(each.split for each in all_bundled())
        assert counts == {"drafter": 56, "policy": 112, "validation": 48, "test": 104}

    @pytest.mark.parametrize("split", SPLITS)
    def test_every_split_covers_domains_and_languages(self, split: Split) -> None:
        prompts = load_prompts([BUNDLED], split)
        assert {(p.domain, p.language) for p in prompts} == {
            (domain, language) for domain in DOMAINS for language in LANGUAGES
        }

    def test_shares_follow_the_weights(self) -> None:
        counts = Counter(assign_split(f"request-{i}", DEFAULT_WEIGHTS) for i in range(4000))
        for split, weight in DEFAULT_WEIGHTS.items():
            assert abs(counts[split] / 4000 - weight) < 0.03

    def test_absent_and_zero_splits_get_nothing(self) -> None:
        weights: dict[Split, float] = {"drafter": 0.85, "policy": 0.15, "test": 0.0}
        assert {assign_split(str(i), weights) for i in range(300)} == {"drafter", "policy"}

    def test_known_assignments(self) -> None:
        # Pinned: moving a prompt to another split invalidates trained drafters and policies.
        found = {name: assign_split(name, DEFAULT_WEIGHTS) for name in ("code-010", "chat-010")}
        assert found == {"code-010": "test", "chat-010": "drafter"}

    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            ({"train": 1.0}, "unknown split 'train'"),
            ({"test": -0.5, "policy": 1.5}, "test must be a finite number"),
            ({"test": float("nan")}, "test must be a finite number"),
            ({"test": 0.5, "policy": 0.4}, "must sum to 1, got 0.9"),
            ({}, "must sum to 1, got 0"),
        ],
    )
    def test_bad_weights(self, weights: dict[Any, float], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            assign_split("code-001", weights)

    @pytest.mark.parametrize(
        ("second", "message"),
        [
            (prompt("a", "s", "two", "test"), "id 'a'"),
            (prompt("b", "r", "two", "test"), "request 'r'.*'a'.*'b'"),
            (prompt("b", "s", " one\n", "test"), "text.*'a'.*'b'"),
        ],
    )
    def test_overlap_is_named(self, second: Prompt, message: str) -> None:
        first = prompt("a", "r", "one", "policy")
        with pytest.raises(ValueError, match=message):
            check_disjoint([first, second])


class TestOrder:
    @pytest.mark.parametrize("split", SPLITS)
    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_small_limit_covers_domains_and_languages(self, split: Split, seed: int) -> None:
        prompts = load_prompts([BUNDLED], split, limit=6, seed=seed)
        assert {p.domain for p in prompts} == DOMAINS
        assert {p.language for p in prompts} == LANGUAGES
        first = load_prompts([BUNDLED], split, limit=24, seed=seed)
        assert len({(p.domain, p.language) for p in first}) == 24

    def test_seed_changes_the_order_only(self) -> None:
        zero, again, one = (load_prompts([BUNDLED], "policy", seed=seed) for seed in (0, 0, 1))
        assert zero == again != one
        assert sorted(p.id for p in zero) == sorted(p.id for p in one)

    def test_limit_takes_a_prefix(self) -> None:
        assert load_prompts([BUNDLED], "test", 10) == load_prompts([BUNDLED], "test")[:10]

    def test_same_in_another_process(self) -> None:
        script = (
            "from draftgym.prompts import *;"
            "print(*(p.id for p in load_prompts([PromptSource()], 'validation', seed=7)))"
        )
        ids = [p.id for p in load_prompts([BUNDLED], "validation", seed=7)]
        for hash_seed in ("0", "1"):
            done = subprocess.run(
                [sys.executable, "-c", script],
                env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
                capture_output=True,
                text=True,
                check=True,
            )
            assert done.stdout.split() == ids

    def test_row_order_does_not_matter(self, tmp_path: Path) -> None:
        rows = [{"id": f"r{i}", "prompt": f"Question {i}"} for i in range(20)]
        forwards = write_jsonl(tmp_path / "a.jsonl", *rows)
        backwards = write_jsonl(tmp_path / "b.jsonl", *reversed(rows))
        assert load_prompts(only(forwards), "test") == load_prompts(only(backwards), "test")


class TestUserFiles:
    def test_minimal_rows_get_defaults(self, tmp_path: Path) -> None:
        path = write_jsonl(tmp_path / "u.jsonl", {"id": "x", "turns": ["Hi", "And?"], "more": 1})
        assert load_prompts(only(path), "test") == [
            Prompt("x", "x", "other", "en", ("Hi", "And?"), "test")
        ]

    def test_prompt_field_blank_lines_and_byte_order_mark(self, tmp_path: Path) -> None:
        path = tmp_path / "u.jsonl"
        path.write_bytes(b'\xef\xbb\xbf\n{"id": "x", "prompt": "Hi"}\r\n\n')
        assert load_prompts(only(str(path)), "test")[0].turns == ("Hi",)

    def test_filters(self, tmp_path: Path) -> None:
        source = PromptSource(source="bundled", domains=("code", "chat"), languages=("it",))
        prompts = load_prompts([source], "test")
        assert {(p.domain, p.language) for p in prompts} == {("code", "it"), ("chat", "it")}

    def test_limited_sources_beside_the_bundled_one(self, tmp_path: Path) -> None:
        rows = [{"id": f"train-{i}", "turns": [f"Q{i}"], "domain": "qa"} for i in range(60)]
        train = write_jsonl(tmp_path / "train.jsonl", *rows)
        bench = write_jsonl(tmp_path / "bench.jsonl", {"id": "bench-0", "turns": ["B"]})
        sources = [
            BUNDLED,
            PromptSource(source=train, weights={"drafter": 0.85, "policy": 0.15}),
            PromptSource(source=bench, weights={"test": 1.0}),
        ]
        by_split = {split: load_prompts(sources, split) for split in SPLITS}
        check_disjoint([each for prompts in by_split.values() for each in prompts])
        counts = {s: sum(p.domain == "qa" for p in ps) for s, ps in by_split.items()}
        assert counts["drafter"] > counts["policy"] > 0 == counts["validation"] == counts["test"]
        assert "bench-0" in {p.id for p in by_split["test"]}

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (b'{"id": "x", "turns": []}', "line 2: field 'turns'.*at least 1 item"),
            (b'{"id": "x", "turns": ["a", " "]}', "line 2: field 'turns.1'.*blank"),
            (b'{"id": "x", "turns": "Hi"}', "line 2: field 'turns'.*valid list"),
            (b'{"id": "x", "turns": [3]}', "line 2: field 'turns.0'.*valid string"),
            (b'{"id": "x"}', "line 2: field 'turns'.*required"),
            (b'{"id": "x", "prompt": 3}', "line 2: .*'prompt' must be a string, got int"),
            (b'{"id": "x", "prompt": "a", "turns": ["a"]}', "line 2: .*'turns' or 'prompt'"),
            (b'{"turns": ["a"]}', "line 2: field 'id'.*required"),
            (b'{"id": 3, "turns": ["a"]}', "line 2: field 'id'.*valid string"),
            (b'{"id": "x", "turns": ["a"], "domain": 1}', "line 2: field 'domain'.*valid string"),
            (b'{"id": "x", "turns": ["a"], "language": ""}', "line 2: field 'language'.*blank"),
            (b'{"id": "x", "turns": ["a"], "request": []}', "line 2: field 'request'.*valid str"),
            (b'{"id": "x", "turns": ["\\ud800"]}', "line 2: field 'turns.0'.*valid"),
            (b'{"id": "first", "turns": ["b"]}', "line 2: field 'id': 'first'.*line 1"),
            (b'{"id": "x", "turns": [', "line 2: broken JSON"),
            (b'{"id": ' + b"9" * 5000 + b"}", "line 2: broken JSON"),
            (b'["x"]', "line 2: expected a JSON object, got list"),
            (b'{"id": "x", "turns": ["\xff"]}', "line 2: not UTF-8 at byte 23"),
        ],
    )
    def test_bad_row_names_file_line_and_field(
        self, tmp_path: Path, line: bytes, message: str
    ) -> None:
        path = tmp_path / "bad.jsonl"
        path.write_bytes(b'{"id": "first", "turns": ["a"]}\n' + line + b"\n")
        with pytest.raises(ValueError, match=f"bad.jsonl, {message}"):
            load_prompts(only(str(path)), "test")

    def test_missing_and_empty_files(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"gone\.jsonl: cannot be read: No such file"):
            load_prompts(only(str(tmp_path / "gone.jsonl")), "test")
        (tmp_path / "empty.jsonl").touch()
        with pytest.raises(ValueError, match=r"empty\.jsonl: holds no prompts"):
            load_prompts(only(str(tmp_path / "empty.jsonl")), "test")

    def test_id_in_two_sources(self, tmp_path: Path) -> None:
        one = write_jsonl(tmp_path / "one.jsonl", {"id": "x", "turns": ["a"]})
        two = write_jsonl(tmp_path / "two.jsonl", {"id": "x", "turns": ["b"]})
        with pytest.raises(ValueError, match=r"two\.jsonl: id 'x' also occurs in .*one\.jsonl"):
            load_prompts(only(one) + only(two), "test")

    def test_text_in_two_splits(self, tmp_path: Path) -> None:
        one = write_jsonl(tmp_path / "one.jsonl", {"id": "x", "turns": ["same"]})
        two = write_jsonl(tmp_path / "two.jsonl", {"id": "y", "turns": ["same"]})
        with pytest.raises(ConfigurationError, match=r"prompts: splits overlap: text.*'x'.*'y'"):
            load_prompts(only(one, "policy") + only(two, "test"), "test")


class TestConfiguration:
    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"source": "prompts.txt"}, "unknown source 'prompts.txt'; accepted: 'bundled'"),
            ({"source": "datasets:"}, "expected datasets:NAME"),
            ({"source": "datasets:a:b:c:d"}, "expected datasets:NAME"),
            ({"source": "bundled", "weights": {"test": 0.5}}, "must sum to 1"),
            ({"source": "bundled", "weights": {"exam": 1.0}}, "weights.exam"),
            ({"source": "bundled", "domains": ()}, "domains"),
            ({"source": "bundled", "split": "test"}, "split\n.*[Ee]xtra"),
        ],
    )
    def test_bad_source(self, values: dict[str, Any], message: str) -> None:
        with pytest.raises(ValidationError, match=message):
            PromptSource(**values)

    def test_frozen(self) -> None:
        with pytest.raises(ValidationError, match="frozen"):
            BUNDLED.source = "other.jsonl"

    @pytest.mark.parametrize(
        ("sources", "split", "limit", "message"),
        [
            ([BUNDLED], "train", None, "split: unknown 'train'; accepted: drafter, policy"),
            ([BUNDLED], "test", 0, "limit: must be at least 1"),
            ([], "test", None, "sources: at least one"),
            (only("bundled", "policy"), "test", None, "no prompt of bundled falls in 'test'"),
            (
                [PromptSource(domains=("maths", "law"))],
                "test",
                None,
                "domains: no prompt has 'law'",
            ),
            ([PromptSource(languages=("fr",))], "test", None, "accepted: en, es, it, zh"),
        ],
    )
    def test_bad_request(
        self, sources: list[PromptSource], split: Any, limit: int | None, message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            load_prompts(sources, split, limit)


class TestDatasets:
    @pytest.fixture
    def tables(self, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], list[Any]]:
        tables: dict[tuple[str, str], list[Any]] = {}

        def load_dataset(name: str, split: str) -> list[Any]:
            if (name, split) not in tables:
                raise FileNotFoundError(f"no {name} {split}")
            return tables[name, split]

        fake = types.ModuleType("datasets")
        fake.load_dataset = load_dataset  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "datasets", fake)
        return tables

    def test_defaults_and_named_field(self, tables: dict[tuple[str, str], list[Any]]) -> None:
        tables["org/set", "train"] = [{"prompt": "One"}]
        tables["org/set", "dev"] = [{"id": 7, "question": ["Two", "Three"], "language": "it"}]
        (one,) = load_prompts(only("datasets:org/set"), "test")
        assert (one.id, one.turns, one.domain) == ("org/set-0", ("One",), "other")
        (two,) = load_prompts(only("datasets:org/set:dev:question"), "test")
        assert (two.id, two.turns, two.language) == ("7", ("Two", "Three"), "it")

    def test_repeated_texts_share_a_split(self, tables: dict[tuple[str, str], list[Any]]) -> None:
        tables["set", "train"] = [{"prompt": f"Question {i % 10}"} for i in range(40)]
        source = PromptSource(source="datasets:set", weights={"drafter": 0.5, "test": 0.5})
        assert sum(len(load_prompts([source], s)) for s in ("drafter", "test")) == 40

    def test_errors(self, tables: dict[tuple[str, str], list[Any]]) -> None:
        tables["set", "train"] = [{"text": "One"}]
        with pytest.raises(ValueError, match="row 0: no field 'prompt'; columns: text"):
            load_prompts(only("datasets:set"), "test")
        with pytest.raises(ValueError, match="cannot be loaded: no set test"):
            load_prompts(only("datasets:set:test"), "test")

    def test_missing_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(ValueError, match="needs the 'datasets' package"):
            load_prompts(only("datasets:set"), "test")
