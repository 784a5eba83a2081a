"""What all tests need of the process that runs them."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["tests.fixtures.jobs", "tests.fixtures.repositories", "tests.fixtures.reports"]

# The same examples everywhere: a commit passes or fails on every machine alike, however slow it is.
# New examples are looked for with `make test ARGS=--hypothesis-profile=explore`.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile("repeatable")

# As the command does (perfbisect/cli/__init__.py), and before numpy is imported: threads that wait for small
# matrices cost many times what they do.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write the goldens anew; read their diff")


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    """Whether goldens are written anew."""
    return bool(request.config.getoption("--update"))


def pytest_configure() -> None:
    """Ctrl-C reaches the programs under test, also where who started the tests ignores it (``nohup``, ``&``).

    An ignored signal stays ignored in every program that is started; one with a handler does not.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Other tests run beside a test that measures: they would void its attempts.
    os.environ["PERFBISECT_LIMITS"] = "off"
    # 70,000 small files, with an fsync for each event: on a disk, tests would wait for these.
    if has_room(MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


MEMORY = Path("/dev/shm")


def has_room(folder: Path) -> bool:
    """Whether the tests' files fit and may be executed: containers often have 64 MB there, or ``noexec``."""
    if not os.access(folder, os.W_OK):
        return False
    return shutil.disk_usage(folder).free > 2 << 30 and not os.statvfs(folder).f_flag & os.ST_NOEXEC


@pytest.fixture(autouse=True, scope="session")
def own_locks(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests lease the machine among themselves only: what else measures on it is not asked, nor hindered."""
    os.environ["PERFBISECT_LOCKS"] = str(tmp_path_factory.mktemp("locks"))
