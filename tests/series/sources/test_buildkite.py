"""Buildkite over HTTP, against a local server that answers as its API does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from perfbisect.errors import MachineError, UsageError
from perfbisect.series.ingest import ingest
from perfbisect.series.sources import IngestOptions, SourceBuild
from perfbisect.series.sources.buildkite import API, Buildkite, parse_address
from perfbisect.series.store import SeriesStore
from perfbisect.system.http import RestClient
from tests.series.buildkite_server import PIPELINE, TOKEN, Service, buildkite
from tests.series.made import RESULTS, name_of, served


@pytest.fixture
def service() -> Iterator[Service]:
    with buildkite() as made:
        yield made


def asked(**changed: Any) -> IngestOptions:
    return IngestOptions(**{"variables": {"BUILDKITE_TOKEN": TOKEN}, **changed})


def fetched(service: Service, waits: list[float] | None = None, **changed: Any) -> list[SourceBuild]:
    pauses = [] if waits is None else waits
    return list(Buildkite().builds(service.api + PIPELINE, asked(wait=pauses.append, **changed)))


@pytest.mark.parametrize(
    ("address", "organisation", "build"),
    [
        ("https://buildkite.com/vllm/vllm-omni", "vllm", ""),
        ("https://buildkite.com/vllm/vllm-omni/builds/6433", "vllm", "6433"),
        ("https://buildkite.com/vllm/vllm-omni/builds/6433#0190-abc", "vllm", "6433"),
        (f"{API}/organizations/vllm/pipelines/vllm-omni/builds", "vllm", ""),
        (f"{API}/organizations/vllm/pipelines/vllm-omni/builds/6433", "vllm", "6433"),
    ],
)
def test_addresses(address: str, organisation: str, build: str) -> None:
    found = parse_address(address)
    assert found is not None
    assert (found.api, found.organisation, found.pipeline, found.build) == (
        API,
        organisation,
        "vllm-omni",
        build,
    )


@pytest.mark.parametrize(
    "address", ["https://example.org/a/b", "https://buildkite.com/docs", "a/path", "ftp://buildkite.com/a/b"]
)
def test_other_addresses_are_none(address: str) -> None:
    assert parse_address(address) is None


def test_a_build_comes_with_commit_branch_job_and_log(service: Service) -> None:
    told = service.add(6411, {f"{RESULTS}/{name_of()}": served(), "logs/serve.txt": "no result"})
    (batch,) = fetched(service)
    build = batch.build
    assert (build.name, build.pipeline, build.branch, build.of_main) == (
        "6411", "vllm/vllm-omni", "main", True,
    )  # fmt: skip
    assert (build.commit, build.fixed) == (told["commit"], "2026-04-11T16:00:00Z")
    assert (build.state, build.message) == ("passed", "Scheduled nightly build")
    assert batch.whole
    assert [file.name for file in batch.files] == [f"{RESULTS}/{name_of()}"]
    assert batch.files[0].facts == {"job": "Omni Perf Test", "host": "node-6411"}
    assert batch.logs == {"Omni Perf Test": "\x1b[0mlog of 6411"}
    assert '"num_prompts": 40' in batch.files[0].read()[0]


def test_the_token_stays_with_the_api(service: Service) -> None:
    service.add(6411, {name_of(): served()})
    fetched(service)[0].files[0].read()
    assert service.seen_by_storage == [None]


def test_every_page_is_read_oldest_build_first(service: Service) -> None:
    for number in (6401, 6402, 6403, 6404, 6405):
        service.add(number, {name_of(at=f"202604{number % 100:02d}-{i:06d}"): served() for i in range(3)})
    found = fetched(service)
    assert [batch.build.name for batch in found] == ["6401", "6402", "6403", "6404", "6405"]
    assert [len(batch.files) for batch in found] == [3] * 5


def test_only_nightlies_of_the_branch_since_a_day(service: Service) -> None:
    service.add(6401, {name_of(): served()})
    service.add(6402, {name_of(): served()}, branch="fix")
    service.add(6403, {name_of(): served()}, source="webhook", message="Fix a thing")
    service.add(6404, {name_of(): served()}, source="ui", message="[NIGHTLY] by hand")
    assert [b.build.name for b in fetched(service)] == ["6401", "6404"]
    assert [b.build.name for b in fetched(service, branch="")] == ["6401", "6402", "6404"]
    assert [b.build.name for b in fetched(service, since="2026-04-02")] == ["6404"]
    told: list[str] = []
    assert fetched(service, branch="fix", since="2026-04-02", say=told.append)
    assert fetched(service, branch="other", since="2026-04-02", say=told.append) == []
    assert told == ["Buildkite: no nightly build among the 0 builds of other since 2026-04-02"]
    address = f"{service.api}{PIPELINE}/builds/6403"
    assert [b.build.name for b in Buildkite().builds(address, asked())] == ["6403"]


def test_a_build_that_had_ended_is_not_asked_for_again(service: Service) -> None:
    service.add(6401, {name_of(): served()})
    service.add(6402, {name_of(): served()}, state="running")
    first = fetched(service)
    assert [batch.whole for batch in first] == [True, False]
    service.asked.clear()
    again = fetched(service, finished=frozenset(b.build.key for b in first if b.whole))
    assert [batch.build.name for batch in again] == ["6402"]
    assert not any("/6401/" in path for path in service.asked)


def test_the_files_of_a_step_that_ran_again_replace_the_first(service: Service) -> None:
    build = service.add(6401, {name_of(): served(duration=1.0)})
    build["jobs"].append({"id": "again", "name": "Again", "started_at": "2026-04-01T19:00:00.000Z"})
    service.artifact(6401, name_of(), served(duration=2.0), job="again")
    (batch,) = fetched(service)
    assert [file.facts["job"] for file in batch.files] == ["Again"]


def test_moods_and_limits_are_waited_out(service: Service) -> None:
    service.add(6401, {name_of(): served()})
    service.moods = [(503, {}), (429, {"RateLimit-Reset": "42", "RateLimit-Remaining": "0"}), (500, {})]
    waits: list[float] = []
    told: list[str] = []
    assert len(fetched(service, waits, say=told.append)) == 1
    assert waits == [0.0, 43.0, 4.0]
    assert any("status 429; retrying in 43 s" in text for text in told)


def test_nothing_left_of_the_limit_is_waited_for_before_it_refuses(service: Service) -> None:
    service.add(6401, {})
    service.headers = {"RateLimit-Remaining": "0", "RateLimit-Reset": "7"}
    waits: list[float] = []
    fetched(service, waits)
    assert waits
    assert set(waits) == {8.0}


def test_a_service_that_stays_away_is_told(service: Service) -> None:
    service.moods = [(502, {})] * 9
    with pytest.raises(MachineError, match="did not answer in 5 tries: status 502") as caught:
        fetched(service)
    assert TOKEN not in str(caught.value)


def test_nobody_there_is_told() -> None:
    with buildkite() as gone:
        address = gone.api + PIPELINE
    with pytest.raises(MachineError, match="ConnectionError"):
        list(Buildkite().builds(address, asked(wait=lambda _: None)))


def test_a_token_that_is_refused_is_not_shown(service: Service) -> None:
    with pytest.raises(UsageError, match="refuses the token") as caught:
        fetched(service, variables={"BUILDKITE_TOKEN": "bkua_wrong"})
    assert "bkua_wrong" not in str(caught.value)


def test_without_a_token_nothing_is_asked(service: Service) -> None:
    with pytest.raises(UsageError, match="BUILDKITE_TOKEN is not set"):
        fetched(service, variables={})
    assert service.asked == []


def test_what_is_not_there_is_told(service: Service) -> None:
    with pytest.raises(UsageError, match="nothing at this address"):
        list(Buildkite().builds(f"{service.api}{PIPELINE}/builds/1", asked()))


def test_what_was_removed_does_not_stop_the_rest(service: Service, tmp_path: Any) -> None:
    """Logs and artifacts are removed after a time: a build that lacks them would be in the way for good."""
    service.add(6401, {name_of(at="20260401-190000"): served(date="20260401-190200")})
    service.add(6402, {name_of(at="20260402-190000"): served(date="20260402-190200")})
    service.removed = {"artifact-0", "job-6401", "job-6402"}
    told: list[str] = []
    with SeriesStore.of(tmp_path) as store:
        done = ingest(store, [service.api + PIPELINE], asked(say=told.append))
        assert [point.build.name for point in store.points()] == ["6402"]
    assert [(group.fate, group.count) for group in done.rejected] == [("broken", 1)]
    assert told == [f"Buildkite: {name_of(at='20260401-190000')} was removed, and is left out"]


def test_pages_that_lead_in_a_circle_end(service: Service) -> None:
    service.add(6401, {})
    service.circle = True
    with pytest.raises(MachineError, match="the pages form a loop"):
        fetched(service)
    assert len(service.asked) == 2


@pytest.mark.parametrize("told", [{"number": "x"}, {"number": None}, {"jobs": 3}])
def test_what_is_no_build_is_told(service: Service, told: dict[str, Any]) -> None:
    service.add(6401, {name_of(): served()}).update(told)
    with pytest.raises(MachineError, match="answered with what is no build"):
        fetched(service)


def test_a_token_does_not_go_over_the_net_in_the_clear() -> None:
    with pytest.raises(UsageError, match="only sent over https"):
        RestClient("http://buildkite.example/v2", TOKEN, "Buildkite")


def test_the_users_netrc_does_not_take_the_tokens_place(
    service: Service, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password other\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    service.add(6401, {})
    assert len(fetched(service)) == 1
    plain = requests.get(service.api + PIPELINE, timeout=5)
    assert plain.status_code == 401, "the file would have been used"


def test_an_address_elsewhere_is_not_followed(service: Service) -> None:
    service.add(6401, {name_of(): served()})
    service.artifacts["6401"][0]["download_url"] = service.storage + "/artifact-0"
    with pytest.raises(MachineError, match="redirects to another host"):
        fetched(service)[0].files[0].read()
    assert service.seen_by_storage == []


def test_ingest_keeps_what_came_before_a_failure_and_nothing_twice(service: Service, tmp_path: Any) -> None:
    quick = asked(wait=lambda _: None)
    service.add(6401, {name_of(at="20260401-190000"): served(date="20260401-190200")})
    service.add(6402, {name_of(at="20260402-190000"): served(date="20260402-190200")})
    del service.contents["artifact-1"]
    address = service.api + PIPELINE
    with SeriesStore.of(tmp_path) as store:
        with pytest.raises(MachineError):
            ingest(store, [address], quick)
        assert [b.name for b in store.builds()] == ["6401"]
        service.contents["artifact-1"] = b"{"
        done = ingest(store, [address], quick)
        assert (done.new, done.unchanged) == (1, 0)
        assert [(group.fate, group.count) for group in done.rejected] == [("broken", 1)]
        (point,) = store.points()
        assert (point.build.commit, point.covariates["host"]) == (service.builds[1]["commit"], "node-6401")
        assert store._db.execute("SELECT build, job FROM logs").fetchall() == [
            (1, "Omni Perf Test"),
            (2, "Omni Perf Test"),
        ]
        assert ingest(store, [address], quick).builds == 0
