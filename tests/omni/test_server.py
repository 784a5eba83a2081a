"""The real vLLM-Omni server on the CPU, two stages of tiny models of Qwen3-TTS, measured by the real client.

Nothing here skips: where the server cannot be installed or started, the tests fail.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from perfbisect.cells.loading import load_cell
from perfbisect.environments.factory import make_builder
from perfbisect.machine.profile import load_machine
from perfbisect.measure.executor import AttemptRequest, PhaseLimits
from perfbisect.measure.local import LocalExecutor
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.model.counters import RunCounters
from perfbisect.serving.families import FAMILIES, Endpoint
from perfbisect.stats.phases import compare_phases
from perfbisect.system import commands
from scripts import omni_cpu
from scripts.demo import CACHE
from tests.measure.pretend import Watch

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1800)]

TOKENS = 63
"""``max_tokens`` of the deploy YAML; the random model never emits the token that ends speech."""

WINDOWS = (1, 25, 25, 11)
"""Frames that are decoded at once: the first packet, the chunks of the deploy YAML, the rest."""

FRAME, BYTES = 1920, 2
"""Samples of a frame, bytes of a sample."""

SAMPLES = 119_040
SECONDS = SAMPLES / 24_000

LIMITS = PhaseLimits(ready=1200.0, first_request=600.0, stop=60.0)
"""Other work may hold up the six processes of the server."""


@dataclass
class Served:
    """One attempt, the packets of one request that was sent while its server lived, and what lives still."""

    omni: omni_cpu.OmniCpu
    cell: Cell
    packets: list[int] = field(default_factory=list)
    attempt: Attempt | None = None
    left: list[str] = field(default_factory=list)

    @property
    def result(self) -> Attempt:
        assert self.attempt is not None
        return self.attempt

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.result.provenance.facts

    def request(self, watch: Watch) -> None:
        """The family's first request once more, to see how its answer arrives."""
        launched = next(detail for phase, detail in watch.events if phase == "launch")
        endpoint = Endpoint(watch.launched["port"], str(launched["model"]))
        probe = FAMILIES[self.cell.family].server(self.cell, endpoint).first_request
        link = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=300)
        try:
            link.request("POST", probe.path, json.dumps(probe.body), {"Content-Type": "application/json"})
            answer = link.getresponse()
            while packet := answer.read1(1 << 20):
                self.packets.append(len(packet))
        finally:
            link.close()


def serve(cell: Path, model: str, folder: Path) -> Served:
    """The server, started, measured and stopped by the executor that measures every launch."""
    omni = omni_cpu.install(folder / "install.log")
    omni_cpu.make_model(omni.interpreter, model)
    # A request takes half a minute where two processors are slow.
    served = Served(omni, load_cell(cell).model_copy(update={"num_prompts": 4, "num_warmups": 1}))
    spec = f"existing:{omni.interpreter},package=vllm_omni"
    executor = LocalExecutor(make_builder(spec, repository=None, cache=CACHE), profile=load_machine("cpu"))
    change = Change(f"vllm-omni=={omni_cpu.VERSION}", "release")
    request = AttemptRequest("omni", served.cell, change, 1, "run", folder / "attempt", LIMITS)
    watch = Watch(at={"ready": served.request})
    try:
        served.attempt = executor.run(request, started=watch.started, sink=watch.sink)
    finally:
        served.left = watch.left()
    assert served.attempt.failure is None, served.attempt.failure
    return served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return serve(omni_cpu.CELL, "qwen3_tts_custom_voice", tmp_path_factory.mktemp("omni"))


@pytest.fixture(scope="module")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """As ``served``, in the voice of a recording that each request brings."""
    omni_cpu.write_voices()
    return serve(omni_cpu.CLONE, "qwen3_tts_base", tmp_path_factory.mktemp("clone"))


def test_a_request_is_answered_frame_by_frame(served: Served) -> None:
    """The first packet is one frame, and all of them are the frames that the model was told to make."""
    assert served.packets[0] == WINDOWS[0] * FRAME * BYTES == 3840
    assert sum(served.packets) == sum(WINDOWS) * FRAME * BYTES == SAMPLES * BYTES


def test_the_client_measures_the_sound(served: Served) -> None:
    (run,) = served.result.runs
    assert run.warnings == ()
    assert run.values["failed"] == 0
    assert run.values["audio_duration:median"] == pytest.approx(SECONDS)
    assert run.facts["audio_seconds"] == pytest.approx(served.cell.num_prompts * SECONDS)
    document = json.loads(Path(run.raw).read_text())
    assert document["total_audio_frames"] == served.cell.num_prompts * SAMPLES
    e2el_s = run.values["e2el:median"] / 1000
    assert 0 < run.values["audio_ttfp:median"] / 1000 < e2el_s
    assert run.values["audio_rtf:median"] == pytest.approx(e2el_s / SECONDS, rel=0.05)


