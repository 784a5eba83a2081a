"""Logs: no secret in any of them, however it arrives, and no more than their size."""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perfbisect.redaction import REDACTED, command_secrets, secret_values
from perfbisect.system import commands, processes
from perfbisect.system.log_writer import LIMIT, LogWriter, Redactor
from tests.system.stand_ins import ENV, told, until

SECRET = "s3cret-value-of-a-cell"
KEY = "-----BEGIN KEY-----\nMIIabcdef\nghijkl==\n-----END KEY-----"


@pytest.mark.parametrize("seed", range(20))
def test_no_secret_passes_however_the_stream_is_cut(seed: int) -> None:
    draw = random.Random(seed)
    token = "hf_" + "Ab3" * 10
    words = [SECRET, KEY, token, "https://me:pass@host/x", "word", "\n", " ", "é", SECRET[:9], KEY[:30]]
    text = "".join(draw.choice(words) + draw.choice(["", " ", "\n"]) for _ in range(300)).encode()
    redactor, written, place = Redactor([SECRET, KEY]), b"", 0
    while place < len(text):
        step = draw.choice([1, 2, 7, 100, 5000])
        written += redactor.feed(text[place : place + step])
        place += step
    written += redactor.flush()
    for secret in (SECRET, KEY, "me:pass"):
        assert secret.encode() not in written
    assert written == Redactor([SECRET, KEY]).feed(text + b"\n")[:-1]


def test_a_long_line_without_an_end_is_written_and_redacted(tmp_path: Path) -> None:
    log = LogWriter(str(tmp_path / "log"), [SECRET])
    log.write(b"a" * 60_000)
    for _ in range(40):
        log.write(b"b" * 997 + SECRET.encode() + b"c" * 4001)
    assert (tmp_path / "log").stat().st_size > 100_000, "an unfinished line is written in parts"
    log.close()
    text = (tmp_path / "log").read_text()
    assert SECRET not in text
    assert text.count(REDACTED) == 40
    assert text.count("b") == 40 * 997


@pytest.mark.parametrize("piece", [10, 333, 5000])
def test_the_middle_of_a_large_log_is_left_out(tmp_path: Path, piece: int) -> None:
    log, whole = LogWriter(str(tmp_path / "log"), (), limit=20_000, kept=4_000), b""
    for number in range(200_000 // piece):
        text = f"{number:09d}\n".encode() * (piece // 10)
        log.write(text)
        whole += text
        assert (tmp_path / "log").stat().st_size <= 20_000 + piece + 100
    log.close()
    found = (tmp_path / "log").read_bytes()
    first, _, rest = found.partition(b"\n[perfbisect: ")
    count, _, last = rest.partition(b" bytes are left out here]\n")
    assert whole.startswith(first) and len(first) == 4_000
    assert whole.endswith(last) and len(last) >= 4_000
    assert len(first) + int(count) + len(last) == len(whole)


def test_a_line_of_a_process_above_the_limit(tmp_path: Path) -> None:
    """The largest size, through a real process: the beginning, the end, and an exit code."""
    script = f"""
import os
print("begins", flush=True)
for _ in range({2 * LIMIT >> 20}):
    os.write(1, b"x" * (1 << 20))
os.write(1, b" ends here")
os._exit(3)
"""
    log = tmp_path / "log"
    ended = commands.run(
        [sys.executable, "-c", script], env=ENV, cwd=tmp_path, log=log, token=secrets.token_hex(8), timeout=60
    )
    text = log.read_bytes()
    assert ended.code == 3
    assert len(text) <= LIMIT
    assert text.startswith(b"begins\nxxx") and text.endswith(b"x ends here")
    assert text.count(b"bytes are left out here]") == 1


def test_a_full_disk_loses_output_and_blocks_nobody(tmp_path: Path) -> None:
    script = """
import os, resource
for _ in range(64):
    os.write(1, b"x" * 65536)
"""
    log = Path("/dev/full")
    ended = commands.run(
        [sys.executable, "-c", script], env=ENV, cwd=tmp_path, log=log, token=secrets.token_hex(8), timeout=60
    )
    assert ended.code == 0


CALLER = """
import os, sys, time
from pathlib import Path
from perfbisect.redaction import REDACTED, command_secrets, secret_values
from perfbisect.system import processes
folder = Path(sys.argv[1])
env = {"PATH": os.environ["PATH"], "HF_TOKEN": os.environ["HF_TOKEN"], "MY_API_KEY": "cell-own-key-1234"}
script = (folder / "script.py").read_text()
owned = processes.spawn([sys.executable, "-c", script, "--api-key", "typed-key-5678"], env=env, cwd=folder,
                        log=folder / "out.log", token=folder.name)
try:
    print(owned.pid, owned.created, flush=True)
    owned.wait(60)
finally:
    processes.stop(owned, 1.0)
"""
TELLS = """
import os, sys, time
print("mine:", os.environ["HF_TOKEN"], "its:", os.environ["MY_API_KEY"], "typed:", sys.argv[2], flush=True)
os.write(1, os.environ["HF_TOKEN"].encode()[:9])
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
os.write(1, os.environ["HF_TOKEN"].encode())
os._exit(1)
"""


@pytest.mark.parametrize("ending", ["itself", "Ctrl-C", "kill -9"])
def test_a_log_has_no_secret_at_any_ending(tmp_path: Path, ending: str) -> None:
    (tmp_path / "script.py").write_text(TELLS)
    token = "secretive" + secrets.token_hex(8)
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, str(tmp_path)],
        env={**os.environ, "HF_TOKEN": token, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert caller.stdout is not None
    with caller.stdout:
        pid, created = caller.stdout.readline().split()
        until(lambda: "ready" in (tmp_path / "out.log").read_text())
        if ending == "Ctrl-C":
            caller.send_signal(signal.SIGINT)
        elif ending == "kill -9":
            caller.kill()
            caller.wait(10)
        (tmp_path / "go").touch()
        caller.wait(20)
    processes.stop_leftovers(tmp_path.name, int(pid), float(created), grace=1.0)
    assert told(tmp_path / "out.log", "mine:") == f"{REDACTED} its: {REDACTED} typed: {REDACTED}"
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "script.py":
            for value in (token, "cell-own-key-1234", "typed-key-5678"):
                assert value.encode() not in path.read_bytes(), path


def test_a_daemon_that_holds_the_log_is_not_waited_for(tmp_path: Path) -> None:
    script = """
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
print("the last word", end="", flush=True)
os._exit(4)
"""
    owned = processes.spawn(
        [sys.executable, "-c", script],
        env=ENV,
        cwd=tmp_path,
        log=tmp_path / "log",
        token=secrets.token_hex(8),
    )
    assert owned.wait(20) == 4
    assert (tmp_path / "log").read_text() == "the last word", "whole as soon as the exit code is known"
    processes.stop(owned, 0.0)


def test_which_secrets_a_command_may_print(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {
        "VLLM_MAX_TOKENS": "131072", "TOKENIZER_MODE": "mistral", "GIT_AUTHOR_NAME": "A. Author",
        "HF_TOKEN_PATH": "/home/me/token", "SSH_AUTH_SOCK": "/tmp/agent", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    assert secret_values(others) == ()
    monkeypatch.setattr(os, "environ", {"HF_TOKEN": "hf-value-1\n"})
    argv = ("python", "serve", "--api-key", "typed-key", "--token=other-token", "--port", "8000")
    found = command_secrets(argv, {"MY_API_KEY": "key-value-2"})
    assert found == ("hf-value-1", "key-value-2", "typed-key", "other-token")
