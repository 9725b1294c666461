"""Muon for the head's matrices, AdamW for its norms, in float32.

Muon: Keller Jordan's momentum with an orthogonalised update, with the scale of "Muon is Scalable
for LLM Training" (arXiv 2502.16982) that lets it share AdamW's learning rate. PyTorch's own
version orthogonalises in bfloat16, which is slow on a CPU without bfloat16 units.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

ParallelMap = Callable[[Callable[[Tensor], Tensor], Iterable[Tensor]], Iterable[Tensor]]

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


@torch.no_grad()
def orthogonalise(matrix: Tensor, iterations: int = 5) -> Tensor:
    """Move the singular values of a matrix close to 1 by a quintic Newton-Schulz iteration.

    Args:
        matrix: ``[m, n]``.
        iterations: Number of iterations.

    Returns:
        ``[m, n]``, with singular values in about [0.7, 1.2].
    """
    a, b, c = _NEWTON_SCHULZ
    tall = matrix.shape[0] > matrix.shape[1]
    wide: Tensor = matrix.T if tall else matrix
    wide = wide / (wide.norm() + 1e-7)
    for _ in range(iterations):
        gram = wide @ wide.T
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide.T if tall else wide


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised, with decoupled weight decay.

    Args:
        matrices: Two-dimensional parameters.
        lr: Learning rate, on AdamW's scale.
        momentum: Decay of the momentum.
        weight_decay: Decoupled weight decay.
        parallel_map: Like ``map``; may orthogonalise several matrices at once.
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        parallel_map: ParallelMap = map,
    ) -> None:
        self._map = parallel_map
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Apply one update."""
        if closure is not None:
            raise ValueError("closure: not supported")
        for group in self.param_groups:
            matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
            directions = [self._direction(matrix, group["momentum"]) for matrix in matrices]
            updates = self._map(orthogonalise, directions)
            for matrix, update in zip(matrices, updates, strict=True):
                scale = 0.2 * math.sqrt(max(matrix.shape))
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-group["lr"] * scale)
        return None

    def _direction(self, matrix: Tensor, decay: float) -> Tensor:
        assert matrix.grad is not None
        state = self.state[matrix]
        if not state:
            state["momentum"] = torch.zeros_like(matrix)
        momentum: Tensor = state["momentum"]
        momentum.lerp_(matrix.grad, 1 - decay)
        return matrix.grad.lerp(momentum, decay)


class HeadOptimiser:
    """The optimisers of a head and their common schedule.

    Args:
        head: Parameters with ``requires_grad`` are trained.
        kind: ``muon`` (matrices by Muon, the rest by AdamW) or ``adamw`` (all by AdamW).
        peak_lr: Learning rate after warm-up.
        weight_decay: Decoupled weight decay of matrices.
        warmup_steps: Steps of linear warm-up.
        total_steps: Steps after which the rate has fallen to ``final_fraction`` of its peak.
        final_fraction: Share of the peak rate left at the end of the cosine.
        parallel_map: Like ``map``; may work on several matrices at once.
    """

    def __init__(
        self,
        head: nn.Module,
        kind: str,
        peak_lr: float,
        weight_decay: float,
        warmup_steps: int,
        total_steps: int,
        final_fraction: float,
        parallel_map: ParallelMap = map,
    ) -> None:
        trained = [parameter for parameter in head.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in trained if parameter.ndim == 2]
        rest = [parameter for parameter in trained if parameter.ndim != 2]
        self._peak_lr, self._final = peak_lr, final_fraction
        self._warmup, self._total = warmup_steps, total_steps
        betas = (0.9, 0.95)
        self._optimisers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(rest, lr=peak_lr, betas=betas, weight_decay=0.0)
        ]
        if kind == "muon":
            self._optimisers.append(
                Muon(matrices, peak_lr, weight_decay=weight_decay, parallel_map=parallel_map)
            )
        else:
            self._optimisers.append(
                torch.optim.AdamW(matrices, lr=peak_lr, betas=betas, weight_decay=weight_decay)
            )

    def rate(self, step: int) -> float:
        """Return the learning rate of a step counted from 0."""
        if step < self._warmup:
            return self._peak_lr * (step + 1) / self._warmup
        done = min(1.0, (step - self._warmup) / max(1, self._total - self._warmup))
        cosine = 0.5 * (1 + math.cos(math.pi * done))
        return self._peak_lr * (self._final + (1 - self._final) * cosine)

    def step(self, step: int) -> float:
        """Update the parameters from their gradients, clear them, return the rate used."""
        rate = self.rate(step)
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        return rate

    def state_dict(self) -> list[dict[str, Any]]:
        """Return what a checkpoint needs."""
        return [optimiser.state_dict() for optimiser in self._optimisers]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Continue from a checkpoint."""
        for optimiser, state in zip(self._optimisers, states, strict=True):
            optimiser.load_state_dict(state)
