"""Reading and fetching MovieLens-100K: every malformed file is a DataError that says where and what."""

import hashlib
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.errors import DataError, UserError
from fsbench_workloads import movielens

HEADER = b"user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
EXPECTED = "expected 4 tab-separated fields user, item, rating, timestamp, found"


def write(tmp_path: Path, body: bytes, name: str = "u.data") -> Path:
    path = tmp_path / name
    path.write_bytes(body)
    return path


def rows(ratings: movielens.Ratings) -> list[tuple[int, int, int]]:
    return list(zip(ratings.user.tolist(), ratings.item.tolist(), ratings.timestamp.tolist(), strict=True))


@pytest.mark.parametrize(
    "body",
    [
        b"196\t242\t3\t881250949\n1\t2\t5\t3\n",
        b"196\t242\t3\t881250949\n1\t2\t5\t3",
        b"196\t242\t3\t881250949\r\n1\t2\t5\t3\r\n",
        b"196\t242\t3\t881250949\n1\t2\t5\t3\n\n\r\n",
        b"\xef\xbb\xbf196\t242\t3\t881250949\n1\t2\t5\t3\n",
        b"196\t242\t3.5\t881250949.0\n1\t2\t-1e0\t3.\n",
        HEADER + b"196\t242\t3\t881250949\n1\t2\t5\t3\n",
        HEADER.replace(b"\n", b"\r\n") + b"196\t242\t3\t881250949\r\n1\t2\t5\t3\r\n",
    ],
    ids=["u.data", "no last newline", "CRLF", "blank end", "BOM", "floats", "header", "header and CRLF"],
)
def test_both_formats_are_read_and_hashed_as_they_lie(tmp_path, body):
    ratings = movielens.read(write(tmp_path, body))
    assert rows(ratings) == [(196, 242, 881250949), (1, 2, 3)]
    assert ratings.rating.tolist() == [3.5 if b"3.5" in body else 3.0, -1.0 if b"-1e0" in body else 5.0]
    assert ratings.user.dtype == ratings.item.dtype == ratings.timestamp.dtype == np.int64
    assert ratings.sha256 == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("header", [b"", HEADER], ids=["without header", "with header"])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"1\t2\t3", f"{EXPECTED} '1\\t2\\t3'"),
        (b"1\t2\t3\t4\t5", f"{EXPECTED} '1\\t2\\t3\\t4\\t5'"),
        (b"1,2,3,4", f"{EXPECTED} '1,2,3,4'"),
        (b"1::2::3::4", f"{EXPECTED} '1::2::3::4'"),
        (b"", f"{EXPECTED} ''"),
        (b"u1\t2\t3\t4", f"{EXPECTED} 'u1\\t2\\t3\\t4'"),
        (b"1\t2.5\t3\t4", f"{EXPECTED} '1\\t2.5\\t3\\t4'"),
        (b"1\t2\tgood\t4", f"{EXPECTED} '1\\t2\\tgood\\t4'"),
        (b"1\t2\tnan\t4", f"{EXPECTED} '1\\t2\\tnan\\t4'"),
        (b"1\t2\t3\t4.5", f"{EXPECTED} '1\\t2\\t3\\t4.5'"),
        (b"1\t2\t3\t\xff\xfe\r", f"{EXPECTED} '1\\t2\\t3\\t\ufffd\ufffd'"),
        (b"x" * 500, f"{EXPECTED} '{'x' * 60}...'"),
        (b"0\t2\t3\t4", "user '0' is out of range: expected 1 to 9223372036854775807"),
        (b"1\t-2\t3\t4", "item '-2' is out of range: expected 1 to 9223372036854775807"),
        (b"9223372036854775808\t2\t3\t4", "user '9223372036854775808' is out of range"),
        (b"1\t" + b"9" * 5000 + b"\t3\t4", f"item '{'9' * 60}...' is out of range"),
        (b"1\t2\t3\t99999999999999999999", "timestamp '99999999999999999999' is out of range"),
    ],
)
def test_a_malformed_line_is_named_with_its_number_and_text(tmp_path, header, line, message):
    path = write(tmp_path, header + b"1\t1\t1\t1\n" + line + b"\n5\t5\t5\t5\n")
    with pytest.raises(DataError) as error:
        movielens.read(path)
    assert str(error.value).startswith(f"{path}:{2 + bool(header)}: {message}")
    assert "\n" not in str(error.value)


