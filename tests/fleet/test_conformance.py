"""What :class:`perfbisect.fleet.folders.FolderFleet` keeps on every engine, whatever is killed or lost.

``make test`` asks it of folders of this host, ``make test-fleet`` of a real sshd, Slurm and Ray.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import perfbisect
from perfbisect.cells.loading import load_cell
from perfbisect.errors import MachineError
from perfbisect.fleet.agent import HEARTBEAT, MANIFEST, read_manifest
from perfbisect.fleet.bundle import Bundle, BundledLaunch, BundleState, Ticket, UnreachableError
from perfbisect.fleet.folders import FolderFleet
from perfbisect.jobs.machines import choose_slots
from perfbisect.jobs.plans import MeasurementConfig, cell_data
from perfbisect.measure.attempt import read_attempt
from perfbisect.model.change import Change
from tests.fakes.history import ENGINE, make_history
from tests.fleet.driver import CELL
from tests.fleet.sites import MACHINES, SOME_SITES, Site, await_that

UNKNOWN = "0" * 32

every_site = pytest.mark.parametrize("site", SOME_SITES, indirect=True)


def bundle(token: str, *changes: str, setting: MeasurementConfig | None = None) -> Bundle:
    cell = load_cell(str(CELL))
    return Bundle(
        cell=cell_data(cell),
        digest=cell.digest,
        setting=setting or MeasurementConfig(environment="existing:nowhere"),
        metric=cell.headline,
        token=token,
        launches=tuple(BundledLaunch(change=Change(sha), runs=1) for sha in changes or ("a" * 40,)),
        limit=5.0,
    )


def state_of(fleet: FolderFleet, ticket: Ticket, *kinds: str) -> BundleState:
    """The state once it is one of these."""
    seen: list[BundleState] = []

    def is_there() -> bool:
        seen.append(fleet.state(ticket))
        return seen[-1].kind in kinds

    await_that(is_there, f"{ticket} does not become {kinds}")
    return seen[-1]


def submit_and_serve(site: Site, fleet: FolderFleet, token: str) -> Ticket:
    """A bundle on the machine "fast" whose launch goes on until it is released."""
    site.hold()
    ticket = Ticket(token, "fast")
    fleet.submit(ticket, bundle(token))
    await_that(lambda: bool(site.servers(token)), "no server was started")
    # The server is there a moment before the machine says that it is ready.
    await_that(lambda: fleet.state(ticket) == BundleState("running", "bench"), f"{ticket} is not benchmarked")
    return ticket


def fetched(fleet: FolderFleet, ticket: Ticket, into: Path) -> list[str]:
    """The outcomes of the launches of a bundle, once its folder is here."""
    assert fleet.fetch(ticket, into)
    manifest = read_manifest(into)
    assert manifest is not None
    return [launch.outcome for launch in manifest.launches]


def is_unreachable(fleet: FolderFleet, ticket: Ticket, into: Path) -> bool:
    """Whether every function says that a machine does not answer, and none that it has nothing."""
    calls: list[Callable[[], object]] = [
        lambda: fleet.state(ticket),
        lambda: fleet.find(ticket.token),
        lambda: fleet.fetch(ticket, into),
        lambda: fleet.cancel(ticket, 1.0),
        lambda: fleet.submit(ticket, bundle(ticket.token)),
    ]
    for call in calls:
        with pytest.raises(UnreachableError, match="does not answer"):
            call()
    return True


@every_site
def test_machines_are_listed_with_class_slots_and_version(site: Site) -> None:
    site.clean()
    listed = {machine.name: machine for machine in site.fleet().machines()}
    assert sorted(listed) == sorted(MACHINES)
    for name, machine in listed.items():
        assert (machine.problem, machine.machine_class) == ("", "quick")
        assert (machine.version, machine.devices, len(machine.slots)) == (perfbisect.__version__, (name,), 1)
    chosen = choose_slots(tuple(listed.values()))
    assert sorted(slot.machine for slot in chosen.slots) == sorted(MACHINES)


@every_site
def test_a_bundle_that_is_submitted_twice_is_measured_once(site: Site, token: str, tmp_path: Path) -> None:
    fleet = site.fleet()
    ticket = submit_and_serve(site, fleet, token)
    again = site.fleet()
    again.submit(Ticket(token, "fast"), bundle(token))
    site.release()
    state_of(fleet, ticket, "ended")
    again.submit(Ticket(token, "fast"), bundle(token))
    assert again.state(ticket).kind == "ended"
    assert len(site.measured()) == 1
    assert fetched(fleet, ticket, tmp_path) == ["measured"]


@every_site
def test_a_folder_is_fetched_whole_and_what_is_there_is_not_copied_again(
    site: Site, token: str, tmp_path: Path
) -> None:
    fleet = site.fleet()
    ticket = Ticket(token, "slow")
    fleet.submit(ticket, bundle(token, "a" * 40, "b" * 40))
    state_of(fleet, ticket, "ended")
    assert fetched(fleet, ticket, tmp_path) == ["measured", "measured"]
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert {f"attempts/001/{name}" for name in ("newest.log", "again.log", "odd name\n.txt")} <= set(
        manifest.files
    )
    copied = {path: (tmp_path / path).stat().st_mtime_ns for path in manifest.files}
    assert fleet.fetch(ticket, tmp_path)
    assert {path: (tmp_path / path).stat().st_mtime_ns for path in manifest.files} == copied
    lost = ["attempts/001/result.json", "attempts/002/attempt.json"]
    (tmp_path / lost[0]).write_bytes(b"x" * 500)
    (tmp_path / lost[1]).unlink()
    (tmp_path / MANIFEST).unlink()
    assert fetched(site.fleet(), ticket, tmp_path) == ["measured", "measured"]
    after = {path: (tmp_path / path).stat().st_mtime_ns for path in manifest.files}
    assert sorted(path for path in copied if after[path] != copied[path]) == lost


@every_site
def test_a_bundle_is_cancelled_while_it_runs_and_again(site: Site, token: str, tmp_path: Path) -> None:
    fleet = site.fleet()
    ticket = submit_and_serve(site, fleet, token)
    fleet.cancel(ticket, 20.0)
    assert not site.living(token)
    assert fleet.state(ticket).kind == "ended"
    fleet.cancel(ticket, 20.0)
    assert fetched(fleet, ticket, tmp_path) == ["lost"]
    assert (tmp_path / "attempts" / "001" / "server.log").read_text() == "a server\n"
    fleet.submit(ticket, bundle(token))
    assert len(site.measured()) == 1


@every_site
def test_a_bundle_that_was_sent_and_not_started_is_gone_and_never_starts_once_cancelled(
    site: Site, token: str, tmp_path: Path
) -> None:
    fleet, ticket = site.fleet(), Ticket(token, "fast")
    host = fleet.host(ticket.machine)
    host.put_request(host.bundle(token), bundle(token).model_dump_json(by_alias=True).encode())
    assert fleet.find(token) == ticket
    assert fleet.state(ticket).kind == "gone"
    for _ in range(2):
        fleet.cancel(ticket, 5.0)
        assert fleet.state(ticket).kind == "gone"
    fleet.submit(ticket, bundle(token))
    await_that(lambda: fleet.state(ticket).kind == "gone", "a cancelled bundle has begun")
    assert site.measured() == []
    assert not fleet.fetch(ticket, tmp_path)


@every_site
def test_a_bundle_is_found_by_its_token_on_its_machine(site: Site, token: str) -> None:
    fleet = site.fleet()
    assert fleet.find(token) is None
    fleet.submit(Ticket(token, "slow"), bundle(token))
    ticket = site.fleet().find(token)
    assert ticket is not None
    assert (ticket.token, ticket.machine) == (token, "slow")
    assert fleet.find(UNKNOWN) is None
    state_of(fleet, ticket, "ended")


@every_site
def test_what_a_killed_agent_left_is_ended_and_its_launch_is_lost(
    site: Site, token: str, tmp_path: Path
) -> None:
    fleet = site.fleet()
    ticket = submit_and_serve(site, fleet, token)
    site.kill_agent(token)
    assert site.servers(token)
    assert "fast" in state_of(fleet, ticket, "gone").why
    fleet.cancel(ticket, 5.0)
    assert not site.living(token)
    assert fetched(fleet, ticket, tmp_path) == ["lost"]
    assert len(site.measured()) == 1


@every_site
def test_an_agent_that_the_kernel_kills_is_gone(site: Site, token: str, tmp_path: Path) -> None:
    """As for want of memory: the script that started the agent lives and notes its exit code."""
    fleet = site.fleet()
    ticket = submit_and_serve(site, fleet, token)
    site.agents(token)[-1].kill()
    assert "killed" in state_of(fleet, ticket, "gone").why
    assert site.servers(token)
    fleet.cancel(ticket, 5.0)
    assert not site.living(token)
    assert fetched(fleet, ticket, tmp_path) == ["lost"]


@every_site
def test_an_agent_that_is_killed_before_its_plan_measures_nothing_when_it_is_closed(
    site: Site, token: str, tmp_path: Path
) -> None:
    fleet = site.fleet()
    ticket = submit_and_serve(site, fleet, token)
    site.kill_agent(token)
    for server in site.servers(token):
        server.kill()
    (site.run_folder(token) / "journal.jsonl").write_text('{"schema":1,"se')
    site.release()
    state_of(fleet, ticket, "gone")
    fleet.cancel(ticket, 5.0)
    assert len(site.measured()) == 1
    assert not fleet.fetch(ticket, tmp_path)


@every_site
def test_a_launch_whose_server_is_killed_ends_with_its_failure(
    site: Site, token: str, tmp_path: Path
) -> None:
    fleet = site.fleet()
    ticket = submit_and_serve(site, fleet, token)
    (server,) = site.servers(token)
    server.kill()
    state_of(fleet, ticket, "ended")
    assert fetched(fleet, ticket, tmp_path) == ["measured"]
    attempt = read_attempt(tmp_path / "attempts" / "001")
    assert attempt is not None and attempt.failure is not None
    assert (attempt.failure.phase, attempt.failure.fault) == ("bench", "machine")


@every_site
def test_a_full_disk_fails_a_bundle_until_there_is_room(site: Site, token: str, tmp_path: Path) -> None:
    fleet = site.fleet()
    ticket = submit_and_serve(site, fleet, token)
    site.fill_disk("fast", token)
    site.release()
    state_of(fleet, ticket, "failed", "gone")
    with pytest.raises(MachineError, match="cannot be closed on fast"):
        fleet.cancel(ticket, 5.0)
    assert not site.living(token)
    assert not fleet.fetch(ticket, tmp_path)
    site.set_variables("fast", "")
    fleet.cancel(ticket, 5.0)
    assert fetched(fleet, ticket, tmp_path) == ["lost"]


@every_site
@pytest.mark.parametrize("clock", ["2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z"])
def test_the_clock_of_a_machine_decides_nothing(site: Site, token: str, tmp_path: Path, clock: str) -> None:
    """Its agent writes other times, and its files have others: no state is read out of them."""
    site.set_variables("fast", f"export PERFBISECT_NOW={clock}\n")
    fleet = site.fleet()
    ticket = submit_and_serve(site, fleet, token)
    folder = site.run_folder(token)
    assert clock[:10] in (folder / HEARTBEAT).read_text()
    for path in (folder, folder.parent, *folder.rglob("*")):
        os.utime(path, (0, 0) if clock < "2050" else (4e9, 4e9))
    assert fleet.state(ticket) == BundleState("running", "bench")
    site.release()
    state_of(fleet, ticket, "ended")
    assert fetched(fleet, ticket, tmp_path) == ["measured"]
    manifest = read_manifest(tmp_path)
    assert manifest is not None and manifest.launches[0].began.startswith(clock[:10])


@pytest.mark.parametrize(
    "site", [pytest.param("folders", marks=pytest.mark.processes), *SOME_SITES[1:]], indirect=True
)
def test_the_real_agent_measures_on_each_machine(site: Site, token: str, tmp_path: Path) -> None:
    site.use_real_agent()
    history = make_history(tmp_path / "repo", commits=1, slow=None)
    setting = MeasurementConfig(
        repository=str(history.path),
        environment=f"overlay:{sys.executable},base=any",
        client=f"existing:{sys.executable},path={ENGINE}",
        machine="cpu",
    )
    fleet = site.fleet()
    machines = {machine.name: machine for machine in fleet.machines()}
    assert {machine.problem for machine in machines.values()} == {""}
    tickets = [Ticket(token[:-1] + digit, name) for digit, name in zip("01", MACHINES, strict=True)]
    for ticket in tickets:
        fleet.submit(ticket, bundle(ticket.token, history.good, setting=setting))
    for ticket in tickets:
        state_of(fleet, ticket, "ended", "failed", "gone")
        into = tmp_path / ticket.machine
        into.mkdir()
        assert fleet.fetch(ticket, into)
        attempt = read_attempt(into / "attempts" / "001")
        assert attempt is not None and attempt.failure is None
        assert attempt.provenance.machine_class == machines[ticket.machine].machine_class
    await_that(
        lambda: not any(site.living(ticket.token) for ticket in tickets), "the real agent leaves something"
    )
