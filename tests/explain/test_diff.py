"""Stacks against the diff between two commits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from perfbisect.explain.diff import (
    DiffPlace,
    StackDiff,
    match_symbols,
    read_diff,
    silent_lines,
)
from perfbisect.explain.stacks import StackFrame, StackSample
from tests.changes.repositories import repository_of, write_commits
from tests.explain.diffs import file_diff

BEFORE = '''\
"""A scheduler."""
import time


class Scheduler:
    def schedule(self):
        """Choose requests."""
        blocks = self.blocks()
        return [b for b in blocks]

    def blocks(self):
        return list(range(10))

    def idle(self):
        self.queue.get()
'''
AFTER = '''\
"""A scheduler, in more words."""
import time


class Scheduler:
    def schedule(self):
        """Choose requests."""
        # Count them first.
        blocks = self.blocks()
        self.check(blocks)
        return [b for b in blocks]

    def check(self, blocks):
        assert len(set(blocks)) == len(blocks)

    def blocks(self):
        return list(range(10))

    def idle(self):
        while not self.queue.get(timeout=1):
            pass
'''
PATH = "vllm/v1/scheduler.py"
FILES = {
    PATH: (BEFORE, AFTER),
    "vllm/config/cache.py": ("class C:\n    size = 16\n", "class C:\n    size = 8\n"),
    "vllm/moe/E=8.json": ('{"64": 1}\n', '{"64": 2}\n'),
    "docs/a.md": ("a\n", "b\n"),
}


def diff_between(folder: Path, *commits: Mapping[str, bytes | None]) -> StackDiff:
    """What the last of these commits changed."""
    repository, (*_, before, after) = write_commits(folder / "repo", *commits)
    return read_diff(repository, before, after, ("vllm",))


@pytest.fixture(scope="module")
def diff(tmp_path_factory: pytest.TempPathFactory) -> StackDiff:
    commits = ({name: texts[side].encode() for name, texts in FILES.items()} for side in (0, 1))
    return diff_between(tmp_path_factory.mktemp("repo"), *commits)


def line_of(text: str, part: str) -> int:
    return next(i for i, line in enumerate(text.splitlines(), 1) if part in line)


def stack(*frames: tuple[str, str, int]) -> StackSample:
    return StackSample("VLLM::EngineCore", "MainThread", tuple(StackFrame(*frame) for frame in frames), 3)


LOOP = ("Core.loop", "vllm/v1/core.py", 5)
SCHEDULE = "Scheduler.schedule"


@pytest.mark.parametrize(
    ("frames", "place", "at"),
    [
        ((LOOP, (SCHEDULE, PATH, line_of(AFTER, "self.check(blocks)"))), "changed line", SCHEDULE),
        ((LOOP, (SCHEDULE, PATH, line_of(AFTER, "return [b"))), "changed function", SCHEDULE),
        # What a library does is the caller's.
        (
            (LOOP, (SCHEDULE, PATH, line_of(AFTER, "self.check(bl")), ("dumps", "json/__init__.py", 3)),
            "changed line",
            SCHEDULE,
        ),
        # A changed line may call what did not change, which may call a library, ...
        (
            ((SCHEDULE, PATH, line_of(AFTER, "self.check(bl")), ("Pool.count", "vllm/v1/pool.py", 3)),
            "called from the diff",
            SCHEDULE,
        ),
        (
            (
                (SCHEDULE, PATH, line_of(AFTER, "self.check(bl")),
                ("Pool.count", "vllm/v1/pool.py", 3),
                ("dumps", "json/__init__.py", 3),
                ("encode", "json/encoder.py", 3),
            ),
            "called from the diff",
            SCHEDULE,
        ),
        # ... but only two levels down.
        (
            (
                (SCHEDULE, PATH, line_of(AFTER, "self.check(bl")),
                ("a", "vllm/v1/pool.py", 3),
                ("b", "vllm/v1/pool.py", 4),
                ("c", "vllm/v1/pool.py", 5),
            ),
            "elsewhere",
            "c",
        ),
        # A changed function's other lines call what they called before.
        (
            ((SCHEDULE, PATH, line_of(AFTER, "= self.blocks")), ("Scheduler.blocks", PATH, 17)),
            "elsewhere",
            "Scheduler.blocks",
        ),
        ((("Scheduler.blocks", PATH, line_of(AFTER, "range(10)")),), "elsewhere", "Scheduler.blocks"),
        ((("dumps", "json/__init__.py", 3),), "elsewhere", "dumps"),
    ],
)
def test_place_of_a_stack(
    diff: StackDiff, frames: tuple[tuple[str, str, int], ...], place: DiffPlace, at: str
) -> None:
    found, frame = diff.place(stack(*frames), "after")
    assert (found, frame.function) == (place, at)


def test_before_a_commit_its_functions_are_the_same(diff: StackDiff) -> None:
    old = stack(LOOP, (SCHEDULE, PATH, line_of(BEFORE, "return [b")))
    assert diff.place(old, "before")[0] == "changed function"
    old = stack(("Scheduler.idle", PATH, line_of(BEFORE, "queue.get")))
    assert diff.place(old, "before")[0] == "changed line"
    old = stack(("Scheduler.blocks", PATH, line_of(BEFORE, "range(10)")))
    assert diff.place(old, "before")[0] == "elsewhere"


def test_comments_and_docstrings_are_no_changed_code(diff: StackDiff) -> None:
    assert diff.lines["after"][PATH] == {
        *(line_of(AFTER, part) for part in ("self.check(blocks)", "def check", "assert", "while", "pass")),
    }
    assert diff.changed[PATH] == {"Scheduler.schedule", "Scheduler.check", "Scheduler.idle"}
    assert silent_lines(b'def f():\n    """A\n\n    b"""\n\n    # c\n    return 1  # d\n') == {2, 3, 4, 5, 6}
    assert silent_lines(b"a = 1\n\x0c\n# c\nb = '\x0c'\n") == {2, 3}, "a form feed ends no line"


def test_a_commit_of_comments_changes_nothing() -> None:
    text = "def f(a):\n    return a\n"
    after = 'def f(a):\n    """F."""\n    # a\n    return a\n'
    diff = StackDiff((file_diff("v/a.py", text, after),), ("v",))
    for line in (1, 2, 3, 4):
        assert diff.place(stack(("f", "v/a.py", line)), "after")[0] == "elsewhere"


def test_waiting_is_work_of_a_changed_line_only(diff: StackDiff) -> None:
    get = ("Queue.get", "queue.py", 171)
    changed = stack(("Scheduler.idle", PATH, line_of(AFTER, "while")), get)
    other = stack(("Core.wait", "vllm/v1/core.py", 9), get)
    (kept,) = diff.work("after")((changed, other))
    assert kept.frames[-1] == StackFrame("Scheduler.idle", PATH, line_of(AFTER, "while"))
    assert kept.count == 3


def test_time_of_a_library_is_its_callers(diff: StackDiff) -> None:
    encode = ("encode", "json/encoder.py", 3)
    schedule = (SCHEDULE, PATH, line_of(AFTER, "return [b"))
    alone = stack(encode)
    (kept, left) = diff.work("after")(
        (stack(LOOP, schedule, ("dumps", "json/__init__.py", 3), encode), alone)
    )
    assert kept.frames == (StackFrame(*LOOP), StackFrame(*schedule))
    assert left == alone


def test_a_thread_that_sleeps_in_a_changed_function_is_left_out(diff: StackDiff) -> None:
    frames = (StackFrame(SCHEDULE, PATH, line_of(AFTER, "self.check(bl")),)
    asleep = StackSample("VLLM::EngineCore", "heartbeat", frames, 95)
    other = StackSample("VLLM::EngineCore", "heartbeat", (StackFrame(*LOOP),), 5)
    main = StackSample("VLLM::EngineCore", "MainThread", frames, 95)
    assert tuple(diff.work("after")((asleep, other, main))) == (other, main)


def test_files_of_values(diff: StackDiff) -> None:
    assert diff.configuration == ("vllm/moe/E=8.json",)
    assert diff.compiled == ()
    assert {file.path for file in diff.files} == set(FILES)


def test_lines_move_with_the_diff(diff: StackDiff) -> None:
    (file,) = (file for file in diff.files if file.path == PATH)
    old, new = BEFORE.splitlines(), AFTER.splitlines()
    for number, text in enumerate(old, 1):
        moved = file.new_number(number)
        assert (moved is None) == (text not in new), text
        assert moved is None or new[moved - 1] == text


def test_a_renamed_file_keeps_its_functions(tmp_path: Path) -> None:
    after = BEFORE.replace("range(10)", "range(99)").encode()
    diff = diff_between(
        tmp_path, {"vllm/old.py": BEFORE.encode()}, {"vllm/old.py": None, "vllm/new.py": after}
    )
    (file,) = diff.files
    assert (file.old_path, file.path) == ("vllm/old.py", "vllm/new.py")
    sample = stack(("Scheduler.blocks", "vllm/old.py", line_of(BEFORE, "range(10)")))
    place, frame = diff.place(sample, "before")
    assert (place, frame.path) == ("changed line", "vllm/new.py")
    (kept,) = diff.work("before")((sample,))
    assert kept.frames[0].path == "vllm/new.py"


def test_odd_names(tmp_path: Path) -> None:
    """Names that git quotes in the text of a diff."""
    names = ("vllm/a b.py", "vllm/\tc.py", 'vllm/"d".py', "vllm/\u00fc.py")
    diff = diff_between(tmp_path, *(dict.fromkeys(names, text) for text in (b"a = 1\n", b"a = 2\n")))
    assert {file.path for file in diff.files} == set(names)
    assert {*diff.lines["after"].values()} == {frozenset({1})}


def test_a_name_that_is_no_utf8_is_shown(tmp_path: Path) -> None:
    repository, head, _ = repository_of(tmp_path, {"a": "1\n"}, {"vllm/\udcff.py": "a = 1\n"})
    (file,) = read_diff(repository, f"{head.id}^", head.id, ("vllm",)).files
    assert (file.path, file.after) == ("vllm/\ufffd.py", b"a = 1\n")


def test_symbols_of_compiled_code(tmp_path: Path) -> None:
    before = (
        "__global__ void rms_norm_kernel(\n    int n) {\n}\n\n\nvoid fused_add_rms_norm(torch::Tensor& a) {\n"
    )
    before += "  int block = 1024;\n}\n"
    after = before.replace("n) {\n", "n) {\n  __syncthreads();\n").replace("1024", "32")
    path = "csrc/layernorm_kernels.cu"
    diff = diff_between(tmp_path, {path: before.encode()}, {path: after.encode()})
    names = ("void vllm::rms_norm_kernel<c10::BFloat16, 8>(...)", "_C::fused_add_rms_norm", "_C::onednn_mm")
    found = match_symbols(names, diff)
    assert [(match.operation, match.symbol, match.line) for match in found] == [
        (names[0], "rms_norm_kernel", 3),
        (names[1], "fused_add_rms_norm", 8),
    ]
    assert {match.path for match in found} == {"csrc/layernorm_kernels.cu"}
