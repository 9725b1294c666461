"""The model pairs that configs/train names for a GPU machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftgym.commands.train import read_plan
from draftgym.configuration import load_yaml
from draftgym.decoder.sources import parse_hub_id
from draftgym.errors import ConfigurationError
from policies.config import TrainConfig

FOLDER = Path(__file__).parents[2] / "configs" / "train"
LEARNING_TO_DRAFT = {
    "llama31_8b_eagle3": ("Llama-3.1-8B-Instruct", "EAGLE3-LLaMA3.1-Instruct-8B"),
    "deepseek_r1_llama_8b_eagle3": (
        "DeepSeek-R1-Distill-Llama-8B",
        "EAGLE3-DeepSeek-R1-Distill-LLaMA-8B",
    ),
    "vicuna_13b_eagle3": ("vicuna-13b-v1.3", "EAGLE3-Vicuna1.3-13B"),
    "qwen3_14b_eagle3": ("Qwen3-14B", "Qwen3-14B_eagle3"),
    "qwen3_32b_eagle3": ("Qwen3-32B", "Qwen3-32B_eagle3"),
}
PAIRS = LEARNING_TO_DRAFT | {"qwen3_8b_eagle3": ("Qwen3-8B", "Qwen3-8B_eagle3")}


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_published_pairs(name: str) -> None:
    config = load_yaml(FOLDER / f"{name}.yaml", TrainConfig)
    pair, drafter = config.pair, config.pair.drafter
    target, head = (parse_hub_id(source or "") for source in (pair.target, drafter.source))
    assert target is not None and head is not None
    assert (target[0].partition("/")[2], head[0].partition("/")[2]) == PAIRS[name]
    assert (drafter.kind, pair.device, pair.dtype) == ("eagle3", "cuda", "bfloat16")
    assert (drafter.max_depth, config.layout.size_grid[-1]) == (8, 60)


def test_a_draft_model_of_the_same_family() -> None:
    pair = load_yaml(FOLDER / "qwen3_4b_0.6b.yaml", TrainConfig).pair
    assert (pair.target, pair.drafter.kind) == ("Qwen/Qwen3-4B", "lm")
    assert pair.drafter.source == "Qwen/Qwen3-0.6B"


def test_runs_do_not_share_a_folder() -> None:
    runs = [load_yaml(path, TrainConfig).run for path in FOLDER.glob("*.yaml")]
    assert len(runs) == len(set(runs))


def test_a_run_cannot_end_with_a_contest_of_rules() -> None:
    file = FOLDER / "default.yaml"
    config = load_yaml(file, TrainConfig)
    assert read_plan(config, file) is not None
    with pytest.raises(ConfigurationError, match=r"evaluate: ../evaluate/quick.yaml compares more"):
        read_plan(config.model_copy(update={"evaluate": "../evaluate/quick.yaml"}), file)
