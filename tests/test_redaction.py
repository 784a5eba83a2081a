"""Secrets stand in no text that comes from another program."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect import redaction
from perfbisect.changes import git, history
from perfbisect.environments import images, uv
from perfbisect.errors import LocatedError, MachineError, PerfbisectError
from perfbisect.fleet.connection import Answer, Connection
from perfbisect.fleet.folders import error_in
from perfbisect.machine import devices
from perfbisect.system import http, logs
from perfbisect.system.commands import ProcessResult
from tests.test_errors import kinds

SECRET = "s3cr3t/of:the day"
PRINTED = f"ValueError: \x1b[31mtoken {SECRET}\x1b[0m \u202e\x9b2J refused"
"""A line that a program prints when it dies."""


def _log(tmp_path: Path) -> Path:
    path = tmp_path / "foreign.log"
    path.write_text(f"starting\n{PRINTED}\n", encoding="utf-8")
    return path


def _raised(call: Callable[[], object]) -> str:
    with pytest.raises(PerfbisectError) as caught:
        call()
    return f"{caught.value}\n{caught.value.output}"


def _release(_: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    done = subprocess.CompletedProcess(["pip"], 1, "", PRINTED)
    monkeypatch.setattr(history, "capture", lambda *_: done)
    return _raised(lambda: history.list_releases("vllm"))


def _device(_: Path, __: pytest.MonkeyPatch) -> str:
    return devices.run_command(["sh", "-c", 'printf %s "$0"; exit 1', PRINTED], 10.0)[1]


def _fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    program = tmp_path / "git"
    program.write_text(f"#!/bin/sh\nprintf %s '{PRINTED}'\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return _raised(lambda: git.fetch_remote(git.Repository(tmp_path), "origin", tmp_path / "git.log"))


def _answered(_: Path, __: pytest.MonkeyPatch) -> str:
    answer = Connection().run(["sh", "-c", 'printf %s "$0" >&2; exit 1', PRINTED])
    printed = Answer(1, PRINTED.encode(), "").said
    return f"{_raised(lambda: answer.checked('do it'))}\n{answer.said}\n{printed}"


FAILED = subprocess.CompletedProcess(["x"], 1, b"", PRINTED.encode())
PODMAN = subprocess.CompletedProcess(["podman"], 1, "", PRINTED)
OUTPUT = ProcessResult(1, 1.0, False, text=PRINTED)

PLACES: dict[str, Callable[[Path, pytest.MonkeyPatch], str]] = {
    "the end of a log of a server, client or probe": lambda path, _: logs.tail(_log(path)),
    "the cause in a log": lambda path, _: logs.cause(_log(path)),
    "a message of the client's host": lambda _, __: logs.excerpt(PRINTED),
    "the body of an HTTP error": lambda _, __: str(http.Reply(500, PRINTED.encode())),
    "git": lambda _, __: git.error_text(FAILED),
    "git fetch": _fetched,
    "a container tool": lambda _, __: images.problem_of(PODMAN),
    "the last line of a build": lambda _, __: OUTPUT.last_line,
    "uv": lambda path, _: str(uv.failure_of(OUTPUT, "install", path / "log")),
    "pip index": _release,
    "nvidia-smi": _device,
    "a command by ssh or Slurm": _answered,
    "an agent": lambda _, __: error_in(PRINTED) + error_in(json.dumps({"error": PRINTED})),
}


@pytest.mark.parametrize("place", PLACES)
def test_excerpts_are_neutral_and_without_secrets(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", SECRET)
    shown = PLACES[place](tmp_path, monkeypatch)
    assert "(redacted)" in shown
    assert SECRET not in shown
    assert all(character.isprintable() or character == "\n" for character in shown)


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_no_error_is_made_with_a_secret(kind: type[PerfbisectError], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    error = LocatedError(PRINTED, file="f", next_step=SECRET) if kind is LocatedError else kind(PRINTED)
    texts = [str(error), *map(str, error.args), error.message, error.next]
    assert not any(SECRET in text for text in texts)
    assert SECRET not in MachineError("x", output=PRINTED).output


@pytest.mark.parametrize("first", [True, False])
def test_a_secret_at_the_limit_of_what_is_read(
    first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    log = tmp_path / "log"
    for before in range(len(SECRET) + 2):
        log.write_text("a" * before + SECRET * 700 + "b" * 5000 if first else "b" * 5000 + SECRET * 700)
        assert "of:the" not in logs.text_of(log, 1000 + before, first=first)


def test_forms_of_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = 'a"b\\c/d é'
    monkeypatch.setenv("A_SECRET", secret)
    monkeypatch.setenv("HTTPS_PROXY", "http://me:pass-word@proxy:3128")
    for text in (secret, json.dumps(secret), repr(secret), "x?k=a%22b%5Cc%2Fd%20%C3%A9", "pass-word"):
        assert "(redacted)" in redaction.without_secrets(text), text
    for text in ("Authorization: Bearer abc123", "{'authorization': 'Basic YWJj'}"):
        assert "(redacted)" in redaction.without_secrets(text), text


def test_what_only_sounds_like_a_secret_is_shown() -> None:
    shell = {"GIT_AUTHOR_NAME": "somebody", "TOKENIZERS_PARALLELISM": "falsehood", "KEYBOARD": "english"}
    assert redaction.secret_values(shell) == ()


def test_secrets_are_not_written_down() -> None:
    secret = "hunter2-very-secret"
    environment = {
        **dict.fromkeys(("HF_TOKEN", "MY_API_KEY", "DB_PASSWORD", "aws_secret_access_key", "AUTH"), secret),
        "URL": f"https://user:{secret}@host/path",
        "OTHER": "before hf_abcdefghijklmnop after",
        "EMPTY_TOKEN": "",
        "PLAIN": "value",
    }
    shown = redaction.redacted(environment)
    assert secret not in json.dumps(shown)
    assert shown["URL"] == "https://(redacted)@host/path"
    assert shown["OTHER"] == "before (redacted) after"
    assert (shown["EMPTY_TOKEN"], shown["PLAIN"]) == ("", "value")


def test_commands_are_shown_without_their_keys() -> None:
    argv = "python -m serve --api-key abc --hf-token=xyz --tokenizer /model --token t -k"
    assert " ".join(redaction.redacted_argv(tuple(argv.split()))) == (
        "python -m serve --api-key (redacted) --hf-token=(redacted) --tokenizer /model --token (redacted) -k"
    )


@given(st.lists(st.text(alphabet="abc-= /.:", min_size=1), min_size=1).map(tuple))
def test_commands_without_secrets_are_shown_as_they_are(argv: tuple[str, ...]) -> None:
    assert redaction.redacted_argv(argv) == argv
