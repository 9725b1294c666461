"""The statistics keep their promises: coverage, planted effects, no effect from nothing."""

import numpy as np
import pytest

from draftgym.benchmark.comparisons import read_p
from draftgym.benchmark.statistics import (
    PromptTotals,
    Ratio,
    StatisticsError,
    acceptance,
    combine_repeats,
    paired_ratio,
    time_per_token,
)
from draftgym.benchmark.student import quantile, two_sided
from draftgym.state import RoundRecord

PROMPTS = 24
DOMAINS = {f"p{i:02d}": f"d{i % 6}" for i in range(PROMPTS)}


def verdict(ratio: Ratio) -> str:
    return read_p(ratio.estimate, ratio.p_value)


def draw(generator: np.random.Generator, effect: float) -> tuple[PromptTotals, PromptTotals]:
    """Prompts differ a lot, pairs little: lengths 20-64, pace spread 20%, pair noise 5%."""
    ids = tuple(DOMAINS)
    tokens = generator.integers(20, 65, PROMPTS).astype(np.float64)
    pace = 0.03 * np.exp(0.2 * generator.standard_normal(PROMPTS))
    noise = np.exp(0.05 * generator.standard_normal((2, PROMPTS)))
    baseline = PromptTotals(ids, tokens * pace * noise[0], tokens)
    return baseline, PromptTotals(ids, tokens * pace * noise[1] / effect, tokens)


@pytest.mark.parametrize("strata", [None, DOMAINS], ids=["pooled", "stratified"])
def test_interval_covers_the_truth_about_95_percent(strata: dict[str, str] | None) -> None:
    generator = np.random.default_rng(1)
    trials = 300
    hits = 0
    for trial in range(trials):
        interval = paired_ratio(*draw(generator, 1.2), strata, resamples=2000, seed=trial)
        hits += interval.low <= 1.2 <= interval.high
    assert 0.91 <= hits / trials <= 0.99


def test_planted_effect_is_found_and_its_sign_is_right() -> None:
    generator = np.random.default_rng(2)
    verdicts = [
        verdict(paired_ratio(*draw(generator, effect), resamples=2000))
        for effect in (1.05, 0.95)
        for _ in range(20)
    ]
    assert verdicts[:20].count("faster") >= 16
    assert verdicts[20:].count("slower") >= 16


def test_same_method_twice_is_mostly_no_significant_difference() -> None:
    generator = np.random.default_rng(3)
    verdicts = [verdict(paired_ratio(*draw(generator, 1.0), resamples=2000)) for _ in range(60)]
    assert verdicts.count("no significant difference") >= 54


def test_ratio_is_of_sums_not_a_mean_of_ratios() -> None:
    ids = ("a", "b", "c")
    over = PromptTotals(ids, np.array([1.0, 9.0, 2.0]), np.array([10.0, 10.0, 20.0]))
    under = PromptTotals(ids, np.array([1.0, 3.0, 2.0]), np.array([10.0, 10.0, 20.0]))
    assert paired_ratio(over, under).estimate == pytest.approx(12 / 6)
    assert time_per_token(over).estimate == pytest.approx(12 / 40)


def test_same_seed_same_interval_and_other_seed_other_interval() -> None:
    pair = draw(np.random.default_rng(4), 1.1)
    first = paired_ratio(*pair, seed=5)
    assert first == paired_ratio(*pair, seed=5)
    assert first != paired_ratio(*pair, seed=6)


def test_prompt_lengths_may_differ_between_methods() -> None:
    ids = ("a", "b")
    over = PromptTotals(ids, np.array([2.0, 2.0]), np.array([20.0, 20.0]))
    under = PromptTotals(ids, np.array([1.0, 3.0]), np.array([20.0, 60.0]))
    interval = paired_ratio(over, under)
    assert interval.estimate == pytest.approx(2.0)
    assert interval.low <= 2.0 <= interval.high


def test_repeats_are_averaged_and_a_stopped_run_is_held() -> None:
    runs = [(p, seconds, 10) for p in "bcde" for seconds in (1.0, 1.1, 1.2)]
    combined = combine_repeats([("a", 2.0, 10), ("a", 50.0, 10), ("a", 2.2, 10), *runs])
    assert combined.prompt_ids == tuple("abcde")
    assert combined.tokens == pytest.approx(5 * [10])
    assert combined.seconds[1:] == pytest.approx(4 * [1.1])
    assert 2.2 < combined.seconds[0] < 3, "50 seconds count as a few standard deviations"


def test_what_methods_share_in_a_block_cancels() -> None:
    moods = (1.0, 1.3, 0.8)
    one, other = (
        combine_repeats([(p, mood * pace, 10) for p in "abc" for mood in moods])
        for pace in (2.0, 1.0)
    )
    assert paired_ratio(one, other).limits == pytest.approx([2.0, 2.0])


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (5, 2.5706), (11, 2.2010), (23, 2.0687),
     (1000, 1.9623)],
)  # fmt: skip
def test_student_against_the_table(freedom: int, expected: float) -> None:
    assert quantile(0.05, freedom) == pytest.approx(expected, rel=1e-4)
    assert two_sided(expected, freedom) == pytest.approx(0.05, rel=1e-3)
    assert two_sided(0.0, freedom) == 1.0 and two_sided(np.inf, freedom) == pytest.approx(0)


