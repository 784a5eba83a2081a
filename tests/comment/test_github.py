"""One comment, whatever the API does; and a token that goes nowhere else."""

from __future__ import annotations

import pytest

from perfbisect.comment.github import GitHub
from perfbisect.errors import MachineError, UsageError
from tests.comment.pretend_github import BOT, NUMBER, REPOSITORY, TOKEN, PretendGitHub, pretend_github

MARK = "<!-- perfbisect:1 -->"


def client(github: PretendGitHub, waited: list[float] | None = None, token: str = TOKEN) -> GitHub:
    wait = [].append if waited is None else waited.append
    return GitHub(github.url, REPOSITORY, token, BOT, wait=wait, clock=lambda: 1000.0)


def test_a_comment_is_written_once_and_edited() -> None:
    with pretend_github() as github:
        for body in ("plan", "result", "result again"):
            client(github).write(NUMBER, MARK, body)
        assert github.ours == [f"{MARK}\nresult again"]
        assert github.tokens == {f"Bearer {TOKEN}"}


def test_it_is_found_on_a_later_page() -> None:
    with pretend_github(pages=2) as github:
        for number in range(5):
            github.add(f"comment {number}")
        own = github.add(f"{MARK}\nplan", BOT)
        assert client(github).write(NUMBER, MARK, "result") == own
        assert github.ours == [f"{MARK}\nresult"]


def test_a_marker_of_another_is_not_edited() -> None:
    with pretend_github() as github:
        github.add(f"{MARK}\nmine", "mallory")
        github.add(f"look: {MARK}", BOT)
        client(github).write(NUMBER, MARK, "plan")
        assert github.comments[0]["body"] == f"{MARK}\nmine"
        assert len(github.ours) == 2


def test_a_deleted_comment_is_written_again() -> None:
    with pretend_github() as github:
        own = client(github).write(NUMBER, MARK, "plan", known=99)
        assert [one["id"] for one in github.comments] == [own]


def test_a_comment_that_was_written_and_not_answered_is_not_written_twice() -> None:
    with pretend_github(lost=1) as github:
        client(github).write(NUMBER, MARK, "plan")
        assert github.ours == [f"{MARK}\nplan"]


@pytest.mark.parametrize(
    ("headers", "message", "pause"),
    [
        ({"Retry-After": "7"}, "", 7.0),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1030"}, "", 30.0),
        ({}, "You have exceeded a secondary rate limit.", 60.0),
    ],
)
@pytest.mark.parametrize("status", [403, 429])
def test_a_rate_limit_is_waited_for(status: int, headers: dict[str, str], message: str, pause: float) -> None:
    waited: list[float] = []
    with pretend_github(faults={"GET": [(status, headers, message)]}) as github:
        assert client(github, waited).pull(NUMBER)["head"]["sha"] == github.head
    assert waited == [pause]


def test_a_limit_of_hours_is_not_waited_for() -> None:
    waited: list[float] = []
    faults = {"GET": [(403, {"Retry-After": "3600"}, "")]}
    with pretend_github(faults=faults) as github, pytest.raises(MachineError, match="status 403"):
        client(github, waited).pull(NUMBER)
    assert waited == []


def test_errors_of_the_server_are_tried_again() -> None:
    waited: list[float] = []
    faults = [(502, {}, ""), (0, {}, ""), (503, {}, "")]
    with pretend_github(faults={"GET": list(faults), "POST": list(faults)}) as github:
        client(github, waited).write(NUMBER, MARK, "plan")
        assert github.ours == [f"{MARK}\nplan"]
    with pretend_github(faults={"POST": [(500, {}, "")] * 9}) as github:
        with pytest.raises(MachineError, match="status 500"):
            client(github).write(NUMBER, MARK, "plan")
        assert github.ours == []


def test_a_slow_answer_is_waited_for() -> None:
    with pretend_github(pause_s=0.3) as github:
        client(github).write(NUMBER, MARK, "plan")
        assert github.ours


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refused_token(status: int) -> None:
    faults = {"GET": [(status, {}, TOKEN)]}
    with pretend_github(faults=faults) as github, pytest.raises(UsageError, match=f"{status}") as caught:
        client(github).pull(NUMBER)
    assert TOKEN not in str(caught.value)
    assert "pull-requests: write" in str(caught.value)


def test_what_the_api_repeats_of_the_token_is_not_shown() -> None:
    token = "plain words of a secret"
    faults = {"GET": [(422, {}, f"bad {token}")]}
    with pretend_github(faults=faults) as github, pytest.raises(MachineError) as caught:
        client(github, token=token).pull(NUMBER)
    assert token not in str(caught.value) and "422" in str(caught.value)


def test_a_token_in_a_text_is_not_written() -> None:
    with pretend_github() as github:
        client(github).write(NUMBER, MARK, f"the log says {TOKEN}")
        assert TOKEN not in github.ours[0]


def test_the_token_stays_on_its_host() -> None:
    with pretend_github() as github, pretend_github() as other:
        for number in range(5):
            github.add(str(number))
        ours = github.answer
        far = {"Link": f'<{other.url}/x>; rel="next"'}
        github.answer = lambda *call: (*ours(*call)[:2], far)  # type: ignore[method-assign]
        with pytest.raises(MachineError, match="another host"):
            client(github).write(NUMBER, MARK, "plan")
        github.faults["GET"] = [(302, {"Location": f"{other.url}/x"}, "")]
        with pytest.raises(MachineError, match="status 302"):
            client(github).pull(NUMBER)
        assert other.calls == []


def test_a_token_is_not_sent_unencrypted() -> None:
    with pytest.raises(UsageError, match="only sent over https"):
        GitHub("http://api.example", REPOSITORY, TOKEN, BOT)


def test_a_long_text_is_cut() -> None:
    with pretend_github() as github:
        client(github).write(NUMBER, MARK, "a line\n" * 20_000)
        assert len(github.ours[0].encode()) <= 65_000
        assert "(Truncated" in github.ours[0]
