"""Text, XML, JSON and YAML of strangers: plain data, or a DataError that says where and what."""

from __future__ import annotations

import codecs
import math
import os
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankdet.data.reading import parsing
from rankdet.data.reading.parsing import (
    decode_text,
    read_bytes,
    read_json,
    read_lines,
    read_xml,
    read_yaml,
)
from rankdet.errors import DataError

READERS = [read_lines, read_xml, read_json, read_yaml]


@pytest.fixture
def write(tmp_path: Path):
    """A function: the path of a new file with that content."""

    def written(content: bytes | str) -> Path:
        path = tmp_path / "file"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written


def refused(read, path: Path) -> DataError:
    with pytest.raises(DataError) as caught:
        read(path)
    error = caught.value
    assert error.file == str(path)
    assert str(error).isprintable()
    assert len(str(error)) < 700
    return error


# ---- files


@pytest.mark.parametrize("read", READERS)
def test_what_is_no_plain_file_is_refused_without_waiting(read, tmp_path):
    assert refused(read, tmp_path / "missing").code == "data-missing"
    assert refused(read, tmp_path / "a\0b").code in ("data-missing", "file-unreadable")
    assert refused(read, tmp_path).code == "file-unreadable"
    os.mkfifo(tmp_path / "pipe")
    assert refused(read, tmp_path / "pipe").code == "file-unreadable"
    with pytest.raises(DataError, match="name too long"):
        read(tmp_path / ("x" * 300))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_rights_is_refused(write):
    path = write("a")
    path.chmod(0)
    error = refused(read_lines, path)
    path.chmod(stat.S_IRWXU)
    assert error.code == "file-unreadable"
    assert "Permission denied" in str(error)


def test_the_limit_is_inclusive_and_named(write):
    assert read_bytes(write(b"12345"), 5) == b"12345"
    error = refused(lambda path: read_bytes(path, 4), write(b"12345"))
    assert (error.code, error.value) == ("file-too-large", "5")
    assert "The limit is 4 bytes." in str(error)


@pytest.mark.parametrize(
    ("read", "limit"),
    [
        (read_lines, parsing.MAX_TEXT_BYTES),
        (read_xml, parsing.MAX_XML_BYTES),
        (read_json, parsing.MAX_JSON_BYTES),
        (read_yaml, parsing.MAX_YAML_BYTES),
    ],
)
def test_each_kind_has_its_limit_and_a_huge_file_is_not_even_read(read, limit, tmp_path):
    path = tmp_path / "huge"
    with path.open("wb") as stream:
        stream.truncate(limit + 1)  # a hole: no bytes on the disk
    started = time.perf_counter()
    assert refused(read, path).code == "file-too-large"
    assert time.perf_counter() - started < 1


def test_limits_let_real_files_through():
    assert parsing.MAX_XML_BYTES >= 2 * 2**20
    assert parsing.MAX_JSON_BYTES >= 2**30
    assert parsing.MAX_YAML_BYTES >= 400_000
    assert parsing.MAX_TEXT_BYTES >= 2**20
    assert parsing.MAX_LIST_BYTES >= 150 * 2**20


# ---- text


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be", "utf-32-be"]
)
def test_text_with_a_mark_is_read_in_its_encoding(encoding):
    marks = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}
    marks["utf-32-be"] = codecs.BOM_UTF32_BE
    content = marks.get(encoding, b"") + "a\nÄ日".encode(encoding)
    assert decode_text(content, Path("a")) == "a\nÄ日"


@pytest.mark.parametrize(
    "content", [b"ab\xff\xfe", "Größe".encode("latin-1"), b"\xff\xfea", b"\xed\xa0\x80"]
)
def test_text_in_no_known_encoding_is_refused_with_the_place(content):
    with pytest.raises(DataError) as caught:
        decode_text(content, Path("a.txt"))
    assert caught.value.code == "file-encoding"
    assert caught.value.value.startswith("b'")
    assert "Byte " in str(caught.value)


def test_the_place_of_the_first_wrong_byte_is_right():
    with pytest.raises(DataError, match=r"b'\\xff2345678': .* Byte 5 is not utf-8\."):
        decode_text(b"abcde\xff23456789", Path("a.txt"))


@pytest.mark.parametrize("content", [b"a\0b", "ab".encode("utf-16-le")])
def test_null_characters_are_refused(content):
    with pytest.raises(DataError, match="null characters"):
        decode_text(content, Path("a.txt"))


