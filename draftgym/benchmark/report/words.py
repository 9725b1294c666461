"""Numbers and verdicts as people read them."""

from __future__ import annotations

from typing import Any

from draftgym.benchmark.report.facts import TRANSFORMERS, Facts, Versus, known
from draftgym.benchmark.summary import PLAIN, POLICY

NONE = "–"
"""In a table: not known, or not a thing this method has."""
PERCENT = "\u00a0%"
"""Stays on the line of its number."""
_FLAT = 0.005  # less than half a percent either way


def number(value: Any, unit: str = "") -> str:
    """Three digits or so, with its unit; a dash for what is not known."""
    found = known(value)
    if found is None:
        return NONE
    size = abs(found)
    digits = 0 if size >= 100 or size == 0 else 1 if size >= 10 else 2 if size >= 0.1 else 4
    return f"{found:,.{digits}f}{unit}"


def times(value: Any) -> str:
    """A ratio, such as `2.10×`."""
    found = known(value)
    return NONE if found is None else f"{number(found)}×" if found < 0.1 else f"{found:,.2f}×"


def limits(low: Any, high: Any) -> tuple[str, ...]:
    """A 95% interval as small print; nothing if there is none."""
    there = known(low) is not None and known(high) is not None
    return (f"[{number(low)}, {number(high)}]",) if there else ()


def change(ratio: float, baseline: str) -> str:
    """A ratio as a difference of speed: `8 % faster than BASELINE`."""
    if abs(ratio - 1) < _FLAT:
        return f"as fast as {baseline}"
    if ratio >= 2:
        return f"{number(ratio)} times as fast as {baseline}"
    return f"{_percent(ratio)}{PERCENT} {_direction(ratio)} than {baseline}"


def span(entry: Versus) -> str:
    """What a comparison leaves open: `95 % sure of 3 to 13 %`."""
    if entry.low is None or entry.high is None:
        return "no interval"
    low, high, sure = entry.low, entry.high, f"95{PERCENT} sure of"
    if low >= 2:
        return f"{sure} {number(low)} to {number(high)} times"
    if low >= 1:
        return f"{sure} {_percent(low)} to {_percent(high)}{PERCENT}"
    if high <= 1:
        return f"{sure} {_percent(high)} to {_percent(low)}{PERCENT}"
    return f"{sure} {_percent(low)}{PERCENT} slower to {_percent(high)}{PERCENT} faster"


def _percent(ratio: float) -> str:
    part = 100 * abs(ratio - 1)
    return f"{part:,.{0 if part >= 9.95 else 1}f}".removesuffix(".0")


def _direction(ratio: float) -> str:
    return "faster" if ratio > 1 else "slower"


def headline(facts: Facts) -> list[str]:
    """What was found, in sentences that need no glossary."""
    subject = facts.subject
    sentences = [] if facts.judged else ["No policy was given."]
    if subject != PLAIN:
        sentences.append(_pace(facts, subject))
    judged = [name for name in facts.methods if name == PLAIN or name in facts.contenders]
    fastest = judged[0]
    if fastest not in (subject, PLAIN):
        entry = facts.versus(PLAIN, fastest)
        pace = "" if entry is None else f", {number(entry.ratio)} times as fast as plain decoding"
        sentences.append(
            f"The fastest of the {len(judged)} methods was {named(facts, fastest)}{pace}; "
            "picked after the fact, which flatters it a little."
        )
    elif fastest == PLAIN and facts.contenders:
        sentences.append("No method was faster than plain decoding.")
    faulty = facts.payload["identical_outputs"] < facts.payload["prompts"]
    return [outputs(facts), *sentences] if faulty else [*sentences, outputs(facts)]


def named(facts: Facts, method: str) -> str:
    """A method inside a sentence."""
    if method == PLAIN:
        return "plain decoding"
    if method == POLICY:
        return "the learned policy"
    kind = {"published rule": "the rule", "tuned fixed setting": "the best fixed setting"}
    called = facts.label(method) if "/" in method else method  # a path is too long to be read
    return f"{kind.get(facts.kind(method), 'the method')} “{called}”"


def outputs(facts: Facts) -> str:
    """Whether every text was the one that plain decoding writes, and whose were not."""
    return " ".join(filter(None, (_own_texts(facts), other_texts(facts))))


def other_texts(facts: Facts) -> str:
    """Which methods write other texts without a fault of DraftGym's decoder; often empty."""
    prompts = facts.payload["prompts"]
    counts = [f"“{name}” on {count} of {prompts}" for name, count in facts.strayed.items()]
    if not counts:
        return ""
    return f"Transformers' own decoding wrote other texts: {', '.join(counts)} prompts."


def _own_texts(facts: Facts) -> str:
    """Of DraftGym's decoder alone where other texts differ, else of every method."""
    wrong = facts.payload["prompts"] - facts.payload["identical_outputs"]
    if wrong:
        return (
            f"Fault: on {wrong} of {facts.payload['prompts']} prompts a text differed from plain "
            "decoding's, so these figures must not be used."
        )
    whose = " of DraftGym's decoder" if facts.strayed else ""
    ties = sum(
        entry["near_tie"] and not (whose and facts.kind(entry["method"]) == TRANSFORMERS)
        for entry in facts.details["divergences"]
    )
    if ties:
        return (
            f"Every text{whose} is plain decoding's, but for {ties} near-tie{'s'[: ties - 1]}, "
            "where rounding decides between two tokens that the target likes equally."
        )
    return f"Every text{whose} is plain decoding's."


def warning(facts: Facts) -> str:
    """Why the best fixed setting may not be the best; empty if nothing speaks against it."""
    tuned = facts.payload.get("baseline_tuned") or {"ok": True}
    return "" if tuned["ok"] else f"The best fixed setting may not be the best: {tuned['why']}"


def _pace(facts: Facts, subject: str) -> str:
    """One sentence: the subject against plain decoding and against the best fixed setting."""
    plain = facts.versus(PLAIN, subject)
    if plain is None:
        return f"There is no comparison of {named(facts, subject)} with plain decoding."
    where = f"On this machine {named(facts, subject)} "
    if plain.verdict == "no significant difference":
        where += f"was not surely faster or slower than plain decoding ({span(plain)})"
    elif plain.ratio < 1:
        where += f"was {change(plain.ratio, 'plain decoding')} ({span(plain)})"
    else:
        sure = ""
        if plain.low is not None and plain.high is not None:
            sure = f" (95{PERCENT} sure of {number(plain.low)} to {number(plain.high)})"
        where += f"writes text {number(plain.ratio)} times as fast as plain decoding{sure}"
    tuned = facts.versus(facts.tuned, subject)
    if tuned is None or subject == facts.tuned:
        return f"{where}."
    if tuned.verdict != "no significant difference":
        link = "and" if (tuned.ratio > 1) == (plain.ratio > 1) else "but"
        return f"{where} {link} {change(tuned.ratio, 'the best fixed setting')} ({span(tuned)})."
    decided = tuned.low is not None and tuned.high is not None and not tuned.low <= 1 <= tuned.high
    why = ", which could be chance when so many methods are compared" if decided else ""
    return (
        f"{where}; against the best fixed setting there is no significant difference "
        f"({span(tuned)}{why})."
    )
