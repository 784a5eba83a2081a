"""The ready files for CI and cron: they parse, name what there is, hold no secret, and do what they say."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from perfbisect.cli.app import app

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"
GITHUB, BUILDKITE = SCRIPTS / "ci" / "github-nightly.yml", SCRIPTS / "ci" / "buildkite-nightly.yml"
GITHUB_COMMENT = SCRIPTS / "ci" / "github-comment.yml"
BUILDKITE_COMMENT = SCRIPTS / "ci" / "buildkite-comment.yml"
CRON = SCRIPTS / "nightly.sh"

BUILDKITE_KEYS = """
label key if agents command timeout_in_minutes concurrency concurrency_group artifact_paths retry soft_fail
"""

needs_flock = pytest.mark.skipif(shutil.which("flock") is None, reason="flock (util-linux) is not there")


def document(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def steps(path: Path = GITHUB) -> list[dict[str, Any]]:
    (job,) = document(path)["jobs"].values()
    found: list[dict[str, Any]] = job["steps"]
    return found


def commands() -> Iterator[str]:
    """Every line that a shell is given."""
    for step in (*steps(), *steps(GITHUB_COMMENT)):
        yield from step.get("run", "").splitlines()
    for step in (*document(BUILDKITE)["steps"], *document(BUILDKITE_COMMENT)["steps"]):
        yield from step["command"].splitlines()
    yield from CRON.read_text().splitlines()


def calls() -> list[list[str]]:
    """The words of each call of perfbisect."""
    found = [
        re.match(r'\s*(?:exec )?"?(?:perfbisect|\$perfbisect)"? (?P<words>[a-z].*)', line)
        for line in commands()
    ]
    return [shlex.split(match["words"].partition(">")[0]) for match in found if match]


def test_the_workflow_is_one_that_github_takes() -> None:
    workflow = document(GITHUB)
    # YAML 1.1 reads the key `on` as true.
    assert set(workflow) == {"name", True, "permissions", "concurrency", "jobs"}
    assert set(workflow[True]) == {"schedule", "workflow_dispatch"}
    assert re.fullmatch(r"\d+ \d+ \* \* \*", workflow[True]["schedule"][0]["cron"])
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"] == {"group": "perfbisect-nightly", "cancel-in-progress": False}
    (job,) = workflow["jobs"].values()
    assert job["runs-on"][0] == "self-hosted"
    assert job["timeout-minutes"] > 0
    for step in steps():
        assert ("run" in step) != ("uses" in step), step
        assert set(step) <= {"name", "run", "uses", "with", "env", "if"}


@pytest.mark.parametrize("path", [GITHUB, GITHUB_COMMENT], ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_and_say_their_release(path: Path) -> None:
    used = [line for line in path.read_text().splitlines() if "uses:" in line]
    assert len(used) == 2
    for line in used:
        assert re.search(r"uses: actions/[a-z-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+$", line), line


@pytest.mark.parametrize("path", [GITHUB, GITHUB_COMMENT], ids=lambda path: path.name)
def test_the_checkout_has_the_history_and_keeps_no_credentials(path: Path) -> None:
    (checkout,) = (step for step in steps(path) if "checkout" in step.get("uses", ""))
    assert checkout["with"] == {"fetch-depth": 0, "persist-credentials": False}


def test_no_text_of_others_is_put_into_a_shell() -> None:
    assert [step["run"] for step in steps() if "${{" in step.get("run", "")] == []
    secrets = {name: value for step in steps() for name, value in step.get("env", {}).items()}
    assert secrets == {"NIGHTLY_WEBHOOK": "${{ secrets.NIGHTLY_WEBHOOK }}"}


def test_the_pipeline_is_one_that_buildkite_takes() -> None:
    (step,) = document(BUILDKITE)["steps"]
    assert set(step) <= set(BUILDKITE_KEYS.split())
    assert (step["concurrency"], step["concurrency_group"]) == (1, "perfbisect/nightly")
    assert not re.search(r"(?<!\$)\$(?![$])", step["command"]), "what is not doubled is replaced on upload"
    assert step["command"].rstrip().endswith("exit $$code")
    assert step["soft_fail"] == [{"exit_status": 4}]


@pytest.mark.parametrize("path", [GITHUB_COMMENT, BUILDKITE_COMMENT], ids=lambda path: path.name)
def test_a_comment_takes_thirty_lines_and_is_in_none(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 30
    # What somebody wrote is in a file, and a condition at most looks at it.
    assert not re.search(r"\$\{\{ *github\.(event|head_ref)", text)
    runs = [step["run"] for step in steps(path) if "run" in step] if path == GITHUB_COMMENT else []
    runs += [step["command"] for step in document(path)["steps"]] if path == BUILDKITE_COMMENT else []
    assert len(runs) == 1 and "${{" not in runs[0] and "eval" not in runs[0]


def test_the_workflow_of_comments_writes_comments_alone() -> None:
    workflow = document(GITHUB_COMMENT)
    assert workflow[True] == {"issue_comment": {"types": ["created"]}}
    assert workflow["permissions"] == {"contents": "read", "pull-requests": "write"}
    (job,) = workflow["jobs"].values()
    assert "issue.pull_request" in job["if"] and job["timeout-minutes"] > 0
    (variables,) = (step["env"] for step in job["steps"] if "env" in step)
    assert variables == {
        "GITHUB_TOKEN": "${{ github.token }}",
        "RULES": ".github/perfbisect-comments.yaml",
    }


def test_the_step_of_comments_is_one_that_buildkite_takes() -> None:
    (step,) = document(BUILDKITE_COMMENT)["steps"]
    assert set(step) <= set(BUILDKITE_KEYS.split())
    assert (step["concurrency"], step["concurrency_group"]) == (1, "perfbisect/comment")
    assert "$" not in step["command"], "what is not doubled is replaced on upload"
    assert step["soft_fail"] == [{"exit_status": 3}, {"exit_status": 4}]


@pytest.mark.parametrize(
    "path", [GITHUB, BUILDKITE, GITHUB_COMMENT, BUILDKITE_COMMENT, CRON], ids=lambda path: path.name
)
def test_no_secret_stands_in_them(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"hooks\.slack|https?://|gh[pousr]_|xox[bp]-|Bearer", text)


def test_every_verb_and_flag_is_there() -> None:
    found = calls()
    assert len(found) >= 4
    for words in found:
        command: click.Command = app
        rest = list(words)
        while isinstance(command, click.Group):
            name = rest.pop(0)
            assert name in command.commands, words
            command = command.commands[name]
        options = {
            name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)
        }
        assert {word for word in rest if word.startswith("-")} <= options, words


def test_the_shell_reads_it() -> None:
    assert os.access(CRON, os.X_OK)
    subprocess.run(["bash", "-n", str(CRON)], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", str(CRON)], check=True)


PRETEND = """#!/usr/bin/env bash
echo "called with $* and ${NIGHTLY_WEBHOOK:-no webhook}"
trap 'echo stopped; exit 130' TERM
if [ -n "${SLOW:-}" ]; then touch "$SLOW"; while :; do sleep 0.02; done; fi
exit "${CODE:-0}"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "nightly.yaml").write_text("name: n\n")
    program = tmp_path / "perfbisect"
    program.write_text(PRETEND)
    program.chmod(0o700)
    return tmp_path


