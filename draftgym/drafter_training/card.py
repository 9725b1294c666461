"""The model card written beside a trained head."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from draftgym.decoder.drafters.eagle3_head import Eagle3Config
from draftgym.drafter_training.config import DrafterConfig
from draftgym.drafter_training.data import TokenRow
from draftgym.drafter_training.trainer import TrainingSummary


@dataclass(frozen=True, slots=True)
class DataCounts:
    """Size of the training data.

    Attributes:
        rows: Rows trained on.
        tokens: Their tokens, each counted once.
        answer_tokens: Of these, written by the target.
        held_out_rows: Rows measured on only.
        held_out_tokens: Their tokens.
        vocabulary_coverage: Share of held-out answer tokens the head can propose.
    """

    rows: int
    tokens: int
    answer_tokens: int
    held_out_rows: int
    held_out_tokens: int
    vocabulary_coverage: float

    @classmethod
    def of(
        cls, train: Sequence[TokenRow], held_out: Sequence[TokenRow], t2d: Tensor
    ) -> "DataCounts":
        """Count rows; ``t2d`` is bool ``[target_vocab]``."""
        proposable = t2d.tolist()
        answered = [proposable[token] for row in held_out for token in row.answer_tokens]
        return cls(
            rows=len(train),
            tokens=sum(len(row.tokens) for row in train),
            answer_tokens=sum(len(row.answer_tokens) for row in train),
            held_out_rows=len(held_out),
            held_out_tokens=sum(len(row.tokens) for row in held_out),
            vocabulary_coverage=sum(answered) / max(1, len(answered)),
        )


def model_card(
    config: DrafterConfig, counts: DataCounts, summary: TrainingSummary, shape: Eagle3Config
) -> str:
    """Return the card as Markdown.

    Args:
        config: What was asked for.
        counts: What was trained on.
        summary: What came of it.
        shape: The head.
    """
    loop = config.optimisation
    shares = " | ".join(f"{share:.3f}" for share in summary.held_out.acceptance)
    steps = " | ".join(f"step {step}" for step in range(len(summary.held_out.acceptance)))
    rule = "|".join("---" for _ in summary.held_out.acceptance)
    return f"""# {config.name}

An EAGLE-3 draft head (arXiv 2503.01840, published weight names) for `{config.target}`: one
decoder layer of width {shape.hidden_size} over [embedding, fused states entering target layers
{", ".join(map(str, shape.feature_layers))}], proposing {shape.draft_vocab_size} of
{shape.target_vocab_size} tokens. Weights are bfloat16; `d2t` holds offsets
(target id = draft id + offset).

## Training

    python -m draftgym train-drafter CONFIG

`training.json` beside this file holds the whole configuration, versions and hardware.

- Trained on {counts.rows:,} rows, {counts.tokens:,} tokens, of which {counts.answer_tokens:,} were
  written by the target; prompts of the `drafter` split only.
- {summary.steps:,} steps, {loop.epochs:g} epochs, {summary.trained_tokens:,} tokens visited;
  {loop.test_steps} training-time-test steps weighted {loop.step_decay:g}^k; soft targets at every
  position after the chat template's shared preamble; {loop.optimiser} for matrices.
- Output rows are the target's, frozen; other weights start from the target's last layer
  {"" if config.head.initialise_from is None else "(or from an earlier run of this recipe)"}.

## Held-out acceptance

{counts.held_out_rows} rows ({counts.held_out_tokens:,} tokens) whose requests were never trained
on; {summary.held_out.positions:,} answer positions. Share of first choices that are the target's,
made from the head's own features and the true tokens before; tokens outside the draft vocabulary
count as misses (coverage {counts.vocabulary_coverage:.1%}).

| {steps} | chain tau |
|{rule}|---|
| {shares} | {summary.held_out.chain_tau:.2f} |

Chain tau is the estimated number of tokens per round of a greedy chain as deep as the steps, bonus
token included.

## Limits

Made for this target alone: another model's features mean nothing to it. Best on what it saw most.
It never changes what the target says, only how fast.
"""
