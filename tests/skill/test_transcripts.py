"""The requests that the skill names, each ending in the right verdict with only what the skill tells."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.command_line import isolate
from tests.skill.forms import SKILL, taught, verb_and_options
from tests.skill.test_skill import REQUESTS
from tests.skill.worlds import WORLDS
from tests.transcripts.runner import Step, Transcript, parse, play

TRANSCRIPTS = {path.stem: path for path in sorted((Path(__file__).parent / "transcripts").glob("*.txt"))}


def load(name: str) -> Transcript:
    return parse(TRANSCRIPTS[name].read_text(encoding="utf-8"))


@pytest.mark.processes
@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_transcript(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transcript = load(name)
    isolate(tmp_path, monkeypatch)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "cells").mkdir()
    play(transcript, {**WORLDS[transcript.about["world"]](tmp_path), "SKILL": str(SKILL)})


def steps() -> list[tuple[str, Step]]:
    return [(name, step) for name in TRANSCRIPTS for step in load(name).steps]


@pytest.mark.parametrize(("name", "step"), steps(), ids=lambda x: x if isinstance(x, str) else "")
def test_only_what_the_skill_tells_is_typed(name: str, step: Step) -> None:
    del name
    program, *words = shlex.split(step.typed)
    if program != "perfbisect":
        assert program in ("bash", "python3")
        assert words[0].startswith("{SKILL}/") and (SKILL / words[0].removeprefix("{SKILL}/")).is_file()
        return
    verb, options = verb_and_options(tuple(words))
    shown = taught()
    assert verb in shown, f"{verb} is nowhere in the skill"
    assert options - shown[verb] == set(), step.typed


def test_every_request_that_the_skill_names_has_a_transcript() -> None:
    requests = [load(name).about["request"] for name in TRANSCRIPTS]
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
        (name, step.typed) for name, step in steps() if not (step.shows or step.says) or not step.why
    ] == []