@pytest.mark.parametrize("prompts", [3, 4, 6, 24])
def test_p_is_below_5_percent_exactly_where_1_is_outside_the_interval(prompts: int) -> None:
    generator = np.random.default_rng(8)
    outside = []
    for trial in range(120):
        over, under = draw(generator, 1.03)
        few = [PromptTotals(t.prompt_ids[:prompts], t.seconds[:prompts], t.tokens[:prompts])
               for t in (over, under)]  # fmt: skip
        ratio = paired_ratio(*few, resamples=1000, seed=trial)
        outside.append(not ratio.low <= 1 <= ratio.high)
        assert outside[-1] == (ratio.p_value < 0.05)
        assert 0 <= ratio.p_value <= 1
    assert 0 < sum(outside) < 120


def test_p_is_uniform_where_there_is_no_difference() -> None:
    generator = np.random.default_rng(9)
    found = [
        paired_ratio(*draw(generator, 1.0), DOMAINS, resamples=1000, seed=trial).p_value
        for trial in range(300)
    ]
    for level in (0.05, 0.2, 0.5, 0.8):
        assert np.mean(np.array(found) < level) == pytest.approx(level, abs=0.08)


def test_p_goes_below_what_draws_can_tell_and_is_1_for_a_method_against_itself() -> None:
    over, under = draw(np.random.default_rng(10), 1.5)
    assert paired_ratio(over, under, resamples=1000).p_value < 1e-6
    assert paired_ratio(over, over).p_value == 1.0
    swapped = paired_ratio(under, over, resamples=1000).p_value
    assert swapped == pytest.approx(paired_ratio(over, under, resamples=1000).p_value, abs=1e-9)


def test_three_prompts_have_students_interval() -> None:
    over = PromptTotals(tuple("abc"), np.array([1.0, 1.1, 1.2]), np.ones(3))
    under = PromptTotals(tuple("abc"), np.ones(3), np.ones(3))
    ratio = paired_ratio(over, under)
    # t = 4.303 standard errors of 0.0525 of the log; never only the range of three values.
    assert np.log(ratio.high / ratio.estimate) == pytest.approx(4.303 * 0.0525, rel=0.05)


@pytest.mark.parametrize("prompts", [2, 3, 4, 24])
def test_a_time_per_token_has_the_interval_of_its_ratio_to_one_second(prompts: int) -> None:
    over, _ = draw(np.random.default_rng(11), 1.0)
    ids = over.prompt_ids[:prompts]
    few = PromptTotals(ids, over.seconds[:prompts], over.tokens[:prompts])
    one = PromptTotals(ids, np.ones(prompts), np.ones(prompts))
    assert time_per_token(few).limits == pytest.approx(paired_ratio(few, one).limits)


def test_two_to_four_prompts_cover_their_time_per_token() -> None:
    generator = np.random.default_rng(12)
    for prompts in (2, 3, 4):
        hits = 0
        for trial in range(200):
            paces = 0.03 * np.exp(0.2 * generator.standard_normal(prompts))
            few = PromptTotals(tuple("abcd"[:prompts]), paces, np.ones(prompts))
            interval = time_per_token(few, resamples=1000, seed=trial)
            hits += interval.low <= 0.03 * np.exp(0.02) <= interval.high
        assert hits / 200 >= 0.9, prompts


def test_one_prompt_is_a_clear_error() -> None:
    one = PromptTotals(("a",), np.array([1.0]), np.array([10.0]))
    with pytest.raises(StatisticsError, match="at least 2 prompts, got 1"):
        paired_ratio(one, one)


def test_zero_emitted_is_a_clear_error() -> None:
    with pytest.raises(StatisticsError, match="'b': no round emitted a token"):
        combine_repeats([("a", 1.0, 10), ("b", 0.0, 0)])
    with pytest.raises(StatisticsError, match="'a': no round emitted a token"):
        PromptTotals(("a",), np.array([1.0]), np.array([0.0]))


def test_different_prompts_are_a_clear_error() -> None:
    one = PromptTotals(("a", "b"), np.ones(2), np.ones(2))
    other = PromptTotals(("a", "c"), np.ones(2), np.ones(2))
    with pytest.raises(StatisticsError, match="same prompts"):
        paired_ratio(one, other)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_impossible_times_are_refused(seconds: float) -> None:
    with pytest.raises(StatisticsError, match="not a time"):
        PromptTotals(("a",), np.array([seconds]), np.array([1.0]))


def test_small_strata_are_pooled() -> None:
    strata = {prompt_id: prompt_id for prompt_id in DOMAINS}
    pair = draw(np.random.default_rng(7), 1.0)
    assert paired_ratio(*pair, strata) == paired_ratio(*pair, None)


def record(accepted: int, size: int) -> RoundRecord:
    return RoundRecord(
        depth=size,
        nodes=size,
        requested_size=size,
        size=size,
        accepted=accepted,
        tokens=tuple(range(accepted + 1)),
        context_tokens=10,
        uningested_tokens=1,
        clamped=False,
        draft_seconds=0.0,
        pass_seconds=(0.0,) * size,
        verify_seconds=0.0,
        commit_seconds=0.0,
        policy_seconds=0.0,
        seconds=0.0,
    )


def test_acceptance_figures_count_what_was_verified() -> None:
    """CASES 37: bonus counted once and said so; a short round weighs what it verified."""
    rounds = [record(0, 3), record(2, 3), record(3, 3)]
    summary = acceptance(rounds)
    assert summary.accepted_per_round == pytest.approx(5 / 3)
    assert summary.tau_emitted == pytest.approx(8 / 3)
    assert summary.accepted_rate == pytest.approx(5 / 9)
    # A last round cut to one drafted token adds 1/1, not 1/8.
    assert acceptance([*rounds, record(1, 1)]).accepted_rate == pytest.approx(6 / 10)


def test_acceptance_without_rounds_or_drafts() -> None:
    assert acceptance([record(0, 0)]).accepted_rate == 0.0
    with pytest.raises(StatisticsError, match="no rounds"):
        acceptance([])
