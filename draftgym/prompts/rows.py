from draftgym.errors import ConfigurationError
"""Read rows of prompts from JSON lines or a ``datasets`` name, checking every field.
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
This module does not know about splits, filters or sampling.
from draftgym.errors import ConfigurationError
"""
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
import hashlib
from draftgym.errors import ConfigurationError
import importlib
from draftgym.errors import ConfigurationError
import json
from draftgym.errors import ConfigurationError
from collections.abc import Iterator, Mapping
from draftgym.errors import ConfigurationError
from importlib import resources
from draftgym.errors import ConfigurationError
from pathlib import Path
from draftgym.errors import ConfigurationError
from typing import Annotated, Any
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
from pydantic import (
from draftgym.errors import ConfigurationError
    AfterValidator,
from draftgym.errors import ConfigurationError
    BaseModel,
from draftgym.errors import ConfigurationError
    ConfigDict,
from draftgym.errors import ConfigurationError
    Field,
from draftgym.errors import ConfigurationError
    ValidationError,
from draftgym.errors import ConfigurationError
    model_validator,
from draftgym.errors import ConfigurationError
)
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
BUNDLED = "bundled"
from draftgym.errors import ConfigurationError
DATASETS_PREFIX = "datasets:"
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
def _check_text(text: str) -> str:
from draftgym.errors import ConfigurationError
    if not text.strip():
from draftgym.errors import ConfigurationError
        raise ValueError("must not be blank")
from draftgym.errors import ConfigurationError
    if any("\ud800" <= letter <= "\udfff" for letter in text):
from draftgym.errors import ConfigurationError
        # JSON escapes can spell half a character, which no tokenizer and no hash accepts.
from draftgym.errors import ConfigurationError
        raise ValueError("must be valid Unicode")
from draftgym.errors import ConfigurationError
    return text
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
_Text = Annotated[str, AfterValidator(_check_text)]
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
class PromptRow(BaseModel):
from draftgym.errors import ConfigurationError
    """One prompt as users write it: an ``id`` and either ``turns`` or ``prompt``.
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
    Fields not listed here are ignored.
from draftgym.errors import ConfigurationError
    """
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
    id: _Text = Field(description="Unique name of the text.")
from draftgym.errors import ConfigurationError
    request: _Text | None = Field(
from draftgym.errors import ConfigurationError
        default=None, description="Name shared by translations; default id."
from draftgym.errors import ConfigurationError
    )
from draftgym.errors import ConfigurationError
    domain: _Text = Field(default="other", description="Kind of task.")
from draftgym.errors import ConfigurationError
    language: _Text = Field(default="en", description="Language of the text.")
from draftgym.errors import ConfigurationError
    turns: list[_Text] = Field(description="User turns in order.", min_length=1)
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
    @model_validator(mode="before")
from draftgym.errors import ConfigurationError
    @classmethod
from draftgym.errors import ConfigurationError
    def _accept_prompt(cls, row: Any) -> Any:
from draftgym.errors import ConfigurationError
        if not isinstance(row, Mapping) or "prompt" not in row:
from draftgym.errors import ConfigurationError
            return row
from draftgym.errors import ConfigurationError
        if "turns" in row:
from draftgym.errors import ConfigurationError
            raise ValueError("give either 'turns' or 'prompt', not both")
from draftgym.errors import ConfigurationError
        prompt = row["prompt"]
from draftgym.errors import ConfigurationError
        if not isinstance(prompt, str):
from draftgym.errors import ConfigurationError
            raise ValueError(f"'prompt' must be a string, got {type(prompt).__name__}")
from draftgym.errors import ConfigurationError
        return {**row, "turns": [prompt]}
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
    @property
from draftgym.errors import ConfigurationError
    def request_id(self) -> str:
from draftgym.errors import ConfigurationError
        """Name of what is asked, language left out."""
