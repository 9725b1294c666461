"""Which prompt comes next: seeded permutations, one after the other, for one of many workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class PromptStream:
    """Endless prompt order in which every prompt of the worker's share comes up equally often.

    The worker's number is part of the seed, and live workers own disjoint shares. SB3 seeds
    worker i with seed + i, so that neighbouring runs would otherwise share most of their streams.

    Args:
        prompts: Number of prompts over all workers.
        seed: Seed of the order; fresh entropy when None.
        worker: This worker's number.
        workers: Number of workers.
        disjoint: False gives every worker all prompts, each in an order of its own.

    Raises:
        ValueError: If a number is out of range or a worker would get no prompt.
    """

    def __init__(
        self,
        prompts: int,
        seed: int | None = None,
        worker: int = 0,
        workers: int = 1,
        *,
        disjoint: bool = True,
    ) -> None:
        if not 0 <= worker < workers:
            raise ValueError(f"worker: must be 0 to {workers - 1}, got {worker}")
        if prompts < (workers if disjoint else 1):
            raise ValueError(f"prompts: at least one per worker is needed, got {prompts}")
        self._share = np.arange(worker, prompts, workers) if disjoint else np.arange(prompts)
        self._worker = worker
        self.seed(seed)

    def __len__(self) -> int:
        return len(self._share)

    def seed(self, seed: int | None) -> None:
        """Start the order afresh."""
        sequence = np.random.SeedSequence(seed, spawn_key=(self._worker,))
        self.generator = np.random.Generator(np.random.PCG64(sequence))
        self._queue: list[int] = []
        self._position = 0
        self._key = int(sequence.generate_state(1, np.uint64)[0]) >> 2
        self._served = 0

    @property
    def sequence(self) -> int:
        """Keys the noise of sampling: another for every prompt served, the same for one seed."""
        return self._key + self._served

    def controller_seed(self, seed: int) -> int:
        """Seed for this worker's random controller, independent of its prompt order."""
        sequence = np.random.SeedSequence(seed, spawn_key=(self._worker, 1))
        return int(sequence.generate_state(1)[0])

    def next(self) -> int:
        """Index of the next prompt."""
        if self._position == len(self._queue):
            self._queue = self.generator.permutation(self._share).tolist()
            self._position = 0
        self._position += 1
        self._served += 1
        return self._queue[self._position - 1]

    def state_dict(self) -> dict[str, Any]:
        """Random state, running permutation and place in it, as plain data."""
        return {
            "generator": self.generator.bit_generator.state,
            "queue": list(self._queue),
            "position": self._position,
            "key": self._key,
            "served": self._served,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            ValueError: If the state belongs to other prompts or another worker.
        """
        queue = [int(index) for index in state["queue"]]
        if queue and sorted(queue) != self._share.tolist():
            raise ValueError("queue: saved for other prompts or another worker")
        self.generator.bit_generator.state = state["generator"]
        self._queue, self._position = queue, int(state["position"])
        self._key, self._served = int(state["key"]), int(state["served"])
