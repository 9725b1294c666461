"""Small numbers from the host to the device, without making the host wait.

`torch.tensor(values, device="cuda")` copies and then waits for the stream, so one such call in a
draft pass would cost the whole queue. A non-blocking copy from ordinary memory is staged by the
driver before it returns; the host tensor may be freed at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(
    values: Sequence[int] | Sequence[float],
    device: torch.device,
    dtype: torch.dtype = torch.long,
) -> Tensor:
    """Put a short list on a device.

    Args:
        values: Numbers.
        device: Where to.
        dtype: Type of the tensor.

    Returns:
        Shape [len(values)].
    """
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)
