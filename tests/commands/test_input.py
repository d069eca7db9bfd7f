"""Input files: numbers of lines, encodings, what is read when."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hf_acpmbr.cli.main import main
from hf_acpmbr.runs.inputs import Input, Lines


def test_only_a_newline_ends_a_line_and_a_byte_order_mark_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("\ufeffone\r\ntwo\u2028still two\rand on\n\n\ufefffour".encode())
    texts = ["one", "two\u2028still two\rand on", "", "\ufefffour"]
    assert list(Lines(str(path))) == [(f"{path} line {k}", text) for k, text in enumerate(texts, 1)]
    path.write_bytes(b"")
    assert list(Lines(str(path))) == []


def test_a_byte_order_mark_does_not_reach_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("a.jsonl", '["x"]\n'), ("b.jsonl", '\ufeff["x"]\n')):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert main(["rerank", "--input", str(tmp_path / name), "--decoder", "mbr", "--quiet"]) == 0
        assert capsys.readouterr().out == "x\n"


@pytest.mark.parametrize("option", ["--hypotheses", "--references", "--sources"])
def test_other_encodings_are_named_with_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text("one\ntwo\n", encoding="utf-8")
    bad.write_bytes("one\nzwölf\n".encode("latin-1"))
    files = {"--hypotheses": good, "--references": good, "--sources": good, option: bad}
    options = [part for pair in files.items() for part in map(str, pair)]
    assert main(["score", "--utility", "chrf", *options]) == 2
    assert capsys.readouterr().err == (
        f"acpmbr score: {bad} line 2 is not UTF-8 (byte 0xf6 at position 3): convert the file, for example with "
        "iconv -t UTF-8\n"
    )


def test_a_missing_file_is_named_with_its_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rerank", "--input", str(tmp_path / "no"), "--decoder", "mbr"]) == 2
    assert (
        capsys.readouterr().err == f"acpmbr rerank: --input {tmp_path / 'no'} cannot be read: there is no such file\n"
    )
    assert main(["rerank", "--input", str(tmp_path), "--decoder", "mbr"]) == 2
    assert capsys.readouterr().err == f"acpmbr rerank: --input {tmp_path} cannot be read: Is a directory\n"


def test_batches_stay_at_their_positions_and_hold_no_more_than_their_records() -> None:
    taken: list[int] = []
    made: list[int] = []

    def make(where: str, number: int) -> int:
        made.append(number)
        return number

    def entries() -> Iterator[tuple[str, int]]:
        for number in range(7):
            taken.append(number)
            yield f"line {number}", number

    batches = Input([], entries, make).batches(2, lambda position: position >= 4)
    assert [record.item for record in next(batches)] == [4, 5]
    assert taken == [0, 1, 2, 3, 4, 5], "nothing is read ahead"
    assert made == [4, 5], "what is not wanted is not looked into"
    assert [(record.position, record.where, record.item) for record in next(batches)] == [(6, "line 6", 6)]
    assert list(batches) == []


def test_standard_input_is_answered_line_by_line_until_a_bad_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "".join(json.dumps([f"a{k}"]) + "\n" for k in range(20)) + "oops\n"
    for output in ("-", str(tmp_path / "out")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert main(["rerank", "--decoder", "mbr", "--quiet", "--output", output]) == 2
        captured = capsys.readouterr()
        assert "standard input line 21 is not JSON" in captured.err
        if output == "-":
            assert captured.out == "".join(f"a{k}\n" for k in range(20))
    assert list(tmp_path.iterdir()) == [], "into a file it is checked before any work, as a file is"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.removesuffix("oops\n").encode())))
    assert main(["rerank", "--decoder", "mbr", "--quiet", "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_text() == "".join(f"a{k}\n" for k in range(20))


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    pools = tmp_path / "pools"
    pools.write_text("".join(json.dumps([f"a{k}" * 500]) + "\n" for k in range(400)), encoding="utf-8")
    program = f"{sys.executable} -m hf_acpmbr rerank --decoder mbr --quiet --input {pools} | head -n 1 | wc -l"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, env=environment, timeout=120)
    assert (done.stdout.strip(), done.stderr) == ("1", "")
