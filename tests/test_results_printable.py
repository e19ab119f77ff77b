"""Texts of others in reports: nothing acts on a terminal, breaks a table or starts a formula, and nothing is lost."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsbench.results.compare import Compared, Comparison, compare
from fsbench.results.compare_data import comparison_csv, comparison_json
from fsbench.results.compare_table import comparison_report
from fsbench.results.printable import as_json, printable, visible
from fsbench.results.record_shape import record_fault
from fsbench.results.table import FORMATS, render
from tests.damage import hostile

NASTY = [
    "\x1b[2J\x1b]0;title\x07",
    "\x9b31m",
    "\x7f\x08\r",
    "two\nlines\u2028three",
    "\u202egnp.exe",
    "\ud800",
    "\x00",
    "=HYPERLINK(1)",
    "+1",
    "-1",
    "@SUM(1)",
    "\t=1",
    "a|b",
    "<script>alert(1)</script>",
    "![x](http://example.org/a.png)",
    "[x][y]",
    "`",
    "\\|",
    "../../etc/passwd",
    "%s {0}",
]
texts = st.sampled_from(NASTY) | st.text(max_size=12)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ± and –", "plain, ± and –"),  # noqa: RUF001
        ("\x1b[31mred", "\\x1b[31mred"),
        ("two\nlines", "two\\nlines"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("\x9b\x7f\x00", "\\x9b\\x7f\\x00"),
        ("half a pair \udc80", "half a pair \\udc80"),
    ],
)
def test_what_would_act_on_a_terminal_becomes_visible(text: str, shown: str):
    assert visible(text) == shown


@given(st.text())
def test_what_is_visible_is_printable_and_what_is_printable_is_left_alone(text: str):
    assert visible(text).isprintable()
    assert visible(visible(text)) == visible(text)


@given(st.dictionaries(st.text(), st.text() | st.lists(st.text()), max_size=3))
def test_json_is_fit_for_a_terminal_and_says_the_same(value):
    text = as_json(value)
    assert all(line.isprintable() for line in text.split("\n"))
    assert json.loads(text) == value


def comparison_of(text: str, format: str) -> Comparison:
    records, manifest = hostile(text)
    sets = [(records, manifest), (records, {**manifest, "started": "another day"})]
    return compare(
        [
            Compared(letter, printable(text, format), printable(of, format), printable(runs, format))
            for letter, (runs, of) in zip("AB", sets, strict=True)
        ]
    )


def report(name: str, text: str) -> str:
    """A report on a set that has `text` wherever one of anyone's choice can stand."""
    command, form = name.split()
    if command == "show":
        records, manifest = hostile(text)
        return render(records, form, manifest)
    comparison = comparison_of(text, form)
    writers = {"json": comparison_json, "csv": comparison_csv}
    return writers[form](comparison) if form in writers else comparison_report(comparison, form)


@pytest.mark.parametrize("text", NASTY, ids=ascii)
def test_the_hostile_records_are_such_as_would_be_read(text: str):
    assert [record_fault(record) for record in hostile(text)[0]] == [None] * 4


@pytest.mark.parametrize("name", [f"{command} {form}" for command in ("show", "compare") for form in FORMATS])
@settings(max_examples=30)
@given(text=texts)
def test_no_report_sends_anything_to_the_terminal_but_text(name: str, text: str):
    assert all(line.isprintable() for line in report(name, text).split("\n"))


@settings(max_examples=30)
@given(texts)
def test_json_reports_have_the_texts_as_they_are(text: str):
    row = next(row for row in json.loads(report("show json", text)) if row["cell"]["sharding"] == "naive")
    assert row["missing"]["loss"] == (text or "why")
    assert json.loads(report("compare json", text))["sets"][0]["name"] == text


@pytest.mark.parametrize("name", ["show csv", "compare csv"])
@settings(max_examples=30)
@given(text=texts)
def test_no_field_of_a_csv_starts_a_formula(name: str, text: str):
    fields = [field for row in csv.reader(io.StringIO(report(name, text))) for field in row]
    assert all(field[:1] not in "=+@\t\r" or not field for field in fields)
    # A dash alone is an axis that is not used.
    assert all(field == "-" or re.fullmatch(r"-[\d.e+-]+", field) for field in fields if field.startswith("-"))


def unescaped(text: str, markup: str) -> int:
    return len(re.findall(rf"(?<!\\)(?:\\\\)*{markup}", text))


@pytest.mark.parametrize("name", ["show markdown", "compare markdown"])
@settings(max_examples=30)
@given(text=texts)
def test_markdown_tables_keep_their_columns_and_hold_no_markup_of_others(name: str, text: str):
    for block in report(name, text).replace("`fsbench show`", "").split("\n\n"):
        if block.startswith("|"):
            assert len({unescaped(line, r"\|") for line in block.split("\n")}) == 1
        assert not unescaped(block, "<[A-Za-z!/?]")
        assert not unescaped(block, "`")
        assert not unescaped(block, r"\]\(")
