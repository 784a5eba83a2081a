"""The servers of vLLM-Omni: their commands in each era, and what they are asked first."""

from __future__ import annotations

import base64
import io
import wave
from typing import Any

import pytest

from perfbisect.errors import ServerError, UsageError
from perfbisect.serving.families import FAMILIES, UNKNOWN, Engine, ServerCommand
from tests.serving.workloads import CHAT, ENDPOINT, PAINT, SPEECH, make_cell

PATH = "vllm_omni/deploy/qwen3_tts.yaml"
OLD_PATH = "vllm_omni/model_executor/stage_configs/qwen3_tts.yaml"
NEW, OLD = "stages:\n  - stage_id: 0\n", "stage_args:\n  - stage_id: 0\n"

DECEMBER = Engine(date="2025-12-28T10:00:00+00:00", root="/tree")
MARCH = Engine(date="2026-03-27T10:00:00+00:00", root="/tree")
JUNE = Engine(date="2026-06-01T10:00:00+00:00", root="/tree")
AUTUMN = Engine(date="2026-09-01T10:00:00+00:00", root="/tree")


def server(fields: dict[str, Any], engine: Engine = UNKNOWN, **more: Any) -> ServerCommand:
    one = make_cell(fields, **more)
    return FAMILIES[one.family].server(one, ENDPOINT, engine)


COMMON = ("--host", "127.0.0.1", "--init-timeout", "900", "--omni", "--port", "4321")
NAMED = ("--served-model-name", "pb-1a2b")
PATIENT = ("--stage-init-timeout", "900")
START = ("-m", "vllm_omni.entrypoints.cli.main", "serve", "org/m")


@pytest.mark.parametrize(
    ("engine", "deploy", "expected"),
    [
        (DECEMBER, None, (*COMMON, *NAMED)),
        (MARCH, None, (*COMMON, *NAMED, *PATIENT)),
        (MARCH, OLD_PATH, (*COMMON, *NAMED, "--stage-configs-path", f"/tree/{OLD_PATH}", *PATIENT)),
        (JUNE, PATH, ("--deploy-config", f"/tree/{PATH}", *COMMON, *NAMED, *PATIENT)),
        (JUNE, OLD_PATH, (*COMMON, *NAMED, "--stage-configs-path", f"/tree/{OLD_PATH}", *PATIENT)),
        (AUTUMN, PATH, ("--deploy-config", f"/tree/{PATH}", *COMMON, *NAMED, *PATIENT)),
        (UNKNOWN, PATH, ("--deploy-config", PATH, *COMMON, *NAMED, *PATIENT)),
        (JUNE, {"text": NEW}, ("--deploy-config", "./deploy.yaml", *COMMON, *NAMED, *PATIENT)),
        (MARCH, {"text": OLD}, (*COMMON, *NAMED, "--stage-configs-path", "./deploy.yaml", *PATIENT)),
    ],
)
def test_the_command_of_each_era(engine: Engine, deploy: Any, expected: tuple[str, ...]) -> None:
    command = server(SPEECH, engine, deploy_yaml=deploy)
    assert command.args == (*START, *expected)
    assert command.files == ({"deploy.yaml": deploy["text"]} if isinstance(deploy, dict) else {})
    assert command.reset_requests == ()


