"""Noise that is a function of its key: seed, sequence, position and token id.

Nothing is drawn from a generator with state, so a position's noise is the same in a plain step,
in any row of a verification pass and in a drafter, whatever was asked for before.

The generator is SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
generators") used as a hash of a counter. Each position gets two words of 64 bits: the first is
where its stream over token ids begins, the second is mixed into every output, so that two
streams which happen to overlap still differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

_BLOCK = 1 << 15
"""Elements made at once on a CPU: fewer pay more for each operation; with more, the allocator may
return the buffers to the system after every call, and faulting them in again doubles the time."""


def _signed(word: int) -> int:
    """The int64 with the bits of a 64-bit word; torch multiplies and adds int64 modulo 2**64."""
    return word - (1 << 64) if word >> 63 else word


_GAP = _signed(0x9E3779B97F4A7C15)  # SplitMix64: 2**64 over the golden ratio, odd
_MIX_1 = _signed(0xBF58476D1CE4E5B9)  # SplitMix64: the finaliser's first multiplier
_MIX_2 = _signed(0x94D049BB133111EB)  # SplitMix64: the finaliser's second multiplier
_MIX_3 = _signed(0xD6E8FEB86659FD93)  # odd multiplier after the second word


def gumbel(
    seed: int,
    sequence: int,
    positions: Tensor,
    ids: Tensor | None = None,
    *,
    vocab: int | None = None,
    stream: int = 0,
) -> Tensor:
    """Standard Gumbel noise: argmax(log p + noise) is a draw from p.

    The noise of a token doesn't depend on which other tokens or positions are asked for. The
    bits beneath are the same on every device; its two logarithms may round differently there.

    Args:
        seed: The user's seed, not negative.
        sequence: Which sequence is decoded, not negative.
        positions: int64 of shape [n], context position of each row; sets the device.
        ids: int64 of shape [k], target vocabulary ids, on the same device.
        vocab: In place of `ids`: all ids below it, so k = vocab.
        stream: Not negative. Draws that must be independent at one position (a draft's and the
            target's, or those of two rounds) take different streams.

    Returns:
        float64 of shape [n, k], finite: between -3.7 and 36.8.

    Raises:
        ValueError: Both or neither of `ids` and `vocab`; tensors of another type or shape; a
            negative seed, sequence or stream.

    Source: Gumbel-max as in Maddison et al. 2014 (arXiv 1411.0030).
    """
    if (ids is None) == (vocab is None):
        raise ValueError("gumbel: give either ids or vocab")
    if ids is None:
        assert vocab is not None
        ids = torch.arange(vocab, device=positions.device)
    begin, second = _position_words("gumbel", seed, sequence, stream, positions)
    _check_counter("ids", ids)
    out = torch.empty(len(positions), len(ids), dtype=torch.float64, device=positions.device)
    for rows, columns in _blocks(len(positions), len(ids), positions.device):
        words = _words(begin[rows], second[rows], ids[columns])
        noise = _open_unit(words).log_().neg_().log_()
        torch.neg(noise, out=out[rows, columns])
    return out


def uniform(seed: int, sequence: int, positions: Tensor, stream: int = 0) -> Tensor:
    """Uniform numbers of the open unit interval, unrelated to every `gumbel`.

    Args:
        seed: The user's seed, not negative.
        sequence: Which sequence is decoded, not negative.
        positions: int64 of shape [n]; sets the device.
        stream: Not negative. Several draws at one position take different streams.

    Returns:
        float64 of shape [n], never 0 or 1.

    Raises:
        ValueError: Positions of another type or shape; a negative seed, sequence or stream.
    """
    begin, second = _position_words("uniform", seed, sequence, stream, positions)
    return _open_unit(_words(begin, second, positions.new_zeros(1)))[:, 0]


def _position_words(
    domain: str, seed: int, sequence: int, stream: int, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Two words for each position, int64 [n]."""
    _check_counter("positions", positions)
    first_key, second_key = _key(domain, seed, sequence, stream)
    counters = positions * _GAP
    begin, second = _mix(torch.stack((counters + first_key, counters + second_key)))
    return begin, second


def _check_counter(name: str, counter: Tensor) -> None:
    if counter.dtype != torch.int64 or counter.dim() != 1:
        raise ValueError(
            f"{name} must be int64 of one dimension, "
            f"got {counter.dtype} of shape {tuple(counter.shape)}"
        )


def _key(domain: str, seed: int, sequence: int, stream: int) -> tuple[int, int]:
    """128 key bits of a stream. A hash of the text, so neighbouring seeds share nothing."""
    for name, value in (("seed", seed), ("sequence", sequence), ("stream", stream)):
        if value < 0:
            raise ValueError(f"{name} must not be negative, got {value}")
    text = f"{domain}/{seed}/{sequence}/{stream}"
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return (
        int.from_bytes(digest[:8], "little", signed=True),
        int.from_bytes(digest[8:], "little", signed=True),
    )


def _blocks(rows: int, columns: int, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """Parts that cover [rows, columns]; one part on an accelerator, where launches cost more."""
    if device.type != "cpu" or rows * columns <= _BLOCK:
        yield slice(None), slice(None)
        return
    height = max(1, _BLOCK // max(1, columns))
    for top in range(0, rows, height):
        for left in range(0, columns, _BLOCK):
            yield slice(top, top + height), slice(left, left + _BLOCK)


def _words(begin: Tensor, second: Tensor, ids: Tensor) -> Tensor:
    """64 random bits per position and id: int64 [n], [n], [k] -> [n, k]."""
    words = _mix(ids * _GAP + begin[:, None])
    return words.bitwise_xor_(second[:, None]).mul_(_MIX_3)


def _mix(words: Tensor) -> Tensor:
    """SplitMix64's finaliser, in place (Stafford's variant 13)."""
    shifted = torch.empty_like(words)
    for shift, multiplier in ((30, _MIX_1), (27, _MIX_2)):
        words.bitwise_xor_(_shift_right(words, shift, shifted)).mul_(multiplier)
    return words.bitwise_xor_(_shift_right(words, 31, shifted))


def _shift_right(words: Tensor, shift: int, out: Tensor) -> Tensor:
    """Logical shift into `out`; torch shifts int64 arithmetically, so the sign is masked away."""
    torch.bitwise_right_shift(words, shift, out=out)
    return out.bitwise_and_((1 << (64 - shift)) - 1)


def _open_unit(words: Tensor) -> Tensor:
    """Map 64 bits to the odd multiples of 2**-53: exact in float64, never 0 or 1.

    Half a step beside 53 random bits would round to 1 at the top; setting the last bit can't.
    """
    odd = _shift_right(words, 11, torch.empty_like(words)).bitwise_or_(1)
    return odd.double().mul_(2.0**-53)
