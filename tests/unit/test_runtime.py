"""Exported controllers: the folder's format, its failures, and what it decides."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save

from draftgym.clock import FakeClock
from draftgym.decoder.controllers import FixedController
from draftgym.features import FeatureLayout
from draftgym.runtime import (
    DecisionSeconds,
    ExportedController,
    ExportedPolicy,
    Normaliser,
    PolicyError,
    PolicyHead,
    decision_seconds,
    load,
    read_policy,
    representative_state,
    save_policy,
)
from draftgym.runtime.network import Network
from draftgym.state import Confidence, History, RoundState

LAYOUT = FeatureLayout()
FEATURES = {"depth": len(LAYOUT.depth_names), "size": len(LAYOUT.size_names)}
ACTIONS = {"depth": 2, "size": len(LAYOUT.size_grid)}


def make_head(name: str, hidden: tuple[int, ...] = (16, 16), normalise: bool = True) -> PolicyHead:
    random = np.random.default_rng([len(name), *hidden])
    widths = (FEATURES[name], *hidden, ACTIONS[name])
    shapes = list(zip(widths[1:], widths[:-1], strict=True))
    normaliser = Normaliser(
        mean=random.uniform(0, 1, FEATURES[name]).astype(np.float32),
        variance=random.uniform(0.05, 2, FEATURES[name]).astype(np.float32),
        clip=5.0,
    )
    return PolicyHead(
        weights=tuple(random.normal(0, 0.5, shape).astype(np.float32) for shape in shapes),
        biases=tuple(random.normal(0, 0.5, out).astype(np.float32) for out, _ in shapes),
        normaliser=normaliser if normalise else None,
    )


def make_policy(**changes: Any) -> ExportedPolicy:
    fields: dict[str, Any] = {
        "layout": LAYOUT,
        "depth": make_head("depth"),
        "size": make_head("size"),
        "reward": {"kind": "rate"},
        "pair": {"target": "abc", "drafter": {"kind": "eagle3", "beam_width": 4}},
        "hardware": {"cpu": "one", "cores": 2},
        "training": {"steps": {"depth": 10, "size": 20}},
    }
    return ExportedPolicy(**(fields | changes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_policy(tmp_path / "policy", make_policy())


def observed(seed: int) -> RoundState:
    """A state that depends on the seed."""
    random = np.random.default_rng(seed)
    scores = (-np.sort(random.exponential(2.0, 20))).tolist()
    read = Confidence(scores[:4], float(random.uniform(0, 5)), float(random.uniform(0, 1)), scores)
    history = History()
    for _ in range(8):
        drafted = int(random.integers(0, 9))
        history.append(int(random.integers(0, drafted + 1)), drafted, int(random.integers(0, 33)))
    return dataclasses.replace(
        representative_state(LAYOUT),
        history=history,
        read_confidence=lambda law=True: read,
        depth=1 + seed % 7,
        remaining_tokens=int(random.integers(1, 128)),
    )


def decisions(controller: ExportedController) -> list[tuple[bool, int]]:
    states = [observed(seed) for seed in range(50)]
    return [(controller.draft_again(state), controller.choose_size(state)) for state in states]


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = folder / "policy.json"
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def rewrite_tensors(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change arrays and record their new sha256, as a careful forger would."""
    file = folder / "policy.safetensors"
    tensors = dict(load_file(file))
    change(tensors)
    content = save(tensors)
    file.write_bytes(content)
    rewrite(folder, lambda data: data.update(weights_sha256=hashlib.sha256(content).hexdigest()))


def test_a_saved_policy_decides_as_before(folder: Path) -> None:
    before = decisions(ExportedController(make_policy()))
    assert decisions(load(folder)) == before
    assert len(set(before)) > 3, "the states should not all get one answer"
    policy = read_policy(folder)
    assert policy.training == {"steps": {"depth": 10, "size": 20}}
    assert policy.layout == LAYOUT