def night(home: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(CRON), str(home / "nightly.yaml"), *words],
        env={"PATH": os.environ["PATH"], "PERFBISECT": str(home / "perfbisect"), **variables},
        capture_output=True, text=True, check=False, cwd=home,
    )  # fmt: skip


def logs(home: Path) -> list[Path]:
    return sorted((home / "logs").glob("nightly-*.log"))


@needs_flock
@pytest.mark.parametrize("code", [0, 3, 5, 130])
def test_the_exit_code_is_the_nights(home: Path, code: int) -> None:
    done = night(home, "--quiet", CODE=str(code))
    assert done.returncode == code
    (log,) = logs(home)
    assert log.read_text().splitlines() == [
        f"called with nightly {home}/nightly.yaml --quiet and no webhook",
        f"exit code {code}",
    ]
    assert log.stat().st_mode & 0o077 == 0
    assert done.stderr == ""
    assert ("called with" in done.stdout) == (code != 0), "cron's mail means something"


@needs_flock
def test_its_environment_is_its_own(home: Path) -> None:
    secrets = home / "nightly.env"
    secrets.write_text("NIGHTLY_WEBHOOK='https://hooks.example/x'\n")
    secrets.chmod(0o644)
    refused = night(home)
    assert (refused.returncode, logs(home)) == (2, [])
    assert f"chmod 600 {secrets}" in refused.stderr
    secrets.chmod(0o600)
    assert night(home).returncode == 0
    assert "and https://hooks.example/x" in logs(home)[0].read_text()


@needs_flock
def test_the_repository_is_fetched_before(home: Path) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        return subprocess.run(
            ["git", *who, *words], cwd=home, capture_output=True, text=True, check=True
        ).stdout

    git("init", "-q", "there")
    git("-C", "there", "commit", "-q", "--allow-empty", "-m", "One")
    git("clone", "-q", "there", "here")
    git("-C", "there", "commit", "-q", "--allow-empty", "-m", "Two")
    trace = home / "trace"
    assert night(home, NIGHTLY_REPO=str(home / "here"), GIT_TRACE=str(trace)).returncode == 0
    assert "git fetch" in trace.read_text()
    assert "maintenance run" not in trace.read_text(), "it would run beside the measurements"
    assert git("-C", "here", "log", "-1", "--format=%s", "origin/HEAD") == "Two\n"
    shutil.rmtree(home / "there")
    done = night(home, NIGHTLY_REPO=str(home / "here"))
    assert done.returncode == 5, "the night was of an old commit"
    assert "called with" in done.stdout
    assert "git fetch failed" in done.stdout
    assert night(home, NIGHTLY_REPO=str(home / "here"), CODE="3").returncode == 3