def test_lines_end_with_any_line_break(write):
    assert read_lines(write("a\nb\r\nc\rd\n")) == ["a", "b", "c", "d", ""]
    assert read_lines(write("")) == [""]
    # These are characters of a name, not line breaks.
    assert read_lines(write("a\u2028b\x0bc\x85")) == ["a\u2028b\x0bc\x85"]


def test_lines_have_a_limit_of_the_callers_choice(write):
    assert refused(lambda path: read_lines(path, 3), write("abcd")).code == "file-too-large"


# ---- XML


def test_xml_gives_its_root(write):
    root = read_xml(write("<?pi x?><annotation><a b='1'>x &amp; &#233;<!-- c --></a></annotation>"))
    assert root.tag == "annotation"
    assert root.findtext("a") == "x & é"
    assert root.find("a").attrib == {"b": "1"}


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "windows-1252", "utf-16", "koi8-r"])
def test_xml_is_read_in_the_encoding_that_it_declares(write, encoding):
    word = "жук" if encoding == "koi8-r" else "Größe"
    text = f'<?xml version="1.0" encoding="{encoding}"?><a>{word}</a>'
    assert read_xml(write(text.encode(encoding))).text == word


@pytest.mark.parametrize("encoding", ["gb2312", "GBK", "GB18030", "Big5", "Shift_JIS", "EUC-KR"])
def test_xml_in_asian_encodings_is_read(write, encoding):
    text = f"<?xml version='1.0' encoding = '{encoding}' ?><a>中 &#233;</a>"
    assert read_xml(write(text.encode(encoding))).text == "中 é"


def test_xml_with_a_mark_and_windows_line_ends_is_read(write):
    text = '<?xml version="1.0" encoding="utf-8"?>\r\n<a>\r\n<b>é</b></a>'
    assert read_xml(write(text.encode("utf-8-sig"))).findtext("b") == "é"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"  \n",
        b"<a>",
        b"<a></b>",
        b"<a/><b/>",
        b"<a>\0</a>",
        b"\0" * 50,
        b"text",
        b"<a>&unknown;</a>",
        b"<a b=1/>",
        b"<a b='1' b='2'/>",
        b"<x:a/>",
        b"<?xml version='1.0' encoding='no-such'?><a/>",
        b"<?xml version='1.0' encoding='utf-16'?><a/>",
        b"<?xml version='1.0' encoding='zlib'?><a/>",
        b"<?xml version='1.0' encoding='punycode'?><a/>",
        b"<?xml version='1.0' encoding='gbk'?><a>\xff\xff</a>",
        b"<?xml version='1.0' encoding='cp932'?><a>\x82\xa0</a>",
    ],
)
def test_broken_xml_is_refused(write, content):
    assert refused(read_xml, write(content)).code in ("xml-malformed", "file-encoding")


def test_broken_xml_is_refused_with_its_line(write):
    error = refused(read_xml, write("<a>\n<b>\n</a>"))
    assert (error.code, error.where) == ("xml-malformed", 3)
    assert "mismatched tag" in str(error)


@pytest.mark.parametrize(
    "head", ["", "<?xml version='1.0'?>", "<?xml version='1.0' encoding='UTF-8'?>"]
)
def test_xml_that_is_not_in_the_encoding_it_claims_is_called_so(write, head):
    content = (head + "<a>Größe</a>").encode("latin-1")
    assert refused(read_xml, write(content)).code == "file-encoding"


LAUGHS = "".join(f'<!ENTITY l{i + 1} "{f"&l{i};" * 10}">' for i in range(9))


@pytest.mark.parametrize(
    "doctype",
    [
        "<!DOCTYPE a>",
        "<!DOCTYPE a SYSTEM 'file:///etc/passwd'>",
        "<!DOCTYPE a PUBLIC 'x' 'http://localhost/x.dtd'>",
        "<!DOCTYPE a [<!ENTITY x 'y'>]>",
        "<!DOCTYPE a [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>",
        "<!DOCTYPE a [<!ENTITY % x SYSTEM 'file:///etc/passwd'>%x;]>",
        "<!DOCTYPE a [<!ENTITY l0 'lol'>" + LAUGHS + "]>",
        "<!DOCTYPE a [<!ATTLIST a b CDATA 'c'>]>",
    ],
)
def test_xml_with_a_doctype_is_refused(write, doctype):
    error = refused(read_xml, write(f"<?xml version='1.0'?>{doctype}<a>&x;&l9;</a>"))
    assert error.code == "xml-forbidden"


