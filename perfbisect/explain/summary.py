"""The conclusion of a profile in one sentence."""

from __future__ import annotations

from perfbisect.explain.attribution import (
    IN_DIFF,
    GrowthLocation,
    ProfileConclusion,
    ProfileExplanation,
)
from perfbisect.explain.functions import FunctionGrowth

_LITTLE = 0.05
_NAMED = 3


def profile_sentence(explanation: ProfileExplanation) -> str:
    """Where the growth is; says how much of it where it is not all in one place."""
    conclusion = explanation.conclusion
    place = conclusion.location
    if conclusion.kind == "no stacks":
        return "No stacks were sampled on both sides." + _settings(conclusion)
    if conclusion.kind == "no growth seen":
        if grown := explanation.functions.grown:
            return f"The sides do not differ beyond noise; {_most(grown[0])}." + _settings(conclusion)
        a, b = explanation.functions.launches
        return f"No function grew beyond the noise of {_launches(a)} before and {b} after." + _settings(
            conclusion
        )
    if conclusion.kind == "no diff":
        return f"No diff between the sides is known; {_most(explanation.functions.grown[0])}."
    if conclusion.kind == "in the diff" and place is not None:
        changed = f"in {_at(place)}, which this commit {_verb(place)}"
        if conclusion.basis == "operations":
            return (
                f"{_percent(place.share)} of the growth of kernels and operators beyond noise is {changed}."
            )
        more = [
            f"{_percent(share)} {words}"
            for share, words in (
                (conclusion.share(*IN_DIFF) - place.share, "in other lines of the diff"),
                (conclusion.share("called from the diff"), "in what the diff calls"),
            )
            if share > _LITTLE
        ]
        rest = f"; {' and '.join(more)}" if more else ""
        return f"{_percent(place.share)} of the growth beyond noise is {changed}{rest}."
    if conclusion.kind == "called from the diff" and place is not None:
        share = conclusion.share(*IN_DIFF, "called from the diff")
        where = f"{_at(place)}, which this commit {_verb(place)}"
        return f"{_percent(share)} of the growth beyond noise is called from {where}."
    share = conclusion.share(*IN_DIFF, "called from the diff")
    start = "None" if share < _LITTLE else f"Only {_percent(share)}"
    most = f"; most is in {_at(place)}" if place is not None else ""
    link = conclusion.link
    if link is not None:
        where = f"{link.path}:{link.line}" if link.line else link.path
        most += f", which uses the {link.kind} {link.name} that this commit changed at {where}"
        return f"{start} of the growth beyond noise stands in the diff{most}."
    return f"{start} of the growth beyond noise stands in the diff{most}." + _settings(conclusion)


def _settings(conclusion: ProfileConclusion) -> str:
    """What differs beside code: values that the engine reports, else the files that may set them."""
    if conclusion.settings:
        shown = [f"{name} {before} -> {after}" for name, before, after in conclusion.settings[:_NAMED]]
        more = len(conclusion.settings) - _NAMED
        return f" The sides differ in {', '.join(shown)}{f' and {more} more' if more > 0 else ''}."
    if conclusion.configuration:
        return f" The diff changes {', '.join(conclusion.configuration[:_NAMED])}."
    return ""


def _most(row: FunctionGrowth) -> str:
    path, function = row.time.key
    return f"{path} {function} grew most, by {row.growth:.2f} ms a step"


def _at(place: GrowthLocation) -> str:
    line = f":{place.line}" if place.line else ""
    return f"{place.path}{line} {place.function}"


def _verb(place: GrowthLocation) -> str:
    return "added" if place.is_added else "changed"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _launches(count: int) -> str:
    return f"{count} profile launch" + ("es" if count != 1 else "")
