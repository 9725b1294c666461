"""BanditSpec: each round plays one of a few fixed cells, chosen by what they brought so far."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from draftgym.controllers.base import Fitted, Rule, Settings, Space, product
from draftgym.state import Controller, RoundRecord, RoundState

Cell = tuple[int, int]

ARMS: tuple[tuple[Cell, ...], ...] = (
    ((0, 0), (0, 8), (1, 8), (2, 8), (4, 8)),
    ((0, 4), (1, 4), (1, 8), (2, 8), (2, 16), (4, 16)),
    ((1, 3), (1, 8), (1, 16)),
)
"""Depths from plain decoding and look-ups on; cells along the diagonal; sizes beside one pass."""

TOKENS, SPEED = 0, 1
"""Rewards: emitted tokens (sections 4 and 5 of the paper), or tokens per second (section 6.2)."""

WIDTHS = (1.0, 0.3, 0.1, 0.03)
RATES = (1.0, 4.0, 16.0)
DELTA = 0.05


class Bandit(Protocol):
    """Learns which arm pays most."""

    def choose(self) -> int:
        """The arm to play next."""

    def learn(self, arm: int, reward: float) -> None:
        """What a played arm brought."""


class Ucb:
    """Plays every arm once, then the one of highest mean + radius (Auer et al., 2002).

    Args:
        arms: How many.
        radius: Of an arm's mean, by its pulls and those of all arms.
    """

    def __init__(self, arms: int, radius: Callable[[int, int], float]) -> None:
        self._radius = radius
        self.pulls, self.sums = [0] * arms, [0.0] * arms

    def choose(self) -> int:
        if 0 in self.pulls:
            return self.pulls.index(0)
        rounds = sum(self.pulls)
        bounds = [
            total / pulls + self._radius(pulls, rounds)
            for total, pulls in zip(self.sums, self.pulls, strict=True)
        ]
        return bounds.index(max(bounds))

    def learn(self, arm: int, reward: float) -> None:
        self.pulls[arm] += 1
        self.sums[arm] += reward


def ucb_spec_radius(arms: int, most: float) -> Callable[[int, int], float]:
    """The radius of UCBSpec: L/2 √((1 + n)/n² (1 + 2 log(K t² √(1 + n) / δ))).

    Args:
        arms: K.
        most: L, how far apart two rewards may be.
    """

    def radius(pulls: int, rounds: int) -> float:
        confidence = arms * rounds**2 * math.sqrt(1 + pulls) / DELTA
        return most / 2 * math.sqrt((1 + pulls) / pulls**2 * (1 + 2 * math.log(confidence)))

    return radius


class Exp3:
    """Draws arms by exponential weights of their estimated losses, η = √(log K / (tK)).

    Args:
        arms: K.
        most: L: rewards lie between 1 and L + 1, losses are (L + 1 - reward) / L.
        rate: Factor of η; 1 is the paper's.
        seed: Of the draws.
    """

    def __init__(self, arms: int, most: float, rate: float, seed: int) -> None:
        self._losses, self._most, self._rate = [0.0] * arms, most, rate
        self._random, self._rounds = random.Random(seed), 0

    def chances(self) -> list[float]:
        """Probability of every arm in the next round."""
        arms = len(self._losses)
        rate = self._rate * math.sqrt(math.log(arms) / ((self._rounds + 1) * arms))
        least = min(self._losses)
        weights = [math.exp(rate * (least - loss)) for loss in self._losses]
        return [weight / sum(weights) for weight in weights]

    def choose(self) -> int:
        chances = self.chances()
        return self._random.choices(range(len(chances)), chances)[0]

    def learn(self, arm: int, reward: float) -> None:
        loss = min(max((self._most + 1 - reward) / self._most, 0.0), 1.0)
        self._losses[arm] += loss / self.chances()[arm]  # those that the arm was drawn by
        self._rounds += 1


class BanditController:
    """Plays a bandit's cell in every round; what it learned goes on over requests.

    Args:
        cells: The arms, depth and size.
        bandit: Chooses among them.
        reward: Of a finished round.
    """

    free = True

    def __init__(
        self, cells: Sequence[Cell], bandit: Bandit, reward: Callable[[RoundRecord], float]
    ) -> None:
        self.cells, self._bandit, self._reward = cells, bandit, reward
        self._arm: int | None = None

    def reset(self) -> None:
        """Forgets an unfinished round, and nothing else."""
        self._arm = None

    def _play(self) -> Cell:
        if self._arm is None:
            self._arm = self._bandit.choose()
        return self.cells[self._arm]

    def draft_again(self, state: RoundState) -> bool:
        return state.depth < self._play()[0]

    def choose_size(self, state: RoundState) -> int:
        return self._play()[1]

    def observe(self, record: RoundRecord) -> None:
        if self._arm is not None:
            self._bandit.learn(self._arm, self._reward(record))
        self._arm = None


def cells_within(space: Space, cells: Sequence[Cell]) -> list[Cell]:
    """Cells as near as a space allows, each once."""
    return list(
        dict.fromkeys(
            (min(depth, space.max_depth), max(s for s in space.size_grid if s <= size))
            for depth, size in cells
        )
    )


def reward_of(space: Space, kind: int) -> Callable[[RoundRecord], float]:
    """The reward of a round: emitted tokens, or its speed as a multiple of plain decoding's."""
    if kind == TOKENS:
        return lambda record: float(record.emitted)
    plain = space.costs.verify[0] + space.costs.rest
    return lambda record: record.emitted * plain / record.seconds