def test_the_discarded_and_the_measured_run_share_the_imports_of_a_client(served: Served) -> None:
    assert served.facts["client_host"]["mode"] == "host", served.facts["client_host"]
    assert not served.result.provenance.client_digest.endswith("plain")


def test_each_stage_is_counted_apart(served: Served) -> None:
    (run,) = served.result.runs
    stages = RunCounters.of_run(run).engine.stages
    assert set(stages) == {"0", "1"}
    talker, decoder = stages["0"], stages["1"]
    # The client's check and its warm-ups come on top.
    assert talker["requests"] == decoder["requests"] > served.cell.num_prompts
    assert talker["generation_tokens"] == talker["iterations"] == TOKENS * talker["requests"]
    assert decoder["iterations"] == len(WINDOWS) * decoder["requests"]
    assert decoder["generation_tokens"] == 0


def test_the_server_gives_its_own_account_of_the_first_packet(served: Served) -> None:
    """By its log and by its counters, whose requests include the warm-ups; the client is later than both."""
    (run,) = served.result.runs
    least, median = (run.values[f"audio_first_chunk:{part}"] for part in ("p0.01", "median"))
    assert 0 < least <= median
    assert least < run.values["audio_ttfp:p0.01"]
    assert run.spread["audio_first_chunk:median"] >= 0
    decoder = RunCounters.of_run(run).engine.stages["1"]
    assert decoder["first_packets"] == decoder["requests"]
    # The decoder waits for the first chunk, and then makes the first sound of it.
    waits_ms = run.values["stage.1.queue_ms"]
    assert run.values["stage.0.queue_ms"] < waits_ms < 1e3 * decoder["first_packet_s"] / decoder["requests"]


def test_the_first_packet_is_said_stage_by_stage(served: Served) -> None:
    counters = [RunCounters.of_runs(served.result.runs)]
    phases = {(row.stage, row.name): row.a for row in compare_phases(counters, counters)}
    parts = [("0", "queue"), ("0", "prefill"), ("1", "chunk transfer")]
    assert sum(phases[part] for part in parts) == pytest.approx(phases["1", "queue"])
    assert phases["1", "queue"] + phases["1", "prefill"] < phases["1", "first packet"]


def test_the_facts_of_its_log_are_those_of_each_stage(served: Served) -> None:
    facts = served.facts["engine_log"]
    assert {name for name in facts if not name.startswith(("stage 0 ", "stage 1 "))} == {"version"}
    assert [facts[f"stage {stage} config max_seq_len"] for stage in (0, 1)] == ["4096", "65536"]
    schedulers = [facts[f"stage {stage} scheduler"] for stage in (0, 1)]
    assert schedulers == ["OmniARScheduler", "OmniGenerationScheduler"]


def test_the_eras_are_those_of_the_release(served: Served) -> None:
    assert served.result.provenance.engine_version == omni_cpu.VERSION
    assert served.result.provenance.client_era.startswith("omni_bench since 11f6a0b7")
    assert "--deploy-config" in served.facts["server"]["argv"]


def test_nothing_lives_after_the_stop(served: Served) -> None:
    assert served.left == []
    assert "shared_memory_removed" not in served.facts


def test_the_package_cache_is_as_it_was(served: Served) -> None:
    """The installer links files into environments: one that is emptied there must not be empty here."""
    uv = Path(commands.capture([str(omni_cpu.uv.find_uv()), "cache", "dir"], 60.0).stdout.strip())
    for name, digest in served.omni.replaced.items():
        copies = [*uv.glob(f"archive-v*/*/{name}")]
        assert not copies or digest in map(omni_cpu.digest, copies), name


@pytest.mark.proof
def test_voices_are_cloned_two_at_a_time(cloned: Served) -> None:
    """Each answer has its frames, and what ends it is a token more."""
    (run,) = cloned.result.runs
    assert run.warnings == ()
    assert sum(cloned.packets) == SAMPLES * BYTES
    assert run.values["failed"] == 0
    assert run.facts["audio_seconds"] == pytest.approx(cloned.cell.num_prompts * SECONDS)
    assert 0 < run.values["audio_ttfp:median"] < run.values["e2el:median"]
    assert run.values["audio_rtf:median"] > 0
    stages = RunCounters.of_run(run).engine.stages
    talker, decoder = stages["0"], stages["1"]
    assert talker["requests"] == decoder["requests"] > cloned.cell.num_prompts
    # One step of the talker serves both.
    assert talker["iterations"] < talker["generation_tokens"] == TOKENS * talker["requests"]
    assert cloned.left == []
