"""Configuration of drafter training; every field bounded, units in names."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from draftgym.prompts import PromptSource
from draftgym.prompts.prompt import Split

_STRICT = ConfigDict(extra="forbid", frozen=True)


def _shared_weights() -> dict[Split, float]:
    return {"drafter": 0.85, "policy": 0.15}


class TextSource(BaseModel):
    """Prompts and what to make of them."""

    model_config = _STRICT

    prompts: PromptSource = Field(
        default_factory=PromptSource, description="Where prompts come from, with their splits."
    )
    answers: int = Field(
        1,
        ge=0,
        le=64,
        description="Answers the target writes per prompt: the first greedy, the rest drawn. "
        "0 trains on the prompt alone.",
    )


class DataConfig(BaseModel):
    """Texts the head is trained on."""

    model_config = _STRICT

    answers: Path | None = Field(
        None,
        description="JSON lines of greedy answers as token ids, relative to the configuration; "
        "prompts found there are not answered again.",
    )
    answers_weights: dict[Split, float] = Field(
        {"drafter": 0.85, "policy": 0.15},
        description="Share of requests per split in the file of answers.",
    )
    sources: tuple[TextSource, ...] = Field((TextSource(),), description="Prompts.")
    answer_tokens: int = Field(160, ge=1, le=8192, description="Longest answer.")
    temperature: float = Field(0.7, gt=0, le=2, description="Of drawn answers.")
    answer_batch_rows: int = Field(48, ge=1, le=1024, description="Answers written at once.")
    row_tokens: int = Field(1024, ge=8, le=32768, description="Longest row; the rest is cut.")
    held_out_fraction: float = Field(
        0.05, gt=0, lt=0.5, description="Share of requests measured on and never trained on."
    )


class HeadConfig(BaseModel):
    """Shape of the head; the rest follows the target."""

    model_config = _STRICT

    feature_layers: tuple[int, ...] = Field(
        (3, 15, 27), min_length=1, description="Target layers whose entering states are read."
    )
    draft_vocab_size: int = Field(6144, ge=2, description="Tokens the head can propose.")
    initialise_from: Path | None = Field(
        None, description="Folder of a head to go on from, relative to the configuration."
    )


class OptimisationConfig(BaseModel):
    """Training loop."""

    model_config = _STRICT

    epochs: float = Field(6.0, gt=0, le=1000, description="Passes over the rows; may be a part.")
    batch_tokens: int = Field(4096, ge=16, description="Padded tokens per step.")
    micro_batch_tokens: int = Field(1024, ge=16, description="Padded tokens per worker at once.")
    test_steps: int = Field(3, ge=1, le=8, description="Training-time-test steps.")
    step_decay: float = Field(0.8, gt=0, le=1, description="Loss weight of step k: decay^k.")
    optimiser: Literal["muon", "adamw"] = Field("muon", description="For matrices.")
    peak_learning_rate: float = Field(1e-3, gt=0, lt=1, description="After warm-up.")
    final_rate_fraction: float = Field(0.05, ge=0, le=1, description="Of the peak, at the end.")
    warmup_steps: int = Field(40, ge=0, description="Steps of linear warm-up.")
    weight_decay: float = Field(0.01, ge=0, lt=1, description="Decoupled, matrices only.")
    gradient_clip: float = Field(1.0, gt=0, description="Largest gradient norm.")
    average_decay: float = Field(0.98, ge=0, lt=1, description="Of the weight average shipped.")
    checkpoint_every_steps: int = Field(50, ge=1, description="Steps between checkpoints.")
    evaluate_every_steps: int = Field(150, ge=1, description="Steps between measurements.")
    evaluation_steps: int = Field(5, ge=1, le=16, description="Depth measured on held-out rows.")
    seed: int = Field(0, ge=0, description="Order of rows and initial weights.")


class DrafterConfig(BaseModel):
    """Everything `train-drafter` needs."""

    model_config = _STRICT

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$", description="Name of the head.")
    target: str = Field(min_length=1, description="Model source of the target.")
    output: Path = Field(description="Folder the head is written to, relative to here.")
    work: Path = Field(
        description="Folder for answers, features, checkpoints and metrics, relative to here."
    )
    workers: int | None = Field(None, ge=1, description="Cores to train on; all if null.")
    data: DataConfig = Field(default_factory=DataConfig, description="Texts.")
    head: HeadConfig = Field(default_factory=HeadConfig, description="Shape.")
    optimisation: OptimisationConfig = Field(
        default_factory=OptimisationConfig, description="Training loop."
    )
