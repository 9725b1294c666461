"""What a race of rejoining measured, kept so that a stopped one goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from draftgym.benchmark.methods import SessionMethod
from draftgym.benchmark.runner import Measurement, Plan, Request, Sample, run_blocks
from draftgym.benchmark.samples import SampleStore, finished_blocks
from draftgym.console import progress, say
from draftgym.decoder.controllers import FixedController
from draftgym.decoder.drafters.rejoin import RejoinCounts, RejoinDrafter
from draftgym.decoder.session import DecoderSession
from draftgym.kept import keep as keep_file
from draftgym.kept import kept
from draftgym.studies.rejoin.live_figures import Counts

SAMPLES, COUNTS = "live_samples.jsonl", "live_counts.json"


class CarryingMethod(SessionMethod):
    """A session that carries rejected tails, and what it carried on each prompt."""

    def __init__(self, name: str, session: DecoderSession, cell: FixedController) -> None:
        super().__init__(name, session, cell)
        assert isinstance(session.drafter, RejoinDrafter)
        self._drafter = session.drafter
        self.counts: dict[str, RejoinCounts] = {}

    def measure(self, request: Request, max_new_tokens: int) -> Measurement:
        """Decode one prompt; counts of an earlier run of it are replaced."""
        before = self._drafter.counts
        measured = super().measure(request, max_new_tokens)
        self.counts[request.prompt_id] = self._drafter.counts.since(before)
        return measured


class KeptRace:
    """Samples and counts of a race, in memory and, with a folder, on disk.

    Args:
        folder: Of the files, or None.
        key: Of everything that a figure depends on.

    Attributes:
        counts: What was carried, by method and prompt.
    """

    def __init__(self, folder: Path | None, key: str) -> None:
        self._folder, self._key = folder, key
        self.counts: Counts = {}
        if folder is not None:
            self._store = SampleStore(folder / SAMPLES, key)
            self.counts = _read_counts(folder / COUNTS, key)

    def measure(
        self, methods: Sequence[SessionMethod], requests: Sequence[Request], plan: Plan
    ) -> list[Sample]:
        """Measure what is not on disk yet; returns everything."""
        carrying = [method for method in methods if isinstance(method, CarryingMethod)]
        names = [method.name for method in methods]
        before = [] if self._folder is None else self._store.load("race", names)
        # A kill between the two files leaves samples without counts: measured again.
        before = [
            sample
            for sample in before
            if all(sample.prompt_id in self.counts.get(m.name, {}) for m in carrying)
        ]
        finished = finished_blocks(before)
        if finished:
            say(f"rejoin: going on after {len(finished)} of {plan.repeats * len(requests)} blocks")

        def keep(block: Sequence[Sample]) -> None:
            prompt = block[0].prompt_id
            for method in carrying:
                self.counts.setdefault(method.name, {})[prompt] = method.counts[prompt]
            if self._folder is not None:
                self._store.append("race", block)
                keep_file(self._folder / COUNTS, self._key, self.counts)

        left = plan.repeats * len(requests) - len(finished)
        with progress("rejoin: race", len(methods) * left) as bar:
            now = run_blocks(methods, requests, plan, finished=finished, on_block=keep, bar=bar)
        return before + now


def _read_counts(file: Path, key: str) -> Counts:
    found = kept(file, key) or {}
    return {
        method: {prompt: RejoinCounts(**row) for prompt, row in rows.items()}
        for method, rows in found.items()
    }
