"""``fetch: true`` of a nightly: its remote is asked for what is new before the night looks for its commit."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from perfbisect.cli.place import Place
from perfbisect.cli.signals import interruptible
from perfbisect.config.nightly import NightlyFile
from perfbisect.errors import Interrupted, MachineError, RevisionError
from perfbisect.jobs.nightly_hands import Done
from perfbisect.system.git import Repository
from perfbisect.system.git_fetch import fetch, remote_of


def fetched(file: NightlyFile, here: Place) -> Callable[[], Done] | None:
    """What came of it, as a step of the night: without the net it is a night of what is there, and says so.

    None where the file asks for nothing.

    :raises LocatedError: the branch is of no remote.
    :raises Interrupted: Ctrl-C; nothing was begun.
    """
    rules, repository = file.nightly, here.needed_repository()
    if not rules.fetch:
        return None
    remote, before = remote_of(repository, rules.branch), _tip(repository, rules.branch)
    if not remote:
        raise file.wrong(
            ("fetch",),
            f"a fetch moves no {rules.branch!r}, which is no branch of a remote",
            "true with a branch such as origin/main; or false",
        )
    failure: MachineError | None = None
    with interruptible(lambda _: _interrupted(file)):
        try:
            fetch(repository, remote, here.state / "nightly" / rules.name / "fetch.log")
        except MachineError as error:
            failure = error
    after = _tip(repository, rules.branch)

    def step() -> Done:
        if failure is not None:
            raise failure
        was = "as before" if before == after else f"was {before[:12] or 'not there'}"
        return Done(f"{rules.branch} is {after[:12]}, {was}")

    return step


def _tip(repository: Repository, branch: str) -> str:
    """The commit of a branch; empty where there is no such branch, which the night itself tells."""
    try:
        return repository.resolve(branch).id
    except RevisionError:
        return ""


def _interrupted(file: NightlyFile) -> Interrupted:
    return Interrupted(
        f"nightly {file.nightly.name} was interrupted while it fetched: nothing was begun",
        next_step=shlex.join(["perfbisect", "nightly", str(file.file)]),
    )
