"""Policy folders: `policy.safetensors` for arrays, `policy.json` for everything else.

Reading a folder never executes what is in it. The JSON file records the sha256 of the arrays,
so halves of different policies are refused.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from draftgym.features import FeatureLayout
from draftgym.runtime.controller import ExportedController
from draftgym.runtime.policy import (
    CADENCE,
    HEADS,
    ExportedPolicy,
    HeadName,
    Normaliser,
    PolicyError,
    PolicyHead,
    action_table,
)
from draftgym.storage import plain, write_bytes, write_json

POLICY_SCHEMA = "draftgym.policy/2"
UNLIMITED_SCHEMA = "draftgym.policy/1"
"""Of policies without `deepest_draft`: they are asked down to the layout's deepest draft."""
MOST = sys.float_info.max
JSON_FILE = "policy.json"
WEIGHTS_FILE = "policy.safetensors"

_PLAIN_FIELDS = ("fallback", "reward", "pair", "hardware", "training")
_FIELDS: dict[str, Any] = {
    "schema": str, "weights_sha256": str, "layout": dict, "cadence": dict, "heads": dict,
    "deepest_draft": (int, type(None)),
    "fallback": dict, "reward": dict, "pair": dict, "hardware": dict, "training": dict,
}  # fmt: skip
_HEAD_FIELDS: dict[str, Any] = {
    "hidden": list,
    "activation": str,
    "actions": dict,
    "normaliser": (dict, type(None)),
}
_NORMALISER_FIELDS: dict[str, Any] = {"mean": list, "variance": list, "clip": (int, float)}


def save_policy(path: str | Path, policy: ExportedPolicy) -> Path:
    """Write a policy folder; equal policies give equal bytes.

    Args:
        path: Folder, made if missing.
        policy: What to write.

    Returns:
        The folder.

    Raises:
        PolicyError: If a field is not plain data.
    """
    folder = Path(path)
    tensors = {}
    heads: dict[str, Any] = {}
    for name in HEADS:
        head = policy.head(name)
        if head is None:
            continue
        for layer, (weight, bias) in enumerate(zip(head.weights, head.biases, strict=True)):
            tensors[f"{name}.{layer}.weight"] = np.ascontiguousarray(weight)
            tensors[f"{name}.{layer}.bias"] = np.ascontiguousarray(bias)
        heads[name] = {
            "hidden": list(head.hidden),
            "activation": "tanh",
            "actions": action_table(name, policy.layout),
            "normaliser": _normaliser_data(head.normaliser),
        }
    weights = save_tensors(tensors)
    description: dict[str, Any] = {
        "schema": POLICY_SCHEMA,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "layout": {"hash": policy.layout.hash(), **policy.layout.schema()},
        "cadence": CADENCE,
        "heads": heads,
        "deepest_draft": policy.deepest,
    }
    for field in _PLAIN_FIELDS:
        try:
            description[field] = plain(getattr(policy, field))
        except TypeError as error:
            raise PolicyError(f"{field}: {error}") from error
    # The description last: a reader never meets one whose arrays are not there yet.
    write_bytes(folder / WEIGHTS_FILE, weights)
    write_json(folder / JSON_FILE, description)
    return folder


def load(
    path: str | Path,
    pair_fingerprint: Mapping[str, Any] | None = None,
    hardware_fingerprint: Mapping[str, Any] | None = None,
) -> ExportedController:
    """Load a policy folder as a controller.

    Args:
        path: Folder with `policy.json` and `policy.safetensors`.
        pair_fingerprint: Of the model pair it will steer; another pair than the one it was
            trained on is refused. Not compared when None.
        hardware_fingerprint: Of this machine; a difference is only warned about, because
            the decisions stay lossless, merely tuned to other costs. Not compared when None.

    Returns:
        The controller.

    Raises:
        PolicyError: If anything about the folder is missing, corrupt, foreign or does not fit,
            naming the file and the field.
    """
    policy = read_policy(path)
    file = Path(path) / JSON_FILE
    if pair_fingerprint is not None:
        difference = first_difference(policy.pair, plain(pair_fingerprint), "pair")
        if difference is not None:
            raise PolicyError(f"{file}: trained on another model pair: {difference}")
    if hardware_fingerprint is not None:
        warn_of_other_hardware(file, policy.hardware, hardware_fingerprint)
    return ExportedController(policy)


