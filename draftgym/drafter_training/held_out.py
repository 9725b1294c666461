"""Measure a head on rows it was never trained on."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftgym.decoder.drafters.eagle3_head import Eagle3Head
from draftgym.drafter_training.batches import make_batch
from draftgym.drafter_training.data import TokenRow, group_by_length
from draftgym.drafter_training.features import FeatureCache
from draftgym.drafter_training.ttt import Batch, StepOutput, run_steps

ParallelMap = Callable[
    [Callable[[list[TokenRow]], "_Tally"], Iterable[list[TokenRow]]], Iterable["_Tally"]
]


@dataclass(frozen=True, slots=True)
class HeldOutResult:
    """Acceptance on held-out answers.

    Attributes:
        acceptance: Share of positions per step where the head's first choice, made from its own
            features and the true tokens before, is the target's; tokens outside the draft
            vocabulary count as misses.
        chain_tau: Estimated tokens emitted per round by a greedy chain as deep as the steps:
            one plus the mean length of the run of hits, bonus counted.
        positions: Positions judged at step 0.
    """

    acceptance: tuple[float, ...]
    chain_tau: float
    positions: int


@dataclass(frozen=True, slots=True)
class _Tally:
    hits: Tensor  # [steps]
    counts: Tensor  # [steps]
    run_total: int
    starts: int


def measure(
    head: Eagle3Head,
    embedding: Tensor,
    cache: FeatureCache,
    rows: Sequence[TokenRow],
    steps: int,
    batch_tokens: int = 1024,
    parallel_map: ParallelMap = map,
) -> HeldOutResult:
    """Measure acceptance on the answers of held-out rows.

    Args:
        head: The head.
        embedding: The target's embedding matrix, ``[target_vocab, H]``.
        cache: Features of the rows.
        rows: Held-out rows; those without an answer are left out.
        steps: Depth measured.
        batch_tokens: Padded tokens at once.
        parallel_map: Like ``map``; may work on several batches at once.

    Raises:
        ValueError: If no row has an answer.
    """
    answered = [row for row in rows if row.answer_tokens]
    if not answered:
        raise ValueError("held_out_fraction: no answered row is held out; add data")

    @torch.inference_mode()
    def judge(group: list[TokenRow]) -> _Tally:
        batch = make_batch(cache, group, skip_tokens=0, answers_only=True)
        outputs = run_steps(head, embedding, batch, steps)
        lengths = _hit_runs(batch, outputs)
        return _Tally(
            hits=torch.stack([output.hits.sum() for output in outputs]),
            counts=torch.tensor([len(output.rows) for output in outputs]),
            run_total=int(lengths.sum()),
            starts=len(lengths),
        )

    tallies = list(parallel_map(judge, group_by_length(answered, batch_tokens)))
    hits = torch.stack([tally.hits for tally in tallies]).sum(0)
    counts = torch.stack([tally.counts for tally in tallies]).sum(0)
    starts = sum(tally.starts for tally in tallies)
    return HeldOutResult(
        acceptance=tuple((hits / counts.clamp(min=1)).tolist()),
        chain_tau=1 + sum(tally.run_total for tally in tallies) / max(1, starts),
        positions=int(counts[0]),
    )


def _hit_runs(batch: Batch, outputs: Sequence[StepOutput]) -> Tensor:
    """Return, for every index that all steps could start from, how many leading steps hit."""
    size = batch.tokens.numel()
    alive = torch.ones(size, dtype=torch.bool)
    reached = torch.ones(size, dtype=torch.bool)
    lengths = torch.zeros(size, dtype=torch.int64)
    for step, output in enumerate(outputs):
        indices = output.rows - 1 - step
        hit = torch.zeros(size, dtype=torch.bool)
        judged = torch.zeros(size, dtype=torch.bool)
        hit[indices] = output.hits
        judged[indices] = True
        alive &= hit
        reached &= judged
        lengths += alive
    return lengths[reached]
