"""Releases of a package as a range."""

from __future__ import annotations

import subprocess

import pytest

from perfbisect.changes import releases
from perfbisect.changes.releases import between, published
from perfbisect.errors import MachineError, RevisionError, UsageError

KNOWN = ("0.9.0", "0.10.0", "0.10.1rc1", "0.10.1", "0.11.0", "0.11.0.post1", "0.12.0")


def ids(good: str, bad: str) -> list[str]:
    return [change.id for change in between("toy", KNOWN, good, bad).changes]


def test_releases_are_ordered_as_versions_without_trials() -> None:
    assert ids("0.9.0", "0.11.0.post1") == [
        "toy==0.9.0", "toy==0.10.0", "toy==0.10.1", "toy==0.11.0", "toy==0.11.0.post1",
    ]  # fmt: skip
    assert between("toy", KNOWN, "toy==0.9.0", "0.10").bad.kind == "release"


def test_trials_are_there_where_an_end_is_one() -> None:
    assert ids("0.10.1rc1", "0.11.0") == ["toy==0.10.1rc1", "toy==0.10.1", "toy==0.11.0"]


@pytest.mark.parametrize(
    ("good", "bad", "told"),
    [
        ("0.8", "0.12.0", "--good 0.8 is no release of toy; there are: 0.9.0, 0.10.0"),
        ("0.9.0", "0.9", "the same release, 0.9.0"),
        ("0.12.0", "0.9.0", "good 0.12.0 is newer than bad 0.9.0"),
        ("main", "0.9.0", "'main' is no version"),
    ],
)
def test_a_range_that_is_none(good: str, bad: str, told: str) -> None:
    with pytest.raises(RevisionError, match=told.replace("(", r"\(")):
        between("toy", KNOWN, good, bad)


def test_the_ends_have_the_names_that_the_user_gave_them() -> None:
    with pytest.raises(RevisionError, match=r"bad 0\.12\.0 is newer than good 0\.9\.0") as caught:
        between("toy", KNOWN, "0.12.0", "0.9.0", ("bad", "good"))
    assert str(caught.value.next_step).startswith("--bad 0.9.0 --good 0.12.0")


def answer(monkeypatch: pytest.MonkeyPatch, code: int, out: str, err: str) -> None:
    monkeypatch.setattr(
        releases.subprocess, "run", lambda *a, **_: subprocess.CompletedProcess(a, code, out, err)
    )


def test_what_the_registry_says_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, 0, "toy (0.10.0)\nAvailable versions: 0.10.0, 0.9.1, 0.9.0\n", "WARNING: trial")
    assert published("toy") == ("0.9.0", "0.9.1", "0.10.0")


def test_an_unknown_package_is_no_failure_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, 1, "", "ERROR: No matching distribution found for toy\n")
    with pytest.raises(RevisionError, match="no package 'toy'"):
        published("toy")
    answer(monkeypatch, 1, "", "ERROR: connection refused\n")
    with pytest.raises(MachineError, match="connection refused"):
        published("toy")
    with pytest.raises(UsageError, match="is no package name"):
        published("--index-url=x")
