"""Gradients of one step from several micro-batches, computed side by side.

Each worker is a thread that runs its operators on one core and takes the next micro-batch when
it is done. Unlike operators spread over all cores, this does not stall when another process holds
one of them. Gradients are summed in the order of the micro-batches, so threads change nothing.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from draftgym.decoder.drafters.eagle3_head import Eagle3Head
from draftgym.drafter_training.data import TokenRow
from draftgym.drafter_training.ttt import Batch, run_steps, total_loss


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """What one optimiser step saw.

    Attributes:
        loss: Mean weighted soft cross-entropy in nats.
        accuracy: Share of first choices that are the target's, per test-time step.
    """

    loss: float
    accuracy: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Partial:
    gradients: tuple[Tensor, ...]
    loss: Tensor
    kept: Tensor
    hits: Tensor  # [steps]
    counts: Tensor  # [steps]


class GradientPool:
    """Computes gradients of a head on a pool of single-core workers.

    Args:
        head: The head; parameters with ``requires_grad`` are trained.
        embedding: The target's embedding matrix, ``[target_vocab, H]``.
        load: Reads the rows of a micro-batch.
        steps: Training-time-test steps.
        decay: Loss weight of step k is decay^k.
        workers: Threads.
    """

    def __init__(
        self,
        head: Eagle3Head,
        embedding: Tensor,
        load: Callable[[Sequence[TokenRow]], Batch],
        steps: int,
        decay: float,
        workers: int,
    ) -> None:
        self._head, self._embedding, self._load = head, embedding, load
        self._steps, self._decay = steps, decay
        self.trained = [parameter for parameter in head.parameters() if parameter.requires_grad]
        self.pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))

    def accumulate(self, micro_batches: Sequence[Sequence[TokenRow]]) -> StepStatistics:
        """Set the ``grad`` of every trained parameter to the mean over all micro-batches.

        Args:
            micro_batches: Rows of each micro-batch.

        Returns:
            Loss and accuracy of the step.
        """
        partials = list(self.pool.map(self._compute, micro_batches))
        kept = torch.stack([partial.kept for partial in partials]).sum().clamp(min=1)
        for index, parameter in enumerate(self.trained):
            total = partials[0].gradients[index]
            for partial in partials[1:]:
                total = total + partial.gradients[index]
            parameter.grad = total / kept
        loss = torch.stack([partial.loss for partial in partials]).sum() / kept
        hits = torch.stack([partial.hits for partial in partials]).sum(0)
        counts = torch.stack([partial.counts for partial in partials]).sum(0)
        accuracy = (hits / counts.clamp(min=1)).tolist()
        return StepStatistics(float(loss), tuple(accuracy))

    def close(self) -> None:
        """Stop the workers."""
        self.pool.shutdown()

    def _compute(self, rows: Sequence[TokenRow]) -> _Partial:
        outputs = run_steps(self._head, self._embedding, self._load(rows), self._steps)
        loss = total_loss(outputs, self._decay)
        # Asked for directly: workers share the parameters and may not write to their ``grad``.
        gradients = torch.autograd.grad(loss, self.trained)
        return _Partial(
            gradients=gradients,
            loss=loss.detach(),
            kept=outputs[0].kept,
            hits=torch.stack([output.hits.sum() for output in outputs]).float(),
            counts=torch.tensor([float(len(output.rows)) for output in outputs]),
        )
