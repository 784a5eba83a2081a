"""Prove perfbisect on a GPU in two visits: what was planted is compared with what is found.

    python -m scripts.gpu.proof first|second|STEP... (--kit FOLDER | --python INTERPRETER | --pretend)

    first    install, smoke, history, launch, bisect, claim
    second   install, smoke, history, doctor, tenant, kill

``same`` (two equal commits) may take the place of ``claim``. A step that held is not done again, a job that
was cut off is resumed: after exit code 75 (out of time) the same command goes on. 0: every step holds. 1: one
does not. Results and journals are in OUT: ``proof.json``, ``proof.log``, ``repo.json``, ``state.tar.gz``.

Uses the standard library alone: it starts before anything is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.gpu.world import Kit, Pretend, StepFailedError, World

HOLDS, FAILS, OUT_OF_TIME = 0, 1, 75
ENDINGS = {HOLDS: "the proof holds", FAILS: "the proof does NOT hold", OUT_OF_TIME: "to be continued"}
SAME, DIFFERENT, UNDECIDED = 0, 3, 4
"""Exit codes of perfbisect that are verdicts; a bisection that names a culprit ends with DIFFERENT."""

VISITS = {
    "first": ("install", "smoke", "history", "launch", "bisect", "claim"),
    "second": ("install", "smoke", "history", "doctor", "tenant", "kill"),
}
LEAST_S = 20.0
"""A step is not begun with less time left."""
MOST_S = 600.0
_END_S = 5.0
"""Seconds for bringing results home."""
_LARGEST_FILE = 8 * 2**20
"""Bytes; larger files of a job stay behind."""


class OutOfTimeError(Exception):
    """The step goes on when the same command is given again."""


@dataclass
class Proof:
    """The steps over one world; ``document``: what is known, kept in ``proof.json`` of the work folder."""

    world: World
    deadline: float
    dry_run: bool = False
    document: dict[str, Any] = field(default_factory=lambda: {"steps": {}, "jobs": {}})

    @property
    def work(self) -> Path:
        return self.world.work

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def say(self, text: str) -> None:
        """A line of progress, also in ``proof.log``."""
        line = f"{time.strftime('%H:%M:%S')} {text}"
        print(line, flush=True)
        with (self.work / "proof.log").open("a") as log:
            log.write(line + "\n")

    def save(self) -> None:
        """Write ``proof.json``."""
        (self.work / "proof.json").write_text(json.dumps(self.document, indent=1) + "\n")

    def run(self, steps: Sequence[str]) -> int:
        """Do the steps that did not hold yet, in order, until one fails or the time is over."""
        for step in steps:
            if self.document["steps"].get(step, {}).get("holds"):
                continue
            began = time.monotonic()
            self.say(f"{step} ...")
            try:
                if self.left < LEAST_S:
                    raise OutOfTimeError
                holds, facts = STEPS[step](self)
            except OutOfTimeError:
                self.say(f"{step}: out of time; give the same command again")
                return OUT_OF_TIME
            except (StepFailedError, OSError, subprocess.SubprocessError) as error:
                holds, facts = False, {"error": str(error)}
            seconds = round(time.monotonic() - began, 1)
            self.document["steps"][step] = {"holds": holds, "seconds": seconds, **facts}
            self.save()
            ending = "holds" if holds else "DOES NOT HOLD"
            self.say(f"{step}: {ending} ({seconds} s) {json.dumps(facts)[:1500]}")
            if not holds:
                return FAILS
        return HOLDS

    def perfbisect(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Run perfbisect with ``--json``; returns its exit code and document.

        Raises:
            StepFailedError: it printed no document.
        """
        self.say("$ perfbisect " + " ".join(arguments))
        with (self.work / "proof.log").open("a") as log:
            done = subprocess.run(
                self.world.perfbisect(*arguments, "--json"),
                cwd=self.work,
                env=self.world.environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                check=False,
                timeout=MOST_S,
            )
        try:
            return done.returncode, json.loads(done.stdout)
        except ValueError:
            raise StepFailedError(
                f"perfbisect {arguments[0]} ended with {done.returncode} and no JSON: see proof.log"
            ) from None

    def job(self, step: str, *arguments: str) -> Mapping[str, Any]:
        """The status of a job that ended; it is started, or resumed, and waited for.

        Raises:
            OutOfTimeError: it runs on.
        """
        job = self.document["jobs"].get(step)
        if job is None:
            job = self.start(step, *arguments)["job"]
        elif self.status(job)["state"] == "unfinished":
            self._begun(self.perfbisect("resume", job, "--detach"))
        minutes = max(1.0, self.left - _END_S) / 60
        status = self.status(job, "--wait", "--timeout", f"{minutes:.2f}m")
        if status["state"] == "running":
            raise OutOfTimeError
        return status

    def start(self, step: str, *arguments: str) -> Mapping[str, Any]:
        """Start a job in the background and keep its id."""
        document = self._begun(self.perfbisect(*arguments, *self._options(), "--detach"))
        self.document["jobs"][step] = document["job"]
        self.save()
        return document

    def plan(self, *arguments: str) -> Outcome:
        """The plan of a command in place of its job."""
        code, document = self.perfbisect(*arguments, *self._options(), "--dry-run")
        return code == 0, {"exit_code": code, "plan": document}

    def _options(self) -> tuple[str, ...]:
        """Repository, environment and client of every job."""
        return "--repo", self.planted["repo"], *self.world.options(self.planted["good"])

    def _begun(self, answer: tuple[int, dict[str, Any]]) -> Mapping[str, Any]:
        code, document = answer
        if code != 0 or "job" not in document:
            raise StepFailedError(f"exit code {code}: {document.get('error')} (next: {document.get('next')})")
        return document

    def status(self, job: str, *options: str) -> Mapping[str, Any]:
        """The document of ``perfbisect status``."""
        code, document = self.perfbisect("status", job, *options)
        if code != 0:
            raise StepFailedError(f"status ended with {code}: {document.get('error')}")
        return document

    def wait_event(self, job: str, kinds: Sequence[str], seconds: float) -> dict[str, Any]:
        """The data of a job's first event of these kinds; StepFailedError if there is none in time."""
        journal = self.work / "state" / "jobs" / job / "journal.jsonl"
        end = time.monotonic() + min(seconds, self.left - _END_S)
        while time.monotonic() < end:
            for line in journal.read_text().splitlines(keepends=True):
                if line.endswith("\n") and (event := json.loads(line))["event"] in kinds:
                    data: dict[str, Any] = event["data"]
                    return data
            time.sleep(0.05)
        raise StepFailedError(f"no event {' or '.join(kinds)} in {journal} in time")

    @property
    def planted(self) -> dict[str, str]:
        """The repository with its ends, the slow commit, and one that is equal to the good end."""
        facts: dict[str, str] = json.loads((self.work / "repo.json").read_text())
        return facts