def warn_of_other_hardware(file: Path, known: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Warn if costs were measured on other hardware than this; a policy that tells none is silent.

    Args:
        file: Of the policy.
        known: Hardware fingerprint that it holds.
        here: Of this machine.
    """
    difference = first_difference(known, plain(here), "hardware") if known else None
    if difference is not None:
        warnings.warn(
            f"{file}: trained on other hardware, so its costs may be off: {difference}",
            UserWarning,
            stacklevel=3,
        )


def read_policy(path: str | Path) -> ExportedPolicy:
    """Read and check a policy folder.

    Args:
        path: Folder with `policy.json` and `policy.safetensors`.

    Returns:
        The policy.

    Raises:
        PolicyError: As for `load`.
    """
    folder = Path(path)
    file = folder / JSON_FILE
    data = _read_json(file)
    if data.get("schema") == UNLIMITED_SCHEMA and "deepest_draft" not in data:
        data = {**data, "schema": POLICY_SCHEMA, "deepest_draft": None}
    if data.get("schema") == UNLIMITED_SCHEMA:
        raise PolicyError(f"{file}: deepest_draft: unknown field of {UNLIMITED_SCHEMA!r}")
    if data.get("schema") != POLICY_SCHEMA:
        raise PolicyError(
            f"{file}: schema: expected {POLICY_SCHEMA!r}, found {data.get('schema')!r}"
        )
    try:
        _check_fields("", data, _FIELDS)
        layout = _read_layout(data["layout"])
        for name in HEADS:
            _expect(f"cadence.{name}", CADENCE[name], data["cadence"].get(name))
        unknown = sorted(set(data["heads"]) - set(HEADS))
        if unknown:
            raise PolicyError(f"heads.{unknown[0]}: unknown; accepted: {', '.join(HEADS)}")
        described = {
            name: _read_head(name, data["heads"][name], layout)
            for name in HEADS
            if name in data["heads"]
        }
        _check_numbers("fallback.", data["fallback"])
        costs = data["training"].get("costs", {})
        if not isinstance(costs, dict):
            raise PolicyError("training.costs: must be an object")
        _check_numbers("training.costs.", costs)
    except PolicyError as error:
        raise PolicyError(f"{file}: {error}") from error
    heads = _read_weights(folder / WEIGHTS_FILE, data["weights_sha256"], described)
    try:
        return ExportedPolicy(
            layout=layout,
            depth=heads.get("depth"),
            size=heads.get("size"),
            deepest=data["deepest_draft"],
            **{field: data[field] for field in _PLAIN_FIELDS},
        )
    except PolicyError as error:
        raise PolicyError(f"{folder}: {error}") from error


def first_difference(expected: Any, found: Any, name: str, owner: str = "the policy") -> str | None:
    """Name the first field in which two pieces of plain data differ, with both values.

    Args:
        expected: What `owner` has.
        found: What this process has.
        name: Of the field that they are.
        owner: As the message names it.

    Returns:
        The message, or None when equal.
    """
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in sorted({*expected, *found}):
            difference = first_difference(expected.get(key), found.get(key), f"{name}.{key}", owner)
            if difference is not None:
                return difference
        return None
    return None if expected == found else f"{name}: {owner} has {expected!r}, this is {found!r}"


def _read_json(file: Path) -> dict[str, Any]:
    text = _read_bytes(file)

    def refuse(constant: str) -> None:
        raise ValueError(f"holds {constant}, which is not JSON")

    try:
        data = json.loads(text.decode("utf-8"), parse_constant=refuse)
    except ValueError as error:  # also bad UTF-8 and JSONDecodeError
        raise PolicyError(f"{file}: not valid JSON: {error}") from error
    except RecursionError:
        raise PolicyError(f"{file}: nested too deeply") from None
    if not isinstance(data, dict):
        raise PolicyError(f"{file}: must hold an object, found {type(data).__name__}")
    return data


def _read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        inner = file.parent / "policy"
        hint = f"; did you mean {inner}?" if (inner / file.name).is_file() else ""
        raise PolicyError(f"{file}: missing, so {file.parent} is no policy folder{hint}") from None
    except OSError as error:
        raise PolicyError(f"{file}: cannot be read: {error.strerror}") from error


def _check_fields(prefix: str, data: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    for name, kind in fields.items():
        if name not in data:
            raise PolicyError(f"{prefix}{name}: missing")
        if not isinstance(data[name], kind):
            raise PolicyError(f"{prefix}{name}: has the wrong type {type(data[name]).__name__}")
    for name in sorted(set(data) - set(fields)):
        raise PolicyError(f"{prefix}{name}: unknown field; accepted: {', '.join(fields)}")


def _check_numbers(prefix: str, data: Mapping[str, Any]) -> None:
    for name, value in data.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PolicyError(f"{prefix}{name}: must be a number, found {value!r:.40}")
        if not -MOST <= value <= MOST:
            raise PolicyError(f"{prefix}{name}: must be finite")


def _expect(name: str, expected: Any, found: Any) -> None:
    if found != expected:
        raise PolicyError(f"{name}: expected {expected!r}, found {found!r}")


def _read_layout(data: Mapping[str, Any]) -> FeatureLayout:
    _check_fields(
        "layout.",
        data,
        {"hash": str, "schema": str, "parameters": dict, "depth": list, "size": list},
    )
    try:
        parameters = dict(data["parameters"])
        layout = FeatureLayout(**{**parameters, "size_grid": tuple(parameters["size_grid"])})
    except (TypeError, ValueError, KeyError) as error:
        raise PolicyError(f"layout.parameters: {error}") from error
    stored = {name: data[name] for name in ("schema", "parameters", "depth", "size")}
    if stored != plain(layout.schema()):
        raise PolicyError("layout: made for another observation layout than this version's")
    _expect("layout.hash", layout.hash(), data["hash"])
    return layout


def _read_head(
    name: HeadName, data: Any, layout: FeatureLayout
) -> tuple[list[int], Normaliser | None]:
    """Widths of the hidden layers, and the statistics."""
    prefix = f"heads.{name}."
    if not isinstance(data, dict):
        raise PolicyError(f"heads.{name}: must be an object")
    if "normaliser" not in data:
        raise PolicyError(
            f"{prefix}normaliser: missing; a policy trained on raw observations says null"
        )
    _check_fields(prefix, data, _HEAD_FIELDS)
    _expect(f"{prefix}activation", "tanh", data["activation"])
    _expect(f"{prefix}actions", action_table(name, layout), data["actions"])
    if not all(isinstance(width, int) and width > 0 for width in data["hidden"]):
        raise PolicyError(f"{prefix}hidden: must be positive integers, got {data['hidden']}")
    if data["normaliser"] is None:
        return data["hidden"], None
    _check_fields(f"{prefix}normaliser.", data["normaliser"], _NORMALISER_FIELDS)
    try:
        return data["hidden"], Normaliser(**data["normaliser"])
    except (PolicyError, TypeError, ValueError, OverflowError) as error:
        raise PolicyError(f"heads.{name}: {error}") from error


def _read_weights(
    file: Path, sha256: str, described: Mapping[HeadName, tuple[list[int], Normaliser | None]]
) -> dict[HeadName, PolicyHead]:
    content = _read_bytes(file)
    try:
        tensors = load_tensors(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise PolicyError(f"{file}: not a readable safetensors file: {error}") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise PolicyError(f"{file}: weights_sha256: belongs to another {JSON_FILE}")
    heads: dict[HeadName, PolicyHead] = {}
    for name, (hidden, normaliser) in described.items():
        arrays: dict[str, list[Any]] = {"weight": [], "bias": []}
        for layer in range(len(hidden) + 1):
            for kind, found in arrays.items():
                tensor = f"{name}.{layer}.{kind}"
                if tensor not in tensors:
                    raise PolicyError(f"{file}: {tensor}: missing")
                found.append(tensors.pop(tensor))
        head = PolicyHead(tuple(arrays["weight"]), tuple(arrays["bias"]), normaliser)
        if list(head.hidden) != hidden:
            raise PolicyError(
                f"{file}: {name}: hidden layers {list(head.hidden)}, {JSON_FILE} says {hidden}"
            )
        heads[name] = head
    for tensor in sorted(tensors):
        raise PolicyError(f"{file}: {tensor}: unknown tensor")
    return heads


def _normaliser_data(normaliser: Normaliser | None) -> dict[str, Any] | None:
    if normaliser is None:
        return None
    return {
        "mean": normaliser.mean.tolist(),
        "variance": normaliser.variance.tolist(),
        "clip": normaliser.clip,
    }
