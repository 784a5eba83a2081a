"""Secrets of a cell and of the environment stand in no file of a job and in nothing that is printed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import read
from tests.command_line import Outcome, type_command
from tests.fakes.history import MEASURED_WITH, PretendHistory, make_history
from tests.system.stand_ins import until

SECRETS = {"MY_API_KEY": "s3cr3t-of-the-cell", "HF_TOKEN": "the-t0ken-of-the-shell"}

CELL = """\
family: text
model: {model}
dataset_name: random
random_input_len: 64
random_output_len: 8
ignore_eos: true
num_prompts: 6
max_concurrency: 1
serve_args: {{api-key: "${{MY_API_KEY}}"}}
env: {{MY_API_KEY: "${{MY_API_KEY}}", PRETEND_FAULT: "{fault}"}}
extra_body: {{headers: {{Authorization: "Bearer ${{MY_API_KEY}}"}}}}
client: {{name: vllm_bench, env: {{OPENAI_API_KEY: "${{MY_API_KEY}}"}}}}
ready_timeout: 30
"""
MODEL = Path(__file__).parents[2] / "pretend" / "cells" / "models" / "pretend"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> PretendHistory:
    return make_history(tmp_path_factory.mktemp("history") / "repo", commits=2, slow=None)


@pytest.fixture
def shell(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    return home


def asked(home: Path, history: PretendHistory, fault: str = "") -> list[str]:
    cell = home / "secret.yaml"
    cell.write_text(CELL.format(model=MODEL, fault=fault))
    return ["run", str(cell), "--repo", str(history.path), "--at", history.bad, *MEASURED_WITH]


def leaks(home: Path, *outcomes: Outcome) -> list[str]:
    """Where a secret stands: in which file, or in what was printed."""
    files = (path for path in home.rglob("*") if path.is_file())
    texts = {str(path): path.read_bytes() for path in files}
    texts |= {f"output {number}": str(outcome).encode() for number, outcome in enumerate(outcomes)}
    return [place for place, text in texts.items() for secret in SECRETS.values() if secret.encode() in text]


def test_an_engine_that_tells_its_secrets(shell: Path, history: PretendHistory) -> None:
    words = asked(shell, history, fault="tell_secrets")
    done = type_command([*words, "--launches", "1"])
    assert done.code == 5, done
    assert "ValueError: cannot log in" in done.out + done.err
    views = [
        ["report"],
        ["report", "--json", "--full"],
        ["status"],
        ["status", "--json"],
        ["cells", "show", words[1]],
    ]
    shown = [type_command(view) for view in views]
    assert "${MY_API_KEY}" in shown[-1].out
    assert leaks(shell, done, *shown, type_command([*words, "--dry-run"])) == []


@pytest.mark.parametrize("number", [pytest.param(signal.SIGKILL, marks=pytest.mark.processes), signal.SIGINT])
def test_a_log_that_nobody_reads_to_its_end(shell: Path, history: PretendHistory, number: int) -> None:
    """The engine prints them and goes on; perfbisect ends, by kill -9 too; and the job is done later."""
    words = [*asked(shell, history, fault="print_secrets"), "--launches", "1"]
    program = "from perfbisect.cli import main; main()"
    temporary = shell / "tmp"
    temporary.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as process:
        job = _launched(process)
        log = job.path / "attempts" / "001" / "server.log"
        until(lambda: log.exists() and "logged in with (redacted) and (redacted)" in log.read_text())
        process.send_signal(number)
    assert leaks(shell) == []
    assert type_command(["resume", job.id]).code == 0
    assert leaks(shell) == []


@pytest.mark.processes
def test_a_killed_job_takes_its_secrets_from_the_environment_again(
    shell: Path, history: PretendHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*asked(shell, history), "--launches", "2"]
    program = "from perfbisect.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", program, *words], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        job = _launched(process)
        process.send_signal(signal.SIGKILL)
    monkeypatch.delenv("MY_API_KEY")
    refused = type_command(["resume", job.id])
    assert refused.code == 2, refused
    assert "MY_API_KEY" in refused.err and "set MY_API_KEY, then run the command again" in refused.err
    monkeypatch.setenv("MY_API_KEY", SECRETS["MY_API_KEY"])
    resumed = type_command(["resume", job.id])
    assert resumed.code == 0, resumed
    assert "note: MY_API_KEY: taken from the environment of this command" in resumed.err
    assert "cannot tell whether the value is the one that it began with" in resumed.err
    assert leaks(shell, refused, resumed, type_command(["report", job.id, "--json", "--full"])) == []


def _launched(process: subprocess.Popen[bytes]) -> Job:
    while process.poll() is None:
        for job in Jobs(Path(os.environ["PERFBISECT_STATE"])).all():
            if any(event.kind == "launched" for event in read(job.journal).events):
                return job
        time.sleep(0.02)
    pytest.fail(f"it ended before a launch: {process.returncode}")


@pytest.mark.parametrize(
    ("line", "place", "instead"),
    [
        ('serve_args: {api-key: "s3cr3t-of-the-cell"}', "9: serve_args.api-key", "${API_KEY}"),
        ('serve_args: ["--api-key", "s3cr3t-of-the-cell"]', "9: serve_args.api-key", "${API_KEY}"),
        ("env: {MY_API_KEY: s3cr3t-of-the-cell}", "9: env.MY_API_KEY", "${MY_API_KEY}"),
        ('extra_body: {headers: {Authorization: "Bearer s3cr3t-of-the-cell"}}', "9: extra_body", "${"),
        ("client: {args: {header: [X-Api-Key=s3cr3t-of-the-cell]}}", "9: client.args.header", "${"),
        ("env: {HF_ENDPOINT: 'https://me:s3cr3t-of-the-cell@hub'}", "9: env.HF_ENDPOINT", "${"),
        ("variants: {v: {env: {DB_PASSWORD: s3cr3t-of-the-cell}}}", "9: variants.v.env", "${DB_PASSWORD}"),
    ],
)
def test_a_secret_in_a_cell_file_is_refused_where_it_stands(
    home: Path, line: str, place: str, instead: str
) -> None:
    kept = "".join(row for row in CELL.splitlines(keepends=True)[:8])
    (home / "secret.yaml").write_text(kept.format(model=MODEL) + line + "\n")
    done = type_command(["cells", "show", "secret.yaml"])
    assert done.code == 2, done
    assert place.split(": ")[1] in done.err and f"secret.yaml:{place.split(':')[0]}" in done.err
    assert instead in done.err
    assert "s3cr3t" not in done.out + done.err


def test_what_is_no_secret_is_accepted(home: Path) -> None:
    (home / "plain.yaml").write_text(
        "".join(CELL.splitlines(keepends=True)[:8]).format(model=MODEL)
        + "description: 'token: the unit of text'\n"
        + "serve_args: {api-key: EMPTY, max-num-batched-tokens: 131072, hf-token: true}\n"
        + "env: {TOKENIZERS_PARALLELISM: 'false', VLLM_MAX_TOKENS_PER_CHUNK: 65536000, OTHER: '${HOME}/x'}\n"
        + "extra_body: {eos_token: '</s></s>', stop_token_ids: [1234567]}\n"
    )
    done = type_command(["cells", "show", "plain.yaml"])
    assert done.code == 0, done
    assert "OTHER=${HOME}/x" in done.out
    assert "EMPTY" not in done.out and "api-key=(redacted)" in done.out, "named as a secret, however short"
