"""A readable policy: a small tree of thresholds that picks depth and size at each round's start.

Its features are the unscaled entries of the depth observation before the first pass. Stored as one
JSON file; reading it never executes what is in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from draftgym.batch_state import IntArray
from draftgym.feature_list import Float64Array
from draftgym.features import FeatureLayout
from draftgym.runtime.controller import known_costs
from draftgym.runtime.folder import first_difference, warn_of_other_hardware
from draftgym.runtime.policy import PolicyError
from draftgym.state import MeasuredCosts, RoundRecord, RoundState
from draftgym.storage import plain, write_json

TABLE_SCHEMA = "draftgym.table/1"

_FIELDS = ("schema", "layout", "root", "pair", "hardware", "training")
_SPLIT, _ROW = {"feature", "at_most", "yes", "no"}, {"depth", "size"}
_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class TableRow:
    """What is done in the rounds that come here.

    Attributes:
        depth: Draft passes asked for.
        size: Drafted tokens verified.
    """

    depth: int
    size: int


@dataclass(frozen=True, slots=True)
class TableSplit:
    """A question about a round.

    Attributes:
        feature: Name of an entry of the depth observation.
        at_most: Threshold on its unscaled value.
        yes: Where values up to the threshold go.
        no: Where larger ones go.
    """

    feature: str
    at_most: float
    yes: TableNode
    no: TableNode


TableNode = TableRow | TableSplit


@dataclass(frozen=True)
class ThresholdTable:
    """A checked table.

    Attributes:
        layout: Of the observations.
        root: First question, or the only row.
        pair: Fingerprint of the model pair it was learned on, plain data.
        hardware: Fingerprint of the machine whose costs it was learned with, plain data.
        training: How it was learned, plain data.

    Raises:
        PolicyError: A question about no observation, a threshold that is not a number, or a depth
            or size outside the layout; names the place.
    """

    layout: FeatureLayout
    root: TableNode
    pair: Mapping[str, Any] = field(default_factory=dict)
    hardware: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self.root, self.layout, "root")

    @property
    def rows(self) -> tuple[TableRow, ...]:
        """All rows, top to bottom."""
        return tuple(_rows(self.root))

    def text(self) -> str:
        """The table as nested questions."""
        return "\n".join(_lines(self.root, ""))

    def decide(self, raw: Sequence[float] | Float64Array) -> TableRow:
        """The row of one round.

        Args:
            raw: `FeatureLayout.depth_raw` before the first pass, [features].
        """
        node = self.root
        while isinstance(node, TableSplit):
            value = raw[self.layout.depth_names.index(node.feature)]
            node = node.yes if value <= node.at_most else node.no
        return node

    def decide_many(self, raw: Float64Array) -> tuple[IntArray, IntArray]:
        """Depths and sizes of many rounds.

        Args:
            raw: `BatchFeatures.depth_raw` before the first passes, [m, features].
        """
        depth, size = np.zeros(len(raw), np.int64), np.zeros(len(raw), np.int64)
        waiting: list[tuple[TableNode, IntArray]] = [(self.root, np.arange(len(raw)))]
        while waiting:
            node, here = waiting.pop()
            if isinstance(node, TableRow):
                depth[here], size[here] = node.depth, node.size
                continue
            values = raw[here, self.layout.depth_names.index(node.feature)]
            low = values <= node.at_most
            waiting += [(node.yes, here[low]), (node.no, here[~low])]
        return depth, size


class TableController:
    """Follows a table in a live decoder; implements `draftgym.state.Controller`.

    Args:
        table: Checked table.
    """

    free = False

    def __init__(self, table: ThresholdTable) -> None:
        self.table = table
        self._row: TableRow | None = None

    @property
    def layout(self) -> FeatureLayout:
        """Observations and actions."""
        return self.table.layout

    @property
    def training(self) -> Mapping[str, Any]:
        """How it was learned, plain data."""
        return self.table.training

    @property
    def costs(self) -> MeasuredCosts:
        """Cost ratios seen in training, for a session that has not measured this machine."""
        return known_costs(self.table.training)

    def reset(self) -> None:
        """Forget the running round."""
        self._row = None

    def draft_again(self, state: RoundState) -> bool:
        """Whether the round is still short of its row's depth."""
        if state.depth == 0:
            self._row = self._decide(state)
        return self._row is not None and state.depth < min(self._row.depth, state.max_depth)

    def choose_size(self, state: RoundState) -> int:
        """The row's size; the session clamps it to the tree."""
        if self._row is None:  # a round that may not draft is not asked about passes
            self._row = self._decide(state)
        return self._row.size

    def observe(self, record: RoundRecord) -> None:
        """The next round is decided anew."""
        self._row = None

    def _decide(self, state: RoundState) -> TableRow:
        return self.table.decide(self.table.layout.depth_raw(state))


