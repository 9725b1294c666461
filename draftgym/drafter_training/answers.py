"""Let the target answer prompts itself, in batches, as token ids.

This module writes its rows as they are made, so an interrupted run goes on where it stopped.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftgym.drafter_training.batch_decoding import BatchDecoder
from draftgym.drafter_training.data import TokenRow
from draftgym.prompts.prompt import Prompt


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """How prompts are answered.

    Attributes:
        max_new_tokens: Longest answer.
        samples: Answers per prompt: the first greedy, the others drawn.
        temperature: Temperature of the drawn answers.
        batch_rows: Answers written at once.
        seed: Seeds the drawn answers.
    """

    max_new_tokens: int = 160
    samples: int = 1
    temperature: float = 0.7
    batch_rows: int = 48
    seed: int = 0


def encode_prompt(tokenizer: Any, prompt: Prompt, max_tokens: int) -> tuple[int, ...]:
    """Return the tokens of a prompt's first turn in the chat template, generation prompt last."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt.turns[0]}], add_generation_prompt=True, tokenize=False
    )
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"][:max_tokens])


def answer_prompts(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    settings: AnswerSettings,
    path: Path,
    progress: Callable[[float], None] | None = None,
) -> list[TokenRow]:
    """Answer prompts with the target.

    Left-padded batches can differ from a batch of one where two tokens are nearly tied.

    Args:
        model: The target, a Llama-like Transformers model.
        tokenizer: Its tokenizer.
        prompts: Prompts of the drafter split.
        settings: How to answer.
        path: JSON lines of rows made so far; appended to after every batch.
        progress: Called after every batch with the answers it added.

    Returns:
        One row per prompt and sample; sample 0 keeps the prompt's id, sample s adds ``#s``.
    """
    rows = _read(path)
    made = {row.id for row in rows}
    limit = int(model.config.max_position_embeddings) - settings.max_new_tokens
    wanted = [
        (TokenRow(_sample_id(prompt.id, s), prompt.request_id, encoded, greedy=s == 0))
        for prompt in prompts
        for encoded in [encode_prompt(tokenizer, prompt, limit)]
        for s in range(settings.samples)
    ]
    pending = [row for row in wanted if row.id not in made]
    # Greedy and drawn answers differ in generate()'s arguments, lengths in padding.
    pending.sort(key=lambda row: (not row.greedy, len(row.prompt_tokens)))
    path.parent.mkdir(parents=True, exist_ok=True)
    decoder = BatchDecoder(model)
    start = 0
    while start < len(pending):
        batch = pending[start : start + settings.batch_rows]
        batch = [row for row in batch if row.greedy == batch[0].greedy]
        answers = decoder.decode(
            [row.prompt_tokens for row in batch],
            settings.max_new_tokens,
            _stop_ids(model),
            _chooser(batch[0], settings, start),
        )
        with path.open("a", encoding="utf-8") as file:
            for row, answer in zip(batch, answers, strict=True):
                done = TokenRow(row.id, row.request_id, row.prompt_tokens, answer, row.greedy)
                rows.append(done)
                file.write(json.dumps(_plain(done)) + "\n")
        start += len(batch)
        if progress is not None:
            progress(len(batch))
    names = {row.id for row in wanted}
    return [row for row in rows if row.id in names]


def _sample_id(prompt_id: str, sample: int) -> str:
    return prompt_id if sample == 0 else f"{prompt_id}#{sample}"


def _chooser(row: TokenRow, settings: AnswerSettings, seed: int) -> Callable[[Tensor], Tensor]:
    if row.greedy:
        return lambda logits: logits.argmax(-1)
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + seed)

    def draw(logits: Tensor) -> Tensor:
        law = (logits / settings.temperature).softmax(-1)
        return torch.multinomial(law, 1, generator=generator).squeeze(-1)

    return draw


def _stop_ids(model: Any) -> frozenset[int]:
    stops = model.generation_config.eos_token_id
    return frozenset(stops if isinstance(stops, list) else [] if stops is None else [stops])


def _plain(row: TokenRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "request": row.request_id,
        "prompt_tokens": row.prompt_tokens,
        "answer_tokens": row.answer_tokens,
        "greedy": row.greedy,
    }


def _read(path: Path) -> list[TokenRow]:
    """Read the rows made so far; a last line cut short by an interruption is dropped."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    rows = []
    for line in whole.splitlines():
        values = json.loads(line)
        rows.append(
            TokenRow(
                values["id"],
                values["request"],
                tuple(values["prompt_tokens"]),
                tuple(values["answer_tokens"]),
                values["greedy"],
            )
        )
    return rows
