"""A site for each engine; one that cannot be started fails its tests and says why."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from tests.fleet.sites import SITES, Site, await_that


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    # Sockets are made below it, whose paths must be short.
    folder = Path(tempfile.mkdtemp(prefix="pbf-"))
    with ExitStack() as after:
        after.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        made = SITES[request.param](folder)
        made.make()
        after.callback(made.stop)
        made.start()
        yield made


@pytest.fixture
def token(request: pytest.FixtureRequest, site: Site) -> Iterator[str]:
    """A token of this test's own; nothing of it lives afterwards."""
    drawn = hashlib.md5(request.node.nodeid.encode()).hexdigest()
    site.clean()
    yield drawn
    site.clean()
    try:
        # An agent lives a moment longer than its bundle, and so does a job of it that waited.
        await_that(lambda: not site.living(drawn), "processes of a bundle live after its end", 10.0)
    finally:
        for process in site.living(drawn):
            with suppress(psutil.Error):
                process.kill()