def save_table(path: str | Path, table: ThresholdTable) -> Path:
    """Write a table as one JSON file, in one step.

    Args:
        path: Destination.
        table: What to write.

    Returns:
        The destination.
    """
    layout = table.layout
    content = {
        "schema": TABLE_SCHEMA,
        "layout": {"hash": layout.hash(), "parameters": layout.schema()["parameters"]},
        "root": asdict(table.root),
        "pair": table.pair,
        "hardware": table.hardware,
        "training": table.training,
    }
    return write_json(path, content)


def load_table(
    path: str | Path,
    pair_fingerprint: Mapping[str, Any] | None = None,
    hardware_fingerprint: Mapping[str, Any] | None = None,
) -> ThresholdTable:
    """Read and check a table.

    Args:
        path: File written by `save_table`.
        pair_fingerprint: Of the model pair it will steer; another one is refused. Not compared
            when None.
        hardware_fingerprint: Of this machine; a difference is only warned about. Not compared
            when None.

    Raises:
        PolicyError: The file is missing, damaged, of another layout or of another pair; names the
            file and the field.
    """
    file = Path(path)
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PolicyError(f"{file}: no such table") from None
    except (OSError, ValueError, RecursionError) as error:
        raise PolicyError(f"{file}: cannot be read: {error}") from error
    try:
        table = _read(data)
        if pair_fingerprint is not None:
            difference = first_difference(table.pair, plain(pair_fingerprint), "pair")
            if difference is not None:
                raise PolicyError(f"learned on another model pair: {difference}")
    except PolicyError as error:
        raise PolicyError(f"{file}: {error}") from error
    if hardware_fingerprint is not None:
        warn_of_other_hardware(file, table.hardware, hardware_fingerprint)
    return table


def _read(data: Any) -> ThresholdTable:
    if not isinstance(data, dict) or data.get("schema") != TABLE_SCHEMA:
        raise PolicyError(f"schema: expected {TABLE_SCHEMA!r}")
    for name in sorted(set(_FIELDS) ^ set(data)):
        raise PolicyError(f"{name}: missing" if name in _FIELDS else f"{name}: unknown field")
    for name in ("layout", "pair", "hardware", "training"):
        if not isinstance(data[name], dict):
            raise PolicyError(f"{name}: must be an object")
    try:
        parameters = dict(data["layout"]["parameters"])
        layout = FeatureLayout(**{**parameters, "size_grid": tuple(parameters["size_grid"])})
    except (TypeError, ValueError, KeyError) as error:
        raise PolicyError(f"layout.parameters: {error}") from error
    if data["layout"].get("hash") != layout.hash():
        raise PolicyError("layout.hash: features have changed since it was learned")
    costs = data["training"].get("costs", {})
    if not isinstance(costs, dict) or not all(type(x) in (int, float) for x in costs.values()):
        raise PolicyError("training.costs: must hold numbers")
    root = _read_node(data["root"], "root", 0)
    return ThresholdTable(layout, root, data["pair"], data["hardware"], data["training"])


def _read_node(data: Any, place: str, deep: int) -> TableNode:
    if deep > _DEEPEST:
        raise PolicyError(f"{place}: nested too deeply")
    if isinstance(data, dict) and set(data) == _SPLIT:
        yes, no = (_read_node(data[side], f"{place}.{side}", deep + 1) for side in ("yes", "no"))
        return TableSplit(data["feature"], data["at_most"], yes, no)
    if isinstance(data, dict) and set(data) == _ROW:
        return TableRow(data["depth"], data["size"])
    raise PolicyError(f"{place}: must have the fields {sorted(_ROW)} or {sorted(_SPLIT)}")


def _check(node: TableNode, layout: FeatureLayout, place: str) -> None:
    if isinstance(node, TableRow):
        for name, most in (("depth", layout.max_depth), ("size", layout.max_size)):
            value = getattr(node, name)
            if type(value) is not int or not 0 <= value <= most:
                raise PolicyError(f"{place}.{name}: must be 0 to {most}, got {value!r:.40}")
        return
    if node.feature not in layout.depth_names:
        raise PolicyError(f"{place}.feature: {node.feature!r:.40} is no observation")
    if type(node.at_most) not in (int, float) or not np.isfinite(node.at_most):
        raise PolicyError(f"{place}.at_most: must be a number, got {node.at_most!r:.40}")
    _check(node.yes, layout, f"{place}.yes")
    _check(node.no, layout, f"{place}.no")


def _rows(node: TableNode) -> list[TableRow]:
    return [node] if isinstance(node, TableRow) else [*_rows(node.yes), *_rows(node.no)]


def _lines(node: TableNode, indent: str) -> list[str]:
    if isinstance(node, TableRow):
        return [f"{indent}D = {node.depth}, V = {node.size}"]
    return [
        f"{indent}if {node.feature} <= {node.at_most:.4g}:",
        *_lines(node.yes, indent + "    "),
        f"{indent}else:",
        *_lines(node.no, indent + "    "),
    ]