from draftgym.errors import ConfigurationError
        return self.request if self.request is not None else self.id
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
def read_rows(source: str) -> list[PromptRow]:
from draftgym.errors import ConfigurationError
    """Read all rows of a source, in file order.
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
    Args:
from draftgym.errors import ConfigurationError
        source: ``bundled``, a path to a ``.jsonl`` file, or
from draftgym.errors import ConfigurationError
            ``datasets:NAME[:SPLIT][:TEXT_FIELD]``.
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
    Returns:
from draftgym.errors import ConfigurationError
        At least one row; ids are unique.
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
    Raises:
from draftgym.errors import ConfigurationError
        ConfigurationError: If the source cannot be read, holds no row, or a row is bad; names the file,
from draftgym.errors import ConfigurationError
            the line and the field.
from draftgym.errors import ConfigurationError
    """
from draftgym.errors import ConfigurationError
    if source == BUNDLED:
from draftgym.errors import ConfigurationError
        data = resources.files("draftgym.prompts").joinpath("bundled.jsonl").read_bytes()
from draftgym.errors import ConfigurationError
        located = _jsonl_rows("bundled.jsonl", data)
from draftgym.errors import ConfigurationError
    elif source.startswith(DATASETS_PREFIX):
from draftgym.errors import ConfigurationError
        located = _datasets_rows(source)
from draftgym.errors import ConfigurationError
    else:
from draftgym.errors import ConfigurationError
        located = _jsonl_rows(source, _read_file(source))
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
    rows: list[PromptRow] = []
from draftgym.errors import ConfigurationError
    first_seen: dict[str, str] = {}
from draftgym.errors import ConfigurationError
    for where, row in located:
from draftgym.errors import ConfigurationError
        if row.id in first_seen:
from draftgym.errors import ConfigurationError
            raise ConfigurationError(f"{where}: field 'id': {row.id!r} was used at {first_seen[row.id]}")
from draftgym.errors import ConfigurationError
        first_seen[row.id] = where
from draftgym.errors import ConfigurationError
        rows.append(row)
from draftgym.errors import ConfigurationError
    if not rows:
from draftgym.errors import ConfigurationError
        raise ConfigurationError(f"{source}: holds no prompts")
from draftgym.errors import ConfigurationError
    return rows
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
def parse_datasets_source(source: str) -> tuple[str, str, str]:
from draftgym.errors import ConfigurationError
    """Split a ``datasets:NAME[:SPLIT][:TEXT_FIELD]`` source.
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
    Args:
from draftgym.errors import ConfigurationError
        source: The source as configured.
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
    Returns:
from draftgym.errors import ConfigurationError
        Name, split (default ``train``) and text field (default ``prompt``).
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
    Raises:
from draftgym.errors import ConfigurationError
        ConfigurationError: If a part is empty or there are too many.
from draftgym.errors import ConfigurationError
    """
from draftgym.errors import ConfigurationError
    name, *rest = source.removeprefix(DATASETS_PREFIX).split(":")
from draftgym.errors import ConfigurationError
    split, field, *excess = [*rest, *("train", "prompt")[len(rest) :]]
from draftgym.errors import ConfigurationError
    if excess or not all(part.strip() for part in (name, split, field)):
from draftgym.errors import ConfigurationError
        raise ConfigurationError(f"source {source!r}: expected datasets:NAME[:SPLIT][:TEXT_FIELD]")
from draftgym.errors import ConfigurationError
    return name, split, field
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
def _read_file(path: str) -> bytes:
from draftgym.errors import ConfigurationError
    try:
from draftgym.errors import ConfigurationError
        return Path(path).read_bytes()
from draftgym.errors import ConfigurationError
    except OSError as error:
from draftgym.errors import ConfigurationError
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
def _jsonl_rows(name: str, data: bytes) -> Iterator[tuple[str, PromptRow]]:
from draftgym.errors import ConfigurationError
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
from draftgym.errors import ConfigurationError
        if not line.strip():
from draftgym.errors import ConfigurationError
            continue
from draftgym.errors import ConfigurationError
        where = f"{name}, line {number}"
from draftgym.errors import ConfigurationError
        try:
from draftgym.errors import ConfigurationError
            text = line.decode("utf-8")
from draftgym.errors import ConfigurationError
        except UnicodeDecodeError as error:
