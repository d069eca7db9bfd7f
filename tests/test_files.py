from __future__ import annotations

import pytest

from hf_acpmbr.files import write_atomically


def test_a_file_is_replaced_as_a_whole_and_never_written_into(tmp_path):
    path = tmp_path / "new folder" / "file"
    write_atomically(path, "old " * 10000)
    with path.open() as reader:
        assert reader.read(4) == "old "
        write_atomically(path, b"new")
        assert reader.read() == "old " * 9999, "who reads it has one of the two, not a mixture"
    assert path.read_text() == "new"
    assert [file.name for file in path.parent.iterdir()] == ["file"]


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = write_atomically(tmp_path / "file", "old")

    def full(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