def test_the_largest_ids_are_read_exactly(tmp_path):
    ratings = movielens.read(write(tmp_path, b"9223372036854775807\t9007199254740993\t3\t-5\n"))
    assert rows(ratings) == [(2**63 - 1, 2**53 + 1, -5)]


def test_a_header_with_other_columns_is_refused(tmp_path):
    path = write(tmp_path, b"user_id:token\titem_id:token\n1\t2\n")
    with pytest.raises(DataError, match=r":1: expected the header 'user_id:token.*found 'user_id:token"):
        movielens.read(path)


@pytest.mark.parametrize("body", [b"", b"\n\n", HEADER, HEADER[:-1]])
def test_a_file_without_ratings_is_refused(tmp_path, body):
    path = write(tmp_path, body)
    with pytest.raises(DataError) as error:
        movielens.read(path)
    assert str(error.value) == f"{path}: holds no ratings"


def test_a_path_that_cannot_be_read_says_why(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="missing: No such file"):
        movielens.read(tmp_path / "missing")
    (tmp_path / "u.data").mkdir()
    with pytest.raises(DataError, match=r"u\.data: Is a directory"):
        movielens.read(movielens.locate(tmp_path))

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DataError, match=r"other: Permission denied$"):
        movielens.read(tmp_path / "other")


FIELD = st.sampled_from([b"1", b"12", b"0", b"-3", b"+4", b"1.0", b"2.", b"1e3", b"x", b"", b"9" * 16, b" 1"])
LINE = st.lists(FIELD, min_size=3, max_size=5).map(b"\t".join)


@given(st.lists(LINE | st.just(b"3\t4\t5\t6"), min_size=1, max_size=4), st.sampled_from([b"\n", b"\r\n"]))
def test_the_fast_reader_agrees_with_the_line_by_line_one_or_leaves_it_to_it(lines, newline):
    body = newline.join(lines)
    fast = movielens.parse_plain(body)
    if fast is not None:
        slow = movielens.parse_lines(body.split(b"\n"), Path("f"), 1)
        assert fast.tolist() == slow.tolist()
        assert fast.dtype == slow.dtype


def test_the_fast_reader_takes_what_both_formats_hold():
    assert movielens.parse_plain(b"196\t242\t3\t881250949\r\n1\t2\t3.5\t881250949.0") is not None


def test_the_subfolder_comes_first_and_the_fetched_file_before_the_users(tmp_path):
    (tmp_path / "ml-100k").mkdir()
    places = ["u.data", "ml-100k.inter", "ml-100k/u.data", "ml-100k/ml-100k.inter"]
    for place in places:
        (tmp_path / place).touch()
        assert movielens.locate(tmp_path) == tmp_path / place


def test_missing_data_says_how_to_get_it(tmp_path):
    with pytest.raises(DataError) as error:
        movielens.locate(tmp_path)
    assert str(error.value) == (
        f"MovieLens-100K is not in {tmp_path}: run `fsbench data fetch ml-100k` or pass --data-dir with a "
        f"folder that holds ml-100k/u.data"
    )


def test_the_default_folder_is_the_environments_or_the_cache(monkeypatch):
    monkeypatch.setenv("FSBENCH_DATA", "/somewhere")
    assert movielens.default_data_dir() == Path("/somewhere")
    monkeypatch.delenv("FSBENCH_DATA")
    assert movielens.default_data_dir() == Path.home() / ".cache/fsbench"


