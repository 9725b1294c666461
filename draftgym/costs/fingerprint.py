"""What a latency table belongs to: this pair on this machine with these versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftgym.provenance import provenance
from draftgym.storage import plain

# Those that compute a round; an upgrade of any other package leaves its time alone.
_VERSIONS = ("draftgym", "torch", "transformers", "numpy")


def fingerprint(
    pair_fingerprint: Mapping[str, Any],
    device: object,
    dtype: object,
    threads: int,
    law: str = "greedy",
) -> dict[str, Any]:
    """Everything that must be the same for measured times to hold.

    Args:
        pair_fingerprint: Of the model pair, `ModelPair.fingerprint()`.
        device: Device the models run on (text or `torch.device`).
        dtype: Number type the models run in (text or `torch.dtype`).
        threads: Threads that compute.
        law: How tokens are decided, `SamplingConfig.law`: drawing takes time, too.

    Returns:
        Plain data: `pair`, `law`, `device`, `gpu` (None on a CPU), `dtype`, `threads`, `cpu`,
        `cores`, `versions`.
    """
    origin = provenance(device, dtype)
    return {
        "pair": plain(pair_fingerprint),
        "law": law,
        "device": origin["device"],
        "gpu": plain(origin.get("gpu")),
        "dtype": origin["dtype"],
        "threads": threads,
        "cpu": origin["cpu"],
        "cores": origin["cores"],
        "versions": {name: origin["versions"][name] for name in _VERSIONS},
    }
