"""What a bisection says of each outcome, note and check, also of those that no frozen journal has.

``pytest tests/golden --update`` writes it anew: read the diff.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from perfbisect.bisect.bisection import Bisection, read_bisection
from perfbisect.bisect.decision.model import (
    Beliefs,
    Comparison,
    NamedStep,
    Note,
    NoteKind,
    Reason,
    ReasonKind,
    SearchOutcome,
    SearchVerdict,
)
from perfbisect.bisect.plan import BisectPlan
from perfbisect.bisect.replicate import Replication
from perfbisect.bisect.revert import RevertCheck
from perfbisect.bisect.summary import next_command, reason_sentence, summarize
from perfbisect.changes.history import Branch
from perfbisect.jobs.journal import read
from perfbisect.model.change import Change
from perfbisect.stats.ab_test import AbVerdict, Word
from tests.golden.test_golden import check_golden, thawed

SENTENCES = Path(__file__).parent / "bisect_sentences.txt"
LAST = 23
P = (0, 0.01, 0.02, 0.5, 0.3, 0.1, 0.02, *[0.0] * 17)
BELIEVED = Beliefs(P, 0.04, 0.01, 0.02, 0.3, 0.25, 0.35, (3,), 0.5)
CERTAIN = replace(BELIEVED, p=(0, 0, 0, 0.999, 0.001, *[0.0] * 19), none=0.0, tau=0.0)
STEP, WHOLE = Comparison(2, 3, 0.303, 0.285, 0.321, 2), Comparison(0, LAST, 0.285, 0.249, 0.32, 1)
FOUND = SearchOutcome("found", (3,), 0.99, BELIEVED, STEP, WHOLE, 1.06)
UNCHANGED = SearchOutcome("not reproduced", (), 0.97, BELIEVED, whole=WHOLE)
SMALL = SearchOutcome("too small", (), 0.0, BELIEVED, whole=WHOLE, launches_needed=12)
NARROWED = SearchOutcome("narrowed", (2, 3, 4), 0.95, BELIEVED, STEP, WHOLE)
SPENT = SearchOutcome("out of budget", (1, 2, 3, 4), 0.8, BELIEVED, whole=WHOLE)
OUTCOMES = {
    "none": None,
    "found": FOUND,
    "found, better": replace(FOUND, confirmed=replace(STEP, effect=-0.2, low=-0.28, high=-0.12)),
    "found, several": replace(FOUND, culprits=(3, 4), confirmed=replace(STEP, culprit=4)),
    "found, merged": replace(FOUND, culprits=(5,), confirmed=replace(STEP, parent=4, culprit=5)),
    "found, steps": replace(
        FOUND,
        steps=(
            NamedStep((3,), 0.999, STEP),
            NamedStep((7, 8), 0.9, Comparison(6, 8, -0.1, -0.12, -0.08, 3)),
        ),
    ),
    "narrowed": NARROWED,
    "narrowed, one": replace(NARROWED, culprits=(3,), beliefs=CERTAIN),
    "not reproduced": UNCHANGED,
    "too small": SMALL,
    "too small, confirmed": replace(SMALL, confirmed=STEP),
    "gradual": SearchOutcome("gradual", (), 0.93, BELIEVED, whole=WHOLE),
    "out of budget": SPENT,
    "out of budget, before the ends": SearchOutcome("out of budget", (), 0.0, None),
}
NOTES = (
    Note("more steps", (2, 4), effect=0.1, whole=0.3),
    Note("more steps", (2,)),
    Note("one build", (2, 3)),
    Note("builds differ", (2, 3), effect=0.0123, probability=0.876),
    Note("builds differ", (2, 3), probability=0.876),
    Note("intermittent", (3,), slow=(2, 5)),
    Note("one machine", (3,), effect=0.1, machines=("m1", "m2")),
    Note("ends differ on one machine", (0, LAST), effect=0.2, whole=-0.01, machines=("m1", "m2", "m3")),
    Note("unstable ends", (0, LAST)),
    Note("ends swapped", effect=-0.2),
    Note("not confirmed", (3,), probability=0.5),
    Note("part not measurable", (1, 3)),
    Note("part on unlike slots", (1, 3)),
    Note("part below noise", (1, 3)),
    Note("part not confirmed", (1, 3)),
    Note("part improves", (1, 3), effect=-0.1),
    Note("parts unsettled", spans=((0, 2), (3, 6))),
)
REPLICATIONS = {
    "holds": Replication("a", ("b", "c"), said="holds", effect=STEP),
    "absent": Replication("a", ("b",), said="absent", effect=STEP),
    "another size": Replication("a", ("b",), said="another size", effect=STEP),
    "open": Replication("a", ("b",), effect=STEP),
    "ended early": Replication("a", ("b",), note="no memory", done=True),
    "one machine": Replication("a"),
}
REVERTED = Change("ab" * 20, subject="Revert")
REVERTS = {
    "conflict": RevertCheck(note="it does not revert cleanly", done=True),
    "no block": RevertCheck(REVERTED, note="ImportError", done=True),
    **{
        word: RevertCheck(REVERTED, AbVerdict(-0.25, -0.14, 8, True, word, -0.2), done=True)
        for word in get_args(Word)
    },
}


def with_checks(bisection: Bisection, **found: object) -> Bisection:
    """The bisection with a replication or a revert check that its journal does not have."""
    vars(bisection).update({"replication": Replication(), "revert": RevertCheck()} | found)
    return bisection


def rebased(bisection: Bisection, before: Sequence[str], after: Sequence[str]) -> Bisection:
    """As if position 3 moved a pin, with packages on both sides of it."""
    plan = bisection.plan
    positions = tuple(
        position.model_copy(update={"group": f"vllm v0.{21 + (index >= 3)}"})
        for index, position in enumerate(plan.positions)
    )
    attempt = next(launch.attempt for launch in bisection.records if launch.attempt)
    records = []
    for launch, position, packages in zip(bisection.records, (2, 3), (before, after), strict=False):
        facts = {"engine": {"packages": packages}}
        made = replace(attempt, provenance=replace(attempt.provenance, facts=facts))
        records.append(replace(launch, position=position, attempt=made))
    return replace(bisection, plan=plan.model_copy(update={"positions": positions}), records=records)


def plans(plan: BisectPlan) -> dict[str, BisectPlan]:
    """The plan, and others that are asked for or found otherwise."""
    changes = [position.change for position in plan.positions]
    merged = [position.model_copy() for position in plan.positions]
    merged[5] = merged[5].model_copy(update={"changes": (changes[5], REVERTED)})
    plan = plan.model_copy(update={"positions": tuple(merged), "all_steps": True})
    releases = tuple(
        position.model_copy(update={"changes": (Change(f"vllm==0.{index}", "release"),)})
        for index, position in enumerate(plan.positions)
    )
    branch = Branch(changes[3], tuple(changes[1:3]), (changes[1].id,))
    return {
        "": plan,
        "a better end": plan.model_copy(update={"direction": "improvement"}),
        "throughput": plan.model_copy(update={"metric": "output_throughput"}),
        "a branch": plan.model_copy(update={"branch": branch}),
        "releases": plan.model_copy(update={"positions": releases}),
    }


def cases(known: Bisection) -> Iterator[tuple[str, Bisection]]:
    known = replace(known, plan=plans(known.plan)[""])
    for name, outcome in OUTCOMES.items():
        yield name, with_checks(replace(known, outcome=outcome))
    for name, plan in list(plans(known.plan).items())[1:]:
        for outcome in (FOUND, NARROWED, UNCHANGED):
            yield f"{outcome.verdict}, {name}", with_checks(replace(known, plan=plan, outcome=outcome))
    yield "another metric", with_checks(replace(known, outcome=None, is_recast=True))
    for note in NOTES:
        outcome = replace(UNCHANGED, whole=None, notes=(note,))
        yield f"note: {note.kind}", with_checks(replace(known, outcome=outcome))
    better = replace(known, plan=plans(known.plan)["a better end"])
    ends = tuple(note for note in NOTES if note.kind in ("unstable ends", "ends swapped", "part improves"))
    yield "notes, a better end", with_checks(replace(better, outcome=replace(SMALL, whole=None, notes=ends)))
    yield "notes", with_checks(replace(known, outcome=replace(SMALL, whole=None, notes=NOTES[2:4])))
    for name, again in REPLICATIONS.items():
        yield f"replication: {name}", with_checks(replace(known, outcome=FOUND), replication=again)
    for name, check in REVERTS.items():
        yield f"revert: {name}", with_checks(replace(known, outcome=FOUND), revert=check)
    for before, after in ((["a==1"], ["a==2"]), (["a==1", "b==1"], ["a==2", "c==1"]), ([], [])):
        made = rebased(replace(known, outcome=FOUND), before, after)
        yield f"rebase: {' '.join(before)} to {' '.join(after)}", with_checks(made)
    many = [f"p{number}==1" for number in range(8)]
    made = rebased(replace(known, outcome=FOUND), many, [name.replace("==1", "==2") for name in many])
    yield "rebase: many packages", with_checks(made)


def test_every_sentence(tmp_path: Path, update: bool) -> None:
    job = thawed("bisect-fleet", tmp_path)
    known = read_bisection(job, read(job.journal).events)
    assert known.plan.last == LAST
    lines = []
    for name, made in cases(known):
        lines += [f"== {name}", *summarize(made), f"-> {next_command(made)}", ""]
    for kind in get_args(ReasonKind):
        reason = Reason(kind, LAST, 2, 0.12345, 1.234, 3.2, (1, 3))
        lines += [f"{kind}: {reason_sentence(reason, known.plan)}"]
    check_golden(SENTENCES, "\n".join(lines) + "\n", update)


def test_all_kinds_are_among_them() -> None:
    assert {outcome.verdict for outcome in OUTCOMES.values() if outcome} == set(get_args(SearchVerdict))
    assert {note.kind for note in NOTES} == set(get_args(NoteKind))
