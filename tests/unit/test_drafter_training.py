"""Training-time test, loss, held-out rows, features, answers and resuming."""

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from draftgym.configuration import load_yaml
from draftgym.decoder.drafters.eagle3_head import Eagle3Config, Eagle3Head
from draftgym.drafter_training.batch_decoding import BatchDecoder
from draftgym.drafter_training.batches import schedule
from draftgym.drafter_training.config import DrafterConfig, OptimisationConfig
from draftgym.drafter_training.data import (
    TokenRow,
    is_held_out,
    read_answers,
    shared_prefix_tokens,
    split_held_out,
)
from draftgym.drafter_training.features import FeatureCache, RowFeatures, build_cache
from draftgym.drafter_training.held_out import measure
from draftgym.drafter_training.initialise import choose_vocabulary, config_for, new_head
from draftgym.drafter_training.optimiser import orthogonalise
from draftgym.drafter_training.trainer import HeadTrainer, TrainingData
from draftgym.drafter_training.ttt import Batch, run_steps, soft_cross_entropy, total_loss
from draftgym.prompts import Prompt, PromptSource, load_prompts
from draftgym.prompts.prompt import Split
from draftgym.prompts.splits import assign_split

CONFIG = Eagle3Config(
    hidden_size=16,
    intermediate_size=24,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rope_theta=1e4,
    rms_norm_eps=1e-5,
    target_vocab_size=40,
    draft_vocab_size=20,
    feature_layers=(1, 2, 3),
    max_position_embeddings=64,
)


@pytest.fixture
def head() -> Eagle3Head:
    torch.manual_seed(0)
    made = Eagle3Head(CONFIG)
    made.set_vocabulary(torch.arange(0, 40, 2))
    made.lm_head.weight.requires_grad_(False)
    return made


@pytest.fixture
def embedding() -> Tensor:
    return torch.randn(40, 16, generator=torch.Generator().manual_seed(1))


def random_batch(lengths: Sequence[int], seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths))
    return Batch(
        tokens=torch.randint(0, 40, shape, generator=generator),
        features=torch.randn(*shape, 48, generator=generator),
        final=torch.randn(*shape, 16, generator=generator),
        best=torch.randint(0, 40, shape, generator=generator),
        judged=torch.arange(shape[1]) < torch.tensor(lengths).unsqueeze(1),
    )


