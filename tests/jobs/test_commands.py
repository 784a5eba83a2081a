"""Commands that go on from a job can be typed as they are told."""

from __future__ import annotations

import shlex

from perfbisect.jobs.commands import follow_up_command, repeat_command
from perfbisect.jobs.plans import MeasurementConfig

CELL = {"name": "chat", "headline": "tpot"}


def setting(typed: str = "", **known: str) -> MeasurementConfig:
    return MeasurementConfig(environment="wheel:cu129", typed=typed, **known)


def test_another_verb_has_all_that_the_first_one_had() -> None:
    whole = setting(
        "perfbisect compare my cells.yaml --a x --b y",
        repository="/home/me/my vllm",
        client="release:vllm==0.32.0",
        constraints="/pins.txt",
        exclude_newer="2026-11-01",
        machine="two.yaml",
    )
    words = shlex.split(follow_up_command(whole, "bisect", CELL, "ttft", "--good", "x", "--bad", "y"))
    assert words[:7] == ["perfbisect", "bisect", "my", "--repo", "/home/me/my vllm", "--good", "x"]
    options = dict(zip(words[3::2], words[4::2], strict=True))
    assert options == {
        "--repo": "/home/me/my vllm",
        "--good": "x",
        "--bad": "y",
        "--env": "wheel:cu129",
        "--client": "release:vllm==0.32.0",
        "--constraints": "/pins.txt",
        "--exclude-newer": "2026-11-01",
        "--machine": "two.yaml",
        "--metric": "ttft",
    }


def test_a_cell_is_told_as_it_was_typed() -> None:
    typed = {
        "perfbisect compare mine/chat.yaml --a x --b y": "mine/chat.yaml",
        "perfbisect track reproduce 20260101-product --cell mine/chat.yaml --json": "mine/chat.yaml",
        "perfbisect compare --a x --b y mine/chat.yaml": "chat",
        "perfbisect verify claim.yaml": "chat",
        "perfbisect nightly nightly.yaml": "chat",
        "perfbisect track reproduce 20260101-product --cell": "chat",
    }
    for line, cell in typed.items():
        assert shlex.split(follow_up_command(setting(line), "bisect", CELL, "tpot"))[2] == cell


def test_a_longer_answer_to_the_same_question() -> None:
    sides = ("--a", "x", "--b", "y z")
    report = ("--expect-workload", "vllm bench\nserve")
    typed = shlex.join(["perfbisect", "compare", "chat", *sides, *report, "--json"])
    for given in ("", " --blocks 2", " --blocks=2", " --detach --blocks 2 --quiet"):
        told = repeat_command(setting(typed + given), "--blocks", "9")
        assert told == "perfbisect compare chat --a x --b 'y z' --blocks 9"
    told = repeat_command(setting("perfbisect check chat --launches 4"), "--launches", "8")
    assert told is not None and told.endswith("--launches 8")
    for line in ("", "perfbisect", "perfbisect nightly nightly.yaml"):
        assert repeat_command(setting(line), "--blocks", "9") is None
