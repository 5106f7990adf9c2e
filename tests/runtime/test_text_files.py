import re

import pytest

from statewise.runtime.text_files import decoded, read_text, read_whole


def test_text_that_is_not_utf8_is_refused_with_its_byte(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes("né\r\nà".encode())
    assert read_text(path) == "né\nà"
    path.write_bytes("né".encode("latin-1"))
    where = re.escape(f"{path}: byte 1: not UTF-8 text (unexpected end of data)")
    with pytest.raises(ValueError, match=f"^{where}: convert the file to UTF-8$"):
        read_text(path)
    assert decoded("né".encode(), "here") == "né"
    with pytest.raises(ValueError, match=r"^here: byte 0: not UTF-8 text \(invalid start byte\)$"):
        decoded(b"\xff", "here")
    with pytest.raises(IsADirectoryError):
        read_text(tmp_path)


def test_files_that_are_too_large_are_refused(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(b"12345")
    assert read_whole(path, 5) == b"12345"
    with pytest.raises(ValueError, match=re.escape(f"{path}: more than 4 bytes")):
        read_whole(path, 4)