Outcome = tuple[bool, dict[str, Any]]
"""Whether a step holds, and what was seen."""

_NO_PLAN: Outcome = (True, {"plan": None})


def install(proof: Proof) -> Outcome:
    """vLLM, perfbisect's dependencies, git and the stand-in for uv; cells and models."""
    facts = proof.world.install(proof.say)
    if not proof.dry_run:
        proof.world.record_driver("idle")
    return True, facts


def smoke(proof: Proof) -> Outcome:
    """Kernels of the installed vLLM give what torch gives; in a dry run its files are imported only."""
    command = proof.world.smoke(imports_only=proof.dry_run)
    if command is None:
        return True, {"pretend": True}
    done = subprocess.run(
        command,
        cwd=proof.work,
        env=proof.world.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=min(MOST_S, proof.left),
    )
    return done.returncode == 0, {"output": (done.stdout + done.stderr)[-4000:]}


def history(proof: Proof) -> Outcome:
    """A repository with one slow commit, and what was planted, in ``repo.json``."""
    shutil.rmtree(proof.work / "repo", ignore_errors=True)
    facts = proof.world.history(proof.work / "repo")
    (proof.work / "repo.json").write_text(json.dumps(facts, indent=1) + "\n")
    return True, {"planted": facts["planted"]}


