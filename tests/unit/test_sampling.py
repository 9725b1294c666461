"""The warped law is Transformers' own, and the noise is a function of its key and nothing else."""

import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from draftgym.decoder.sampling import noise as noise_module
from draftgym.decoder.sampling.noise import gumbel, uniform
from draftgym.decoder.sampling.settings import SamplingSettings
from draftgym.decoder.sampling.warp import warp

ALPHA = 1e-4
KS_AT_ALPHA = math.sqrt(-math.log(ALPHA / 2) / 2)  # asymptotic; times 1/sqrt(n)
CHI2_AT_ALPHA = {3: 21.108, 7: 29.878, 255: 347.654}  # upper 1e-4 quantiles
NO_IDS = torch.zeros(7, 1, dtype=torch.int64)  # the warpers don't look at them
GRID = [
    {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    for temperature, top_k, top_p, min_p in itertools.product(
        (0.3, 1.0, 1.7), (0, 1, 5, 1000), (1.0, 0.9, 0.5, 1e-9), (0.0, 0.1, 1.0)
    )
]
PINNED_WORDS = [
    [-7729560256047912679, 5118402948480038120],
    [4490271519386657383, 1795419114101043605],
]
PINNED_UNIFORM = [0.3988844773683088, 0.41019540890735773]


def positions(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def transformers_law(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """What `generate` samples from, with its warpers under its conditions and in its order."""
    warpers = LogitsProcessorList()
    if settings.temperature != 1.0:
        warpers.append(TemperatureLogitsWarper(settings.temperature))
    if settings.top_k != 0:
        warpers.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1.0:
        warpers.append(TopPLogitsWarper(settings.top_p))
    warpers.append(MinPLogitsWarper(settings.min_p))
    scores = logits.to(copy=True, dtype=torch.float32)
    return torch.log_softmax(warpers(NO_IDS, scores), -1)  # type: ignore[arg-type]


def random_logits(vocab: int, kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(7, vocab, generator=generator) * 4
    if kind == "tied":
        return (logits / 3).round()
    if kind == "bfloat16":
        return logits.bfloat16()
    if kind == "banned":  # a processor before the warpers removed some tokens
        return logits.masked_fill(torch.rand(7, vocab, generator=generator) < 0.3, -math.inf)
    return logits


@pytest.mark.parametrize("kind", ["random", "tied", "bfloat16", "banned"])
@pytest.mark.parametrize("vocab", [11, 1003])
def test_warp_is_the_law_of_transformers(
    vocab: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit; where theirs leaves a tie at the edge of top-p to the sort, ours is stable."""
    logits = random_logits(vocab, kind)
    for options in GRID:
        settings = SamplingSettings(**options)
        before = logits.clone()
        law = warp(logits, settings)
        assert law.dtype == torch.float32
        theirs = transformers_law(logits, settings)
        assert torch.equal(torch.isfinite(law).sum(-1), torch.isfinite(theirs).sum(-1)), options
        assert torch.allclose(law.sort().values, theirs.sort().values), options
        with monkeypatch.context() as patch:
            patch.setattr(torch, "sort", partial(torch.sort, stable=True))
            assert torch.equal(law, transformers_law(logits, settings)), options
        assert torch.equal(logits, before), f"the input changed under {options}"
        assert torch.isfinite(law.amax(-1)).all(), f"everything removed under {options}"
        assert torch.allclose(law.exp().sum(-1), torch.ones(7), atol=1e-5)


def test_all_equal_logits_keep_one_token_and_every_tie_of_top_k() -> None:
    logits = torch.zeros(2, 8)
    for top_p in (1e-9, 0.05):
        law = warp(logits, SamplingSettings(temperature=1, top_p=top_p))
        assert torch.isfinite(law).sum(-1).tolist() == [1, 1]
    assert torch.isfinite(warp(logits, SamplingSettings(temperature=1, top_k=3))).all()
    assert torch.isfinite(warp(logits, SamplingSettings(temperature=1, min_p=1.0))).all()


@pytest.mark.parametrize("kind", ["random", "tied"])
def test_a_row_is_warped_alike_alone_and_among_others(kind: str) -> None:
    logits = random_logits(1003, kind)
    for options in GRID:
        settings = SamplingSettings(**options)
        together = warp(logits, settings)
        alone = torch.cat([warp(row[None], settings) for row in logits])
        assert torch.equal(together, alone), options


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("options", GRID[::5], ids=str)
def test_broken_logits_come_through_as_nan_in_their_row_only(
    bad: float, options: dict[str, Any]
) -> None:
    logits = random_logits(11, "random")
    logits[2, 4] = bad
    law = warp(logits, SamplingSettings(**options))
    assert law[2].isnan().any()
    assert not torch.isfinite(law[2]).any()
    assert not law[[0, 1, 3, 4, 5, 6]].isnan().any()


def test_warp_refuses_temperature_zero_and_other_shapes() -> None:
    with pytest.raises(ValueError, match="temperature 0"):
        warp(torch.zeros(1, 4), SamplingSettings())
    with pytest.raises(ValueError, match=r"\[rows, vocab\]"):
        warp(torch.zeros(4), SamplingSettings(temperature=1))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("temperature", math.nan),
        ("temperature", 1e-9),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("seed", -1),
        ("typical_p", 0.5),
    ],
)
def test_bad_settings_name_their_field(field: str, value: float) -> None:
    with pytest.raises(ValidationError, match=field):
        SamplingSettings(**{field: value})


def test_settings_describe_only_what_is_on() -> None:
    assert SamplingSettings().describe() == "greedy"
    assert SamplingSettings(temperature=0.7, seed=3).describe() == (
        "sampling at temperature 0.7, seed 3"
    )
    settings = SamplingSettings(temperature=1, top_k=50, top_p=0.9, min_p=0.05)
    assert settings.describe() == (
        "sampling at temperature 1, top-k 50, top-p 0.9, min-p 0.05, seed 0"
    )
    assert settings.truncates and not SamplingSettings(temperature=1).truncates


# Noise


def test_noise_of_a_token_is_the_same_in_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    vocab, rows = 1003, positions(5, 900, 0, 5)
    whole = gumbel(1, 2, rows, vocab=vocab)
    assert whole.dtype == torch.float64 and whole.shape == (4, vocab)
    assert torch.equal(whole, gumbel(1, 2, rows, vocab=vocab))
    assert torch.equal(whole[0], whole[3])
    assert torch.equal(whole[:, :77], gumbel(1, 2, rows, vocab=77))
    shuffled = torch.randperm(vocab, generator=torch.Generator().manual_seed(0))
    for ids in (shuffled, shuffled[:37], shuffled[:1], positions(3, 3)):
        assert torch.equal(whole[:, ids], gumbel(1, 2, rows, ids))
        assert torch.equal(whole[1:2, ids], gumbel(1, 2, rows[1:2], ids))
    for block in (1, 64, 2500):
        monkeypatch.setattr(noise_module, "_BLOCK", block)
        assert torch.equal(whole, gumbel(1, 2, rows, vocab=vocab))
    assert torch.equal(uniform(1, 2, rows)[1:2], uniform(1, 2, rows[1:2]))


def test_noise_stays_the_same_between_releases() -> None:
    """A seed must keep its text, so the bits are pinned; the logarithm may differ in the last."""
    words = noise_module._words(
        *noise_module._position_words("gumbel", 7, 3, 0, positions(0, 11)), positions(0, 49151)
    )
    assert words.tolist() == PINNED_WORDS
    assert uniform(7, 3, positions(0, 11)).tolist() == PINNED_UNIFORM


def splitmix64(word: int) -> int:
    """The published finaliser in Python's integers."""
    mask = (1 << 64) - 1
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & mask
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
    return word ^ (word >> 31)


def test_tensor_arithmetic_is_splitmix64() -> None:
    words = torch.randint(-(2**63), 2**63 - 1, (500,), generator=torch.Generator().manual_seed(4))
    expected = [splitmix64(word % 2**64) for word in words.tolist()]
    assert [word % 2**64 for word in noise_module._mix(words.clone()).tolist()] == expected


def test_published_vector_of_splitmix64() -> None:
    """First output of the generator seeded with 0, as in Vigna's reference implementation."""
    mixed = noise_module._mix(torch.tensor([noise_module._GAP]))
    assert mixed.item() % 2**64 == 0xE220A8397B1DCDAF


def test_extreme_words_give_neither_zero_nor_one() -> None:
    words = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 2047, -2048])
    units = noise_module._open_unit(words)
    assert ((units > 0) & (units < 1)).all()
    assert units.min().item() == 2.0**-53 and units.max().item() == 1 - 2.0**-53
    noise = -torch.log(-torch.log(units))
    assert torch.isfinite(noise).all() and noise.min() > -3.7 and noise.max() < 36.8


SAMPLES = 20_000


def gumbel_row(seed: int, sequence: int, position: int, stream: int) -> Tensor:
    return gumbel(seed, sequence, positions(position), vocab=SAMPLES, stream=stream)[0]


def uniform_run(seed: int, sequence: int, first: int, stream: int) -> Tensor:
    return uniform(seed, sequence, torch.arange(first, first + SAMPLES), stream)


def correlation(first: Tensor, second: Tensor) -> float:
    return float(np.corrcoef(first.numpy(), second.numpy())[0, 1])


def unrelated(first: Tensor, second: Tensor) -> bool:
    """No common value and no correlation, aligned or shifted by one."""
    bound = 4.5 / math.sqrt(SAMPLES)
    return not np.intersect1d(first.numpy(), second.numpy()).size and all(
        abs(correlation(first[left : SAMPLES - right], second[right : SAMPLES - left])) < bound
        for left, right in ((0, 0), (1, 0), (0, 1))
    )


KEYS = [
    *((seed, sequence, 0, 0) for seed in (0, 1, 2, 3) for sequence in (0, 1, 2, 3)),
    *((0, 0, position, 0) for position in (1, 2, 3, 2047)),
    (0, 0, 0, 1),
    (0, 0, 0, 2),
    (2**64, 0, 0, 0),
    (0, 2**64, 0, 0),
    (12, 3, 0, 0),
    (1, 23, 0, 0),
]


def test_different_keys_give_unrelated_noise() -> None:
    """Case 53: seed + 1 is no shift of sequence + 1, nor of position + 1 or of the next id."""
    rows = [gumbel_row(*key) for key in KEYS]
    for first, second in itertools.combinations(range(len(rows)), 2):
        assert unrelated(rows[first], rows[second]), (KEYS[first], KEYS[second])
    for row, key in zip(rows, KEYS, strict=True):
        for lag in (1, 2, 64, 4096):  # neighbouring ids of one row
            assert abs(correlation(row[:-lag], row[lag:])) < 4.5 / math.sqrt(SAMPLES - lag), key


def test_one_token_through_positions_is_unrelated_to_its_neighbour() -> None:
    columns = gumbel(3, 1, torch.arange(SAMPLES), positions(0, 1, 2, 49151))
    for first, second in itertools.combinations(columns.T, 2):
        assert unrelated(first, second)
    assert abs(correlation(columns[:-1, 0], columns[1:, 0])) < 4.5 / math.sqrt(SAMPLES)


def test_uniform_is_unrelated_to_gumbel_and_between_streams() -> None:
    runs = [
        uniform_run(seed, sequence, 0, stream)
        for seed, sequence, stream in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    ]
    of_gumbel = torch.exp(-torch.exp(-gumbel(0, 0, torch.arange(SAMPLES), positions(0))[:, 0]))
    for first, second in itertools.combinations([*runs, of_gumbel], 2):
        assert unrelated(first, second)


@pytest.mark.parametrize("source", ["uniform", "over ids", "over positions", "over sequences"])
def test_values_are_uniform(source: str) -> None:
    """Kolmogorov-Smirnov, and chi-square on 256 cells of the leading and of the middle bits."""
    if source == "uniform":
        sample = uniform(11, 0, torch.arange(50_000))
    else:
        noise = {
            "over ids": lambda: gumbel(11, 0, positions(4), vocab=50_000)[0],
            "over positions": lambda: gumbel(11, 0, torch.arange(50_000), positions(9))[:, 0],
            "over sequences": lambda: torch.cat(
                [
                    gumbel(11, sequence, positions(4, 5), positions(9, 10, 11, 12, 13)).flatten()
                    for sequence in range(1_000)
                ]
            ),
        }[source]()
        sample = torch.exp(-torch.exp(-noise))
    ordered = sample.sort().values.numpy()
    count = len(ordered)
    ranks = np.arange(1, count + 1) / count
    distance = max((ranks - ordered).max(), (ordered - ranks + 1 / count).max())
    assert distance < KS_AT_ALPHA / math.sqrt(count)
    for scale in (256, 256 * 2**16):
        cells = np.bincount((ordered * scale).astype(np.int64) % 256, minlength=256)
        assert ((cells - count / 256) ** 2).sum() / (count / 256) < CHI2_AT_ALPHA[255]


def chi_square(tokens: Tensor, law: Tensor) -> float:
    counts = torch.bincount(tokens, minlength=len(law)).double()
    kept = law > 0
    assert counts[~kept].sum() == 0, "a removed token was drawn"
    expected = law[kept] * len(tokens)
    return float(((counts[kept] - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("vary", ["position", "sequence"])
@pytest.mark.parametrize("top_k", [0, 4])
def test_argmax_with_noise_has_the_warped_law(vary: str, top_k: int) -> None:
    logits = torch.tensor([[0.3, -1.2, 1.4, 0.0, -2.5, 0.9, -0.4, 0.6]])
    log_p = warp(logits, SamplingSettings(temperature=0.8, top_k=top_k))
    draws = 20_000 if vary == "position" else 4_000
    if vary == "position":
        noise = gumbel(5, 0, torch.arange(draws), vocab=8)
    else:
        noise = torch.cat([gumbel(5, i, positions(17), vocab=8) for i in range(draws)])
    tokens = (log_p.double() + noise).argmax(-1)
    law = log_p[0].double().exp()
    freedom = int((law > 0).sum()) - 1
    assert chi_square(tokens, law / law.sum()) < CHI2_AT_ALPHA[freedom]


def test_bad_requests_are_named() -> None:
    with pytest.raises(ValueError, match="either ids or vocab"):
        gumbel(0, 0, positions(1))
    with pytest.raises(ValueError, match="either ids or vocab"):
        gumbel(0, 0, positions(1), positions(1), vocab=3)
    with pytest.raises(ValueError, match="positions must be int64"):
        gumbel(0, 0, torch.zeros(1), vocab=3)
    with pytest.raises(ValueError, match="ids must be int64"):
        gumbel(0, 0, positions(1), positions(1)[None])
    for name, key in (("seed", (-1, 0, 0)), ("sequence", (0, -1, 0)), ("stream", (0, 0, -1))):
        with pytest.raises(ValueError, match=f"{name} must not be negative"):
            uniform(key[0], key[1], positions(1), key[2])
