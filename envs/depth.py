"""The "draft again?" decision as a Gymnasium environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gymnasium import spaces

from draftgym.features import FeatureLayout
from draftgym.runtime import DecisionSeconds
from draftgym.state import Controller, Float32Array, RoundState
from envs.base import SessionEnv, box
from envs.interface import Session
from envs.rewards import RateTracker, RewardKind


class DraftDepthEnv(SessionEnv):
    """Decide before every draft pass whether to make it.

    ## Description
    A target model answers a prompt by speculative decoding. In each round a drafter grows a
    tree of guesses, one pass at a time; then another controller picks how many of them the
    target verifies. The agent is asked before every pass, the first included, so "do not
    speculate" is an action. The aim is the least wall time per token over the whole run. The
    text does not depend on the agent: decoding is lossless.

    ## Action Space
    `Discrete(2)`:

    | action | meaning |
    |---|---|
    | 0 | stop: the size controller chooses, the target verifies, the round ends |
    | 1 | one draft pass |

    When the deepest draft is reached, the round's or `deepest`, the environment stops by itself,
    and a round that may not draft at all (budget or context nearly used up) is played without
    asking: there is only one answer. Anything but 0 or 1 raises `ValueError`.

    ## Observation Space
    `Box(float32)`, from `FeatureLayout.depth_observation`; with the default layout:

    | index | name | min | max | unit |
    |---|---|---|---|---|
    | 0-7 | accepted_1 to accepted_8, newest first | 0 | 4 | tokens / 8 |
    | 8-15 | drafted_1 to drafted_8 | 0 | 1 | draft passes / 8 |
    | 16-23 | verified_1 to verified_8 | 0 | 1 | drafted tokens / 32 |
    | 24 | rounds_seen | 0 | 1 | rounds / 8 |
    | 25 | mean_accepted | 0 | 4 | tokens / 8 |
    | 26 | mean_drafted | 0 | 1 | draft passes / 8 |
    | 27 | mean_verified | 0 | 1 | drafted tokens / 32 |
    | 28 | last_fully_accepted | 0 | 1 | 0 or 1 |
    | 29 | has_confidence | 0 | 1 | 0 or 1 |
    | 30-33 | frontier_score_1 to frontier_score_4, cumulative | -1 | 0 | nats / 16 |
    | 34 | best_path_probability | 0 | 1 | probability |
    | 35 | expected_accepted, if the whole tree is verified | 0 | 4 | tokens / 8 |
    | 36 | margin | 0 | 1 | probability |
    | 37 | entropy | 0 | 1 | nats / 10 |
    | 38 | depth | 0 | 1 | draft passes / 8 |
    | 39 | depth_allowed | 0 | 1 | draft passes / 8 |
    | 40 | size_allowed | 0 | 1 | drafted tokens / 32 |
    | 41 | context_fraction | 0 | 1 | tokens / context limit |
    | 42 | remaining_fraction | 0 | 1 | tokens / budget |
    | 43 | remaining_near | 0 | 1 | tokens / 36 |
    | 44 | uningested | 0 | 1 | log2(1 + tokens) / 12 |
    | 45 | draft_pass_over_plain | 0 | 2 | ratio |
    | 46 | verify_slope_over_plain | 0 | 2 | ratio per token |

    ## Rewards
    By kind, with e tokens emitted and t seconds of the round:

    | kind | at each pass | when the round ends |
    |---|---|---|
    | `rate` (default) | - seconds of the pass and its decision | e·μ - all other seconds |
    | `throughput` | 0 | e / t |
    | `time_per_token` | 0 | - t / e |
    | `emitted` | 0 | e |
    | `time_cost` | 0 | - t |

    μ is the present pace, seconds per token of recent rounds. Rounds played without asking are
    credited to the step before them. Only seconds that the session measured count, plus
    `decision_seconds` per decision; time spent in the agent or in logging does not.

    ## Starting State
    A prompt's first round; its prefill is not part of any round. Prompts follow seeded
    permutations; `reset(options={"prompt": index})` picks one.

    ## Episode End
    `terminated` when the answer ends (end of sequence, budget or context limit). Never
    `truncated`.

    ## Arguments
    `gymnasium.make("DraftGym/DraftDepth-v0")` alone builds the default model pair, fetching the
    target on first use, and answers the policy split of the bundled prompts. A run passes its
    own `session` and `prompts` (token ids); `size_controller` defaults to a fixed size of 8.

    ## Version History
    - v0: first version.

    Args:
        session: Decodes and measures; None builds the default pair. A function that makes the
            session lets Gymnasium copy the specification without copying a model.
        prompts: Token ids of each prompt; needed with a session.
        max_new_tokens: Budget of a request, its first token included.
        layout: Observations.
        size_controller: Chooses the verification size.
        deepest: Draft passes after which the agent is not asked; absent, the layout's most.
        reward: Reward kind.
        rate: Pace shared with other environments of the run.
        decision_seconds: Measured cost of one decision of the exported policy.
        seed: Seed of the prompt order until `reset(seed=...)`.
        worker: Number of this environment among those of the run.
        workers: Environments of the run.

    Raises:
        ValueError: If an argument is out of range, or the drafter makes no passes.
    """

    def __init__(
        self,
        session: Session | Callable[[], Session] | None = None,
        prompts: Sequence[Sequence[int]] | None = None,
        *,
        max_new_tokens: int = 128,
        layout: FeatureLayout | None = None,
        size_controller: Controller | None = None,
        deepest: int | None = None,
        reward: RewardKind = "rate",
        rate: RateTracker | None = None,
        decision_seconds: DecisionSeconds | float = 0.0,
        seed: int | None = None,
        worker: int = 0,
        workers: int = 1,
    ) -> None:
        # Late: composing the defaults loads the decoder.
        from envs.defaults import compose, default_size_controller

        layout = FeatureLayout() if layout is None else layout
        session, prompts = compose(session, prompts, layout)
        super().__init__(
            session,
            prompts,
            max_new_tokens=max_new_tokens,
            layout=layout,
            other=size_controller or default_size_controller(),
            reward=reward,
            rate=rate,
            decision_seconds=decision_seconds,
            seed=seed,
            worker=worker,
            workers=workers,
        )
        if session.max_depth == 0:
            raise ValueError("session: its drafter makes no passes, so there is no depth to learn")
        self._deepest = layout.max_depth if deepest is None else deepest
        if self._deepest < 1:
            raise ValueError(f"deepest: must be at least 1, got {deepest}")
        self.action_space = spaces.Discrete(2)
        self.observation_space = box(layout.depth_low, layout.depth_high)

    def _open_round(self) -> tuple[RoundState, bool]:
        state = self.session.begin_round()
        return state, state.max_depth > 0

    def _apply(self, index: int, state: RoundState) -> None:
        self.session.charge_policy(self._cost.depth)
        if index == 0:
            self._force(state)
            return
        decision_seconds = self._read_seconds + self._cost.depth
        self.session.draft()
        self._earned += self._reward.draft_pass(self.session.last_pass_seconds() + decision_seconds)
        if state.depth >= min(state.max_depth, self._deepest):
            self._force(state)

    def _force(self, state: RoundState) -> None:
        if state.nodes:
            self._consult(state, self._cost.size)
        self._finish(self.other.choose_size(state))

    def _observe(self, state: RoundState) -> Float32Array:
        return self.layout.depth_observation(state)
