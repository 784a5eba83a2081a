"""``--fleet ray:ADDRESS``: as it is typed, and what becomes of a bundle when parts of Ray are killed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from perfbisect.errors import UsageError
from perfbisect.fleet.bundle import Ticket, UnreachableError
from perfbisect.fleet.folders import FolderFleet
from perfbisect.fleet.hosts import HostSettings
from perfbisect.fleet.ray_cluster import RayCluster, RayConnection
from perfbisect.fleet.specs import make_fleet
from tests.fleet.sites import RaySite, await_that
from tests.fleet.test_conformance import bundle, fetched, is_unreachable, state_of, submit_and_serve

ray = pytest.mark.parametrize(
    "site", [pytest.param("ray", marks=[pytest.mark.fleet, pytest.mark.ray])], indirect=True
)


@pytest.fixture
def with_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether Ray is installed or not."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "ray" else None)


@pytest.mark.usefixtures("with_ray")
@pytest.mark.parametrize(
    ("spec", "address", "folder", "agent"),
    [
        ("ray", "auto", ".perfbisect", [".perfbisect/agent/bin/perfbisect"]),
        ("ray:10.0.0.7:6379,folder=/data/pb", "10.0.0.7:6379", "/data/pb", ["/data/pb/agent/bin/perfbisect"]),
        ("ray:auto,command=python3 -m 'a b'", "auto", ".perfbisect", ["python3", "-m", "a b"]),
    ],
)
def test_options_of_the_nodes_follow_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, address: str, folder: str, agent: list[str]
) -> None:
    asked: list[str] = []

    def ask(cluster: RayCluster, *_: object) -> list[list[tuple[str, str, bool]]]:
        asked.append(cluster.address)
        return [[("a" * 56, "n1", True)]]

    monkeypatch.setattr(RayCluster, "_ask", ask)
    (host,) = make_fleet(spec, tmp_path).hosts()
    assert (asked, host.name, host.folder) == ([address], "n1", folder)
    assert host.agent("look") == (*agent, "agent", "look")


@pytest.mark.usefixtures("with_ray")
def test_a_wrong_option_of_the_nodes_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'foldr=x' is no option") as raised:
        make_fleet("ray:auto,foldr=x", tmp_path)
    assert "folder=" in str(raised.value.next_step)


def test_without_ray_it_is_said_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="Ray is not installed here") as raised:
        make_fleet("ray:auto", tmp_path)
    assert "pip install 'perfbisect[ray]'" in str(raised.value.next_step)


def test_nodes_of_one_name_have_their_ids_in_it_and_dead_ones_none(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, three, gone = (digits * 28 for digits in ("aa", "bb", "cc", "dd"))
    rows = [(one, "n1", True), (two, "n2", True), (three, "n2", True), (gone, "n1", False)]
    monkeypatch.setattr(RayCluster, "_ask", lambda *_: [rows])
    connections = [host.connection for host in RayCluster("auto", HostSettings()).hosts()]
    nodes = {each.name: each.node for each in connections if isinstance(each, RayConnection)}
    assert nodes == {"n1": one, "n2-bbbbbbbb": two, "n2-cccccccc": three}


@ray
def test_an_agent_outlives_rays_worker_and_the_drivers_process_of_ray(
    site: RaySite, token: str, tmp_path: Path
) -> None:
    fleet = site.fleet()
    ticket = submit_and_serve(site, fleet, token)
    assert site.kill_actors() > 0
    assert fleet.state(ticket).kind == "running"
    actors = site.actors()
    site.kill_relay()
    assert fleet.state(ticket).kind == "running"
    assert site.actors() == actors, "the next driver finds the actors by their names"
    site.kill_relay()
    await_that(lambda: not site.actors(), "actors go on without a driver", 120.0)
    assert fleet.state(ticket).kind == "running"
    assert len(site.agents(token)) == 2 and len(site.servers(token)) == 1
    site.release()
    state_of(fleet, ticket, "ended")
    site.kill_actors()
    assert fetched(fleet, ticket, tmp_path) == ["measured"]
    assert len(site.measured()) == 1


@ray
def test_a_node_that_is_removed_is_unreachable_until_it_is_back(
    site: RaySite, token: str, tmp_path: Path
) -> None:
    fleet = site.fleet()
    fleet.machines()
    site.hold("slow")
    ticket = Ticket(token, "slow")
    fleet.submit(ticket, bundle(token))
    await_that(lambda: bool(site.servers(token)), "no server was started")
    site.kill_node("slow")
    try:
        assert is_unreachable(fleet, ticket, tmp_path)

        def is_known_to_be_gone() -> bool:
            """Whether Ray has noticed; until then the node's actor does not answer."""
            listed = {machine.name: machine for machine in fleet.machines()}
            assert listed["slow"].slots == () and listed["fast"].problem == ""
            return "not in the Ray cluster" in listed["slow"].problem

        await_that(is_known_to_be_gone, "Ray does not notice", 120.0)
        assert len(site.agents(token)) == 2 and len(site.servers(token)) == 1
    finally:
        site.start_node("slow")
    assert fleet.state(ticket).kind == "running"
    site.release("slow")
    state_of(fleet, ticket, "ended")
    assert fetched(fleet, ticket, tmp_path) == ["measured"]
    assert len(site.measured()) == 1


@ray
def test_commands_get_their_input_whole_and_the_machines_variables(site: RaySite, token: str) -> None:
    del token
    host = next(host for host in site.fleet().hosts() if host.name == "slow")
    sent = bytes(range(256)) * 80_000
    assert host.connection.run(["cat"], sent).output == sent
    assert host.connection.run(["sh", "-c", "exit 3"], sent).code == 3
    assert host.connection.run(["pwd"]).text == str(Path.home())
    assert host.connection.run(["no such program"]).code == 127
    with pytest.raises(UnreachableError, match="sleep took over 1 s"):
        host.connection.run(["sleep", "1000"], timeout=1.0)
    variables = host.connection.run(["env"]).text.splitlines()
    assert "SITE_MACHINE=slow" in variables
    assert [row for row in variables if row.startswith(("RAY_", "CUDA_", "LD_PRELOAD="))] == []


@pytest.mark.fleet
@pytest.mark.ray
def test_a_cluster_that_is_not_there_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfbisect.fleet.ray_cluster._CONNECTED_S", 5.0)
    with pytest.raises(UnreachableError, match=r"Ray at 127\.0\.0\.1:9 does not answer: "):
        FolderFleet("ray", RayCluster("127.0.0.1:9", HostSettings()).hosts).machines()
