"""When two clients measure in the same way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfbisect.measure.record import ClientVersion
from perfbisect.model.attempt import Provenance, provenance_differences
from perfbisect.serving.eras import ERAS, NIGHTLY_ERAS, Era


def era_of(client: str, date: str = "", version: str = "") -> str:
    return ClientVersion(client, version, sha256="", date=date).era


@pytest.mark.parametrize("table", [*ERAS.values(), NIGHTLY_ERAS])
def test_a_table_is_in_order_of_time_and_of_releases(table: tuple[Era, ...]) -> None:
    assert [era.date for era in table] == sorted(era.date for era in table)
    assert [era.version for era in table] == sorted(era.version for era in table)
    assert len({era.change for era in table}) == len(table)


@pytest.mark.parametrize(
    ("date", "began"),
    [
        ("2026-05-18T09:18:17+00:00", "ce621be2"),
        ("2026-05-18T09:18:18+00:00", "990566ae"),
        ("2026-06-30T02:17:23Z", "d8978522"),
        ("2026-06-30T02:17:24Z", "11f6a0b7"),
        ("2027-01-01T00:00:00Z", "11f6a0b7"),
    ],
)
def test_an_era_begins_with_its_commit(date: str, began: str) -> None:
    assert began in era_of("omni_bench", date)


def test_a_release_is_of_an_era_too() -> None:
    assert era_of("omni_bench", version="0.30.0") == era_of("omni_bench", "2026-07-01T00:00:00")
    assert era_of("omni_bench", version="0.21.0") != era_of("omni_bench", version="0.30.0")
    assert era_of("omni_bench", "2026-04-20T00:00:00", "0.30.0") != era_of("omni_bench", version="0.30.0")


@pytest.mark.parametrize(("date", "version"), [("", ""), ("", "dev"), ("2025-12-28T00:00:00", "")])
def test_what_is_not_known_is_of_no_era(date: str, version: str) -> None:
    assert era_of("omni_bench", date, version) == era_of("vllm_bench", "2026-06-30T02:17:24Z") == ""


def test_clients_of_one_era_are_comparable_though_their_sources_differ() -> None:
    one = Provenance("cell", "machine", "omni_bench 0.29.0 aa", client_era="omni_bench since x")
    other = replace(one, client_digest="omni_bench 0.30.0 bb")
    assert provenance_differences(one, other) == ()
    assert provenance_differences(one, replace(other, machine_class="else")) == (
        ("machine_class", "machine", "else"),
    )


@pytest.mark.parametrize(("left", "right"), [("", ""), ("x", ""), ("", "x"), ("x", "y")])
def test_clients_of_no_era_or_another_are_not(left: str, right: str) -> None:
    one = Provenance("cell", "machine", "a", client_era=left)
    other = replace(one, client_digest="b", client_era=right)
    assert provenance_differences(one, other) == (("client_digest", "a", "b"),)
    assert provenance_differences(one, replace(other, client_digest="a")) == ()