@pytest.mark.parametrize(
    ("engine", "more", "said"),
    [
        (MARCH, {"deploy_yaml": {"text": NEW}}, r"read since a3903810, #2383: this engine \(2026-03-27"),
        (MARCH, {"deploy_yaml": PATH}, "is older and reads stage configs"),
        (MARCH, {"stage_overrides": {"1": {"devices": "1"}}}, "--stage-overrides is there since a3903810"),
        (AUTUMN, {"deploy_yaml": {"text": OLD}}, "gone since #5647"),
        (Engine(version="0.30.0"), {"deploy_yaml": {"text": OLD}}, r"gone since #5647: this engine \(0\.30"),
        (Engine(version="0.18.0"), {"deploy_yaml": {"text": NEW}}, r"this engine \(0\.18\.0\) is older"),
    ],
)
def test_what_an_era_cannot_read_is_told_before_it_starts(
    engine: Engine, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(ServerError, match=said):
        server(SPEECH, engine, **more)


def test_the_commit_itself_is_of_the_new_era() -> None:
    before = Engine(date="2026-04-19T02:35:59+00:00")
    with pytest.raises(ServerError, match="older"):
        server(SPEECH, before, stage_overrides={"1": {"devices": "1"}})
    at = server(SPEECH, Engine(date="2026-04-19T02:36:00+00:00"), stage_overrides={"1": {"devices": "1"}})
    assert at.args[at.args.index("--stage-overrides") + 1] == '{"1":{"devices":"1"}}'


@pytest.mark.parametrize(
    ("fields", "more", "said"),
    [
        (SPEECH, {"serve_args": {"port": 1, "deploy-config": "x"}}, "cannot set port, deploy-config"),
        (SPEECH, {"deploy_yaml": {"text": f"base_config: qwen3_tts.yaml\n{NEW}"}}, "inherits from qwen3_tts"),
        (SPEECH, {"endpoint": "/v1/completions"}, "endpoint of tts is /v1/audio/speech"),
        (CHAT, {"endpoint": "/v1/audio/speech"}, "the speech API refuses these models"),
        (PAINT, {"endpoint": "/v1/audio/speech"}, "none of diffusion's"),
    ],
)
def test_what_no_era_can_serve_is_refused(fields: dict[str, Any], more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        server(fields, **more)


def test_arguments_variables_and_revision_arrive() -> None:
    command = server(
        CHAT,
        serve_args={"async-chunk": False, "trust-remote-code": True},
        env={"DIFFUSION_ATTENTION_BACKEND": "FLASH_ATTN"},
        revision="0" * 40,
    )
    assert {"--no-async-chunk", "--trust-remote-code"} <= set(command.args)
    assert command.args[command.args.index("--revision") + 1] == "0" * 40
    assert command.env["DIFFUSION_ATTENTION_BACKEND"] == "FLASH_ATTN"
    assert command.env["VLLM_HOST_IP"] == "127.0.0.1"
    assert "--seed" not in command.args


class TestFirstRequest:
    def test_speech_is_asked_for_as_the_client_will(self) -> None:
        request = server(SPEECH, extra_body={"voice": "Vivian", "stream": False}).first_request
        assert request.body["voice"] == "Vivian"
        assert request.body["stream"] is True
        assert (request.body["stream_format"], request.body["response_format"]) == ("audio", "pcm")
        assert "ref_audio" not in request.body

    def test_a_voice_to_clone_is_brought_along(self) -> None:
        body = server(SPEECH, dataset_name="seed-tts").first_request.body
        kind, _, data = str(body["ref_audio"]).partition(";base64,")
        assert kind == "data:audio/wav"
        with wave.open(io.BytesIO(base64.b64decode(data))) as sound:
            assert (sound.getnchannels(), sound.getsampwidth(), sound.getnframes()) == (1, 2, 16000)
        assert (body["task_type"], bool(body["ref_text"])) == ("Base", True)

    @pytest.mark.parametrize(
        ("more", "contains"),
        [
            ({"extra_body": {"modalities": ["text"]}}, "choices.*.message.content"),
            ({"extra_body": {"modalities": ["text", "audio"]}}, "choices.*.message.audio.data"),
            ({"percentile_metrics": "audio_rtf"}, "choices.*.message.audio.data"),
            ({}, "choices.*.message.content"),
        ],
    )
    def test_a_chat_must_sound_where_the_cell_listens(self, more: dict[str, Any], contains: str) -> None:
        assert server(CHAT, **more).first_request.must_contain == contains

    @pytest.mark.parametrize(
        ("more", "path"),
        [
            ({}, "/v1/chat/completions"),
            ({"backend": "openai"}, "/v1/images/generations"),
            ({"backend": "v1/videos", "task": "t2v"}, "/v1/videos"),
            ({"endpoint": "/v1/images/edits", "task": "i2i"}, "/v1/images/edits"),
        ],
    )
    def test_a_picture_is_asked_for_where_the_cell_asks(self, more: dict[str, Any], path: str) -> None:
        request = server(PAINT, **more, dataset_args={"width": 512, "height": 256}).first_request
        assert request.path == path
        told = str(request.body)
        assert "512x256" in told or ("'width': 512" in told and "'height': 256" in told)
        assert "'num_inference_steps': 2" in told
        assert request.form == (path in ("/v1/videos", "/v1/images/edits"))
