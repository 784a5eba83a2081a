"""How each command of the documents is tried, and what stands in the place of what only a user has."""

from __future__ import annotations

from dataclasses import dataclass

from tests.docs.commands import Command

TYPED, DRY = "as typed", "with --dry-run"

WAYS: dict[str, str] = {
    "--version": TYPED,
    "agent build": "wants a request: tests/fleet/test_building.py has them",
    "agent look": TYPED,
    "agent install": "wants machines that answer: tests/fleet/test_install.py has them",
    "agent run": "wants a bundle: tests/fleet/test_agent.py has them",
    "bisect": DRY,
    "changes show": TYPED,
    "comment": "answers an event of GitHub: tests/comment has a pretend one",
    "compare": DRY,
    "cells diff": TYPED,
    "cells from": TYPED,
    "cells import": TYPED,
    "cells lint": TYPED,
    "cells list": TYPED,
    "cells match": TYPED,
    "cells show": TYPED,
    "cells validate": TYPED,
    "check": DRY,
    "dashboard build": TYPED,
    "dashboard open": "opens a browser",
    "demo": "measures: tests/cli/test_demo.py types it",
    "doctor": TYPED,
    "explain": "of a job: tests/commands/test_explain.py has some",
    "env build": "installs a release: tests/environments build",
    "env gc": DRY,
    "env keep": "asks a registry: tests/nightly/test_keep.py types it",
    "env list": TYPED,
    "init": DRY,
    "mcp": "serves a client: tests/mcp has one",
    "nightly": "measures: tests/cli/test_nightly.py runs it",
    "report": "of a job: test_tutorial.py has one",
    "metrics": TYPED,
    "resume": "of a job: test_tutorial.py has one",
    "run": DRY,
    "schema": TYPED,
    "status": "of a job: test_tutorial.py has one",
    "stop": "of a job: tests/cli/test_interrupts.py stops one",
    "track ack": TYPED,
    "track close": TYPED,
    "track detect": TYPED,
    "track export": TYPED,
    "track ingest": TYPED,
    "track fixed": TYPED,
    "track publish": "of jobs: tests/sources publish them and read them back",
    "track rebaseline": TYPED,
    "track reopen": TYPED,
    "track reproduce": "wants a cell that is the nightly's: tests/cli/test_track_reproduce.py has one",
    "track report": TYPED,
    "track suspects": TYPED,
    "track show": TYPED,
    "skill install": TYPED,
    "verify": DRY,
}
"""A verb -> how its commands are tried, else why they are only held against the command line's tree."""

ELSEWHERE: dict[str, str] = {
    "sglang_env.sh": "wants a checkout of SGLang",
    "buildkite.com": "asks the network: tests/series/sources/test_buildkite.py has an API of its own",
    "--measure": "wants a cell that is the nightly's: tests/cli/test_track_reproduce.py has one",
    "--fleet": "wants machines that answer: tests/fleet has some",
    "--online": "asks the registry",
    "wheels.example": "an index that nobody has",
    "--git-bisect": "a step of git's: tests/cli/test_git_bisect.py has them all",
    "base.json": "what an earlier check has written",
    "+pip:": "asks the registry: tests/transcripts/swaps.txt has one",
    "--releases": "asks the registry, but for --versions: test_tutorial.py gives them",
    "--detach": "leaves a process: tests/commands/test_detach.py ends it",
    ".buildkite/": "files of vLLM: tests/cells/importers/test_vllm_ci.py has their form",
    "pretend": "the cell of the demo: test_tutorial.py types it",
    "CLAIM.yaml": "a file of the user's: verify is tried with the shipped claims",
    "weights.yaml": "a file that track suspects writes",
}
"""What stands in a command -> why it is only held against the tree."""

_EVENT, _SERIES = "20260115-product", "omni_chunk"

_EVERYWHERE = {
    "CELL": "text_latency_c1",
    "OTHER": "text_throughput",
    "GOOD": "v0.31.0",
    "BAD": "main",
    "BASE": "main~1",
    "REV": "main",
    "REPO": "vllm",
    "R": "vllm",
    "PROFILE": "cuda",
    "DIR": "site",
    "FOLDER": "cells",
    "TEXT": "a reason",
    "VERB": "bisect",
    "FILE.yaml": "cells/own.yaml",
    "FILE": "weights.yaml",
    "ALERT": _EVENT,
    "EVENT": _EVENT,
    "RESULTS": "nightly-results",
    "PATH_OR_URL": "nightly-results",
    "vllm-omni-kanban": "nightly-results",
    "pr/N": "pr/7",
    "$REPORT": "vllm bench serve --model Qwen/Qwen3-8B --dataset-name random --random-input-len 512 "
    "--random-output-len 256 --ignore-eos --temperature 0 --num-prompts 48 --num-warmups 4 "
    "--max-concurrency 1",
    "audio_ttfp": "ttft",
    "origin/main": "main~1",
    "wheel:URL": "wheel:https://wheels.vllm.ai/{sha}",
    "20260412-product": _EVENT,
    "20260412-3f1a": _EVENT,
    "eb4e60ee~1": "HEAD~1",
    "qwen_image_single_device": _SERIES,
    "qwen3_tts/random@c4-n40": _SERIES,
    "qwen3_tts": _SERIES,
}
_IN = {
    "cells show": {"NAME": "async"},
    "track": {
        **dict.fromkeys(("R", "REPO", "vllm", "vllm-omni"), "nights"),
        **dict.fromkeys(("CELL", "NAME"), _SERIES),
    },
    "dashboard": dict.fromkeys(("R", "REPO", "vllm", "vllm-omni"), "nights"),
}
"""A verb, or its group -> words that mean something else there."""


@dataclass(frozen=True)
class Tried:
    """``words`` to type; none where ``why`` says that it is only held against the tree."""

    words: tuple[str, ...]
    why: str = ""


def way_of(command: Command, verb: str) -> Tried:
    """How a command is tried. :raises KeyError: nobody has said it of its verb."""
    way = WAYS[verb]
    if command.elided:
        return Tried((), "words are left out")
    if way not in (TYPED, DRY):
        return Tried((), way)
    for part, why in ELSEWHERE.items():
        if any(part in word for word in command.words):
            return Tried((), why)
    meaning = _EVERYWHERE | _IN.get(verb.split()[0], {}) | _IN.get(verb, {})
    if "improvement" in command.words:
        meaning |= {"GOOD": meaning["BAD"], "BAD": meaning["GOOD"]}
    words = _on_two_cores([meaning.get(word, word) for word in command.words])
    if verb == "track ingest" and "--zone" not in words:
        words += ["--zone", "UTC"]
    if verb == "init" and "--repo" not in words:
        words += ["--repo", "vllm"]
    if way == DRY and "--dry-run" not in words:
        words.append("--dry-run")
    return Tried(tuple(words))


def _on_two_cores(words: list[str]) -> list[str]:
    """Without ``--workers N``: the tests may run where there are no cores for several."""
    if "--workers" not in words:
        return words
    at = words.index("--workers")
    return words[:at] + words[at + 2 :]
