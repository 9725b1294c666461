"""Everything between a configuration and a head on disk."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftgym.console import progress, say
from draftgym.decoder.drafters.eagle3_head import (
    WEIGHTS_FILE,
    Eagle3Head,
    load_head,
    save_head,
)
from draftgym.decoder.sources import resolve_model
from draftgym.drafter_training.answers import AnswerSettings, answer_prompts, encode_prompt
from draftgym.drafter_training.card import DataCounts, model_card
from draftgym.drafter_training.config import DrafterConfig
from draftgym.drafter_training.data import TokenRow, read_answers, split_held_out
from draftgym.drafter_training.features import FeatureCache, build_cache
from draftgym.drafter_training.initialise import (
    choose_vocabulary,
    config_for,
    freeze_output,
    new_head,
)
from draftgym.drafter_training.target import fingerprint
from draftgym.drafter_training.trainer import HeadTrainer, TrainingData
from draftgym.errors import ConfigurationError
from draftgym.prompts import PromptSource, load_prompts
from draftgym.provenance import provenance, usable_cores
from draftgym.storage import write_json, write_text


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """The target in the form training needs.

    Attributes:
        model: A Transformers model, float32.
        tokenizer: Its tokenizer.
        fingerprint: Name of its weights.
    """

    model: Any
    tokenizer: Any
    fingerprint: str

    @property
    def embedding(self) -> Tensor:
        """Input embedding, ``[target_vocab, H]``."""
        matrix: Tensor = self.model.get_input_embeddings().weight.detach()
        return matrix

    @property
    def output_rows(self) -> Tensor:
        """Output matrix, ``[target_vocab, H]``."""
        matrix: Tensor = self.model.get_output_embeddings().weight.detach()
        return matrix


def load_target(source: str) -> LoadedTarget:
    """Load a target in float32: features of a faster type would be someone else's."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = resolve_model(source)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return LoadedTarget(model, AutoTokenizer.from_pretrained(folder), fingerprint(model))


def gather_rows(config: DrafterConfig, target: LoadedTarget, base: Path) -> list[TokenRow]:
    """Read answers kept in a file, and let the target answer the remaining prompts.

    Args:
        config: The configuration.
        target: The target.
        base: Folder that relative paths start from.

    Returns:
        Rows of the drafter split, each id once.
    """
    data, vocab = config.data, int(target.model.config.vocab_size)
    rows: list[TokenRow] = []
    if data.answers is not None:
        path = base / data.answers
        rows.extend(read_answers(path, data.answers_weights, data.row_tokens, vocab))
    known = {row.id for row in rows}
    for index, source in enumerate(data.sources):
        found = load_prompts([_located(source.prompts, base)], "drafter")
        prompts = [prompt for prompt in found if prompt.id not in known]
        known.update(prompt.id for prompt in prompts)
        if source.answers == 0:
            rows.extend(
                TokenRow(
                    prompt.id,
                    prompt.request_id,
                    encode_prompt(target.tokenizer, prompt, data.row_tokens),
                )
                for prompt in prompts
            )
            continue
        settings = AnswerSettings(
            max_new_tokens=data.answer_tokens,
            samples=source.answers,
            temperature=data.temperature,
            batch_rows=data.answer_batch_rows,
            seed=config.optimisation.seed,
        )
        path = base / config.work / f"answers-{index}.jsonl"
        with progress("answering prompts", len(prompts) * source.answers) as bar:
            rows.extend(
                answer_prompts(target.model, target.tokenizer, prompts, settings, path, bar.advance)
            )
    return rows


def _located(source: PromptSource, base: Path) -> PromptSource:
    """Resolve a file of prompts relative to the configuration, like every other path."""
    if not source.source.endswith(".jsonl"):
        return source
    return source.model_copy(update={"source": str(base / source.source)})


def cache_features(
    config: DrafterConfig, target: LoadedTarget, rows: Sequence[TokenRow], base: Path
) -> FeatureCache:
    """Compute the features of every row once."""
    layers = config.head.feature_layers
    folder = base / config.work / "features"
    cache = FeatureCache(folder, target.fingerprint, layers, target.model.config.hidden_size)
    wanted = sum(len(row.tokens) for row in cache.missing(rows))
    if wanted:
        with progress("caching features (tokens)", wanted) as bar:
            build_cache(cache, target.model.model, target.output_rows, rows, progress=bar.advance)
    return cache


def start_head(
    config: DrafterConfig, target: LoadedTarget, rows: Sequence[TokenRow], base: Path
) -> Eagle3Head:
    """Make a new head, or take one up again with a vocabulary for the present rows."""
    shape = config_for(
        target.model.config, config.head.feature_layers, config.head.draft_vocab_size
    )
    vocabulary = choose_vocabulary(rows, shape.draft_vocab_size, shape.target_vocab_size)
    if config.head.initialise_from is None:
        return new_head(target.model, shape, vocabulary, config.optimisation.seed)
    folder = base / config.head.initialise_from
    head = load_head(folder)
    if head.config != shape:
        raise ConfigurationError(
            f"head.initialise_from: {folder} holds {head.config}, the target needs {shape}"
        )
    head.train().requires_grad_(True)
    freeze_output(head, target.output_rows, vocabulary)
    return head


def train_drafter(config: DrafterConfig, base: Path) -> dict[str, Any]:
    """Train a head and write it with its model card.

    Args:
        config: The configuration.
        base: Folder that relative paths start from.

    Returns:
        Plain data for the result line.
    """
    target = load_target(config.target)
    rows = gather_rows(config, target, base)
    train, held_out = split_held_out(rows, config.data.held_out_fraction)
    cache = cache_features(config, target, rows, base)
    head = start_head(config, target, train, base)
    counts = DataCounts.of(train, held_out, head.t2d)
    say(str(counts))
    trainer = HeadTrainer(
        head,
        TrainingData(cache, target.embedding, train, held_out),
        config.optimisation,
        base / config.work,
        workers=config.workers or usable_cores(),
    )
    summary = trainer.run()
    output = base / config.output
    save_head(head, output)
    result = {
        "name": config.name,
        "output": str(config.output),
        "bytes": (output / WEIGHTS_FILE).stat().st_size,
        "data": asdict(counts),
        "training": asdict(summary),
        "configuration": config.model_dump(mode="json"),
        "provenance": provenance("cpu", "float32", {"target": target.fingerprint}),
    }
    write_json(output / "training.json", result)
    write_text(output / "README.md", model_card(config, counts, summary, head.config))
    return result
