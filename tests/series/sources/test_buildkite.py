"""Buildkite over HTTP, against a local server that answers as its API does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from perfbisect.errors import MachineError, UsageError
from perfbisect.series.ingest import ingest
from perfbisect.series.points import Build
from perfbisect.series.sources import IngestOptions, SourceBuild
from perfbisect.series.sources.buildkite import API, PipelineAddress, parse_address
from perfbisect.series.sources.buildkite import builds as builds_of
from perfbisect.series.store import SeriesStore
from perfbisect.system.http import RestClient
from tests.series import buildkite_server
from tests.series.buildkite_server import PIPELINE, TOKEN, Service, buildkite
from tests.series.made import RESULTS, name_of, served


@pytest.fixture
def service() -> Iterator[Service]:
    with buildkite() as made:
        yield made


def options(**changed: Any) -> IngestOptions:
    return IngestOptions(**{"variables": {"BUILDKITE_TOKEN": TOKEN}, **changed})


def fetched(service: Service, waits: list[float] | None = None, **changed: Any) -> list[SourceBuild]:
    pauses = [] if waits is None else waits
    return list(builds_of(service.api + PIPELINE, options(wait=pauses.append, **changed)))


PIPELINE_API = f"{API}/organizations/vllm/pipelines/vllm-omni"
WHOLE = PipelineAddress(API, "vllm", "vllm-omni")
ONE = PipelineAddress(API, "vllm", "vllm-omni", "6433")


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("https://buildkite.com/vllm/vllm-omni", WHOLE),
        ("https://buildkite.com/vllm/vllm-omni/builds/6433#0190-abc", ONE),
        (f"{PIPELINE_API}/builds", WHOLE),
        (f"{PIPELINE_API}/builds/6433", ONE),
        ("https://example.org/a/b", None),
        ("https://buildkite.com/docs", None),
        ("ftp://buildkite.com/a/b", None),
    ],
)
def test_addresses(address: str, parsed: PipelineAddress | None) -> None:
    assert parse_address(address) == parsed


def test_a_build_comes_with_commit_branch_and_job(service: Service) -> None:
    fields = service.add(6411, {f"{RESULTS}/{name_of()}": served(), "logs/serve.txt": "no result"})
    (build,) = fetched(service)
    assert build.build == Build(
        "buildkite", "vllm/vllm-omni", "6411", fields["commit"], "main", "2026-04-11T16:00:00Z",
        "https://buildkite.com/vllm/vllm-omni/builds/6411",
    )  # fmt: skip
    assert build.whole
    (file,) = build.files
    assert file.name == f"{RESULTS}/{name_of()}"
    assert file.facts == {"job": "Omni Perf Test", "host": "node-6411"}
    assert '"num_prompts": 40' in file.read()
    assert service.seen_by_storage == [None], "the token stays with the API"


def test_a_build_of_perf_eval_is_of_the_commit_of_vllm(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = PIPELINE.replace("vllm-omni", "perf-eval")
    monkeypatch.setattr(buildkite_server, "PIPELINE", pipeline)
    nightly = {"source": "api", "message": "Nightly run 2026-04-11: commit 0123"}
    service.add(
        311, {"results/a-h200/bench-x-conc-1.json": served()}, env={"VLLM_COMMIT": "a" * 40}, **nightly
    )
    service.add(312, {}, env={}, **nightly)
    builds = list(builds_of(service.api + pipeline, options()))
    assert [build.build.commit for build in builds] == ["a" * 40, ""]


def test_every_page_is_read_oldest_build_first(service: Service) -> None:
    for number in (6401, 6402, 6403, 6404, 6405):
        service.add(number, {name_of(at=f"202604{number % 100:02d}-{i:06d}"): served() for i in range(3)})
    builds = fetched(service)
    assert [build.build.name for build in builds] == ["6401", "6402", "6403", "6404", "6405"]
    assert [len(build.files) for build in builds] == [3] * 5


def test_only_nightlies_of_the_branch_since_a_day(service: Service) -> None:
    service.add(6401, {name_of(): served()})
    service.add(6402, {name_of(): served()}, branch="fix")
    service.add(6403, {name_of(): served()}, source="webhook", message="Fix a thing")
    service.add(6404, {name_of(): served()}, source="ui", message="[NIGHTLY] by hand")

    def names(**changed: Any) -> list[str]:
        return [build.build.name for build in fetched(service, **changed)]

    assert names() == ["6401", "6404"]
    assert names(branch="") == ["6401", "6402", "6404"]
    assert names(since="2026-04-02") == ["6404"]
    said: list[str] = []
    assert names(branch="other", since="2026-04-02", say=said.append) == []
    assert said == ["Buildkite: no nightly build among 0 builds of other since 2026-04-02"]
    address = f"{service.api}{PIPELINE}/builds/6403"
    assert [b.build.name for b in builds_of(address, options())] == ["6403"]


def test_a_build_that_had_ended_is_not_asked_for_again(service: Service) -> None:
    service.add(6401, {name_of(): served()})
    service.add(6402, {name_of(): served()}, state="running")
    first = fetched(service)
    assert [build.whole for build in first] == [True, False]
    service.asked.clear()
    again = fetched(service, finished=frozenset(b.build.key for b in first if b.whole))
    assert [build.build.name for build in again] == ["6402"]
    assert not any("/6401/" in path for path in service.asked)


def test_the_files_of_a_step_that_ran_again_replace_the_first(service: Service) -> None:
    build = service.add(6401, {name_of(): served(duration=1.0)})
    build["jobs"].append({"id": "again", "name": "Again", "started_at": "2026-04-01T19:00:00.000Z"})
    service.artifact(6401, name_of(), served(duration=2.0), job="again")
    ((file,),) = (build.files for build in fetched(service))
    assert file.facts["job"] == "Again"


def test_failures_and_limits_are_waited_out(service: Service) -> None:
    service.add(6401, {name_of(): served()})
    service.moods = [(503, {}), (429, {"RateLimit-Reset": "42", "RateLimit-Remaining": "0"}), (500, {})]
    waits: list[float] = []
    said: list[str] = []
    assert len(fetched(service, waits, say=said.append)) == 1
    assert waits == [0.0, 43.0, 4.0]
    assert any("status 429; retrying in 43 s" in text for text in said)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"moods": [(502, {})] * 9}, "did not answer in 5 tries: status 502"),
        ({"circle": True}, "the pages form a loop"),
    ],
)
def test_a_service_that_fails_is_no_result(service: Service, changed: dict[str, Any], message: str) -> None:
    service.add(6401, {name_of(): served()})
    vars(service).update(changed)
    with pytest.raises(MachineError, match=message) as caught:
        fetched(service)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("fields", [{"number": "x"}, {"number": None}, {"jobs": 3}])
def test_what_is_no_build_is_refused(service: Service, fields: dict[str, Any]) -> None:
    service.add(6401, {name_of(): served()}).update(fields)
    with pytest.raises(MachineError, match="answered with what is no build"):
        fetched(service)


def test_one_odd_build_keeps_no_other_out(service: Service) -> None:
    service.add(6401, {name_of(): served()}).update(jobs=3)
    service.add(6402, {name_of(): served()}).update(number="x")
    service.add(6403, {name_of(): served()})
    said: list[str] = []
    assert [build.build.name for build in fetched(service, say=said.append)] == ["6403"]
    assert said[0] == "Buildkite: left out without a number: 1 build"
    assert said[1].startswith("Buildkite: build 6401 is left out, it cannot be read (TypeError: ")


def test_a_service_that_is_not_there() -> None:
    with buildkite() as gone:
        address = gone.api + PIPELINE
    with pytest.raises(MachineError, match="ConnectionError"):
        list(builds_of(address, options(wait=lambda _: None)))


def test_tokens(service: Service) -> None:
    with pytest.raises(UsageError, match="refuses the token") as caught:
        fetched(service, variables={"BUILDKITE_TOKEN": "bkua_wrong"})
    assert "bkua_wrong" not in str(caught.value)
    service.asked.clear()
    with pytest.raises(UsageError, match="BUILDKITE_TOKEN is not set"):
        fetched(service, variables={})
    assert service.asked == []
    with pytest.raises(UsageError, match="only sent over https"):
        RestClient("http://buildkite.example/v2", TOKEN, "Buildkite")
    with pytest.raises(UsageError, match="nothing at this address"):
        list(builds_of(f"{service.api}{PIPELINE}/builds/1", options()))


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


def add_two_builds(service: Service) -> None:
    for day in (1, 2):
        at = f"202604{day:02d}-190000"
        service.add(6400 + day, {name_of(at=at): served(date=f"202604{day:02d}-190200")})


def test_what_was_removed_does_not_stop_the_rest(service: Service, tmp_path: Any) -> None:
    """Artifacts are removed after a time: a build that lacks them would be in the way for good."""
    add_two_builds(service)
    service.removed = {"artifact-0"}
    said: list[str] = []
    with SeriesStore.of(tmp_path) as store:
        done = ingest(store, [service.api + PIPELINE], options(say=said.append))
        assert [point.build.name for point in store.points()] == ["6402"]
    assert [(group.fate, group.count) for group in done.rejected] == [("broken", 1)]
    assert said == [f"Buildkite: {name_of(at='20260401-190000')} was removed, and is left out"]


def test_ingest_keeps_what_came_before_a_failure_and_nothing_twice(service: Service, tmp_path: Any) -> None:
    quick = options(wait=lambda _: None)
    add_two_builds(service)
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
        assert ingest(store, [address], quick).builds == 0