@needs_flock
def test_old_logs_go(home: Path) -> None:
    (home / "logs").mkdir()
    for day in range(1, 6):
        (home / "logs" / f"nightly-2026010{day}-000000.log").write_text("old")
    (home / "logs" / "notes.log").write_text("mine")
    assert night(home, NIGHTLY_KEEP="3").returncode == 0
    assert [path.name[8:16] for path in logs(home)[:2]] == ["20260104", "20260105"]
    assert len(logs(home)) == 3
    assert (home / "logs" / "notes.log").exists()


@needs_flock
def test_two_at_once_and_a_signal(home: Path) -> None:
    begun = home / "begun"
    first = subprocess.Popen(
        [str(CRON), str(home / "nightly.yaml")],
        env={"PATH": os.environ["PATH"], "PERFBISECT": str(home / "perfbisect"), "SLOW": str(begun)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=home,
    )  # fmt: skip
    try:
        while not begun.exists():
            assert first.poll() is None
            time.sleep(0.01)
        second = night(home)
        assert second.returncode == 5
        assert f"another night is under way: process {first.pid}" in second.stderr
    finally:
        first.send_signal(signal.SIGTERM)
        out, _ = first.communicate()
    assert first.returncode == 130, "the night's own code, not the signal's"
    assert "stopped" in out
    assert night(home).returncode == 0, "the lock went with it"


@pytest.mark.parametrize(
    ("words", "message"),
    [([], "name the nightly.yaml"), (["nowhere.yaml"], "there is no nowhere.yaml")],
)
def test_bad_words(tmp_path: Path, words: list[str], message: str) -> None:
    done = subprocess.run([str(CRON), *words], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr


@needs_flock
def test_a_program_that_is_not_there(home: Path) -> None:
    done = night(home, PERFBISECT=str(home / "nothing"))
    assert done.returncode == 5
    assert "set PERFBISECT" in done.stderr


def test_hooks_hold_what_make_check_holds() -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipe = makefile[makefile.index("\ncheck:") :].split("\n\n")[0].splitlines()[2:]
    tools = [line.replace("$(PY) -m ", "").replace("$(VENV)/bin/", "").split()[:2] for line in recipe]
    (repository,) = document(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}
    entries = [hook["entry"] for hook in repository["hooks"]]
    assert len(tools) == len(entries) == 5
    for tool, entry in zip(tools, entries, strict=True):
        assert all(word in entry for word in tool)


@pytest.mark.parametrize("podman", ["echo 'cannot clone: Operation not permitted' >&2; exit 125", None])
def test_images_are_not_skipped_where_no_container_runs(tmp_path: Path, podman: str | None) -> None:
    """The target ends with an error that has the tool's own words, or says that there is no tool."""
    for name in ("git", "ldd", "bash", "cat"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    for name in ("podman", "crun") if podman else ():
        (tmp_path / name).write_text(f"#!/bin/sh\n{podman}\n")
        (tmp_path / name).chmod(0o755)
    tests = ROOT / "tests" / "images" / "test_image_builder.py"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "images", f"{tests}::test_a_release"]
    env = {**os.environ, "PATH": str(tmp_path), "IMAGE_TOOL": "podman"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert "skipped" not in done.stdout
    if podman:
        assert "podman runs no container here (podman needs user namespaces" in done.stdout
        assert "overlay, crun: cannot clone: Operation not permitted" in done.stdout
    else:
        assert "there is no podman: make test-images installs" in done.stdout


def test_a_fleet_is_not_skipped_where_its_programs_are_missing(tmp_path: Path) -> None:
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    words = ["make", "-o", ".venv/.perfbisect-stamp", "test-fleet", "FLEET_TOOLS=ls no-such-daemon"]
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    env = ours | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "missing: no-such-daemon (Debian, Ubuntu: apt install openssh-server" in done.stderr
    assert done.stdout == ""


def test_the_checks_of_ci_are_targets() -> None:
    found = re.search(r"^for target in (.+); do$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert found is not None
    targets = found[1].split()
    makefile = (ROOT / "Makefile").read_text()
    suites = set(re.findall(r"^(test[a-z-]*): \$\(STAMP\)", makefile, re.MULTILINE))
    # What `make test` runs is traced in part.
    assert suites >= {"test", "test-others", "test-processes", "test-vllm"}
    assert set(targets) == {"check", "coverage", *suites} - {"test"}
    assert "\ncheck: $(STAMP)" in makefile


def test_each_marker_that_make_test_leaves_out_is_of_another_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    left_out = re.search(r"^SHORT := (not [a-z ]+)$", makefile, re.MULTILINE)
    assert left_out is not None
    markers = left_out[1].removeprefix("not ").split(" and not ")
    others = re.findall(r'(?:pytest|PYTEST\)) -m "?([a-z ]+)', makefile)
    assert set(markers) <= {words.split()[0] for words in others}
