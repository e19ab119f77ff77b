"""Names with options: how they are read, printed and typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.errors import UserError
from fsbench.options import ByteSize, Spec, build_options, nearest

MIB = ByteSize(2**20)


@dataclass(frozen=True)
class Options:
    ranks: int = 2
    alpha: float = 0.5
    fast: bool = False
    piece: ByteSize = MIB
    costs: Literal["flops", "profile"] = "flops"
    label: str = ""
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ValueError(f"ranks={self.ranks}: at least 1")


@dataclass(frozen=True)
class Needy:
    profile: str
    ranks: int = 1


@dataclass(frozen=True)
class Empty:
    pass


def build(**given: str) -> Options:
    return build_options(Options, given, owner="thing")


def test_a_name_alone_has_no_options():
    assert Spec.parse("shadow-ma") == Spec("shadow-ma", {})


def test_options_follow_the_name_and_print_in_the_order_of_their_keys():
    spec = Spec.parse("shadow-ma:write_back=delta,alpha=0.5")
    assert spec == Spec("shadow-ma", {"alpha": "0.5", "write_back": "delta"})
    assert str(spec) == "shadow-ma:alpha=0.5,write_back=delta"


def test_a_value_may_hold_an_equals_sign_and_a_colon():
    assert Spec.parse("x:url=a:b=c").options == {"url": "a:b=c"}


@pytest.mark.parametrize("text", ["", ":a=1", "a b", "x:", "x:a", "x:=1", "x:a=1,", "x:a=1,a=2", "-x", "x\n"])
def test_a_malformed_spec_is_refused_and_quoted(text: str):
    with pytest.raises(UserError) as error:
        Spec.parse(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize("text", ["x:a=\x1b[2J", "x:a=\x00", "x:a=\u202egnp", "x:a=two\nlines", "x:a=\ud800"])
def test_a_spec_that_could_not_be_printed_is_refused_and_quoted_without_it(text: str):
    with pytest.raises(UserError, match="has characters that cannot be printed") as error:
        Spec.parse(text)
    assert str(error.value).isprintable()


def test_a_spec_of_absurd_length_is_refused_by_its_beginning():
    assert Spec.parse("x:a=" + "b" * 996).name == "x"
    with pytest.raises(UserError, match=r"'x:a=b+'\.\.\. has 1001 characters, expected at most 1000"):
        Spec.parse("x:a=" + "b" * 997)


_words = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)


@given(_words, st.dictionaries(_words, _words, max_size=4))
def test_a_printed_spec_reads_back_as_itself(name: str, options: dict[str, str]):
    assert Spec.parse(str(Spec(name, options))) == Spec(name, options)


def test_a_first_value_without_a_key_is_of_the_option_that_is_asked_for_first():
    spec = Spec.parse("sim:h100,ranks=8")
    assert (str(spec), Spec.parse(str(spec))) == ("sim:h100,ranks=8", spec)
    assert build_options(Needy, spec.options, owner="sim") == Needy("h100", 8)


@pytest.mark.parametrize(
    ("options", "given"), [(Options, "x:h100,ranks=8"), (Needy, "x:h100,profile=a"), (Empty, "x:h100,ranks=8")]
)
def test_such_a_value_is_refused_where_nothing_needs_it(options, given):
    with pytest.raises(UserError, match="x: 'h100' is not KEY=VALUE"):
        build_options(options, Spec.parse(given).options, owner="x")


def test_options_not_given_keep_their_defaults():
    assert build() == Options()


def test_every_kind_of_option_is_read_from_text():
    given = {
        "ranks": "3", "alpha": "1e-3", "fast": "yes", "piece": "64KiB",
        "costs": "profile", "label": "a b", "limit": "7",
    }  # fmt: skip
    assert build(**given) == Options(3, 1e-3, True, ByteSize(65536), "profile", "a b", 7)


def test_none_is_a_value_of_an_optional_option():
    assert build(limit="none").limit is None


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("0", 0), ("1B", 1), ("2kib", 2048), ("1MiB", 2**20), ("2GiB", 2**31), ("3MB", 3_000_000)],
)
def test_a_byte_size_has_a_binary_or_a_decimal_unit(text: str, size: int):
    assert build(piece=text).piece == size


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("ranks", "two", "a whole number"),
        ("ranks", "1.5", "a whole number"),
        ("ranks", "", "a whole number"),
        ("ranks", "0", "at least 1"),
        ("alpha", "half", "a number"),
        ("alpha", "nan", "a finite number"),
        ("alpha", "-inf", "a finite number"),
        ("alpha", "1e999", "a finite number"),
        ("fast", "maybe", "true or false"),
        ("piece", "1 parsec", "64KiB"),
        ("piece", "-1", "64KiB"),
        ("costs", "guess", "flops, profile"),
        ("limit", "x", "a whole number"),
    ],
)
def test_a_bad_value_is_refused_with_its_owner_and_what_would_be_right(key: str, text: str, expected: str):
    with pytest.raises(UserError) as error:
        build(**{key: text})
    assert str(error.value).startswith("thing: ")
    assert expected in str(error.value)


def test_an_unknown_option_is_refused_with_the_nearest_and_all_valid_ones():
    with pytest.raises(UserError) as error:
        build(rank="3")
    assert str(error.value) == (
        "thing has no option 'rank'; did you mean ranks? valid: alpha, costs, fast, label, limit, piece, ranks"
    )


def test_a_required_option_left_out_is_asked_for():
    @dataclass(frozen=True)
    class Needy:
        host: str
        port: int
        depth: int = 1

    with pytest.raises(UserError, match=r"^thing needs host=\.\.\. and port=\.\.\.$"):
        build_options(Needy, {"depth": "2"}, owner="thing")


def test_an_option_of_a_type_that_text_cannot_give_is_the_plugins_fault():
    @dataclass(frozen=True)
    class Wrong:
        sizes: list[int] | None = None

    with pytest.raises(TypeError, match="list"):
        build_options(Wrong, {"sizes": "1"}, owner="thing")


def test_nearest_names_close_matches_first_and_always_all():
    assert nearest("cost-awre", ["naive", "cost-aware"]) == "did you mean cost-aware? valid: cost-aware, naive"
    assert nearest("zzz", ["b", "a"]) == "valid: a, b"
    assert nearest("x", []) == "valid: none"