def test_equal_policies_are_written_as_equal_bytes(folder: Path, tmp_path: Path) -> None:
    other = save_policy(tmp_path / "again", read_policy(folder))
    for name in ("policy.json", "policy.safetensors"):
        assert (other / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("name", ["depth", "size"])
@pytest.mark.parametrize("hidden", [(), (8,), (64, 64)])
def test_numpy_network_equals_torch(name: str, hidden: tuple[int, ...]) -> None:
    head = make_head(name, hidden)
    assert head.normaliser is not None
    network = Network(head)
    random = np.random.default_rng(0)
    observations = random.uniform(-1, 2, (1000, FEATURES[name])).astype(np.float32)
    values = torch.from_numpy(head.normaliser(observations))
    for layer, (weight, bias) in enumerate(zip(head.weights, head.biases, strict=True)):
        values = torch.nn.functional.linear(
            values, torch.from_numpy(weight), torch.from_numpy(bias)
        )
        if layer < len(hidden):
            values = values.tanh()
    expected = values.numpy()
    got = np.stack([network.logits(row).copy() for row in observations])
    np.testing.assert_allclose(got, expected, atol=2e-5)
    assert [network.act(row) for row in observations] == expected.argmax(axis=1).tolist()


def test_normaliser_is_the_textbook_formula_in_float32() -> None:
    normaliser = Normaliser(np.array([1.0, 0.0]), np.array([4.0, 0.01]), clip=3.0)
    got = normaliser(np.array([[2.0, 1.0], [1.0, -0.1]], np.float32))
    np.testing.assert_allclose(got, [[0.5, 3.0], [0.0, -1.0]], rtol=1e-6)
    assert got.dtype == np.float32


def test_loads_and_decides_without_torch_or_any_learning_library(folder: Path) -> None:
    """CASES 21: also the statistics arrive in a new process, and change nothing."""
    program = """
import json, sys
for name in ("torch", "transformers", "gymnasium", "stable_baselines3", "wandb"):
    sys.modules[name] = None
from draftgym.runtime import load, representative_state
controller = load(sys.argv[1])
state = representative_state(controller.policy.layout)
print(json.dumps([controller.draft_again(state), controller.choose_size(state)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    here = load(folder)
    state = representative_state(LAYOUT)
    assert json.loads(done.stdout) == [here.draft_again(state), here.choose_size(state)]


def test_row_21_statistics_travel_with_the_policy(tmp_path: Path) -> None:
    """CASES 21: features a hundred times larger, normalised by their own statistics."""
    head = make_head("size")
    assert head.normaliser is not None
    normaliser = Normaliser(head.normaliser.mean * 100, head.normaliser.variance * 1e4, clip=5.0)
    scaled = dataclasses.replace(head, normaliser=normaliser)
    saved = save_policy(tmp_path / "scaled", make_policy(size=scaled))
    loaded = read_policy(saved).size
    assert loaded is not None
    rows = np.random.default_rng(1).uniform(0, 1, (200, FEATURES["size"])).astype(np.float32)
    plain, big = Network(head), Network(loaded)
    assert [big.act(row * np.float32(100)) for row in rows] == [plain.act(row) for row in rows]


def test_row_21_raw_observations_must_be_stated(tmp_path: Path) -> None:
    policy = make_policy(size=make_head("size", normalise=False))
    saved = save_policy(tmp_path / "raw", policy)
    assert json.loads((saved / "policy.json").read_text())["heads"]["size"]["normaliser"] is None
    assert decisions(load(saved)) == decisions(ExportedController(policy))
    rewrite(saved, lambda data: data["heads"]["size"].pop("normaliser"))
    with pytest.raises(PolicyError, match=r"heads\.size\.normaliser: missing"):
        load(saved)


def test_one_head_needs_a_fixed_value_for_the_other(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"heads\.size: missing.*fallback\.size"):
        make_policy(size=None)
    saved = save_policy(tmp_path / "half", make_policy(size=None, fallback={"size": 6}))
    controller = load(saved)
    assert {controller.choose_size(observed(seed)) for seed in range(20)} == {6}
    rewrite(saved, lambda data: data["fallback"].clear())
    with pytest.raises(PolicyError, match=r"heads\.size: missing"):
        load(saved)


def test_fixed_depth_in_place_of_a_head(tmp_path: Path) -> None:
    controller = load(save_policy(tmp_path, make_policy(depth=None, fallback={"depth": 2})))
    asked = [dataclasses.replace(observed(0), depth=depth) for depth in range(4)]
    assert [controller.draft_again(state) for state in asked] == [True, True, False, False]


def test_no_network_is_asked_when_one_answer_is_left() -> None:
    controller = ExportedController(make_policy())

    def forbidden() -> Confidence:
        raise AssertionError("read")

    state = representative_state(LAYOUT)
    deepest = dataclasses.replace(state, depth=8, read_confidence=forbidden)
    assert controller.draft_again(deepest) is False
    empty = dataclasses.replace(state, depth=0, nodes=0, read_confidence=forbidden)
    assert controller.choose_size(empty) == 0


def test_beyond_its_deepest_draft_a_policy_stops_unasked(tmp_path: Path) -> None:
    def forbidden() -> Confidence:
        raise AssertionError("read")

    limited = load(save_policy(tmp_path / "limited", make_policy(deepest=2)))
    whole = ExportedController(make_policy())
    beyond = [dataclasses.replace(observed(seed), depth=2 + seed % 6) for seed in range(50)]
    assert any(whole.draft_again(state) for state in beyond), "else the limit changes nothing"
    for state in beyond:
        assert limited.draft_again(dataclasses.replace(state, read_confidence=forbidden)) is False
    above = [dataclasses.replace(observed(seed), depth=seed % 2) for seed in range(50)]
    answers = [limited.draft_again(state) for state in above]
    assert answers == [whole.draft_again(state) for state in above] and len(set(answers)) == 2


def test_a_policy_without_weights_on_the_law_does_not_read_it() -> None:
    asked: list[bool] = []

    def state(seed: int) -> RoundState:
        seen = observed(seed)
        known = seen.read_confidence()

        def read(law: bool = True) -> Confidence:
            asked.append(law)
            return known if law else known._replace(entropy=0.0, margin=0.0)

        return dataclasses.replace(seen, read_confidence=read)

    def deaf(name: str) -> PolicyHead:
        head = make_head(name)
        weight = head.weights[0].copy()
        weight[:, [LAYOUT.depth_names.index(entry) for entry in ("entropy", "margin")]] = 0.0
        return dataclasses.replace(head, weights=(weight, *head.weights[1:]))

    neither = make_policy(depth=deaf("depth"), size=deaf("size"))
    for policy, law in ((neither, False), (make_policy(depth=deaf("depth")), True)):
        asked.clear()
        reading = ExportedController(policy)
        states = [state(seed) for seed in range(50)]
        answers = [(reading.draft_again(one), reading.choose_size(one)) for one in states]
        assert answers == decisions(reading), "there the law is read whoever asks"
        assert set(asked) == {law}


def test_policies_from_before_the_limit_are_asked_at_every_depth(folder: Path) -> None:
    rewrite(folder, lambda data: data.pop("deepest_draft"))
    with pytest.raises(PolicyError, match="deepest_draft: missing"):
        load(folder)
    rewrite(folder, lambda data: data.update(schema="draftgym.policy/1"))
    assert decisions(load(folder)) == decisions(ExportedController(make_policy()))
    rewrite(folder, lambda data: data.update(deepest_draft=1))
    with pytest.raises(PolicyError, match=r"policy\.json: deepest_draft: unknown field"):
        load(folder)


JSON_FAULTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "other schema": (lambda d: d.update(schema="draftgym.policy/9"), "schema"),
    "no schema": (lambda d: d.pop("schema"), "schema"),
    "no training": (lambda d: d.pop("training"), "training: missing"),
    "pair of a wrong type": (lambda d: d.update(pair=[1]), "pair: has the wrong type"),
    "cost beyond numbers": (
        lambda d: d["training"].update(costs={"plain_seconds": 10**400}),
        r"training\.costs\.plain_seconds: must be finite",
    ),
    "clip beyond numbers": (
        lambda d: d["heads"]["depth"]["normaliser"].update(clip=10**400),
        r"heads\.depth",
    ),
    "unknown field": (lambda d: d.update(extra=1), "extra: unknown field"),
    "layout hash": (lambda d: d["layout"].update(hash="0" * 64), r"layout\.hash"),
    "layout name": (lambda d: d["layout"]["depth"][0].update(name="x"), "layout: made for another"),
    "layout parameters": (
        lambda d: d["layout"]["parameters"].update(beam_width=0),
        r"layout\.parameters: beam_width",
    ),
    "another grid": (
        lambda d: d["heads"]["size"]["actions"].update({"1": 7}),
        r"heads\.size\.actions",
    ),
    "another cadence": (lambda d: d["cadence"].update(depth="once per round"), r"cadence\.depth"),
    "another activation": (
        lambda d: d["heads"]["depth"].update(activation="relu"),
        r"heads\.depth\.activation",
    ),
    "no normaliser": (
        lambda d: d["heads"]["depth"].pop("normaliser"),
        r"depth\.normaliser: missing",
    ),
    "no mean": (
        lambda d: d["heads"]["depth"]["normaliser"].pop("mean"),
        r"heads\.depth\.normaliser\.mean: missing",
    ),
    "null statistics": (
        lambda d: d["heads"]["depth"]["normaliser"].update(mean=[None] * FEATURES["depth"]),
        r"normaliser\.mean",
    ),
    "short statistics": (
        lambda d: d["heads"]["depth"]["normaliser"].update(mean=[0.0], variance=[1.0]),
        r"heads\.depth\.normaliser: 1 entries",
    ),
    "zero variance": (
        lambda d: d["heads"]["size"]["normaliser"].update(variance=[0.0] * FEATURES["size"]),
        r"normaliser\.variance: must be positive",
    ),
    "text for clip": (
        lambda d: d["heads"]["size"]["normaliser"].update(clip="ten"),
        r"normaliser\.clip: has the wrong type",
    ),
    "hidden": (lambda d: d["heads"]["size"].update(hidden=[16]), "size"),
    "unknown head": (lambda d: d["heads"].update(width={}), r"heads\.width: unknown"),
    "no passes": (lambda d: d.update(deepest_draft=0), "deepest_draft: must be 1 to 8"),
    "too many passes": (lambda d: d.update(deepest_draft=9), "deepest_draft: must be 1 to 8"),
    "a truth for passes": (lambda d: d.update(deepest_draft=True), "deepest_draft: must be 1"),
    "text for passes": (lambda d: d.update(deepest_draft="2"), "deepest_draft: has the wrong type"),
    "bad fallback": (lambda d: d["fallback"].update(speed=1), r"fallback\.speed"),
}


@pytest.mark.parametrize("fault", JSON_FAULTS)
def test_a_bad_description_is_named(folder: Path, fault: str) -> None:
    """CASES 43: a field that cannot be read never gets a neighbour's value."""
    change, field = JSON_FAULTS[fault]
    rewrite(folder, change)
    with pytest.raises(PolicyError, match=field) as caught:
        load(folder)
    assert str(folder) in str(caught.value)


def _set(name: str, values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda tensors: tensors.update({name: values})


TENSOR_FAULTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "missing": (lambda t: t.pop("depth.1.bias"), r"depth\.1\.bias: missing"),
    "foreign": (_set("value.weight", np.zeros(3, np.float32)), r"value\.weight: unknown tensor"),
    "shape": (_set("depth.0.weight", np.zeros((16, 3), np.float32)), r"depth\.0\.weight: shape"),
    "actions": (_set("size.2.bias", np.zeros(4, np.float32)), r"size\.2\.bias: shape"),
    "dtype": (_set("size.0.bias", np.zeros(16, np.float64)), r"size\.0\.bias: must be float32"),
    "nan": (_set("size.0.bias", np.full(16, np.nan, np.float32)), r"size\.0\.bias: .*not finite"),
}


@pytest.mark.parametrize("fault", TENSOR_FAULTS)
def test_bad_arrays_are_named(folder: Path, fault: str) -> None:
    change, field = TENSOR_FAULTS[fault]
    rewrite_tensors(folder, change)
    with pytest.raises(PolicyError, match=field):
        load(folder)


class Trap:
    """Leaves a file behind if anything unpickles it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return open, (self._path, "w")


def test_foreign_files_are_refused_and_never_run(folder: Path, tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    for name, match in (
        ("policy.safetensors", "policy.safetensors: not a readable"),
        ("policy.json", "policy.json: not valid JSON"),
    ):
        kept = (folder / name).read_bytes()
        for content in (
            pickle.dumps(Trap(str(trap))),
            b"",
            b"PK\x03\x04 a zip of a model",
            kept[:50],
        ):
            (folder / name).write_bytes(content)
            with pytest.raises(PolicyError, match=match):
                load(folder)
        (folder / name).write_bytes(kept)
    assert not trap.exists()
    assert load(folder).policy.layout == LAYOUT


@pytest.mark.parametrize("text", ["[]", "null", '{"schema": NaN}', "\xff"])
def test_a_description_that_is_not_an_object_is_refused(folder: Path, text: str) -> None:
    (folder / "policy.json").write_text(text, encoding="latin-1")
    with pytest.raises(PolicyError, match=r"policy\.json"):
        load(folder)


@pytest.mark.parametrize("name", ["policy.json", "policy.safetensors"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(PolicyError, match=name):
        load(folder)


def test_arrays_of_another_policy_are_refused(folder: Path, tmp_path: Path) -> None:
    changed = make_policy(size=dataclasses.replace(make_head("size"), weights=tuple(
        weight + np.float32(0.1) for weight in make_head("size").weights
    )))  # fmt: skip
    other = save_policy(tmp_path / "other", changed)
    (folder / "policy.safetensors").write_bytes((other / "policy.safetensors").read_bytes())
    with pytest.raises(PolicyError, match="weights_sha256: belongs to another"):
        load(folder)


def test_code_in_the_summary_is_a_named_error(tmp_path: Path) -> None:
    """CASES 43: a callable schedule is not data."""
    policy = make_policy(training={"learning_rate": lambda progress: progress})
    with pytest.raises(PolicyError, match="training: cannot write function"):
        save_policy(tmp_path / "policy", policy)
    assert not (tmp_path / "policy").exists()


def test_another_pair_is_refused_and_other_hardware_warned_about(folder: Path) -> None:
    pair = {"target": "abc", "drafter": {"kind": "eagle3", "beam_width": 4}}
    hardware = {"cpu": "one", "cores": 2}
    assert load(folder, pair, hardware).free is False
    other = {"target": "abc", "drafter": {"kind": "eagle3", "beam_width": 2}}
    with pytest.raises(PolicyError, match=r"another model pair: pair\.drafter\.beam_width: .*4.*2"):
        load(folder, other)
    with pytest.raises(PolicyError, match=r"pair\.dtype"):
        load(folder, {**pair, "dtype": "float32"})
    with pytest.warns(UserWarning, match=r"other hardware.*hardware\.cores"):
        load(folder, pair, {"cpu": "one", "cores": 64})


def test_decision_seconds_come_from_the_clock_alone() -> None:
    controller = ExportedController(make_policy())
    clock = FakeClock()
    measured = decision_seconds(controller, LAYOUT, clock, repeats=10)
    assert measured.depth == pytest.approx(2e-5)
    assert measured.size == pytest.approx(2e-5)
    still = clock.boundary()
    assert decision_seconds(FixedController(2, 4), LAYOUT, clock) == DecisionSeconds()
    assert clock.boundary() == still


@pytest.mark.parametrize("name", ["depth", "size"])
@pytest.mark.parametrize("normalise", [True, False])
def test_raw_values_decide_as_their_observation_does(name: str, normalise: bool) -> None:
    """Scale, bounds and statistics folded into the network change no decision."""
    head = make_head(name, normalise=normalise)
    staged = Network(head)
    features = LAYOUT.depth_features if name == "depth" else LAYOUT.size_features
    folded = Network(head, features)
    for seed in range(300):
        state = observed(seed)
        if name == "depth":
            raw, observation = LAYOUT.depth_raw(state), LAYOUT.depth_observation(state)
        else:
            raw, observation = LAYOUT.size_raw(state), LAYOUT.size_observation(state)
        raw = raw.copy()
        raw[seed % len(raw)] = (np.nan, np.inf, -np.inf, 1e30, raw[seed % len(raw)])[seed % 5]
        scale, low, high = np.array([(f.scale, f.low, f.high) for f in features]).T
        bounded = np.minimum(np.fmax(raw * scale, low), high).astype(np.float32)
        if seed % 5 == 4:
            np.testing.assert_allclose(bounded, observation, atol=1e-6)
        expected = staged.logits(bounded).copy()
        np.testing.assert_allclose(folded.logits(raw), expected, atol=5e-5)


def test_a_state_read_twice_and_then_changed_is_read_anew() -> None:
    layout = FeatureLayout()
    first, second = observed(1), observed(2)
    fresh = [FeatureLayout().size_observation(state) for state in (first, second)]
    for state, expected in ((first, fresh[0]), (first, fresh[0]), (second, fresh[1])):
        layout.depth_observation(state)
        np.testing.assert_array_equal(layout.size_observation(state), expected)
    before = layout.depth_observation(second)
    second.depth, second.nodes = second.depth + 1, second.nodes + 4
    assert not np.array_equal(layout.depth_observation(second), before)
    known = layout.depth_observation(dataclasses.replace(second))
    second.history.append(3, 3, 3)
    assert not np.array_equal(layout.depth_observation(dataclasses.replace(second)), known)
