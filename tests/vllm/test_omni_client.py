"""The real ``vllm bench serve --omni`` against a pretend server that is told how fast it is."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from perfbisect.cells.content import content_revision
from perfbisect.clients.omni_bench import CLIENT
from perfbisect.clients.runner import Runner
from perfbisect.errors import ClientError
from perfbisect.model.attempt import RunResult
from perfbisect.model.cell import Cell
from perfbisect.serving.families import Endpoint
from perfbisect.system.processes import never
from scripts import omni_cpu
from scripts.demo import ROOT
from tests.fakes.omni.server import PretendOmni, Told
from tests.vllm.omni_client import result, run

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1800)]

MODEL = ROOT / "cells" / "models" / "llama_100m"
PROMPTS = 8
SEED = 5

PACE = Told(ttfp=0.25, rtf=0.4, seconds=2.0, tokens=8, image_seconds=0.3)

SPEECH = {
    "family": "tts",
    "backend": "openai-audio-speech",
    "endpoint": "/v1/audio/speech",
    "percentile_metrics": "ttft,audio_ttfp,audio_underrun",
}
CHAT = {
    "family": "omni",
    "backend": "openai-chat-omni",
    "endpoint": "/v1/chat/completions",
    "percentile_metrics": "ttft,tpot,itl,e2el,audio_rtf,audio_ttfp,audio_duration",
    "ignore_eos": True,
}
IMAGE = {
    "family": "diffusion",
    "backend": "/v1/images/generations",
    "endpoint": "/v1/images/generations",
    "extra_body": {"width": 8, "height": 8},
}


@dataclass(frozen=True)
class Case:
    """One command, and how its server behaves."""

    fields: dict[str, Any]
    told: Told = PACE

    @property
    def cell(self) -> Cell:
        arguments = {"random-input-len": 8, "random-output-len": PACE.tokens}
        # Without a check beforehand: the client would wait for a server that refuses.
        client = {"name": "omni_bench", "args": {"ready-check-timeout-sec": 0}}
        own = {"model": str(MODEL), "revision": {"model": content_revision(MODEL)}, "client": client}
        load = {"num_prompts": PROMPTS, "num_warmups": 1, "max_concurrency": 1, "dataset_args": arguments}
        return Cell.model_validate({"name": "one", **own, **load, **self.fields})


CASES = {
    "speech": Case(SPEECH),
    "chat": Case(CHAT),
    "image": Case(IMAGE),
    "failing": Case(SPEECH, Told(fail_every=4)),
    "muted": Case(SPEECH, Told(mute_every=5)),
    "mute": Case(SPEECH, Told(mute_every=1)),
    "events": Case(SPEECH, Told(events=True)),
    "broken": Case(CHAT, Told(broken=True)),
    "refusing": Case(SPEECH, Told(fail_every=1)),
}


@dataclass(frozen=True)
class Done:
    """What a command left, and the bodies that its server was sent."""

    case: Case
    code: int
    path: Path
    bodies: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def parsed(self) -> RunResult:
        expected = {"model_id": "pretend", "attempt": "a1"}
        return CLIENT.parse(self.case.cell, result(self.path), index=1, seed=SEED, expected=expected)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Done]]:
    """Every case, by one process of the client."""
    folder = tmp_path_factory.mktemp("omni")
    omni = omni_cpu.install(folder / "install.log")
    commands, servers = [], {}
    with ExitStack() as stack:
        for name, case in CASES.items():
            servers[name] = stack.enter_context(PretendOmni(case.told))
            commands.append(
                CLIENT.command(
                    case.cell,
                    Endpoint(servers[name].port, "pretend"),
                    seed=SEED,
                    result=folder / f"{name}.json",
                    metadata={"attempt": "a1"},
                )
            )
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
        env = kept | CLIENT.env(CASES["speech"].cell)
        codes = run(omni.interpreter, commands, env, folder / "client.log")
        yield {
            name: Done(case, code, folder / f"{name}.json", servers[name].counter.bodies)
            for (name, case), code in zip(CASES.items(), codes, strict=True)
        }


def late(run: RunResult, metric: str, told: float, within: str = "") -> bool:
    """As the server was told or later, never earlier, and within another time or half of the run's prompts.

    How much later is the machine's: a busy one delays each answer.
    """
    most = run.values[within] if within else 1000 * run.seconds / (PROMPTS / 2)
    return told * 0.999 <= run.values[metric] <= most


def rtf(run: RunResult) -> float:
    """Of answers that last as long as the server was told."""
    return run.values["e2el:median"] / 1000 / PACE.seconds


def test_speech_is_measured_as_it_was_told(done: dict[str, Done]) -> None:
    run = done["speech"].parsed()
    assert run.warnings == ()
    assert late(run, "audio_ttfp:median", 1000 * PACE.ttfp, within="e2el:median")
    assert late(run, "e2el:median", 1000 * PACE.rtf * PACE.seconds)
    assert run.values["audio_rtf:median"] == pytest.approx(rtf(run), rel=0.02)
    assert run.values["audio_duration:median"] == PACE.seconds
    assert run.values["e2el_per_audio_s"] == pytest.approx(run.values["e2el:median"] / PACE.seconds)
    assert run.values["audio_throughput"] == pytest.approx(PROMPTS * PACE.seconds / run.seconds)
    assert run.facts["audio_seconds"] == PROMPTS * PACE.seconds


def test_a_client_that_was_imported_beforehand_measures_the_same(
    done: dict[str, Done], tmp_path: Path
) -> None:
    """Two runs of one host, as the discarded and the measured one: patches of vLLM depend on import order."""
    interpreter = omni_cpu.install(tmp_path / "install.log").interpreter
    case = CASES["speech"]
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
    env = kept | CLIENT.env(case.cell)
    runner = Runner(interpreter, env, tmp_path, secrets.token_hex(16), CLIENT.preload(env))
    runner.begin()
    try:
        runner.ready(600.0, never)
        assert runner.plain == "", runner.plain
        for name in ("1", "2"):
            path = tmp_path / f"{name}.json"
            with PretendOmni(case.told) as server:
                endpoint, metadata = Endpoint(server.port, "pretend"), {"attempt": "a1"}
                argv = CLIENT.command(case.cell, endpoint, seed=SEED, result=path, metadata=metadata)
                ended = runner.run(
                    (str(interpreter), *argv),
                    log=tmp_path / f"{name}.log",
                    token=runner.token,
                    timeout=300.0,
                    stop_requested=never,
                )
            assert ended.code == 0
            hosted = Done(case, ended.code, path, server.counter.bodies)
            assert hosted.bodies == done["speech"].bodies
            assert result(path).keys() == result(done["speech"].path).keys()
            assert hosted.parsed().values["audio_duration:median"] == PACE.seconds
            assert hosted.parsed().values["audio_ttfp:median"] >= 1000 * PACE.ttfp * 0.999
    finally:
        runner.end()


def test_the_request_that_is_measured_asks_for_raw_sound(done: dict[str, Done]) -> None:
    bodies = [body for path, body in done["speech"].bodies if path == "/v1/audio/speech"]
    assert len(bodies) == PROMPTS + 1
    asked = {(body["stream"], body["stream_format"], body["response_format"]) for body in bodies}
    assert asked == {(True, "audio", "pcm")}


def test_a_chat_with_sound_is_measured_as_it_was_told(done: dict[str, Done]) -> None:
    run = done["chat"].parsed()
    assert run.warnings == ()
    step = 1000 * PACE.ttfp / (PACE.tokens + 1)
    assert late(run, "ttft:median", step, within="audio_ttfp:median")
    assert late(run, "audio_ttfp:median", 1000 * PACE.ttfp, within="e2el:median")
    assert late(run, "e2el:median", 1000 * PACE.rtf * PACE.seconds)
    assert run.values["audio_rtf:median"] == pytest.approx(rtf(run), rel=0.02)
    assert late(run, "tpot:median", step / 2, within="audio_ttfp:median"), "a late first token shortens it"
    assert run.values["output_tokens"] == PACE.tokens
    assert run.values["audio_duration:median"] == PACE.seconds


def test_an_image_is_measured_as_it_was_told(done: dict[str, Done]) -> None:
    run = done["image"].parsed()
    assert run.warnings == ()
    assert late(run, "e2el:median", 1000 * PACE.image_seconds)
    assert run.values["images"] == 1.0
    assert run.values["image_pixels"] == 64.0
    assert run.values["image_throughput"] == pytest.approx(PROMPTS / run.seconds)


def test_failed_requests_are_a_warning(done: dict[str, Done]) -> None:
    run = done["failing"].parsed()
    assert run.values["failed"] == 0.25
    assert run.warnings[0].startswith("2 of 8 requests failed: Internal Server Error")


def test_a_request_without_sound_is_a_warning(done: dict[str, Done]) -> None:
    run = done["muted"].parsed()
    assert result(done["muted"].path)["failed"] == 0
    assert [warning for warning in run.warnings if "has no sound" in warning]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mute", "without one second of sound"),
        ("broken", "0 of 8 requests completed"),
        ("refusing", r"0 of 8 requests completed \(8 failed\): Internal Server Error"),
    ],
)
def test_the_client_ends_well_and_has_measured_nothing(done: dict[str, Done], name: str, said: str) -> None:
    assert done[name].code == 0
    with pytest.raises(ClientError, match=said):
        done[name].parsed()


def test_where_nothing_completed_the_latencies_of_sound_are_absent(done: dict[str, Done]) -> None:
    document = result(done["refusing"].path)
    assert not [name for name in document if name.endswith(("audio_ttfp_ms", "audio_rtf"))]
    assert document["total_audio_duration_s"] == 0


def test_events_taken_for_sound_make_the_answer_longer_and_the_server_faster(done: dict[str, Done]) -> None:
    """Why readiness looks at the content type: nothing in the result tells."""
    run = done["events"].parsed()
    assert run.warnings == ()
    assert run.values["audio_duration:median"] > 1.2 * Told().seconds
    assert run.values["audio_rtf:median"] < 0.9 * rtf(run)