def launch(proof: Proof) -> Outcome:
    """One launch of the good end gives a value."""
    if proof.dry_run:
        return _NO_PLAN
    status = proof.job("launch", "run", "./latency.yaml", "--at", proof.planted["good"])
    document = job_document(status)
    values = [row["value"] for row in document.get("launches", ())]
    facts = {"values": values, "versions": document.get("versions")}
    return status["exit_code"] == 0, {**ending(status), **facts}


def bisect(proof: Proof) -> Outcome:
    """The planted commit, and no other, is named."""
    planted = proof.planted
    ends = ("--good", planted["good"], "--bad", planted["bad"])
    command = ("bisect", "./latency.yaml", *ends, "--budget", "20m")
    if proof.dry_run:
        return proof.plan(*command)
    status = proof.job("bisect", *command)
    document = job_document(status)
    culprit = (document.get("culprit") or {}).get("id")
    facts = {key: document.get(key) for key in ("outcome", "probability")}
    facts |= {"culprit": culprit, "planted": planted["planted"]}
    holds = status["exit_code"] == DIFFERENT and culprit == planted["planted"]
    return holds, {**ending(status), **facts}


def same(proof: Proof) -> Outcome:
    """Two equal commits are not called different."""
    planted = proof.planted
    sides = ("--a", planted["good"], "--b", planted["equal"], "--blocks", "3", "--budget", "9m")
    return comparison(proof, (SAME, UNDECIDED), "compare", "./latency.yaml", *sides)


def claim(proof: Proof) -> Outcome:
    """The claim gets a verdict, whichever it is."""
    limits = ("--blocks", "4", "--budget", "9m")
    return comparison(proof, (SAME, DIFFERENT, UNDECIDED), "verify", "./claim.yaml", *limits)


def comparison(proof: Proof, verdicts: Sequence[int], *command: str) -> Outcome:
    """Whether a comparison ends with one of these exit codes; in a dry run, whether it has a plan."""
    if proof.dry_run:
        return proof.plan(*command)
    status = proof.job(command[0], *command)
    return status["exit_code"] in verdicts, {**ending(status), "verdict": job_document(status).get("verdict")}


def doctor(proof: Proof) -> Outcome:
    """The machine is fit, and its devices are listed."""
    code, document = proof.perfbisect("doctor")
    checks = {check["name"]: f"{check['state']}: {check['found']}" for check in document.get("checks", ())}
    return code == 0 and "devices" in checks, {"exit_code": code, "checks": checks}


def tenant(proof: Proof) -> Outcome:
    """A launch beside another program on the device is discarded; when that has ended, one counts."""
    if proof.dry_run:
        return _NO_PLAN
    other = proof.world.tenant()
    try:
        proof.world.record_driver("tenant")
        started = proof.start("tenant", "run", "./latency.yaml", "--at", proof.planted["good"])
        event = proof.wait_event(started["job"], ("failed", "finished"), MOST_S)
    finally:
        other.kill()
        other.wait()
    failure = event["attempt"].get("failure") or {}
    status = proof.job("tenant")
    facts = {"code": failure.get("code"), "reason": failure.get("reason")}
    return failure.get("code") == "load_exceeded" and status["exit_code"] == 0, {**ending(status), **facts}


