"""What an evaluation found, looked up by method: the one reader of its result line and details.

Older evaluations lack entries, and some methods cannot have some; both read as "not known".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from draftgym.benchmark.config import Cell
from draftgym.benchmark.contenders import CONTROL
from draftgym.benchmark.report.labels import distinct
from draftgym.benchmark.summary import PLAIN, POLICY

Row = Mapping[str, Any]

ALL = "all"
"""In place of a domain: every prompt."""
TRANSFORMERS = "Transformers"
"""The kind of methods that do not run on DraftGym's decoder."""
PARTS = ("verify", "draft", "commit", "policy", "other")
"""Of a round's time."""
FEATURED = 5
"""Methods in charts that draw one line per method; more lines cannot be told apart."""


@dataclass(frozen=True, slots=True)
class Versus:
    """A method against a baseline.

    Attributes:
        ratio: Time per token of the baseline over the method's: above 1 is faster.
        low: Lower limit of the 95% interval; None if there is none.
        high: Upper limit.
        verdict: "faster", "slower", "no significant difference", or "" if nobody judged.
        p_holm: Corrected for the number of comparisons; None if it was not.
    """

    ratio: float
    low: float | None
    high: float | None
    verdict: str
    p_holm: float | None = None


@dataclass(frozen=True)
class Facts:
    """Reads one evaluation.

    Args:
        payload: The result line.
        details: What `write_report` takes.
    """

    payload: Row
    details: Row

    @cached_property
    def rows(self) -> list[Row]:
        """Rows of the result line, fastest first."""
        return sorted(self.payload["results"], key=lambda row: float(row["ms_per_token"]))

    @cached_property
    def methods(self) -> list[str]:
        """Names, fastest first."""
        return [row["method"] for row in self.rows]

    @property
    def tuned(self) -> str:
        """The fixed cell that validation prompts chose."""
        best = self.payload["best_fixed"]
        return Cell(depth=best["depth"], size=best["size"]).name

    @property
    def judged(self) -> bool:
        """Whether a learned policy was given."""
        return POLICY in self.methods

    @cached_property
    def contenders(self) -> list[str]:
        """Methods but plain decoding and its double, fastest first."""
        return [name for name in self.methods if name not in (PLAIN, CONTROL)]

    @property
    def subject(self) -> str:
        """Whom the headline is about: the learned policy, else the fastest contender."""
        return POLICY if self.judged else next(iter(self.contenders), PLAIN)

    @cached_property
    def rules(self) -> dict[str, Row]:
        """Tuned rules by name."""
        return {rule["name"]: rule for rule in self.details.get("rules") or ()}

    def kind(self, method: str) -> str:
        """What a method is, in a word or two."""
        if method == PLAIN:
            return "baseline"
        if method == CONTROL:
            return "control"
        if method == self.tuned:
            return "tuned fixed setting"
        if method.startswith("fixed "):
            return "fixed setting"
        if method in self.rules:
            return "published rule"
        if method.startswith("transformers"):
            return TRANSFORMERS
        return "learned" if method == POLICY or method in self._beside else "other"

    @property
    def _beside(self) -> Mapping[str, Any]:
        entries: Mapping[str, Any] = self.payload.get("beside_vs_best_fixed") or {}
        return entries

    def versus(self, baseline: str, method: str) -> Versus | None:
        """The comparison of two methods, if it was made."""
        for row in self.details.get("comparisons") or ():
            if (row["baseline"], row["method"]) == (baseline, method):
                return _versus(row)
        if baseline == PLAIN:
            return _versus(self.details.get("speedups", {}).get(method))
        if baseline == self.tuned and method == POLICY:
            return _versus(self.payload.get("policy_vs_best_fixed"))
        return _versus(self._beside.get(method)) if baseline == self.tuned else None

    def measure(self, method: str, domain: str = ALL) -> Row:
        """The measures of a method on a domain; empty if there are none."""
        entry = (self.details.get("measures") or {}).get(method) or {}
        found = entry.get(ALL) if domain == ALL else (entry.get("domains") or {}).get(domain)
        return found or {}

    @cached_property
    def domains(self) -> list[str]:
        """Domains of the test prompts, in order."""
        return sorted({name for row in self.details["domains"].values() for name in row or ()})

    def domain(self, method: str, domain: str) -> Versus | None:
        """Speedup over plain decoding on one domain."""
        found = (self.details["domains"].get(method) or {}).get(domain)
        return _versus(found if isinstance(found, Mapping) else {"speedup": found})

    @cached_property
    def bounds(self) -> list[tuple[Row, Versus | None]]:
        """Rows judged on traces, and how each stands against the tuned fixed cell there."""
        rows = (self.details.get("bounds") or {}).get("methods") or ()
        return [(row, _versus(row.get("over_tuned"))) for row in rows]

    @property
    def tuned_on_traces(self) -> bool:
        """Whether fixed settings were tuned in simulation; cells that are listed race live."""
        raced = (self.details.get("config") or {}).get("cells")
        traced = self.payload["provenance"].get("tuned_on")
        return self.tuned in self.rules or bool(traced and not raced)

    @cached_property
    def strayed(self) -> dict[str, int]:
        """Prompts on which Transformers' own decoding wrote another text, near-ties aside."""
        found = {name: self._texts_apart(name) for name in self.methods}
        return {n: count for n, count in found.items() if count and self.kind(n) == TRANSFORMERS}

    def _texts_apart(self, method: str) -> int:
        measured = self.measure(method)
        same, of = known(measured.get("identical_outputs")), known(measured.get("prompts"))
        apart = {
            entry["prompt_id"]
            for entry in self.details["divergences"]
            if entry["method"] == method and not entry["near_tie"]
        }
        return max(len(apart), 0 if same is None or of is None else int(of - same))

    @cached_property
    def split(self) -> dict[str, Row]:
        """Milliseconds per token by part, of the methods that decode in rounds; fastest first."""
        found = self.details["time_split"]
        return {name: found[name] for name in self.methods if any((found.get(name) or {}).values())}

    @cached_property
    def featured(self) -> list[str]:
        """The methods that line charts draw."""
        decided = self.details["decisions"]
        rounds = [name for name in self.methods if (decided.get(name) or {}).get("depth")]
        drafting = [name for name in rounds if name in self.contenders]
        best_rule = [name for name in drafting if self.kind(name) == "published rule"][:1]
        learned = [name for name in drafting if self.kind(name) == "learned"]
        first = [name for name in (POLICY, self.tuned) if name in drafting]
        ordered = dict.fromkeys([*first, *best_rule, *learned, *drafting])
        return list(ordered)[:FEATURED]

    @cached_property
    def labels(self) -> dict[str, str]:
        """Short names for charts, by full name, also of what was simulated for the bounds."""
        simulated = [row["method"] for row, _ in self.bounds]
        live = [row["method"] for row in self.payload["results"]]
        return {
            name: label
            for names in (simulated, live)
            for name, label in distinct({name: self._called(name) for name in names}).items()
        }

    def label(self, method: str) -> str:
        """The name of a method in charts."""
        return self.labels[method]

    def _called(self, method: str) -> str:
        """A rule's own short name, which also stands for it where all is simulated."""
        title = method.removesuffix(", simulated")
        shorts = {rule.get("title"): rule.get("short") for rule in self.rules.values()}
        return shorts.get(title) or method


def known(value: Any) -> float | None:
    """A finite number as such, anything else as None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _versus(row: Row | None) -> Versus | None:
    if row is None:
        return None
    ratio = known(row.get("ratio", row.get("speedup")))
    if ratio is None:
        return None
    limits: Sequence[Any] = row.get("ci95") or (None, None)
    low, high = map(known, limits)
    return Versus(ratio, low, high, row.get("verdict") or "", known(row.get("p_holm")))