def test_xml_includes_nothing(write, tmp_path):
    (tmp_path / "secret").write_text("secret")
    text = (
        '<a xmlns:xi="http://www.w3.org/2001/XInclude"><xi:include href="secret" parse="text"/></a>'
    )
    assert "".join(read_xml(write(text)).itertext()) == ""


@pytest.mark.parametrize(("depth", "is_read"), [(64, True), (65, False), (200_000, False)])
def test_xml_has_a_limit_of_depth(write, depth, is_read):
    path = write("<a>" * depth + "</a>" * depth)
    if is_read:
        assert read_xml(path).tag == "a"
    else:
        assert refused(read_xml, path).code == "xml-too-deep"


def test_xml_may_have_many_elements_beside_each_other(write):
    assert len(read_xml(write("<a>" + "<b/>" * 50_000 + "</a>"))) == 50_000


# ---- JSON


def test_json_gives_its_content(write):
    content = '{"a": [1, 2.5, null, true, "é\\u00e9"], "b": {}}'
    expected = {"a": [1, 2.5, None, True, "éé"], "b": {}}
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32"):
        assert read_json(write(content.encode(encoding))) == expected


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_json_with_a_number_that_is_not_finite_is_refused_with_its_place(write, name):
    error = refused(read_json, write(f'{{"x": "{name}, ", "bbox": [1, {name}, 3]}}'))
    assert (error.code, error.value) == ("json-not-finite", repr(name))
    assert '"bbox": [1, ' in str(error)


def test_the_place_of_a_number_that_is_not_finite_is_not_a_word_that_looks_like_one(write):
    text = '{"name": "banana", "many": [' + "1, " * 50 + '1], "bbox": [1, NaN, 3]}'
    assert '"bbox": [1, NaN, 3]' in str(refused(read_json, write(text)))


def test_json_with_a_key_twice_is_refused_with_the_key_and_its_object(write):
    error = refused(read_json, write('{"a": [{"id": 5, "x": 1, "y": 0, "z": 0, "x": 2}]}'))
    assert (error.code, error.value) == ("json-duplicate-key", "'x'")
    assert "{'id': 5, 'x': 1, 'y': 0}" in str(error)


def test_a_key_twice_among_many_is_found_quickly(write):
    text = "{" + "".join(f'"{i}": 1, ' for i in range(100_000)) + '"99999": 1}'
    started = time.perf_counter()
    assert refused(read_json, write(text)).value == "'99999'"
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "[1,]",
        "{'a': 1}",
        '{"a" 1}',
        "[1] x",
        '"\t"',
        "nan",
        "01",
        "1" * 5000,
        "\ufeff",
    ],
)
def test_broken_json_is_refused(write, text):
    assert refused(read_json, write(text)).code == "json-malformed"


def test_broken_json_is_refused_with_line_and_column(write):
    error = refused(read_json, write('{\n"a": 1,\n"b": }'))
    assert "Line 3, column 6" in str(error)


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
def test_json_of_100_000_levels_is_refused_also_in_a_thread(write, opening):
    path = write(opening * 100_000)
    assert refused(read_json, path).code == "json-too-deep"
    codes = []
    thread = threading.Thread(target=lambda: codes.append(refused(read_json, path).code))
    thread.start()
    thread.join()
    assert codes == ["json-too-deep"]


def test_json_lets_odd_values_through_to_the_reader(write):
    assert read_json(write('["\\ud800", 1e999, 123456789012345678901234567890]')) == [
        "\ud800",
        float("inf"),
        123456789012345678901234567890,
    ]


# ---- YAML


def test_yaml_gives_its_content(write):
    text = "# c\npath: ../x\nnames: {0: cat, 1: 'no'}\nlist: [1, 2.5, null]\nold: &a 7\n"
    assert read_yaml(write(text)) == {
        "path": "../x",
        "names": {0: "cat", 1: "no"},
        "list": [1, 2.5, None],
        "old": 7,
    }
    assert read_yaml(write("a: é".encode("utf-16"))) == {"a": "é"}


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "\ufeff"])
def test_yaml_without_content_is_none(write, text):
    assert read_yaml(write(text)) is None


