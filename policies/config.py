"""What a training run may be told, and within which bounds. No heavy imports."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from draftgym.decoder.config import PairConfig
from draftgym.features import FeatureLayout
from draftgym.prompts import PromptSource
from draftgym.traces.config import TRACED_RULES, why_untraced

PolicyName = Literal["size", "depth"]
RewardKind = Literal["rate", "throughput", "time_per_token", "emitted", "time_cost"]

_STRICT = ConfigDict(extra="forbid", frozen=True)


class LayoutConfig(BaseModel):
    """Shape of observations and actions; it travels with the exported policy."""

    model_config = _STRICT

    max_depth: int = Field(8, ge=1, le=32, description="Most draft passes in one round.")
    beam_width: int = Field(4, ge=1, le=16, description="Frontier nodes expanded per pass.")
    history_rounds: int = Field(8, ge=1, le=64, description="Finished rounds observed.")
    size_grid: tuple[int, ...] = Field(
        (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
        min_length=2,
        max_length=64,
        description="Verification sizes the size policy chooses from, ascending; 0 is plain.",
    )

    @field_validator("size_grid")
    @classmethod
    def _ascending(cls, grid: tuple[int, ...]) -> tuple[int, ...]:
        if list(grid) != sorted(set(grid)) or grid[0] != 0:
            raise ValueError(f"size_grid: must ascend from 0 without repeats, got {list(grid)}")
        return grid

    def features(self) -> FeatureLayout:
        """The observation layout of these shapes."""
        return FeatureLayout(
            max_depth=self.max_depth,
            beam_width=self.beam_width,
            history=self.history_rounds,
            size_grid=self.size_grid,
        )


class RewardConfig(BaseModel):
    """What a round is worth, in emitted tokens and measured seconds."""

    model_config = _STRICT

    kind: RewardKind = Field(
        "rate", description="rate is the objective; the other kinds are for ablation."
    )
    rate_window_rounds: int = Field(
        200, ge=1, le=100_000, description="Recent rounds that make up the present pace mu."
    )
    clip_plain_steps: float = Field(
        10.0,
        gt=0,
        le=1e6,
        description="Bound of what PPO learns from one decision, in plain decoding steps: a "
        "stalled machine is not the decision's doing. Logged rewards are not clipped.",
    )


class PPOConfig(BaseModel):
    """Hyperparameters of one policy; the learning-rate schedule is plain data."""

    model_config = _STRICT

    rollout_steps: int = Field(
        256, ge=8, le=65_536, description="Decisions collected between two updates."
    )
    batch_size: int = Field(64, ge=2, le=65_536, description="Decisions per gradient step.")
    epochs: int = Field(6, ge=1, le=100, description="Passes over each rollout.")
    learning_rate: float = Field(1e-3, gt=0, le=1, description="Peak, reached after the warm-up.")
    warmup_fraction: float = Field(
        0.05, ge=0, lt=1, description="Share of this policy's training that warms up, linearly."
    )
    final_learning_rate_fraction: float = Field(
        0.1, ge=0, le=1, description="Share of the peak left at the end of the linear decay."
    )
    clip_range: float = Field(0.2, gt=0, le=1, description="PPO's ratio clip.")
    entropy_coefficient: float = Field(0.01, ge=0, le=1, description="Weight of the entropy bonus.")
    value_coefficient: float = Field(0.5, ge=0, le=10, description="Weight of the value loss.")
    max_gradient_norm: float = Field(0.5, gt=0, le=100, description="Gradient norm clip.")
    target_kl: float | None = Field(
        None, gt=0, le=10, description="Stop an update beyond 1.5 x this KL; never when absent."
    )
    hidden_sizes: tuple[int, ...] = Field(
        (64, 64),
        min_length=1,
        max_length=8,
        description="Units per tanh layer, same for the policy and the value network.",
    )
    discount: float = Field(1.0, gt=0, le=1, description="1: seconds saved later count the same.")
    gae_lambda: float = Field(1.0, ge=0, le=1, description="1: returns without bootstrap.")
    credit_horizon: Literal["round", "episode"] = Field(
        "round", description="Where returns end: at each round, or with the prompt."
    )

    @field_validator("hidden_sizes")
    @classmethod
    def _positive(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if any(not 1 <= size <= 4096 for size in sizes):
            raise ValueError(f"hidden_sizes: each must be 1 to 4096, got {list(sizes)}")
        return sizes

    @model_validator(mode="after")
    def _whole_batches(self) -> PPOConfig:
        if self.rollout_steps % self.batch_size:
            raise ValueError(
                f"batch_size: must divide rollout_steps ({self.rollout_steps}), "
                f"got {self.batch_size}"
            )
        return self


class NormaliserConfig(BaseModel):
    """Running observation statistics; exported with the policy and frozen there."""

    model_config = _STRICT

    enabled: bool = Field(True, description="False feeds observations as they are.")
    warmup_steps: int = Field(
        64,
        ge=2,
        le=65_536,
        description="Random decisions before training, not rewarded: for "
        "the first statistics and the warm start.",
    )
    clip: float = Field(
        5.0,
        gt=0,
        le=1000,
        description="Bound of a normalised feature, in standard deviations: beyond what was "
        "seen in training, networks would guess.",
    )
    minimum_variance: float = Field(
        1e-3, gt=0, le=1, description="Floor, so a feature that was constant cannot explode."
    )


class WarmStartConfig(BaseModel):
    """Imitation of a rule before the first rollout."""

    model_config = _STRICT

    enabled: bool = Field(True, description="False starts at chance.")
    rule: Literal["fixed", "survival_cost"] = Field(
        "survival_cost",
        description="What is imitated: fixed_depth and fixed_size, or expected tokens against "
        "measured cost.",
    )
    rows: int = Field(512, ge=1, le=10**6, description="Observations it is imitated on, twice.")
    probability: float = Field(
        0.8, gt=0, lt=1, description="Probability of the rule's action after imitation."
    )
    steps: int = Field(300, ge=1, le=100_000, description="Gradient steps on the warm-up.")
    learning_rate: float = Field(3e-3, gt=0, le=1, description="Of these steps.")


class PretrainingConfig(BaseModel):
    """Learning from a trace of the policy split before anything is learned live."""

    model_config = _STRICT

    enabled: bool | None = Field(
        None,
        description="Absent: where the drafter makes passes and can be traced. Otherwise policies "
        "start as `warm_start` says.",
    )
    prompts: int | None = Field(
        None, ge=1, le=10**6, description="Traced prompts, balanced over domains; absent: all."
    )
    steps: int = Field(
        600, ge=1, le=10**7, description="Most gradient steps; held-out prompts say how many."
    )
    requests: int = Field(256, ge=1, le=65_536, description="Requests played at once.")
    learning_rate: float = Field(2e-3, gt=0, le=1, description="At first; falls to a tenth.")


class PhaseConfig(BaseModel):
    """One stretch of training: which policy learns, beside what, for how long."""

    model_config = _STRICT

    policy: PolicyName = Field(description="The policy that learns in this phase.")
    other: Literal["random", "fixed", "policy"] = Field(
        "policy", description="What takes the other decision; 'policy' is the frozen other policy."
    )
    steps: int | None = Field(None, ge=1, le=10**9, description="Decisions; whole rollouts.")
    seconds: float | None = Field(
        None, gt=0, le=10**7, description="Wall time; the running rollout is finished."
    )

    @model_validator(mode="after")
    def _one_limit(self) -> PhaseConfig:
        if (self.steps is None) == (self.seconds is None):
            raise ValueError("steps, seconds: give exactly one of them")
        return self


class ValidationConfig(BaseModel):
    """How checkpoints are compared: time per token against interleaved plain decoding."""

    model_config = _STRICT

    prompts: int = Field(4, ge=1, le=10_000, description="Prompts of the validation split.")
    new_tokens: int = Field(48, ge=2, le=100_000, description="Tokens per prompt, policy arm.")
    plain_new_tokens: int = Field(
        13, ge=2, le=100_000, description="Tokens per prompt, interleaved plain decoding."
    )
    per_phase: int = Field(2, ge=1, le=1000, description="Validations in each phase, evenly.")


class WandbConfig(BaseModel):
    """Weights & Biases logging; `metrics.jsonl` is written whatever this says."""

    model_config = _STRICT

    mode: Literal["auto", "offline", "online", "disabled"] = Field(
        "auto", description="auto is online with a key, offline without."
    )
    project: str = Field("draftgym", min_length=1, max_length=128, description="Project name.")


def _default_schedule() -> tuple[PhaseConfig, ...]:
    return (
        PhaseConfig(policy="size", other="random", seconds=80, steps=None),
        PhaseConfig(policy="depth", other="fixed", seconds=90, steps=None),
        PhaseConfig(policy="size", other="policy", seconds=65, steps=None),
        PhaseConfig(policy="depth", other="policy", seconds=65, steps=None),
    )


class TrainConfig(BaseModel):
    """One `python train.py` run."""

    model_config = _STRICT

    run: str = Field(
        "default",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=64,
        description="Name of the run; everything goes to runs/NAME/.",
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Seeds networks, prompts and exploration.")
    device: str = Field(
        "cpu", pattern=r"^(cpu|cuda(:\d+)?)$", description="Where the small networks train."
    )
    pair: PairConfig = Field(default_factory=PairConfig, description="Target and drafter.")
    prompts: tuple[PromptSource, ...] = Field(
        (PromptSource(),), min_length=1, description="Where prompts come from."
    )
    max_new_tokens: int = Field(96, ge=2, le=100_000, description="Tokens per training episode.")
    ignore_eos: bool = Field(False, description="Decode on to the budget (tests).")
    layout: LayoutConfig = Field(default_factory=LayoutConfig, description="Observations, actions.")
    reward: RewardConfig = Field(default_factory=RewardConfig, description="Reward.")
    size_ppo: PPOConfig = Field(default_factory=PPOConfig, description="Size policy.")
    depth_ppo: PPOConfig = Field(default_factory=PPOConfig, description="Depth policy.")
    normaliser: NormaliserConfig = Field(
        default_factory=NormaliserConfig, description="Observation statistics."
    )
    pretraining: PretrainingConfig = Field(
        default_factory=PretrainingConfig, description="Learning from a trace."
    )
    warm_start: WarmStartConfig = Field(
        default_factory=WarmStartConfig, description="Where policies start without a trace."
    )
    schedule: tuple[PhaseConfig, ...] = Field(
        default_factory=_default_schedule, min_length=1, max_length=1000, description="Phases."
    )
    fixed_depth: int = Field(3, ge=0, le=32, description="Depth where a phase fixes it.")
    fixed_size: int = Field(4, ge=0, le=1024, description="Size where a phase fixes it.")
    calibration_rounds: int = Field(
        60, ge=2, le=1000, description="Rounds per size when costs are measured, roughly."
    )
    validation: ValidationConfig = Field(
        default_factory=ValidationConfig, description="Choice of the best checkpoint."
    )
    wandb: WandbConfig = Field(default_factory=WandbConfig, description="W&B.")
    evaluate: str | None = Field(
        None,
        description="Evaluation run at the end: a file, relative to this one; absent: none.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> TrainConfig:
        if len({phase.steps is None for phase in self.schedule}) > 1:
            raise ValueError("schedule: limit all phases by steps, or all by seconds")
        if self.fixed_depth > self.layout.max_depth:
            raise ValueError(f"fixed_depth: at most layout.max_depth ({self.layout.max_depth})")
        if self.fixed_size > self.layout.size_grid[-1]:
            raise ValueError(f"fixed_size: at most the grid's last ({self.layout.size_grid[-1]})")
        drafter = self.pair.drafter
        if drafter.kind == "none":
            raise ValueError("pair.drafter.kind: 'none' leaves nothing to decide")
        if drafter.kind == "ngram" and any(phase.policy == "depth" for phase in self.schedule):
            raise ValueError("schedule: n-gram proposals take no passes, so depth is not decided")
        for name, mine, theirs in (
            ("max_depth", self.layout.max_depth, drafter.max_depth),
            ("beam_width", self.layout.beam_width, drafter.beam_width),
        ):
            if mine != theirs:
                raise ValueError(f"layout.{name}: must equal pair.drafter.{name} ({theirs})")
        if self.layout.size_grid[-1] > drafter.max_size:
            raise ValueError(f"layout.size_grid: pair.drafter.max_size is {drafter.max_size}")
        return self

    @model_validator(mode="after")
    def _can_pretrain(self) -> TrainConfig:
        if self.pretraining.enabled and not self._traced:
            raise ValueError(
                "pretraining.enabled: needs a drafter that makes passes and can be traced (eagle3, "
                "hybrid, without rejoin) under greedy or coupled"
            )
        if self.pretrains:
            if not self.normaliser.enabled:
                raise ValueError("normaliser.enabled: pretraining normalises observations")
            if self.size_ppo.hidden_sizes != self.depth_ppo.hidden_sizes:
                raise ValueError(
                    "size_ppo.hidden_sizes, depth_ppo.hidden_sizes: pretraining needs them equal"
                )
        return self

    @property
    def _traced(self) -> bool:
        pair = self.pair
        return (
            why_untraced(pair.drafter) is None
            and pair.drafter.kind != "ngram"
            and pair.sampling.rule_name in TRACED_RULES
        )

    @property
    def pretrains(self) -> bool:
        """Whether policies are learned from a trace before they are learned live."""
        chosen = self.pretraining.enabled
        return self._traced if chosen is None else chosen

    @property
    def learned(self) -> tuple[PolicyName, ...]:
        """Policies that the run learns; another decision stays fixed."""
        live = {phase.policy for phase in self.schedule}
        names: tuple[PolicyName, PolicyName] = ("size", "depth")
        return tuple(name for name in names if self.pretrains or name in live)

    def ppo(self, policy: PolicyName) -> PPOConfig:
        """Hyperparameters of one policy."""
        return self.size_ppo if policy == "size" else self.depth_ppo
