"""Read rows of prompts from JSON lines or a ``datasets`` name, checking every field.

This module does not know about splits, filters or sampling.
"""

import hashlib
import importlib
import json
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from draftgym.errors import ConfigurationError

BUNDLED = "bundled"
DATASETS_PREFIX = "datasets:"


def _check_text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        # JSON escapes can spell half a character, which no tokenizer and no hash accepts.
        raise ValueError("must be valid Unicode")
    return text


_Text = Annotated[str, AfterValidator(_check_text)]


class PromptRow(BaseModel):
    """One prompt as users write it: an ``id`` and either ``turns`` or ``prompt``.

    Fields not listed here are ignored.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    id: _Text = Field(description="Unique name of the text.")
    request: _Text | None = Field(
        default=None, description="Name shared by translations; default id."
    )
    domain: _Text = Field(default="other", description="Kind of task.")
    language: _Text = Field(default="en", description="Language of the text.")
    turns: list[_Text] = Field(description="User turns in order.", min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _accept_prompt(cls, row: Any) -> Any:
        if not isinstance(row, Mapping) or "prompt" not in row:
            return row
        if "turns" in row:
            raise ValueError("give either 'turns' or 'prompt', not both")
        prompt = row["prompt"]
        if not isinstance(prompt, str):
            raise ValueError(f"'prompt' must be a string, got {type(prompt).__name__}")
        return {**row, "turns": [prompt]}

    @property
    def request_id(self) -> str:
        """Name of what is asked, language left out."""
        return self.request if self.request is not None else self.id


def read_rows(source: str) -> list[PromptRow]:
    """Read all rows of a source, in file order.

    Args:
        source: ``bundled``, a path to a ``.jsonl`` file, or
            ``datasets:NAME[:SPLIT][:TEXT_FIELD]``.

    Returns:
        At least one row; ids are unique.

    Raises:
        ConfigurationError: If the source cannot be read, holds no row, or a row is bad; names
            the file, the line and the field.
    """
    if source == BUNDLED:
        data = resources.files("draftgym.prompts").joinpath("bundled.jsonl").read_bytes()
        located = _jsonl_rows("bundled.jsonl", data)
    elif source.startswith(DATASETS_PREFIX):
        located = _datasets_rows(source)
    else:
        located = _jsonl_rows(source, _read_file(source))

    rows: list[PromptRow] = []
    first_seen: dict[str, str] = {}
    for where, row in located:
        if row.id in first_seen:
            raise ConfigurationError(
                f"{where}: field 'id': {row.id!r} was used at {first_seen[row.id]}"
            )
        first_seen[row.id] = where
        rows.append(row)
    if not rows:
        raise ConfigurationError(f"{source}: holds no prompts")
    return rows


def parse_datasets_source(source: str) -> tuple[str, str, str]:
    """Split a ``datasets:NAME[:SPLIT][:TEXT_FIELD]`` source.

    Args:
        source: The source as configured.

    Returns:
        Name, split (default ``train``) and text field (default ``prompt``).

    Raises:
        ConfigurationError: If a part is empty or there are too many.
    """
    name, *rest = source.removeprefix(DATASETS_PREFIX).split(":")
    split, field, *excess = [*rest, *("train", "prompt")[len(rest) :]]
    if excess or not all(part.strip() for part in (name, split, field)):
        raise ConfigurationError(f"source {source!r}: expected datasets:NAME[:SPLIT][:TEXT_FIELD]")
    return name, split, field


def _read_file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error


def _jsonl_rows(name: str, data: bytes) -> Iterator[tuple[str, PromptRow]]:
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{where}: not UTF-8 at byte {error.start}") from error
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"{where}: broken JSON: {error}") from error
        if not isinstance(values, dict):
            raise ConfigurationError(
                f"{where}: expected a JSON object, got {type(values).__name__}"
            )
        yield where, _check_row(where, values)


def _datasets_rows(source: str) -> Iterator[tuple[str, PromptRow]]:
    name, split, field = parse_datasets_source(source)
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise ConfigurationError(f"source {source!r} needs the 'datasets' package") from error
    try:
        table = datasets.load_dataset(name, split=split)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"source {source!r}: cannot be loaded: {error}") from error
    for index, row in enumerate(table):
        where = f"{source}, row {index}"
        if field not in row:
            columns = ", ".join(sorted(row))
            raise ConfigurationError(f"{where}: no field {field!r}; columns: {columns}")
        yield where, _check_row(where, _from_dataset(row, row[field], f"{name}-{index}"))


def _from_dataset(row: Mapping[str, Any], text: Any, default_id: str) -> dict[str, Any]:
    """Name a row of a table that has no such names of its own.

    Repeated texts get one request, and so one split: large data sets often hold duplicates.
    """
    turns = [text] if isinstance(text, str) else text
    optional = {key: row[key] for key in ("request", "domain", "language") if row.get(key)}
    digest = hashlib.sha256(repr(turns).encode("utf-8", "backslashreplace")).hexdigest()
    own_id = row.get("id")
    named = {
        "id": default_id if own_id is None else str(own_id),
        "request": f"text-{digest[:32]}",
    }
    return {**named, **optional, "turns": turns}


def _check_row(where: str, values: Mapping[str, Any]) -> PromptRow:
    try:
        return PromptRow.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        named = f"field {field!r}: " if field else ""
        raise ConfigurationError(f"{where}: {named}{first['msg']}") from error