def kill(proof: Proof) -> Outcome:
    """After kill -9 in a launch the job is unfinished; resumed, it ends its old server and gives a value."""
    if proof.dry_run:
        return _NO_PLAN
    started = proof.start("kill", "run", "./latency.yaml", "--at", proof.planted["good"])
    server = proof.wait_event(started["job"], ("launched",), MOST_S)["pid"]
    os.kill(started["pid"], signal.SIGKILL)
    while is_alive(started["pid"]):
        time.sleep(0.05)
    facts = {"server_outlived": is_alive(server), "state": proof.status(started["job"])["state"]}
    status = proof.job("kill")
    facts["server_ended"] = not is_alive(server)
    holds = facts["state"] == "unfinished" and facts["server_ended"] and status["exit_code"] == 0
    return holds, {**ending(status), **facts}


STEPS: Mapping[str, Callable[[Proof], Outcome]] = {
    step.__name__: step
    for step in (install, smoke, history, launch, bisect, same, claim, doctor, tenant, kill)
}


def ending(status: Mapping[str, Any]) -> dict[str, Any]:
    """How a job ended."""
    return {key: status.get(key) for key in ("exit_code", "minutes", "error")}


def job_document(status: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a job, or nothing where it has none."""
    try:
        document: dict[str, Any] = json.loads(Path(status["result"]).read_text())
    except (OSError, TypeError, ValueError):
        return {}
    return document


def is_alive(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def bring_home(work: Path, out: Path) -> None:
    """Copy results and logs to ``out``; journals, logs and raw results of jobs as one archive."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("proof.json", "proof.log", "repo.json"):
        if (work / name).exists():
            shutil.copy(work / name, out / name)
    with tarfile.open(out / "state.tar.gz", "w:gz") as archive:
        for name in ("state", "driver"):
            if (work / name).exists():
                archive.add(
                    work / name, name, filter=lambda entry: entry if entry.size <= _LARGEST_FILE else None
                )


def main(argv: Sequence[str] | None = None) -> int:
    """Do the steps that are left; returns the exit code."""
    began = time.monotonic()
    temporary, out = Path(tempfile.gettempdir()), os.environ.get("OUT")
    parser = argparse.ArgumentParser(prog="gpu_proof.sh", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("steps", nargs="+", choices=[*VISITS, *STEPS], metavar="STEP", help="first, second, or steps by name")
    add("--kit", type=Path, help="the folder that gpu_kit.sh made")
    add("--python", type=Path, help="an interpreter that has vLLM and perfbisect's dependencies")
    add("--pretend", action="store_true", help="the pretend engine and a pretend driver")
    add("--dry-run", action="store_true", help="what needs no device: imports and plans")
    add("--commits", type=int, default=12, help="of the planted history")
    add("--share", type=float, default=0.10, help="of a step, which the slow commit takes once more")
    add("--limit", type=float, default=560.0, help="seconds of this call")
    add("--work", type=Path, default=temporary / "perfbisect-proof", help="kept between calls")
    add("--out", type=Path, default=Path(out) if out else None, help="[default: $OUT, else WORK/out]")
    options = parser.parse_args(argv)
    work: Path = options.work.absolute()
    world: World
    if options.pretend:
        world = Pretend(work, options.commits)
    elif options.kit or options.python:
        places = [path and path.absolute() for path in (options.kit, options.python)]
        world = Kit(work, options.commits, *places, share=options.share)
    else:
        parser.error("say --kit, --python or --pretend")
    work.mkdir(parents=True, exist_ok=True)
    proof = Proof(world, began + min(options.limit, MOST_S), options.dry_run)
    if (work / "proof.json").exists():
        proof.document = json.loads((work / "proof.json").read_text())
    steps = list(dict.fromkeys(step for name in options.steps for step in VISITS.get(name, (name,))))
    try:
        code = proof.run(steps)
    finally:
        proof.save()
        bring_home(work, (options.out or work / "out").absolute())
    proof.say(f"{ENDINGS[code]}: {' '.join(steps)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
