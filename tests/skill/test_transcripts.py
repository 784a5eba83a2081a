"""The requests that the skill names, each ending in the right verdict with only what the skill tells."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import isolate
from tests.skill.forms import SKILL, taught, verb_and_options
from tests.skill.runner import Step, agrees, at, load, play, transcripts
from tests.skill.test_skill import REQUESTS
from tests.skill.worlds import WORLDS


@pytest.mark.processes
@pytest.mark.parametrize("path", transcripts(), ids=lambda path: path.stem)
def test_transcript(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transcript = load(path)
    isolate(tmp_path, monkeypatch)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "cells").mkdir()
    play(transcript, WORLDS[transcript.world](tmp_path))


def steps() -> list[tuple[str, Step]]:
    return [(path.stem, step) for path in transcripts() for step in load(path).steps]


@pytest.mark.parametrize(("name", "step"), steps(), ids=lambda x: x if isinstance(x, str) else "")
def test_only_what_the_skill_tells_is_typed(name: str, step: Step) -> None:
    del name
    program, *words = shlex.split(step.type)
    if program != "perfbisect":
        assert program in ("bash", "python3")
        assert words[0].startswith("{SKILL}/") and (SKILL / words[0].removeprefix("{SKILL}/")).is_file()
        return
    verb, options = verb_and_options(tuple(words))
    shown = taught()
    assert verb in shown, f"{verb} is nowhere in the skill"
    assert options - shown[verb] == set(), step.type


def test_every_request_that_the_skill_names_has_a_transcript() -> None:
    requests = [load(path).request for path in transcripts()]
    assert {one for one in REQUESTS if not any(_like(one, request) for request in requests)} == set()
    assert any("\u4e00" <= letter <= "\u9fff" for request in requests for letter in request)


def _like(pattern: str, request: str) -> bool:
    """True if a request is the skill's own, N, X and Y aside."""
    words, said = pattern.split(), request.split()
    return len(words) == len(said) and all(
        a == b or a in ("N", "X", "Y") for a, b in zip(words, said, strict=True)
    )


def test_every_step_says_what_it_must_bring() -> None:
    assert [
        (name, step.type) for name, step in steps() if not (step.shows or step.says) or not step.why
    ] == []


@pytest.mark.parametrize(
    ("wanted", "good", "bad"),
    [
        (3, 3, 4),
        ({"min": 0.9}, 0.95, None),
        ({"max": 2}, 2, 3),
        ({"has": "b"}, ["a", "b"], ["a"]),
        ({"only": ["a"]}, ["a", "a"], []),
        ({"none_of": ["a"]}, ["b"], ["a", "b"]),
    ],
)
def test_the_player_sees_a_difference(wanted: Any, good: Any, bad: Any) -> None:
    assert agrees(good, wanted) and not agrees(bad, wanted)


def test_paths_go_through_keys_and_places() -> None:
    document: Mapping[str, Any] = {"a": [{"b": 1}, {"b": 2}]}
    assert (at(document, "a.1.b"), at(document, "a.*.b")) == (2, [1, 2])
    assert at({"a": [{"b": "x", "c": 1}, {"b": "y", "c": 2}]}, "a.[b=y].c") == [2]
    with pytest.raises(KeyError):
        at(document, "c")