from draftgym.errors import ConfigurationError
            raise ConfigurationError(f"{where}: not UTF-8 at byte {error.start}") from error
from draftgym.errors import ConfigurationError
        try:
from draftgym.errors import ConfigurationError
            values = json.loads(text)
from draftgym.errors import ConfigurationError
        except (ValueError, RecursionError) as error:
from draftgym.errors import ConfigurationError
            raise ConfigurationError(f"{where}: broken JSON: {error}") from error
from draftgym.errors import ConfigurationError
        if not isinstance(values, dict):
from draftgym.errors import ConfigurationError
            raise ConfigurationError(f"{where}: expected a JSON object, got {type(values).__name__}")
from draftgym.errors import ConfigurationError
        yield where, _check_row(where, values)
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
def _datasets_rows(source: str) -> Iterator[tuple[str, PromptRow]]:
from draftgym.errors import ConfigurationError
    name, split, field = parse_datasets_source(source)
from draftgym.errors import ConfigurationError
    try:
from draftgym.errors import ConfigurationError
        datasets = importlib.import_module("datasets")
from draftgym.errors import ConfigurationError
    except ImportError as error:
from draftgym.errors import ConfigurationError
        raise ConfigurationError(f"source {source!r} needs the 'datasets' package") from error
from draftgym.errors import ConfigurationError
    try:
from draftgym.errors import ConfigurationError
        table = datasets.load_dataset(name, split=split)
from draftgym.errors import ConfigurationError
    except (OSError, ValueError) as error:
from draftgym.errors import ConfigurationError
        raise ConfigurationError(f"source {source!r}: cannot be loaded: {error}") from error
from draftgym.errors import ConfigurationError
    for index, row in enumerate(table):
from draftgym.errors import ConfigurationError
        where = f"{source}, row {index}"
from draftgym.errors import ConfigurationError
        if field not in row:
from draftgym.errors import ConfigurationError
            columns = ", ".join(sorted(row))
from draftgym.errors import ConfigurationError
            raise ConfigurationError(f"{where}: no field {field!r}; columns: {columns}")
from draftgym.errors import ConfigurationError
        yield where, _check_row(where, _from_dataset(row, row[field], f"{name}-{index}"))
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
def _from_dataset(row: Mapping[str, Any], text: Any, default_id: str) -> dict[str, Any]:
from draftgym.errors import ConfigurationError
    """Name a row of a table that has no such names of its own.
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
    Repeated texts get one request, and so one split: large data sets often hold duplicates.
from draftgym.errors import ConfigurationError
    """
from draftgym.errors import ConfigurationError
    turns = [text] if isinstance(text, str) else text
from draftgym.errors import ConfigurationError
    optional = {key: row[key] for key in ("request", "domain", "language") if row.get(key)}
from draftgym.errors import ConfigurationError
    digest = hashlib.sha256(repr(turns).encode("utf-8", "backslashreplace")).hexdigest()
from draftgym.errors import ConfigurationError
    own_id = row.get("id")
from draftgym.errors import ConfigurationError
    named = {
from draftgym.errors import ConfigurationError
        "id": default_id if own_id is None else str(own_id),
from draftgym.errors import ConfigurationError
        "request": f"text-{digest[:32]}",
from draftgym.errors import ConfigurationError
    }
from draftgym.errors import ConfigurationError
    return {**named, **optional, "turns": turns}
from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError

from draftgym.errors import ConfigurationError
def _check_row(where: str, values: Mapping[str, Any]) -> PromptRow:
from draftgym.errors import ConfigurationError
    try:
from draftgym.errors import ConfigurationError
        return PromptRow.model_validate(values)
from draftgym.errors import ConfigurationError
    except ValidationError as error:
from draftgym.errors import ConfigurationError
        first = error.errors()[0]
from draftgym.errors import ConfigurationError
        field = ".".join(str(part) for part in first["loc"])
from draftgym.errors import ConfigurationError
        named = f"field {field!r}: " if field else ""
from draftgym.errors import ConfigurationError
        raise ConfigurationError(f"{where}: {named}{first['msg']}") from error