class CachedAttention:
    """Plain causal attention over everything seen so far: what drafting does."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        outputs = []
        for index in range(len(query)):
            self.keys.append(key[index].repeat_interleave(2, 0))
            self.values.append(value[index].repeat_interleave(2, 0))
            keys, values = torch.stack(self.keys), torch.stack(self.values)  # [seen, heads, dim]
            weights = (torch.einsum("hd,shd->hs", query[index], keys) * 8**-0.5).softmax(-1)
            outputs.append(torch.einsum("hs,shd->hd", weights, values))
        return torch.stack(outputs)


def draft_from(
    head: Eagle3Head, embedding: Tensor, tokens: Tensor, features: Tensor, index: int, steps: int
) -> list[Tensor]:
    """Draft from prefix 0..index on true tokens, one pass at a time; logits of every step."""
    attend = CachedAttention()
    hidden = head.decode(
        embedding[tokens[1 : index + 2]],
        head.fuse(features[: index + 1]),
        torch.arange(index + 1),
        attend,
    )[-1:]
    logits = [head.logits(hidden)[0]]
    for step in range(1, steps):
        following = embedding[tokens[index + 1 + step]].unsqueeze(0)
        hidden = head.decode(following, hidden, torch.tensor([index + step]), attend)
        logits.append(head.logits(hidden)[0])
    return logits


@torch.inference_mode()
def test_training_time_test_equals_sequential_drafting(head: Eagle3Head, embedding: Tensor) -> None:
    batch = random_batch([11, 7])
    outputs = run_steps(head, embedding, batch, steps=4)
    offsets = head.target_ids()
    for step, output in enumerate(outputs):
        log_laws = []
        assert len(output.rows) == sum(length - 1 - step for length in (11, 7))
        for flat, hit in zip(output.rows.tolist(), output.hits.tolist(), strict=True):
            row, column = divmod(flat, 11)
            index = column - 1 - step
            logits = draft_from(
                head, embedding, batch.tokens[row], batch.features[row], index, step + 1
            )[step]
            assert hit == (offsets[logits.argmax()] == batch.best[row, column])
            targets = (head.lm_head.weight @ batch.final[row, column]).softmax(-1)
            if head.t2d[batch.best[row, column]]:
                log_laws.append(-(targets * logits.log_softmax(-1)).sum())
        torch.testing.assert_close(output.loss, torch.stack(log_laws).sum())
        assert output.kept == len(log_laws)


def test_loss_and_gradient_match_the_formula() -> None:
    generator = torch.Generator().manual_seed(3)
    normed = torch.randn(1200, 16, generator=generator, requires_grad=True)
    rows = torch.randn(20, 16, generator=generator)
    targets = torch.randn(1200, 20, generator=generator).softmax(-1)
    weights = torch.rand(1200, generator=generator)
    loss, choices = soft_cross_entropy(normed, rows, targets, weights)
    (gradient,) = torch.autograd.grad(loss, normed)
    expected = -(weights * (targets * (normed @ rows.T).log_softmax(-1)).sum(-1)).sum()
    (expected_gradient,) = torch.autograd.grad(expected, normed)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient)
    assert torch.equal(choices, (normed @ rows.T).argmax(-1))


def test_total_loss_weighs_steps_by_decay(head: Eagle3Head, embedding: Tensor) -> None:
    outputs = run_steps(head, embedding, random_batch([9]), steps=3)
    first, second, third = (output.loss for output in outputs)
    expected = (first + 0.5 * second + 0.25 * third) / 1.75
    torch.testing.assert_close(total_loss(outputs, 0.5), expected)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_rows_shorter_than_the_steps(head: Eagle3Head, embedding: Tensor, length: int) -> None:
    outputs = run_steps(head, embedding, random_batch([length]), steps=4)
    assert [len(output.rows) for output in outputs] == [max(0, length - 1 - k) for k in range(4)]
    total_loss(outputs, 0.8).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in head.parameters())


class TestHeldOut:
    def test_depends_on_the_request_alone_and_has_about_the_share(self) -> None:
        ids = [f"code-{number}" for number in range(4000)]
        share = sum(is_held_out(name, 0.05) for name in ids) / len(ids)
        assert 0.04 < share < 0.06
        assert [is_held_out(name, 0.05) for name in ids] == [is_held_out(n, 0.05) for n in ids]

    def test_translations_stay_together(self) -> None:
        rows = [
            TokenRow(f"chat-{number}-{language}", f"chat-{number}", (1, 2))
            for number in range(200)
            for language in ("en", "it")
        ]
        train, held_out = split_held_out(rows, 0.2)
        assert train
        assert held_out
        assert len(train) + len(held_out) == len(rows)
        assert not {row.request_id for row in train} & {row.request_id for row in held_out}

    def test_never_in_a_training_batch(self) -> None:
        rows = [TokenRow(f"chat-{n}", f"chat-{n}", tuple(range(2 + n % 7))) for n in range(300)]
        train, held_out = split_held_out(rows, 0.2)
        visited = [row.id for batch in schedule(train, 32, seed=0, epochs=2) for row in batch]
        assert not set(visited) & {row.id for row in held_out}
        assert sorted(visited) == sorted(2 * [row.id for row in train])

    def test_training_data_refuses_an_overlap(self, tmp_path: Path, embedding: Tensor) -> None:
        rows, cache = cached_rows(tmp_path)
        with pytest.raises(ValueError, match="'text-0' is also trained on"):
            TrainingData(cache, embedding, rows, rows[:1])


def cached_rows(folder: Path, count: int = 24) -> tuple[list[TokenRow], FeatureCache]:
    """Rows whose target law follows from the last token, so that a head can learn it."""
    random = np.random.default_rng(0)
    table = 12 * random.normal(size=(40, 16))
    rows, arrays = [], []
    for number in range(count):
        tokens = random.integers(0, 40, size=random.integers(4, 12))
        best = np.roll(tokens, -1)
        rows.append(
            TokenRow(
                f"text-{number}",
                f"text-{number}",
                tuple(tokens[:2].tolist()),
                tuple(tokens[2:].tolist()),
            )
        )
        final = table[tokens]
        features = np.concatenate([final, final, final], -1)
        arrays.append(
            RowFeatures(
                tokens,
                features.astype(np.float16),
                final.astype(np.float16),
                best.astype(np.int32),
            )
        )
    cache = FeatureCache(folder / "features", "target", (1, 2, 3), 16)
    cache.append(rows[: count // 2], arrays[: count // 2])
    cache.append(rows[count // 2 :], arrays[count // 2 :])
    return rows, cache


class TestFeatureCache:
    def test_reads_back_what_was_stored_after_reopening(self, tmp_path: Path) -> None:
        rows, cache = cached_rows(tmp_path)
        reopened = FeatureCache(tmp_path / "features", "target", (1, 2, 3), 16)
        assert reopened.missing(rows) == []
        for row in rows:
            first, second = cache.read(row), reopened.read(row)
            assert first.tokens.tolist() == list(row.tokens)
            for field in ("features", "final", "best"):
                assert np.array_equal(getattr(first, field), getattr(second, field))

    def test_changed_tokens_are_missing(self, tmp_path: Path) -> None:
        rows, cache = cached_rows(tmp_path)
        changed = dataclasses.replace(rows[0], answer_tokens=(1, 2, 3))
        assert cache.missing([rows[0], changed]) == [changed]

    def test_another_target_is_refused(self, tmp_path: Path) -> None:
        cached_rows(tmp_path)
        with pytest.raises(ValueError, match="target: holds 'target', need 'other'"):
            FeatureCache(tmp_path / "features", "other", (1, 2, 3), 16)


class TestAgainstATinyTarget:
    """A random two-layer Llama stands for the target."""

    @pytest.fixture
    def target(self) -> Any:
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, pad_token_id=0,
            eos_token_id=3, max_position_embeddings=64, initializer_range=0.3,
        )  # fmt: skip
        return LlamaForCausalLM(config).eval()

    def test_cached_features_equal_the_hidden_states(self, target: Any, tmp_path: Path) -> None:
        rows = [TokenRow(f"r{n}", f"r{n}", tuple(range(1, 3 + 2 * n))) for n in range(5)]
        cache = FeatureCache(tmp_path, "t", (1, 2, 3), 16)
        built = build_cache(
            cache, target.model, target.lm_head.weight, rows, batch_tokens=24, shard_tokens=8
        )
        assert built == sum(len(row.tokens) for row in rows)
        again = build_cache(cache, target.model, target.lm_head.weight, rows)
        assert again == 0
        for row in rows:
            with torch.inference_mode():
                output = target(torch.tensor([row.tokens]), output_hidden_states=True)
            expected = torch.cat([output.hidden_states[layer][0] for layer in (1, 2, 3)], -1)
            cached = cache.read(row)
            assert np.allclose(cached.features, expected, atol=2e-2)
            assert np.allclose(cached.final, output.hidden_states[-1][0], atol=2e-2)
            assert cached.best.tolist() == output.logits[0].argmax(-1).tolist()

    def test_batched_answers_equal_single_greedy_ones(self, target: Any) -> None:
        prompts = [(5, 6, 7), (9, 8, 7, 6, 5, 4), (30,)]
        answers = BatchDecoder(target).decode(
            prompts, 12, frozenset([3]), lambda logits: logits.argmax(-1)
        )
        for prompt, answer in zip(prompts, answers, strict=True):
            tokens = list(prompt)
            for _ in range(12):
                with torch.inference_mode():
                    logits = target(torch.tensor([tokens])).logits[0, -1]
                tokens.append(int(logits.argmax()))
                if tokens[-1] == 3:
                    break
            assert answer == tuple(tokens[len(prompt) :])

    def test_a_new_head_fits_the_target(self, target: Any) -> None:
        config = config_for(target.config, (1, 2, 3), 20)
        vocabulary = torch.arange(1, 40, 2)
        made = new_head(target, config, vocabulary, seed=0)
        assert torch.equal(made.lm_head.weight, target.lm_head.weight[vocabulary])
        assert not made.lm_head.weight.requires_grad
        assert torch.equal(made.target_ids(), vocabulary)


def test_vocabulary_is_the_most_frequent_tokens_in_order() -> None:
    rows = [TokenRow("a", "a", (9, 9, 9, 5, 5), (7, 7, 9, 1))]
    assert choose_vocabulary(rows, 3, 40).tolist() == [5, 7, 9]
    assert choose_vocabulary(rows, 6, 40).tolist() == [0, 1, 2, 5, 7, 9]


def test_vocabulary_hears_small_families() -> None:
    sums = [TokenRow(f"sum-{n}", f"sum-{n}", (1, 1, 1, 2)) for n in range(100)]
    chats = [TokenRow("chat-1", "chat-1", (8,) * 10)]
    # Token 8 is a tenth as frequent as token 2, but all of its family.
    assert choose_vocabulary(sums + chats, 2, 40).tolist() == [1, 2]
    assert choose_vocabulary(sums + 3 * chats, 2, 40).tolist() == [1, 8]


def test_shared_prefix() -> None:
    rows = [TokenRow("a", "a", (1, 2, 3)), TokenRow("b", "b", (1, 2), (4,))]
    assert shared_prefix_tokens(rows) == 2
    assert shared_prefix_tokens(rows[:1]) == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: broken JSON"),
        ('{"prompt_tokens": [], "answer_tokens": []}', "string 'id'"),
        ('{"id": "a", "prompt_tokens": [1], "answer_tokens": [40]}', "answer_tokens: .* 0 to 39"),
    ],
)
def test_bad_answers_name_the_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=message):
        read_answers(path, {"drafter": 1.0}, 64, 40)


def test_answers_of_other_splits_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    lines = [
        json.dumps({"id": f"q-{n}", "prompt_tokens": [1] * 6, "answer_tokens": [2] * 6})
        for n in range(100)
    ]
    path.write_text("\n".join(lines))
    weights: dict[Split, float] = {"drafter": 0.85, "policy": 0.15}
    rows = read_answers(path, weights, 8, 40)
    assert {row.id for row in rows} == {
        f"q-{n}" for n in range(100) if assign_split(f"q-{n}", weights) == "drafter"
    }
    assert all(row.tokens == (1,) * 6 + (2,) * 2 for row in rows)


def test_orthogonalised_matrices_have_unit_singular_values() -> None:
    matrix = torch.randn(12, 30, generator=torch.Generator().manual_seed(0))
    for values in (torch.linalg.svdvals(orthogonalise(m)) for m in (matrix, matrix.T)):
        assert float(values.min()) > 0.6
        assert float(values.max()) < 1.3


def settings(**changes: Any) -> OptimisationConfig:
    values: dict[str, Any] = {
        "epochs": 4, "batch_tokens": 64, "micro_batch_tokens": 24, "warmup_steps": 3,
        "checkpoint_every_steps": 5, "evaluate_every_steps": 7, "evaluation_steps": 2,
        "peak_learning_rate": 0.02,
    }  # fmt: skip
    return OptimisationConfig(**{**values, **changes})


@pytest.mark.parametrize("optimiser", ["muon", "adamw"])
def test_resuming_equals_an_uninterrupted_run(
    tmp_path: Path, embedding: Tensor, optimiser: str
) -> None:
    rows, cache = cached_rows(tmp_path)
    data = TrainingData(cache, embedding, rows[:20], rows[20:])
    config = settings(optimiser=optimiser)

    def trainer(folder: str) -> HeadTrainer:
        torch.manual_seed(0)
        made = Eagle3Head(CONFIG)
        made.set_vocabulary(torch.arange(0, 40, 2))
        made.lm_head.weight.requires_grad_(False)
        return HeadTrainer(made, data, config, tmp_path / folder, workers=2)

    whole = trainer("whole")
    summary = whole.run()
    assert summary.steps == len(whole.batches) > 8

    killed = trainer("killed")
    count = 0

    def stop_at_eight(batch: Sequence[TokenRow]) -> None:
        nonlocal count
        if count == 8:
            raise KeyboardInterrupt
        count += 1
        HeadTrainer._train_step(killed, batch)

    killed._train_step = stop_at_eight  # type: ignore[method-assign,assignment]
    with pytest.raises(KeyboardInterrupt):
        killed.run()
    resumed = trainer("killed")
    assert resumed.step == 5
    assert resumed.run().held_out == summary.held_out
    for name, tensor in whole.head.state_dict().items():
        assert torch.equal(tensor, resumed.head.state_dict()[name]), name


def test_a_checkpoint_of_other_settings_is_refused(
    tmp_path: Path, embedding: Tensor, head: Eagle3Head
) -> None:
    rows, cache = cached_rows(tmp_path)
    data = TrainingData(cache, embedding, rows[:20], rows[20:])
    HeadTrainer(head, data, settings(epochs=0.5), tmp_path, workers=1).run()
    with pytest.raises(ValueError, match="other settings or rows"):
        HeadTrainer(head, data, settings(epochs=2), tmp_path, workers=1)


def test_training_learns(tmp_path: Path, embedding: Tensor, head: Eagle3Head) -> None:
    rows, cache = cached_rows(tmp_path)
    data = TrainingData(cache, embedding, rows[:20], rows[20:])
    trainer = HeadTrainer(head, data, settings(epochs=30), tmp_path / "run", workers=2)
    trainer.run()
    losses = [
        entry["loss"]
        for entry in map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
        if "loss" in entry
    ]
    assert losses[-1] < 0.7 * losses[0]
    assert measure(head, embedding, cache, data.held_out, 2).positions > 0


def test_the_default_configuration_loads() -> None:
    path = Path(__file__).parents[2] / "configs" / "drafter" / "smollm2.yaml"
    config = load_yaml(path, DrafterConfig)
    assert config.head.feature_layers == (3, 15, 27)


def test_prompts_of_the_default_configuration_serve_the_drafter_alone() -> None:
    folder = Path(__file__).parents[2] / "configs" / "drafter"
    source = load_yaml(folder / "smollm2.yaml", DrafterConfig).data.sources[1].prompts
    prompts = load_prompts(
        [source.model_copy(update={"source": str(folder / source.source)}), PromptSource()],
        "drafter",
    )
    assert {prompt.language for prompt in prompts} == {"en", "it", "es", "zh"}
    assert sum(prompt.id.startswith("extra-") for prompt in prompts) == 290
    assert sum(prompt.id.startswith("drafter-") for prompt in prompts) == 861


def test_drafter_prompts_share_no_sentence_with_those_that_judge() -> None:
    folder = Path(__file__).parents[2] / "configs" / "drafter"
    source = load_yaml(folder / "smollm2.yaml", DrafterConfig).data.sources[1].prompts
    located = source.model_copy(update={"source": str(folder / source.source)})

    def runs(prompt: Prompt) -> set[tuple[str, ...]]:
        words = re.findall(r"[\u4e00-\u9fff]|\w+", " ".join(prompt.turns).lower())
        return {tuple(words[i : i + 12]) for i in range(len(words) - 11)}

    trained = set().union(*map(runs, load_prompts([located], "drafter")))
    for split in ("validation", "test"):
        for prompt in load_prompts([PromptSource()], split):
            assert not runs(prompt) & trained, prompt.id
