"""The verb from a YAML file to a head on disk, on a tiny random target."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from draftgym.commands.train_drafter import main
from draftgym.decoder.drafters.eagle3_head import load_head
from draftgym.errors import ConfigurationError

WORDS = ["<pad>", "<s>", "</s>", *(f"w{number}" for number in range(37))]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, initializer_range=0.3,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "target")
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = "<s> {{ messages[0]['content'] }} w0"
    tokenizer.save_pretrained(tmp_path / "target")
    prompts = [
        {"id": f"p-{n}", "turns": [f"w{n % 30} w{n * 7 % 30} w{n * 3 % 30}"]} for n in range(40)
    ]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    values: dict[str, Any] = {
        "name": "tiny",
        "target": str(tmp_path / "target"),
        "output": "out",
        "work": "work",
        "workers": 1,
        "data": {
            "sources": [
                {
                    "prompts": {"source": "prompts.jsonl", "weights": {"drafter": 1.0}},
                    "answers": 2,
                }
            ],
            "answer_tokens": 8,
            "held_out_fraction": 0.2,
        },
        "head": {"feature_layers": [1, 2, 3], "draft_vocab_size": 20},
        "optimisation": {"epochs": 1, "batch_tokens": 128, "evaluation_steps": 2},
    }
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(values))
    return tmp_path


def test_train_drafter_writes_a_head_and_its_card(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(project / "tiny.yaml")]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["schema"] == "draftgym.train_drafter/1"
    assert len(result["training"]["held_out"]["acceptance"]) == 2
    head = load_head(project / "out")
    assert head.config.feature_layers == (1, 2, 3)
    assert result["bytes"] == (project / "out" / "model.safetensors").stat().st_size
    assert "Held-out acceptance" in (project / "out" / "README.md").read_text()
    answers = (project / "work" / "answers-0.jsonl").read_text().splitlines()
    assert len(answers) == 80

    # Everything is found again: no new answers, no new steps, the same head.
    assert main([str(project / "tiny.yaml")]) == 0
    assert (project / "work" / "answers-0.jsonl").read_text().splitlines() == answers
    again = load_head(project / "out").state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in head.state_dict().items())


def test_unknown_fields_are_named(project: Path) -> None:
    path = project / "tiny.yaml"
    path.write_text(path.read_text() + "surprise: 1\n")
    with pytest.raises(ConfigurationError, match="surprise"):
        main([str(path)])
