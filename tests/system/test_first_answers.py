"""The first answer of each kind of server of vLLM-Omni: a process that speaks, chats or paints."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perfbisect.errors import ServerError
from perfbisect.serving.families import FAMILIES, Endpoint, ProbeRequest
from perfbisect.serving.server import Server
from perfbisect.system import ports, processes
from tests.serving.workloads import CHAT, PAINT, SPEECH, make_cell
from tests.system.stand_ins import ENV

ROOT = Path(__file__).resolve().parent.parent.parent

Make = Callable[..., tuple[Server, ProbeRequest]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Server] = []

    def start(fields: dict[str, Any], **told: object) -> tuple[Server, ProbeRequest]:
        cell = make_cell(fields)
        endpoint = Endpoint(ports.free_port(), "ours")
        pace = json.dumps({"ttfp": 0.01, "rtf": 0.02, "seconds": 0.5, "image_seconds": 0.01, **told})
        argv = [sys.executable, "-m", "tests.fakes.omni.server", str(endpoint.port), "ours", pace]
        owned = processes.spawn(
            argv, env=ENV, cwd=ROOT, log=tmp_path / "server.log", token=secrets.token_hex(8)
        )
        command = FAMILIES[cell.family].server(cell, endpoint)
        made.append(Server(owned, endpoint, command))
        made[-1].wait_named(20.0)
        return made[-1], command.first_request

    yield start
    for server in made:
        processes.stop(server.owned, 0.0)


@pytest.mark.parametrize(
    "fields",
    [
        SPEECH,
        {**SPEECH, "dataset_name": "seed-tts"},
        {**CHAT, "percentile_metrics": "e2el,audio_rtf"},
        {**CHAT, "extra_body": {"modalities": ["text"]}},
        {**PAINT, "backend": "vllm-omni"},
        {**PAINT, "endpoint": "/v1/images/generations"},
        {**PAINT, "endpoint": "/v1/images/edits", "task": "i2i"},
        {**PAINT, "backend": "v1/videos", "task": "t2v"},
    ],
)
def test_each_kind_is_answered(make: Make, fields: dict[str, Any]) -> None:
    server, _ = make(fields)
    server.first_answer(20.0)


@pytest.mark.parametrize(
    ("fields", "told", "said"),
    [
        (SPEECH, {"events": True}, r"a stream of events, not audio/\.\.\."),
        (SPEECH, {"mute_every": 1}, "has 0 bytes, at least 4800 were expected"),
        (SPEECH, {"seconds": 0.05}, "has 2400 bytes, at least 4800"),
        (SPEECH, {"fail_every": 1}, "the first request was refused: 500"),
        (
            {**CHAT, "percentile_metrics": "audio_rtf"},
            {"mute_every": 1},
            r"nothing at 'choices\.\*\.message\.audio\.data'",
        ),
        ({**CHAT, "percentile_metrics": "audio_rtf"}, {"broken": True}, "the first stream has an error"),
    ],
)
def test_an_answer_of_another_kind_is_none(
    make: Make, fields: dict[str, Any], told: dict[str, object], said: str
) -> None:
    server, _ = make(fields, **told)
    with pytest.raises(ServerError, match=said):
        server.first_answer(20.0)
