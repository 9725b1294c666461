"""Notices operations that make the host wait for the device.

On CUDA torch reports them itself (`torch.cuda.set_sync_debug_mode`); it knows of blocking copies,
reads of single values and shapes that depend on data, not of explicit synchronisation, which the
clock alone does. On a CPU nothing waits, so there the operations that would wait on CUDA are
looked for by name: enough to run the same checks, not proof.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_WAITING = (
    "_local_scalar_dense",
    "item",  # in inference mode it arrives undecomposed
    "nonzero",
    "masked_select",
    "unique",
    "is_nonzero",
    "equal",
)
_INDEXING = ("index.Tensor", "index_put", "index_put_")


class SynchronisationError(AssertionError):
    """An operation would have made the host wait."""


class _Watch(TorchDispatchMode):
    """Counts operations that wait on an accelerator; raises where none is allowed."""

    def __init__(self, allowed: bool) -> None:
        super().__init__()
        self.count, self._allowed = 0, allowed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.")
        waits = name.startswith(_WAITING)
        if name.startswith(_INDEXING):  # a boolean index becomes a list of positions first
            waits = any(index is not None and index.dtype == torch.bool for index in args[1])
        if waits:
            self.count += 1
            if not self._allowed:
                raise SynchronisationError(f"{name} makes the host wait for the device")
        return func(*args, **(kwargs or {}))


@contextmanager
def forbidden(device: torch.device) -> Iterator[None]:
    """Raise at the first operation inside that makes the host wait."""
    if device.type != "cuda":
        with _Watch(allowed=False), _host_tensors_stay():
            yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextmanager
def _host_tensors_stay() -> Iterator[None]:
    """`torch.tensor(values, device=...)` is a blocking copy on CUDA; on a CPU it is refused."""
    make = torch.tensor

    def checked(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("device") is not None:
            raise SynchronisationError("torch.tensor(..., device=...) makes the host wait")
        return make(*args, **kwargs)

    torch.tensor = checked
    try:
        yield
    finally:
        torch.tensor = make


class Count:
    """How often the host waited; final when the context of `counted` is left."""

    value = 0


@contextmanager
def counted(device: torch.device) -> Iterator[Count]:
    """Count the operations inside that make the host wait."""
    count = Count()
    if device.type != "cuda":
        with _Watch(allowed=True) as watch:
            yield count
        count.value = watch.count
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield count
        finally:
            torch.cuda.set_sync_debug_mode("default")
    count.value = sum("called a synchronizing" in str(entry.message) for entry in caught)
