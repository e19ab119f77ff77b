"""The mutations' runner, and that every mutation still finds its text and its tests. Running them all takes minutes:
`python -m tests.mutations`."""

from __future__ import annotations

import pytest

from tests.mutations.__main__ import BROKEN, NOTICED, SKIPPED, SURVIVED, verdict
from tests.mutations.catalogue import ROOT, CatalogueError, Mutation, read_catalogue
from tests.mutations.trial import Trial, run_tests

INTERVALS = "tests/test_metrics_intervals.py"


@pytest.mark.parametrize("mutation", read_catalogue(), ids=lambda mutation: mutation.name)
def test_a_mutation_finds_its_text_once_and_its_tests(mutation):
    assert (ROOT / mutation.file).read_text().count(mutation.find) == 1
    for test in mutation.tests:
        file, _, name = test.partition("::")
        last = name.rpartition("::")[2].partition("[")[0]
        text = (ROOT / file).read_text()
        assert f"def {last or 'test_'}" in text or f"class {last}:" in text


def trial(exit_code: int, passed: int = 0, failed: int = 0, skipped: int = 0) -> Trial:
    return Trial(exit_code, passed, failed, skipped, seconds=1.0, output="")


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (trial(1, passed=3, failed=1), NOTICED),
        (trial(0, passed=4), SURVIVED),
        (trial(0, skipped=4), SKIPPED),
        (trial(2, failed=1), BROKEN),  # could not be imported
        (trial(4), BROKEN),  # no such test
        (trial(5), BROKEN),  # nothing collected
    ],
)
def test_only_a_failed_test_notices_a_mutation(ended, expected):
    assert verdict(ended) == expected


def test_a_mutation_is_applied_to_a_copy_whose_tests_then_fail():
    mutation = Mutation(
        "an intersection is a union",
        "fsbench/metrics/intervals.py",
        "_combine(a, b, np.logical_and)",
        "_combine(a, b, np.logical_or)",
        (INTERVALS,),
        "this test",
    )
    before = (ROOT / mutation.file).read_bytes()
    mutated, whole = run_tests(mutation.tests, mutation), run_tests(mutation.tests)
    assert (verdict(mutated), verdict(whole)) == (NOTICED, SURVIVED)
    assert mutated.first_failure.startswith(INTERVALS)
    assert (ROOT / mutation.file).read_bytes() == before


def test_a_mutation_that_does_not_find_its_text_is_an_error_and_not_a_success():
    mutation = Mutation("gone", "fsbench/metrics/intervals.py", "no such text", "", (INTERVALS,), "this test")
    with pytest.raises(CatalogueError, match="has the text 0 times, expected once"):
        run_tests(mutation.tests, mutation)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[mutation]", "expected \\[\\[mutation\\]\\] tables"),
        ("name = 'x'", "expected \\[\\[mutation\\]\\] tables"),
        ("[[mutation]]\nname = 'x'", "x: expected file, find, name, replace, tests"),
    ],
)
def test_a_malformed_catalogue_is_an_error_that_names_the_file(tmp_path, text, message):
    (tmp_path / "odd.toml").write_text(text)
    with pytest.raises(CatalogueError, match=f"odd.toml: .*{message}|odd.toml: {message}"):
        read_catalogue(tmp_path)
