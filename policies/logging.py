"""Metrics: `metrics.jsonl` of training always, Weights & Biases when it can.

The file is the record: every row is appended and flushed at once, with its own `step`, so a
resumed run or a row about an earlier step loses nothing. W&B gets the same rows with `step` as
an ordinary metric, because its built-in step refuses to go back. A W&B failure during training
is reported and ends W&B, never the training.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from draftgym.console import say
from draftgym.errors import ConfigurationError
from draftgym.storage import dump_json
from policies.config import WandbConfig

HISTOGRAMS = ("depths", "sizes")


class Tracker(Protocol):
    """Somewhere that metrics go besides the file."""

    def log(self, row: Mapping[str, Any]) -> None:
        """Record one row; it never raises."""

    def policy(self, folder: Path, summary: Mapping[str, Any]) -> None:
        """Record the exported policy; it never raises."""

    def close(self) -> None:
        """Finish; it never raises."""


class MetricsLog:
    """Appends rows to `metrics.jsonl` and passes them on.

    Args:
        path: The file; an existing one is appended to.
        tracker: Where rows go besides.

    Attributes:
        rows: Rows in the file.
    """

    def __init__(self, path: Path, tracker: Tracker) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn_row(path)
        self._path = path
        self._file = path.open("a", encoding="utf-8")
        self._tracker = tracker
        self.rows = path.read_bytes().count(b"\n")

    def log(self, kind: str, step: int, row: Mapping[str, Any]) -> None:
        """Write one row.

        Args:
            kind: What the row is about: `rollout`, `validation`, ...
            step: Decisions made so far over both policies; need not increase.
            row: Metrics, JSON-able.
        """
        full = {"kind": kind, "step": step, **row}
        self._file.write(dump_json(full) + "\n")
        self._file.flush()
        self.rows += 1
        self._tracker.log(full)

    def rewind(self, rows: int) -> None:
        """Drop rows after the first `rows`: a resumed run writes them again."""
        kept = self._path.read_bytes().splitlines(keepends=True)[:rows]
        self._file.truncate(sum(map(len, kept)))
        self.rows = len(kept)

    def policy(self, folder: Path, summary: Mapping[str, Any]) -> None:
        """Hand the exported policy folder to the tracker."""
        self._tracker.policy(folder, summary)

    def close(self) -> None:
        """Close the file and finish the tracker."""
        self._file.close()
        self._tracker.close()


class NullTracker:
    """W&B disabled."""

    def log(self, row: Mapping[str, Any]) -> None:
        pass

    def policy(self, folder: Path, summary: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


class WandbTracker:
    """One W&B run.

    Args:
        run: What `wandb.init` returned.
        wandb: The imported module.
    """

    def __init__(self, run: Any, wandb: Any) -> None:
        self._run: Any | None = run
        self._wandb = wandb

    def log(self, row: Mapping[str, Any]) -> None:
        prefix = row["kind"]
        values = {
            f"{prefix}/{name}": value
            for name, value in row.items()
            if isinstance(value, int | float) and name != "step"
        }
        values["step"] = row["step"]
        for name in HISTOGRAMS:
            counts = row.get(name)
            if counts:
                values[f"{prefix}/{name}"] = histogram(self._wandb, counts)
        self._guard("log a row", lambda run: run.log(values))

    def policy(self, folder: Path, summary: Mapping[str, Any]) -> None:
        def send(run: Any) -> None:
            artifact = self._wandb.Artifact(f"policy-{run.id}", "policy", metadata=dict(summary))
            artifact.add_dir(str(folder))
            run.log_artifact(artifact)

        self._guard("log the policy", send)

    def close(self) -> None:
        self._guard("finish", lambda run: run.finish())
        self._run = None

    def _guard(self, what: str, act: Any) -> None:
        """Training outlives W&B: report the failure once and go on with the file alone."""
        if self._run is None:
            return
        try:
            act(self._run)
        except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
            self._run = None
            say(f"W&B could not {what} ({type(error).__name__}: {error}); metrics.jsonl goes on")


def wandb_mode(config: WandbConfig) -> str:
    """Resolve `auto`, and refuse an online run that could not log in.

    Returns:
        `online`, `offline` or `disabled`.

    Raises:
        ConfigurationError: If online was asked for without a login.
    """
    if config.mode in ("disabled", "offline"):
        return config.mode
    wished = os.environ.get("WANDB_MODE", "")
    if config.mode == "auto" and wished in ("offline", "disabled"):
        return wished
    has_login = _has_login()
    if config.mode == "online" and not has_login:
        raise ConfigurationError(
            "wandb.mode: online was asked for but W&B has no login: run `wandb login`, set "
            "WANDB_API_KEY, or use auto, offline or disabled"
        )
    return "online" if has_login else "offline"


def open_tracker(
    config: WandbConfig, mode: str, folder: Path, run: str, settings: Mapping[str, Any]
) -> Tracker:
    """Start W&B as resolved by `wandb_mode`.

    Args:
        config: Project.
        mode: `online`, `offline` or `disabled`.
        folder: Run folder; W&B's own files go below it.
        run: Name of the run, and of the group that its evaluations join.
        settings: The configuration, for W&B's table.

    Returns:
        A tracker; the null tracker when disabled or when W&B cannot start offline.

    Raises:
        ConfigurationError: If an online run that was asked for cannot start.
    """
    started = start_wandb(
        config, mode, folder, settings, name=run, group=run, job_type="train", axes={"*": "step"}
    )
    if started is None:
        return NullTracker()
    import wandb

    return WandbTracker(started, wandb)


def start_wandb(
    config: WandbConfig,
    mode: str,
    folder: Path,
    settings: Mapping[str, Any],
    *,
    name: str,
    group: str | None,
    job_type: str,
    axes: Mapping[str, str],
) -> Any | None:
    """Start a W&B run, beside others of this process.

    Args:
        config: Project.
        mode: `online`, `offline` or `disabled`.
        folder: W&B's own files go below it.
        settings: For W&B's table of settings.
        name: Of the run.
        group: Runs that belong together; none when None.
        job_type: Kind of run.
        axes: Pattern of metrics to the metric over which they are drawn.

    Returns:
        The run; None when disabled or when W&B cannot start offline.

    Raises:
        ConfigurationError: If an online run that was asked for cannot start.
    """
    if mode == "disabled":
        return None
    import wandb

    try:
        started = wandb.init(
            project=config.project,
            name=name,
            group=group,
            job_type=job_type,
            dir=str(folder),
            mode="online" if mode == "online" else "offline",
            config=dict(settings),
            reinit="create_new",
            # Console capture would replace standard output, whose last line is the result.
            settings=wandb.Settings(silent=True, console="off", init_timeout=60),
        )
        for pattern, axis in axes.items():
            started.define_metric(axis)
            started.define_metric(pattern, step_metric=axis)
    except Exception as error:
        if config.mode == "online":
            raise ConfigurationError(f"wandb.mode: online did not start: {error}") from error
        say(f"W&B did not start ({type(error).__name__}: {error}); {folder} has everything")
        return None
    return started


def histogram(wandb: Any, counts: Mapping[str, int]) -> Any:
    """Whole numbers as a W&B histogram with a bin for each.

    Args:
        wandb: The imported module.
        counts: By number, at least one.
    """
    keys = sorted(int(key) for key in counts)
    edges = [key - 0.5 for key in range(keys[0], keys[-1] + 2)]
    heights = [counts.get(str(key), 0) for key in range(keys[0], keys[-1] + 1)]
    return wandb.Histogram(np_histogram=(heights, edges))


def _has_login() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    import netrc

    path = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    if not path.is_file():
        return False
    try:
        hosts = netrc.netrc(str(path)).hosts
    except (netrc.NetrcParseError, OSError) as error:
        say(f"netrc file not readable, so no W&B login: {error}")
        return False
    return any("wandb" in host for host in hosts)


def _drop_torn_row(path: Path) -> None:
    """A killed process may leave half a row, which no reader could parse."""
    if not path.is_file():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)