@pytest.mark.parametrize(
    "text",
    [
        "a: &x [1]\nb: *x",
        "a: !!python/object/apply:os.system ['true']",
        "a: !!python/name:os.system",
        "a: !mine 3",
        "a: !!int ''",
        "a: !!float ''",
        "a: !!binary '%'",
        "a: !!timestamp x",
        "a: !!bool maybe",
        "a: !!set {x}",
        "! a",
        "<<: 3",
        "a: =",
    ],
)
def test_yaml_tags_and_aliases_are_refused(write, text):
    assert refused(read_yaml, write(text)).code == "yaml-forbidden"


def test_yaml_of_the_laughing_kind_is_refused_at_once(write):
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60)]
    error = refused(read_yaml, write("\n".join(lines)))
    assert (error.code, error.where) == ("yaml-forbidden", 2)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: 2\na: 3", 3),
        ("x:\n  {k: 1, k: 2}", 2),
        ("1: a\n1: b", 2),
        ("a: 1\n<<: {a: 2}", 1),
    ],
)
def test_yaml_with_a_key_twice_is_refused(write, text, line):
    error = refused(read_yaml, write(text))
    assert (error.code, error.where) == ("yaml-duplicate-key", line)


@pytest.mark.parametrize(
    "text",
    [
        "a: [1",
        "a: 1\n\tb: 2",
        "a: 'x",
        "a: b: c",
        "- a\nb: 1",
        "a: \x07",
        "a: 1\n---\nb: 2",
        "%YAML 9.9\n--- a",
        "a: 2001-99-99",
        "a: 1" + ":59" * 50_000,
        "a: 1" + ":59" * 50_000 + ".5",
        "a: " + "9" * 5000,
        "a: 0b" + "1" * 5000,
        "@",
    ],
)
def test_broken_yaml_is_refused_soon(write, text):
    started = time.perf_counter()
    assert refused(read_yaml, write(text)).code == "yaml-malformed"
    assert time.perf_counter() - started < 3


@pytest.mark.parametrize("text", ["? [a]\n: 1", "? {a: 1}\n: 1", "{[1]: 2}"])
def test_yaml_with_keys_that_are_no_texts_or_numbers_is_refused(write, text):
    assert refused(read_yaml, write(text)).code == "yaml-forbidden"


def test_broken_yaml_is_refused_with_its_line_and_reason(write):
    error = refused(read_yaml, write("a: 1\nb: 2\nc: @\n"))
    assert error.where == 3
    assert "The parser says: " in str(error)
    assert "not allowed" in str(refused(read_yaml, write("a: \x07")))


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_yaml_has_a_limit_of_depth(write, opening):
    for count in (100, 20_000):
        error = refused(read_yaml, write(opening * count))
        assert error.code in ("yaml-too-deep", "yaml-malformed")
    assert refused(read_yaml, write("[" * 100)).code == "yaml-too-deep"


def test_yaml_of_30_levels_or_of_many_lists_beside_each_other_is_read(write):
    assert read_yaml(write("[" * 30 + "]" * 30)) is not None
    assert read_yaml(write("- [a]\n" * 200)) == [["a"]] * 200


@given(st.binary(max_size=60))
def test_any_bytes_give_data_or_a_data_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any-bytes"
    path.write_bytes(content)
    for read in READERS:
        with suppress(DataError):
            read(path)


@given(st.text("[]{}:,-?!&*<>'\"|#%@` \n0a1.e_=", max_size=40))
def test_any_signs_of_yaml_give_data_or_a_data_error(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any-signs"
    path.write_text(text)
    for read in READERS:
        with suppress(DataError):
            read(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1.0), ("-0.5", -0.5), ("+.5", 0.5), ("2.", 2.0), ("1e3", 1000.0), ("1E-2", 0.01)],
)
def test_a_number_is_read(text: str, value: float) -> None:
    assert parsing.parse_number(text) == value


@pytest.mark.parametrize("text", ["nan", "-inf", "Infinity", "1e999"])
def test_a_number_may_be_not_finite(text: str) -> None:
    number = parsing.parse_number(text)
    assert number is not None
    assert not math.isfinite(number)


@pytest.mark.parametrize("text", ["", " 1", "1_0", "1,5", "0x1", "\u0661", ".", "1e", "9" * 101])
def test_what_is_no_number_is_none(text: str) -> None:
    assert parsing.parse_number(text) is None
