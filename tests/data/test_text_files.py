from __future__ import annotations

import pytest

from dpfed.data.text_files import decode, find_separator, read_text, split_declaration
from dpfed.errors import InvalidArgument


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1", "cp1252"])
def test_a_text_is_read_in_every_usual_encoding(encoding):
    assert decode("größe;15\n".encode(encoding), "a.csv") == "größe;15\n"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\xef\xbb\xbfa\xff", "goes on in another"),
        ("ä".encode() + "ä".encode("latin-1"), "partly UTF-8"),
        (b"PK\x03\x04\x00", "no text"),
    ],
)
def test_what_is_no_text_of_one_encoding_is_refused(content, what):
    with pytest.raises(InvalidArgument, match=what):
        decode(content, "a.csv")


def test_how_a_record_is_read_does_not_depend_on_the_bytes_of_another():
    lines = ["Иван;1\n", "Łucja;2\n", "Müller;3\n", "smith;4\n"]
    known = "".join(lines).encode()
    for stray in (b"\xff;5\n", b"\x81;5\n", "größe;5\n".encode("latin-1"), b"\x85\xa0;5\r\n"):
        for content in (known + stray, stray + known):
            found = decode(content, "a.csv").split("\n")
            assert {line.strip() for line in lines} <= set(found)
            assert len(found) == 6


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_text(tmp_path / "no.csv")


@pytest.mark.parametrize(
    ("header", "separator"),
    [("a,b", ","), ("a;b,c;d", ";"), ('"x,y,z";b', ";"), ("a\tb", "\t"), ("a|b", "|"), ("a b", " "), ("a", ",")],
)
def test_the_separator_is_that_of_the_first_line(header, separator):
    assert find_separator(header) == separator


def test_a_line_of_excel_declares_it():
    assert split_declaration("sep=|\r\na|b\n") == ("|", "a|b\n")
    assert split_declaration("a,b\n") == (None, "a,b\n")
