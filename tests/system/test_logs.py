"""What is shown of a log can neither move a cursor nor fill a screen."""

from __future__ import annotations

from pathlib import Path

from perfbisect.system import logs


def test_colours_are_dropped_and_other_escapes_shown() -> None:
    assert logs.excerpt("\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b[2J\r\x9b1m") == (
        "red \\x1b]0;title\\x07\\x1b[2J\\r\\x9b1m"
    )


def test_tail_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {i} {'x' * 1000}\n" for i in range(2000)))
    lines = logs.tail(log, 5).splitlines()
    assert [line.split()[1] for line in lines] == ["1995", "1996", "1997", "1998", "1999"]
    assert all(len(line) <= 300 for line in lines)


def test_tail_leaves_out_what_says_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('boom\n\nnanobind: leaked 4 instances!\n - leaked type "x"\n - ... skipped remainder\n')
    assert logs.tail(log) == "boom"


def test_no_log_and_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert logs.tail(tmp_path / "empty") == logs.tail(tmp_path / "none") == "(the log is empty)"
    assert logs.cause(tmp_path / "none") == ""


def test_cause_is_the_first_error_that_points_at_no_other(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "INFO error rate is 0\n"
        "(EngineCore pid=7) ERROR 11-21 ValueError: head size 16 is not supported\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    )
    assert logs.cause(log) == "(EngineCore pid=7) ERROR 11-21 ValueError: head size 16 is not supported"


def test_cause_that_only_points_at_another_is_better_than_none(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        "x\nRuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert logs.cause(tmp_path / "log").startswith("RuntimeError")
