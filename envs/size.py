"""The verification size as a Gymnasium environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gymnasium import spaces

from draftgym.features import FeatureLayout
from draftgym.runtime import DecisionSeconds
from draftgym.state import Controller, Float32Array, RoundState
from envs.base import SessionEnv, box
from envs.interface import Session
from envs.rewards import RateTracker, RewardKind


class VerifySizeEnv(SessionEnv):
    """Decide how many drafted tokens the target verifies.

    ## Description
    A target model answers a prompt by speculative decoding. In each round another controller
    decides how deep the drafter's tree of guesses grows; the agent then picks how many of its
    best nodes go through the target. One step is one round. The aim is the least wall time per
    token over the whole run. The text does not depend on the agent: decoding is lossless.

    ## Action Space
    `Discrete(n)`, an index into the layout's size grid; by default:

    | action | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | 10 |
    |---|---|---|---|---|---|---|---|---|---|---|---|
    | drafted tokens verified | 0 | 1 | 2 | 3 | 4 | 6 | 8 | 12 | 16 | 24 | 32 |

    Size 0 is a plain decoding step. A size that the round cannot honour (smaller tree, budget,
    context) is clamped, which `info["clamped"]` says. An index out of range raises
    `ValueError`.

    ## Observation Space
    `Box(float32)`, from `FeatureLayout.size_observation`; with the default layout, entries 0
    to 46 are those of `DraftGym/DraftDepth-v0`, then:

    | index | name | min | max | unit |
    |---|---|---|---|---|
    | 47 | nodes | 0 | 1 | drafted tokens / 116 |
    | 48-57 | expected_accepted_1, _2, _3, _4, _6, _8, _12, _16, _24, _32 | 0 | 4 | tokens / 8 |

    The expected accepted tokens at a size are the sum of the path probabilities of that many
    best nodes.

    ## Rewards
    By kind, with e tokens emitted and t seconds of the round:

    | kind | reward |
    |---|---|
    | `rate` (default) | e·μ - t |
    | `throughput` | e / t |
    | `time_per_token` | - t / e |
    | `emitted` | e |
    | `time_cost` | - t |

    μ is the present pace, seconds per token of recent rounds. Only seconds that the session
    measured count, plus `decision_seconds` per decision; time spent in the agent or in logging
    does not. An empty tree is not charged for its size: the exported controller asks no network
    then.

    ## Starting State
    A prompt's first round, drafted; its prefill is not part of any round. Prompts follow seeded
    permutations; `reset(options={"prompt": index})` picks one.

    ## Episode End
    `terminated` when the answer ends (end of sequence, budget or context limit). Never
    `truncated`.

    ## Arguments
    `gymnasium.make("DraftGym/VerifySize-v0")` alone builds the default model pair, fetching the
    target on first use, and answers the policy split of the bundled prompts. A run passes its
    own `session` and `prompts` (token ids); `depth_controller` defaults to a uniformly random
    depth in every round.

    ## Version History
    - v0: first version.

    Args:
        session: Decodes and measures; None builds the default pair. A function that makes the
            session lets Gymnasium copy the specification without copying a model.
        prompts: Token ids of each prompt; needed with a session.
        max_new_tokens: Budget of a request, its first token included.
        layout: Observations and the size grid.
        depth_controller: Says before every draft pass whether to make it.
        reward: Reward kind.
        rate: Pace shared with other environments of the run.
        decision_seconds: Measured cost of one decision of the exported policy.
        seed: Seed of the prompt order until `reset(seed=...)`.
        worker: Number of this environment among those of the run.
        workers: Environments of the run.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        session: Session | Callable[[], Session] | None = None,
        prompts: Sequence[Sequence[int]] | None = None,
        *,
        max_new_tokens: int = 128,
        layout: FeatureLayout | None = None,
        depth_controller: Controller | None = None,
        reward: RewardKind = "rate",
        rate: RateTracker | None = None,
        decision_seconds: DecisionSeconds | float = 0.0,
        seed: int | None = None,
        worker: int = 0,
        workers: int = 1,
    ) -> None:
        # Late: composing the defaults loads the decoder.
        from envs.defaults import compose, default_depth_controller

        layout = FeatureLayout() if layout is None else layout
        session, prompts = compose(session, prompts, layout)
        super().__init__(
            session,
            prompts,
            max_new_tokens=max_new_tokens,
            layout=layout,
            other=depth_controller or default_depth_controller(layout, seed, worker),
            reward=reward,
            rate=rate,
            decision_seconds=decision_seconds,
            seed=seed,
            worker=worker,
            workers=workers,
        )
        self.action_space = spaces.Discrete(len(layout.size_grid))
        self.observation_space = box(layout.size_low, layout.size_high)

    def _open_round(self) -> tuple[RoundState, bool]:
        state = self.session.begin_round()
        # A learned controller is not asked, nor charged, at the deepest draft it ever wants.
        limit = min(state.max_depth, getattr(self.other, "deepest", state.max_depth))
        while state.depth < limit:
            self._consult(state, self._cost.depth)
            if not self.other.draft_again(state):
                break
            self.session.draft()
        # Also with an empty tree: a step is a round, and the session clamps the size to 0.
        return state, True

    def _apply(self, index: int, state: RoundState) -> None:
        if state.nodes:
            self.session.charge_policy(self._cost.size)
        self._finish(self.layout.size_grid[index])

    def _force(self, state: RoundState) -> None:
        self._finish(0)

    def _observe(self, state: RoundState) -> Float32Array:
        return self.layout.size_observation(state)
