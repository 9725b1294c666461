"""Policies learned from parts of traces, all for the same time, and kept in a folder.

Parts are as small as three requests, too few to hold some out and find out how long to learn. So
the length is found once, on a trace that is large enough, and used for every part.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from draftgym.console import progress
from draftgym.costs.times import Float64Array, Times
from draftgym.features import FeatureLayout
from draftgym.runtime import ExportedPolicy, read_policy, save_policy
from draftgym.runtime.batch import ExportedBatch
from draftgym.runtime.folder import JSON_FILE
from draftgym.state import MeasuredCosts
from draftgym.traces.judge import judge
from draftgym.traces.trace import Trace
from policies.all_action import AllActionConfig, AllActionTrainer
from policies.export import PolicyCard, export_heads
from policies.pretraining import pretrain


@dataclass(frozen=True, eq=False)
class PartLearner:
    """Learns both networks from every action of a trace, and judges them on another.

    Attributes:
        times: Mean seconds of work and of decisions.
        layout: Observations and actions.
        costs: Cost ratios that policies are shown.
        card: Origin of the policies.
        config: How they learn; its steps set the schedules, its `deepest` the limit of asking.
        length: Gradient steps made.
        folder: Policies are kept there, or nowhere when None.
    """

    times: Times
    layout: FeatureLayout
    costs: MeasuredCosts
    card: PolicyCard
    config: AllActionConfig
    length: int
    folder: Path | None = None

    def learn(self, name: str, trace: Trace, seed: int) -> ExportedPolicy:
        """The policy of a part; one that is kept already is only read.

        Args:
            name: Of the part, unique within the folder.
            trace: Learned from.
            seed: Of networks, prompts and decisions.
        """
        home = None if self.folder is None else self.folder / f"{file_name(name)}-{seed}"
        if home is not None and (home / JSON_FILE).is_file():
            return read_policy(home)
        config = replace(self.config, seed=seed)
        trainer = AllActionTrainer(trace, self.times, self.layout, self.costs, config)
        trainer.train(self.length)
        heads = {kind: head for kind, head in trainer.heads().items() if head is not None}
        summary = {
            "method": "all-action",
            **asdict(config),
            "length": self.length,
            "part": name,
            "trace_positions": len(trace),
        }
        reward = {"kind": config.reward}
        policy = export_heads(
            self.layout, heads, reward, self.card, summary, deepest=config.deepest
        )
        if home is not None:
            save_policy(home, policy)
        return policy

    def seconds(self, policy: ExportedPolicy, test: Trace) -> Float64Array:
        """Of each sequence under a policy, decisions charged, [sequences].

        Args:
            policy: Of both networks.
            test: Judged on.
        """
        return judge(test, self.times, self.layout, ExportedBatch(policy), self.costs)


def found_schedule(learner: PartLearner, trace: Trace) -> tuple[int, int | None]:
    """How many steps are best on held-out prompts of a trace, and down to which depth to ask.

    Args:
        learner: Its configuration sets the most.
        trace: Of the policy split.

    Raises:
        ValueError: The prompts are too few to hold some out.
    """
    known = (learner.times, learner.layout, learner.costs, learner.config, learner.card)
    with progress("how long to learn", learner.config.steps) as bar:
        found = pretrain(trace, *known, bar=bar)
    return int(found.held_out["steps"]), found.policy.deepest


def file_name(name: str) -> str:
    """A name as part of a path."""
    return "".join(letter if letter.isalnum() or letter == "." else "_" for letter in name)
