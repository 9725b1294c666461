"""Turn configured sources into the prompts of one split, in a reproducible balanced order."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field, field_validator

from draftgym.errors import ConfigurationError
from draftgym.prompts.prompt import SPLITS, Prompt, Split
from draftgym.prompts.rows import BUNDLED, DATASETS_PREFIX, parse_datasets_source, read_rows
from draftgym.prompts.splits import (
    DEFAULT_WEIGHTS,
    assign_split,
    check_disjoint,
    check_weights,
)


class PromptSource(BaseModel):
    """Where prompts come from and which splits they may serve."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field(
        default=BUNDLED,
        description="'bundled', a path to a .jsonl file, or datasets:NAME[:SPLIT][:TEXT_FIELD].",
    )
    weights: dict[Split, float] = Field(
        default_factory=lambda: dict(DEFAULT_WEIGHTS),
        description="Share of requests per split, summing to 1; splits left out get none.",
    )
    domains: tuple[str, ...] | None = Field(
        default=None, description="Keep only these domains; all when absent.", min_length=1
    )
    languages: tuple[str, ...] | None = Field(
        default=None, description="Keep only these languages; all when absent.", min_length=1
    )

    @field_validator("source")
    @classmethod
    def _known_kind(cls, source: str) -> str:
        if source.startswith(DATASETS_PREFIX):
            parse_datasets_source(source)
        elif source != BUNDLED and not source.endswith(".jsonl"):
            raise ValueError(
                f"unknown source {source!r}; accepted: 'bundled', a path ending in .jsonl, "
                "datasets:NAME[:SPLIT][:TEXT_FIELD]"
            )
        return source

    @field_validator("weights")
    @classmethod
    def _distribution(cls, weights: dict[Split, float]) -> dict[Split, float]:
        check_weights(weights)
        return weights


def load_prompts(
    sources: Sequence[PromptSource], split: Split, limit: int | None = None, seed: int = 0
) -> list[Prompt]:
    """Load the prompts of one split.

    Every source is read whole, so overlap between splits is found whichever split is asked for.
    The order depends on the seed and the prompts alone, not on the order of rows: it goes round
    the domains, and within each domain round the languages, so any prefix is balanced.

    Args:
        sources: Where to read from; ids must be unique over all of them.
        split: Which split to return.
        limit: Return at most this many prompts; all when None.
        seed: Selects one of the reproducible orders.

    Returns:
        At least one prompt.

    Raises:
        ConfigurationError: If a source or row is bad, an id occurs in two sources, splits
            overlap, a filter matches nothing, the split is unknown or empty, or the limit is
            below 1.

    Examples:
        >>> [p.split for p in load_prompts([PromptSource()], "test", limit=2)]
        ['test', 'test']
    """
    if split not in SPLITS:
        raise ConfigurationError(f"split: unknown {split!r}; accepted: {', '.join(SPLITS)}")
    if limit is not None and limit < 1:
        raise ConfigurationError(f"limit: must be at least 1 or None, got {limit}")
    if not sources:
        raise ConfigurationError("sources: at least one is needed")

    prompts: list[Prompt] = []
    origins: dict[str, str] = {}
    for source in sources:
        for prompt in _load_source(source):
            if prompt.id in origins:
                raise ConfigurationError(
                    f"{source.source}: id {prompt.id!r} also occurs in {origins[prompt.id]}; "
                    "ids must be unique over all sources"
                )
            origins[prompt.id] = source.source
            prompts.append(prompt)
    try:
        check_disjoint(prompts)
    except ValueError as error:
        raise ConfigurationError(f"prompts: {error}") from error

    chosen = [prompt for prompt in prompts if prompt.split == split]
    if not chosen:
        names = ", ".join(source.source for source in sources)
        raise ConfigurationError(
            f"split: no prompt of {names} falls in {split!r}; check their weights"
        )
    return _balanced_order(chosen, seed)[:limit]


def _load_source(source: PromptSource) -> list[Prompt]:
    rows = read_rows(source.source)
    domains = _accepted(source, "domains", {row.domain for row in rows})
    languages = _accepted(source, "languages", {row.language for row in rows})
    kept = [row for row in rows if row.domain in domains and row.language in languages]
    if not kept:
        raise ConfigurationError(f"{source.source}: no prompt matches both domains and languages")
    return [
        Prompt(
            id=row.id,
            request_id=row.request_id,
            domain=row.domain,
            language=row.language,
            turns=tuple(row.turns),
            split=assign_split(row.request_id, source.weights),
        )
        for row in kept
    ]


def _accepted(source: PromptSource, field: str, present: set[str]) -> set[str]:
    wanted: tuple[str, ...] | None = getattr(source, field)
    if wanted is None:
        return present
    for value in wanted:
        if value not in present:
            raise ConfigurationError(
                f"{source.source}: {field}: no prompt has {value!r}; "
                f"accepted: {', '.join(sorted(present))}"
            )
    return set(wanted)


def _rank(seed: int, *names: str) -> bytes:
    """Return a sort key that is random in the names and the same in every process."""
    return hashlib.sha256("\0".join((str(seed), *names)).encode()).digest()


def _balanced_order(prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    """Order prompts round-robin over domains, and within a domain over languages."""
    domains = sorted({p.domain for p in prompts}, key=lambda d: _rank(seed, "domain", d))
    languages = sorted({p.language for p in prompts}, key=lambda x: _rank(seed, "language", x))
    groups: dict[tuple[str, str], list[Prompt]] = defaultdict(list)
    for prompt in sorted(prompts, key=lambda p: _rank(seed, "prompt", p.id)):
        groups[prompt.domain, prompt.language].append(prompt)

    queues = []
    for index, domain in enumerate(domains):
        # A different first language per domain: a short prefix then covers languages too.
        start = index % len(languages)
        rotated = languages[start:] + languages[:start]
        queues.append(_round_robin([groups[domain, language] for language in rotated]))
    return _round_robin(queues)


def _round_robin(queues: Sequence[Sequence[Prompt]]) -> list[Prompt]:
    longest = max(map(len, queues), default=0)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]
