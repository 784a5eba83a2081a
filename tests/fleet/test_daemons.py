"""What becomes of a bundle when sshd, slurmctld or a node is killed, and started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.errors import MachineError
from perfbisect.fleet.bundle import Ticket, UnreachableError
from perfbisect.fleet.folders import FolderFleet
from perfbisect.fleet.slurm import SlurmOptions, slurm_hosts
from tests.fleet.sites import SlurmSite, SshSite, await_that
from tests.fleet.test_conformance import bundle, fetched, is_unreachable, state_of, submit_and_serve

pytestmark = pytest.mark.fleet

ssh = pytest.mark.parametrize("site", ["ssh"], indirect=True)
slurm = pytest.mark.parametrize("site", ["slurm"], indirect=True)


def cancel_when_reached(fleet: FolderFleet, ticket: Ticket, grace: float) -> None:
    """As the executor does: a node refuses numbers of jobs that it has seen, until they are past."""

    def is_cancelled() -> bool:
        try:
            fleet.cancel(ticket, grace)
        except UnreachableError:
            return False
        return True

    await_that(is_cancelled, f"{ticket} cannot be cancelled", 120.0)


@ssh
def test_an_agent_outlives_its_connection(site: SshSite, token: str, tmp_path: Path) -> None:
    fleet = site.fleet()
    ticket = submit_and_serve(site, fleet, token)
    assert site.kill_connections() > 0
    assert fleet.state(ticket).kind == "running"
    assert len(site.agents(token)) == 2
    site.release()
    state_of(fleet, ticket, "ended")
    site.kill_connections()
    assert fetched(fleet, ticket, tmp_path) == ["measured"]


@ssh
def test_a_machine_whose_sshd_is_gone_is_unreachable_until_it_is_back(
    site: SshSite, token: str, tmp_path: Path
) -> None:
    fleet = site.fleet()
    ticket = submit_and_serve(site, fleet, token)
    site.stop()
    try:
        assert is_unreachable(fleet, ticket, tmp_path)
        listed = fleet.machines()
        assert [machine.slots for machine in listed] == [(), ()]
        assert all("does not answer" in machine.problem for machine in listed)
    finally:
        site.start()
    assert fleet.state(ticket).kind == "running"
    site.release()
    state_of(fleet, ticket, "ended")
    assert fetched(fleet, ticket, tmp_path) == ["measured"]


@ssh
def test_a_machine_that_was_restarted_has_lost_its_bundle(site: SshSite, token: str, tmp_path: Path) -> None:
    fleet = site.fleet()
    ticket = submit_and_serve(site, fleet, token)
    site.stop()
    try:
        for process in site.living(token):
            process.kill()
        await_that(lambda: not site.living(token), "a killed agent lives")
        with pytest.raises(UnreachableError):
            fleet.state(ticket)
    finally:
        site.start()
    assert fleet.state(ticket).kind == "gone"
    fleet.cancel(ticket, 5.0)
    assert fetched(fleet, ticket, tmp_path) == ["lost"]
    assert len(site.measured()) == 1


@slurm
def test_a_bundle_that_waits_for_its_node_is_cancelled(site: SlurmSite, token: str, tmp_path: Path) -> None:
    fleet = site.fleet()
    first = submit_and_serve(site, fleet, token)
    second = Ticket(token[::-1], "fast")
    for _ in range(2):
        fleet.submit(second, bundle(second.token))
    assert fleet.state(second).kind == "waiting"
    for _ in range(2):
        fleet.cancel(second, 5.0)
        assert fleet.state(second).kind == "gone"
    site.release()
    state_of(fleet, first, "ended")
    assert len(site.measured()) == 1
    assert not fleet.fetch(second, tmp_path)


@slurm
def test_a_job_that_slurm_refuses_is_not_a_silent_controller(site: SlurmSite, token: str) -> None:
    shared, agent = str(site.folder / "shared"), str(site.folder / "agent")
    host, _ = slurm_hosts(SlurmOptions(constraint="no&such"), shared, (agent,))
    request = bundle(token)
    host.put_request(host.bundle(token), request.model_dump_json(by_alias=True).encode())
    with pytest.raises(MachineError, match="sbatch failed") as raised:
        host.start(request, host.agent("run"))
    assert not isinstance(raised.value, UnreachableError)


@slurm
def test_jobs_go_on_without_the_controller(site: SlurmSite, token: str, tmp_path: Path) -> None:
    fleet = site.fleet()
    ticket = submit_and_serve(site, fleet, token)
    site.save_jobs()
    site.kill_controller()
    try:
        with pytest.raises(UnreachableError, match="Slurm does not answer"):
            fleet.state(ticket)
        with pytest.raises(UnreachableError, match="Slurm does not answer"):
            fleet.cancel(ticket, 1.0)
        with pytest.raises(UnreachableError):
            site.fleet().find(token)
    finally:
        site.start_controller()
    await_that(lambda: site.node_state("fast") not in ("", "unknown"), "slurmctld does not answer")
    assert len(site.agents(token)) == 2
    site.release()
    state_of(fleet, ticket, "ended")
    assert fetched(fleet, ticket, tmp_path) == ["measured"]


@slurm
def test_a_job_that_the_controller_forgot_is_known_by_its_token(
    site: SlurmSite, token: str, tmp_path: Path
) -> None:
    """Its agent lives on where slurmd is away too."""
    fleet = site.fleet()
    ticket = submit_and_serve(site, fleet, token)
    site.kill_slurmd("fast")
    site.kill_controller()
    site.start_controller(forgets=True)
    site.await_node("slow")
    assert len(site.agents(token)) == 2
    assert site.fleet().find(token) == Ticket(token, "fast")
    assert fleet.state(ticket).kind == "gone"
    with pytest.raises(UnreachableError):
        fleet.cancel(ticket, 1.0)
    site.start_node("fast")
    cancel_when_reached(fleet, ticket, 10.0)
    assert not site.living(token)
    fleet.submit(ticket, bundle(token))
    assert fleet.state(ticket).kind == "ended"
    assert fetched(fleet, ticket, tmp_path) == ["lost"]
    assert len(site.measured()) == 1


@slurm
def test_a_node_that_is_gone_is_unreachable_until_it_is_back(
    site: SlurmSite, token: str, tmp_path: Path
) -> None:
    fleet = site.fleet()
    ticket = submit_and_serve(site, fleet, token)
    site.kill_node("fast")
    assert not site.agents(token)
    state_of(fleet, ticket, "gone")
    listed = {machine.name: machine for machine in fleet.machines()}
    assert listed["fast"].slots == () and "down" in listed["fast"].problem
    assert listed["slow"].problem == ""
    with pytest.raises(UnreachableError):
        fleet.cancel(ticket, 5.0)
    site.start_node("fast")
    cancel_when_reached(fleet, ticket, 5.0)
    assert not site.living(token)
    assert fetched(fleet, ticket, tmp_path) == ["lost"]