@pytest.fixture
def pip(monkeypatch):
    """Stands in for pip: downloads a wheel with `pip.body` as `pip.member`, or fails with `pip.error`."""

    class Pip:
        def __init__(self):
            self.member, self.body, self.error = movielens.MEMBER, b"1\t2\t3\t4\n", ""
            self.others, self.damage, self.encrypted = {}, None, False
            self.commands = []

        def run(self, command, **_):
            self.commands.append(command)
            if self.error:
                return subprocess.CompletedProcess(command, 1, "", self.error)
            if self.body is not None:
                folder = Path(command[command.index("-d") + 1])
                self._pack(folder / "recbole-1.2.1-py3-none-any.whl")
            return subprocess.CompletedProcess(command, 0, "", "")

        def _pack(self, path):
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
                for member, body in {self.member: self.body, **self.others}.items():
                    wheel.writestr(member, body)
            content = bytearray(path.read_bytes())
            if self.damage:
                content[int(len(content) * self.damage)] ^= 0xFF
            if self.encrypted:
                for record, flags in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
                    content[content.index(record) + flags] |= 1
            path.write_bytes(content)

    fake = Pip()
    monkeypatch.setattr(movielens.subprocess, "run", fake.run)
    monkeypatch.setattr(movielens, "SHA256", hashlib.sha256(fake.body).hexdigest())
    return fake


def left_behind(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_fetch_downloads_once_and_returns_the_terms_once(tmp_path, pip):
    first = movielens.fetch(tmp_path)
    assert first.path.read_bytes() == pip.body
    assert first.path == movielens.locate(tmp_path)
    assert "GroupLens" in first.terms
    assert movielens.fetch(tmp_path) == movielens.Fetched(first.path, None)
    assert left_behind(tmp_path) == ["ml-100k/ml-100k.inter"]
    assert len(pip.commands) == 1
    assert pip.commands[0][:5] == [sys.executable, "-m", "pip", "download", "--no-deps"]


def test_a_failing_pip_is_one_line_with_its_last_word(tmp_path, pip):
    pip.error = "WARNING: retrying\nERROR: No matching distribution found for recbole==1.2.1\n"
    with pytest.raises(UserError) as error:
        movielens.fetch(tmp_path)
    assert str(error.value) == (
        "pip could not download recbole==1.2.1, which holds MovieLens-100K: "
        "ERROR: No matching distribution found for recbole==1.2.1"
    )
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("body", None, "pip downloaded no wheel of recbole==1.2.1"),
        ("body", b"changed", "has SHA-256 .*, expected "),
        ("member", "other", "has no readable recbole/dataset_example/ml-100k/ml-100k.inter"),
    ],
)
def test_a_package_with_other_content_is_refused_and_leaves_nothing(tmp_path, pip, attribute, value, message):
    setattr(pip, attribute, value)
    with pytest.raises(UserError, match=message):
        movielens.fetch(tmp_path)
    assert left_behind(tmp_path) == []


def test_no_member_of_a_package_is_written_where_its_name_says(tmp_path, pip):
    """Not even beside the data: only the ratings are read, by their name, and hashed before they are written."""
    pip.others = {"../../escaped": b"", "/escaped": b"", "recbole/dataset_example/ml-100k/other": b"x"}
    fetched = movielens.fetch(tmp_path / "data")
    assert fetched.path.read_bytes() == pip.body
    assert left_behind(tmp_path) == ["data/ml-100k/ml-100k.inter"]


def test_a_package_that_unpacks_to_more_than_it_should_is_not_unpacked(tmp_path, pip, monkeypatch):
    monkeypatch.setattr(movielens, "_MOST_BYTES", 2**20)
    pip.body = bytes(2**27)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"ml-100k\.inter has more than 1 MiB"):
            movielens.fetch(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("place", [0.3, 0.6])
def test_a_damaged_package_is_one_line(tmp_path, pip, place):
    pip.body = hashlib.shake_256(b"x").digest(5000)
    pip.damage = place
    with pytest.raises(DataError, match=r"has no readable recbole/dataset_example/ml-100k/ml-100k\.inter: ") as error:
        movielens.fetch(tmp_path)
    assert "\n" not in str(error.value)
    assert left_behind(tmp_path) == []


def test_an_encrypted_package_is_one_line(tmp_path, pip):
    pip.encrypted = True
    with pytest.raises(DataError, match=r"has no readable .*encrypted"):
        movielens.fetch(tmp_path)


def test_an_unwritable_folder_is_one_line_and_nothing_is_downloaded(tmp_path, pip):
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(UserError, match=r"cannot write MovieLens-100K to .*/file/ml-100k: Not a directory"):
        movielens.fetch(blocked)
    assert not pip.commands
