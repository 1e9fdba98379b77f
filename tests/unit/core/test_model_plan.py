"""What is left to fetch after any end of an earlier fetch, and what a cache may forget."""

from __future__ import annotations

import hashlib

import pytest

from serve_app.core.model_address import parse_address
from serve_app.core.model_manifest import Manifest, StoredFile
from serve_app.core.model_plan import Journal, Kept, Part, drop_line, fetch_order, have_line, shown, to_forget

SHA = hashlib.sha256(b"").hexdigest()
MANIFEST = Manifest((StoredFile("a", 25, SHA), StoredFile("b", 0, SHA), StoredFile("c", 10, SHA)))
PARTS = [Part(0, 0, 10), Part(0, 10, 10), Part(0, 20, 5)]


def test_without_a_journal_every_byte_is_missing_once() -> None:
    journal = Journal()
    assert journal.missing(MANIFEST, 0, 10) == PARTS
    assert journal.missing(MANIFEST, 1, 10) == []
    assert journal.missing(MANIFEST, 2, 10) == [Part(2, 0, 10)]
    assert [journal.begun(i) for i in range(3)] == [False, False, False]


def test_what_was_written_is_not_asked_for_again() -> None:
    journal = Journal.read("\n" + have_line(PARTS[0]) + have_line(PARTS[2]) + "\n")
    assert journal.missing(MANIFEST, 0, 10) == [PARTS[1]]
    assert journal.begun(0) and not journal.begun(2)
    assert (journal.bytes_of(0), journal.bytes_of(2)) == (15, 0)


def test_a_whole_file_needs_no_part() -> None:
    assert Journal.read("have 0 0 25\n").missing(MANIFEST, 0, 10) == []


def test_what_turned_out_wrong_is_asked_for_again() -> None:
    journal = Journal.read(have_line(PARTS[0]) + drop_line(0) + have_line(PARTS[1]))
    assert journal.missing(MANIFEST, 0, 10) == [PARTS[0], PARTS[2]]
    journal.drop(0)
    assert journal.missing(MANIFEST, 0, 10) == PARTS


@pytest.mark.parametrize(
    "end", ["have 0 0 10", "have 0 0 1\n", "have 0 0\n", "have x 0 10\n", "have 0 0 -10\n", "\0\n", "z 1\n"]
)
def test_half_a_line_or_garbage_is_no_line(end: str) -> None:
    assert Journal.read(have_line(PARTS[1]) + end).missing(MANIFEST, 0, 10) == [PARTS[0], PARTS[2]]


def test_parts_of_another_size_cost_bytes_and_no_more() -> None:
    assert Journal.read(have_line(PARTS[0])).missing(MANIFEST, 0, 20) == [Part(0, 0, 20), Part(0, 20, 5)]


def test_small_files_come_first() -> None:
    assert fetch_order(MANIFEST) == [1, 2, 0]


def kept(key: str, used_unix_s: float, model: str = "m", in_use: bool = False) -> Kept:
    return Kept(key, model, used_unix_s, in_use)


def keys(some: list[Kept]) -> list[str]:
    return [version.key for version in some]


def test_the_last_versions_of_each_model_stay() -> None:
    some = [kept("a1", 1), kept("a2", 2), kept("a3", 3), kept("b1", 0, "n"), kept("b2", 9, "n")]
    assert keys(to_forget(some, 1)) == ["b1", "a1", "a2"]
    assert keys(to_forget(some, 2)) == ["a1"]
    assert keys(to_forget(some, 3)) == []


def test_what_is_in_use_stays_beside_them() -> None:
    some = [kept("a1", 1, in_use=True), kept("a2", 2), kept("a3", 3), kept("a4", 4)]
    assert keys(to_forget(some, 2)) == ["a2"]


@pytest.mark.parametrize(
    ("text", "uri", "model"),
    [
        ("s3://models/qwen/v1", "s3://models/qwen/v1", "s3://models/qwen"),
        ("s3://models/qwen/v1/", "s3://models/qwen/v1", "s3://models/qwen"),
        ("s3://models/v1", "s3://models/v1", "s3://models"),
        ("file:///srv/models/qwen/v1/", "file:///srv/models/qwen/v1", "file:///srv/models/qwen"),
    ],
)
def test_an_address_is_a_prefix_of_its_own(text: str, uri: str, model: str) -> None:
    address = parse_address(text)
    assert (address.uri, address.model) == (uri, model)
    assert parse_address(address.uri) == address


def test_a_key_is_readable_and_never_that_of_another_address() -> None:
    texts = [
        "s3://b-1/qwen 2/v1",
        "s3://b-2/qwen 2/v1",
        "s3://b-1/qwen-2/v1",
        "file:///qwen-2/v1",
        "s3://b-1/x/qwen-2/v1",
    ]
    some = [parse_address(text).key for text in texts]
    assert len(set(some)) == len(some) and {key.rpartition("-")[0] for key in some} == {"qwen-2_v1"}
    assert parse_address("s3://b-1/...x/" + "y" * 300).key.startswith("x_" + "y" * 40 + "-")


@pytest.mark.parametrize(
    "text",
    ["", "s3://", "s3://b", "s3://models", "s3://models/", "s3://Models/a", "s3://m/a/../b", "s3://models//a", "file://host/a",
     "file:///", "file://../a", "http://models/a", "s3://models/a?x=1", "s3://models/a#b", "s3://models/a\nb", "s3://k:s@models/a",
     "/a/b", "s3:/models/a", "s3://models/" + "a" * 1100],
)  # fmt: skip
def test_what_is_no_address_is_told_what_is(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no address of a version; allowed: s3://BUCKET/PREFIX or file:///FOLDER$"):
        parse_address(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (5451533, "5.2 MiB"), (3 << 40, "3072.0 GiB")],
)
def test_sizes_are_for_people(size: int, text: str) -> None:
    assert shown(size) == text
