"""Templates are read into reports, and what they print is never markup."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from perfbisect.report import template as templates
from perfbisect.report.document import (
    Code,
    Column,
    Command,
    Figure,
    Items,
    KeyValues,
    Paragraph,
    Report,
    Section,
    Table,
    Verdict,
    code,
    strong,
)
from perfbisect.report.markdown import report_markdown
from perfbisect.report.plots import Axis, Plot
from perfbisect.report.template import render_report, render_sentences

WHOLE = """\
# Comparison of `{{ text }}`: [{{ "a regression" }}]({{ "bad" }})

> **{{ 0.04 | percent }}** effect on {{ text }}

> **8** launches

One sentence of {{ text }}
on two lines, **{{ text }}**.

*Small print of {{ text }}.*

- one `{{ text }}`
- {{ text }}

| metric | A |
|---|--:|
| {{ highlight }}`tpot` | {{ 12.0 | with_unit("ms") }} |
| {{ text }} | 3 |

## Plan

| | |
|---|---|
| model | `{{ text }}` |

![Launches by {{ text }}](launches)

![Not there](nowhere)

### Details

```sh
{{ text }}
```

```sh next
perfbisect report {{ text }}
```

### Empty

{% if false %}left out{% endif %}

---

Job {{ text }}.
"""


def write(folder: Path, text: str) -> str:
    (folder / "some.md.jinja").write_text(text)
    return "some.md.jinja"


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(templates, "_PACKAGE", tmp_path)
    templates._environment.cache_clear()
    yield tmp_path
    templates._environment.cache_clear()


PLOT = Plot(Axis(range=(0, 1)), ())


def whole(text: str) -> Report:
    return Report(
        f"Comparison of {text}",
        Verdict("a regression", "bad"),
        (
            Paragraph((f"One sentence of {text} on two lines, ", strong(text), ".")),
            Paragraph(f"Small print of {text}.", quiet=True),
            Items((("one ", code(text)), text)),
            Table(
                (Column("metric"), Column("A", numeric=True)),
                ((code("tpot"), "12.00 ms"), (text, "3")),
                frozenset({0}),
            ),
        ),
        (
            Section(
                "Plan",
                (
                    KeyValues((("model", code(text)),)),
                    Figure("launches", f"Launches by {text}", PLOT),
                ),
            ),
            Section("Details", (Code(text), Command(f"perfbisect report {text}")), detail=True),
        ),
        (("+4.0 %", f"effect on {text}"), ("8", "launches")),
        f"Job {text}.",
    )


def test_every_form_is_read(package: Path) -> None:
    made = render_report(write(package, WHOLE), {"text": "x"}, {"launches": PLOT})
    assert made == whole("x")
    assert "Launches by" not in report_markdown(made)


HOSTILE = (
    "x`y` **b** [a](https://x.y) | c\n# d",
    "{{ text }}{% if %}",
    "\ue000616263\ue001",
    "\ue002",
    "<script>alert(1)</script>&amp;",
    "-->\x1b[31m\u202e",
    "```\nsh\n---",
    "\ud800",
    "![x](launches)",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_printed_is_never_markup(package: Path, text: str) -> None:
    assert render_report(write(package, WHOLE), {"text": text}, {"launches": PLOT}) == whole(text)


@given(st.text(min_size=1))
def test_any_text_comes_back(text: str) -> None:
    name = write(templates._PACKAGE, "One `{{ text }}` and {{ text }}{{ text }}\n")
    assert render_sentences(name, {"text": text}) == (f"One {text} and {text}{text}",)


def test_a_macro_prints_what_it_was_given(package: Path) -> None:
    text = "{% macro step(x) %}`{{ x }}` was{% endmacro %}\n{{ step(x) }} **{{ step('a<b') }}**\n"
    (package / "macros.jinja").write_text("{% macro both(x) %}{{ x }} twice{% endmacro %}")
    name = write(package, "{% from 'macros.jinja' import both %}\n" + text + "\n{{ both(x) }}\n")
    assert render_sentences(name, {"x": "*a*"}) == ("*a* was a<b was", "*a* twice")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{{ unknown }}", UndefinedError),
        ("{{ x.unknown }}", UndefinedError),
        ("{{ share }}", TypeError),
        ("{{ nothing }}", TypeError),
        ("a *word* in it", ValueError),
        ("1. one", ValueError),
        ("# Title: [word](green)", ValueError),
    ],
)
def test_a_mistake_in_a_template_is_an_error(package: Path, text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        render_report(write(package, text + "\n"), {"x": "x", "share": 0.5, "nothing": None})


def test_a_part_of_a_line_can_be_left_out(package: Path) -> None:
    assert render_sentences(write(package, "a{{ ' b' if x }}{{ ' c' if not x }}\n"), {"x": True}) == ("a b",)
