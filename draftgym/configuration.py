"""YAML files into checked configuration objects.

Every mistake is rejected at the door with one message that names the file, the field and the
accepted values. It does not know any particular configuration class.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from draftgym.errors import ConfigurationError

M = TypeVar("M", bound=BaseModel)


def load_yaml(path: str | Path, model: type[M]) -> M:
    """Read one YAML file as `model`.

    Args:
        path: The file.
        model: A pydantic class; unknown fields are its own business (`extra="forbid"`).

    Returns:
        The checked object.

    Raises:
        ConfigurationError: Naming the file and every rejected field.
    """
    return validate(read_yaml(path), model, origin=str(path))


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read one YAML file as plain data; an empty file is an empty mapping.

    Raises:
        ConfigurationError: If the file is missing, is not YAML, repeats a key, or does not
            hold a mapping.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such configuration file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from error
    try:
        data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: not valid YAML: {error}") from error
    except RecursionError:
        raise ConfigurationError(f"{path}: nested too deeply") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigurationError(f"{path}: must hold fields, not a {type(data).__name__}")
    return data


def validate(data: Any, model: type[M], origin: str) -> M:
    """Check plain data against `model`; nothing is converted, so true is not 1 and "8" not 8.

    Args:
        data: Usually what `read_yaml` returned.
        model: A pydantic class.
        origin: Where the data came from; starts the error message.

    Raises:
        ConfigurationError: Naming every rejected field and what it accepts.
    """
    try:
        # JSON's strict rules: Python's would also refuse a list for a tuple and text for a path.
        return model.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        lines = [_explain(model, detail) for detail in error.errors()]
        raise ConfigurationError("\n  ".join([f"{origin}: rejected", *lines])) from error


def _explain(model: type[BaseModel], detail: Any) -> str:
    """One line for one rejected field."""
    location = tuple(detail["loc"])
    name = ".".join(str(part) for part in location) or "(whole file)"
    kind = detail["type"]
    if kind == "extra_forbidden":
        owner = _model_at(model, location[:-1])
        known = f"; fields here: {', '.join(sorted(owner.model_fields))}" if owner else ""
        return f"{name}: unknown field{known}"
    if kind == "missing":
        return f"{name}: must be given"
    return f"{name}: {detail['msg']}; got {detail['input']!r:.200}"


def _model_at(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel] | None:
    """The nested configuration class at `location`, where there is exactly one."""
    current = model
    for part in location:
        field = current.model_fields.get(str(part))
        if field is None:
            if isinstance(part, int):  # an item of a list: the class stays
                continue
            return None
        nested = _models_in(field.annotation)
        if len(nested) != 1:
            return None
        current = nested[0]
    return current


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses repeated keys and reads 3e-4 as a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a single word", key_node.start_mark
                )
            key = key_node.value
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


# YAML 1.1 wants a dot in a float, so PyYAML reads 3e-4, as everyone writes a learning rate,
# as text.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)