class Ucb1Rule(Rule):
    """BanditSpec: Adaptive Speculative Decoding via Bandit Algorithms (Hou et al., 2025): UCBSpec.

    arXiv 2505.15141, algorithm 4 and equations 5 to 7; rewards of section 4 and of section 6.2. The
    arms of 6.1 are drafters, look-ups among them, those of 6.2 lengths 0 to 4. Adapted: arms are
    cells of depth and size; L is the most passes, a stand-in for the most accepted tokens;
    δ = 0.05 is ours; a factor of the radius is tuned, 1 being the paper's; and the bandit goes on
    over requests, where the paper starts it with every prompt.
    """

    name = "ucb1"
    title = "BanditSpec: UCB over cells"
    short = "BanditSpec UCB"
    source = "Hou et al. 2025, arXiv 2505.15141"

    def grid(self, space: Space) -> Sequence[Settings]:
        return product(arms=range(len(ARMS)), reward=(TOKENS, SPEED), width=WIDTHS)

    def controller(self, space: Space, settings: Settings, fitted: Fitted, seed: int) -> Controller:
        cells = cells_within(space, ARMS[int(settings["arms"])])
        radius = ucb_spec_radius(len(cells), settings["width"] * max(1, space.max_depth))
        reward = reward_of(space, int(settings["reward"]))
        return BanditController(cells, Ucb(len(cells), radius), reward)


class Exp3Rule(Rule):
    """BanditSpec (Hou et al., 2025): EXP3Spec.

    arXiv 2505.15141, algorithm 5 and equations 13 and 14. Adapted as `Ucb1Rule`; a factor of the
    learning rate is tuned, 1 being the paper's, and losses are cut to [0, 1].
    """

    name = "exp3"
    title = "BanditSpec: EXP3 over cells"
    short = "BanditSpec EXP3"
    source = "Hou et al. 2025, arXiv 2505.15141"

    def grid(self, space: Space) -> Sequence[Settings]:
        return product(arms=range(len(ARMS)), reward=(TOKENS, SPEED), rate=RATES)

    def controller(self, space: Space, settings: Settings, fitted: Fitted, seed: int) -> Controller:
        cells = cells_within(space, ARMS[int(settings["arms"])])
        bandit = Exp3(len(cells), float(max(1, space.max_depth)), settings["rate"], seed)
        return BanditController(cells, bandit, reward_of(space, int(settings["reward"])))
