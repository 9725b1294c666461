"""Checkpoints without pickle: one safetensors file, plain JSON in its header.

SB3's own archives pickle objects, which would run code when loaded. Here tensors and random
states are tensors, everything else is JSON under the header key `state`, and one atomic
replacement keeps both halves together whenever the process dies.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from stable_baselines3 import PPO

from draftgym.errors import DraftGymError
from draftgym.storage import write_bytes

SCHEMA = "draftgym.checkpoint/1"


class CheckpointError(DraftGymError, RuntimeError):
    """A checkpoint is missing, damaged or of another layout."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything a run needs to go on.

    Attributes:
        tensors: Named tensors, on the CPU.
        state: JSON-able rest; floats survive exactly (shortest round-trip representation).
    """

    tensors: Mapping[str, torch.Tensor]
    state: Mapping[str, Any]

    def part(self, prefix: str) -> dict[str, torch.Tensor]:
        """Tensors under `prefix.`, with the prefix removed."""
        head = f"{prefix}."
        return {k.removeprefix(head): v for k, v in self.tensors.items() if k.startswith(head)}


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the file at `path` in one step."""
    tensors = {
        name: tensor.detach().cpu().contiguous().clone()
        for name, tensor in sorted(checkpoint.tensors.items())
    }
    state = json.dumps(checkpoint.state, sort_keys=True, allow_nan=False)
    write_bytes(path, save(tensors, metadata={"schema": SCHEMA, "state": state}))


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; never executes anything.

    Raises:
        CheckpointError: If the file is missing, damaged or of another layout.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint")
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("schema") != SCHEMA:
                found = metadata.get("schema")
                raise CheckpointError(f"{path}: schema {found!r}, expected {SCHEMA!r}")
            state = json.loads(metadata["state"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise CheckpointError(f"{path}: damaged checkpoint: {error}") from error
    return Checkpoint(tensors, state)


def ppo_tensors(model: PPO) -> dict[str, torch.Tensor]:
    """Networks and optimiser state of one PPO, by name."""
    tensors = {f"network.{k}": v for k, v in model.policy.state_dict().items()}
    moments = model.policy.optimizer.state_dict()["state"]
    for index, entries in moments.items():
        for name, value in entries.items():
            tensors[f"optimiser.{index}.{name}"] = torch.as_tensor(value)
    return tensors


def restore_ppo(model: PPO, tensors: Mapping[str, torch.Tensor], updates: int) -> None:
    """Load what `ppo_tensors` returned into a model built from the same configuration.

    Args:
        model: Fresh PPO.
        tensors: Parts `network.*` and `optimiser.*`.
        updates: SB3's update counter.

    Raises:
        CheckpointError: If the tensors do not fit the model.
    """
    networks = {
        k.removeprefix("network."): v for k, v in tensors.items() if k.startswith("network.")
    }
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimiser."):
            _, index, name = key.split(".")
            moments.setdefault(int(index), {})[name] = value
    groups = model.policy.optimizer.state_dict()["param_groups"]
    try:
        model.policy.load_state_dict(networks)
        model.policy.optimizer.load_state_dict({"state": moments, "param_groups": groups})
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(f"checkpoint does not fit this configuration: {error}") from error
    model._n_updates = updates


def random_states() -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Python's, numpy's and torch's global random states as tensors and plain data."""
    version, python_words, gauss = random.getstate()
    kind, words, position, has_gauss, cached = np.random.get_state(legacy=True)
    tensors = {
        "python": torch.tensor(python_words, dtype=torch.int64),
        "numpy": torch.from_numpy(np.asarray(words).astype(np.int64)),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    plain = {
        "python": {"version": version, "gauss": gauss},
        "numpy": {
            "kind": str(kind),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
    }
    return tensors, plain


def restore_random_states(tensors: Mapping[str, torch.Tensor], plain: Mapping[str, Any]) -> None:
    """Restore what `random_states` returned."""
    python, numpy = plain["python"], plain["numpy"]
    random.setstate((python["version"], tuple(tensors["python"].tolist()), python["gauss"]))
    words = tensors["numpy"].numpy().astype(np.uint32)
    np.random.set_state(
        (numpy["kind"], words, numpy["position"], numpy["has_gauss"], numpy["cached"])
    )
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])
