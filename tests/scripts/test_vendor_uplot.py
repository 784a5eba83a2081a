"""What is built in of uPlot: one version, with its license, from no other archive."""

from __future__ import annotations

import pytest

from perfbisect.report.html import plot_script
from scripts.vendor_uplot import TARGET, VERSION, built


def test_the_script_is_of_the_recorded_version_and_carries_its_license() -> None:
    shipped = {path.name: path.read_text(encoding="utf-8") for path in TARGET.iterdir()}
    assert set(shipped) == {"LICENSE", "uplot.js", "uplot.css"}
    assert shipped["uplot.js"].startswith(f"/*!\n{shipped['LICENSE'].strip()}\n*/\n")
    assert f"(v{VERSION}) */" in shipped["uplot.js"]


def test_an_archive_of_another_content_is_refused() -> None:
    with pytest.raises(ValueError, match=VERSION):
        built(b"another archive")


def test_no_line_of_the_plotting_script_changes_in_a_browser() -> None:
    """A browser turns CR LF into LF before it compares the hash of the page's policy."""
    assert "\r" not in plot_script()
    assert "</script" not in plot_script().lower()
