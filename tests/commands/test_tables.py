"""JSONL and parquet as inputs and outputs of translate and rerank."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hf_acpmbr.cli.main import main
from hf_acpmbr.runs.formats import write_parquet
from hf_acpmbr.runs.inputs import ParquetRows, source_input

TEXTS = ["It is raining.", "", "Grüße"]


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Path]:
    rows = [{"id": k, "en": text} for k, text in enumerate(TEXTS)]
    jsonl, parquet, plain = (tmp_path / name for name in ("in.jsonl", "in.parquet", "in.txt"))
    jsonl.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(rows), parquet)
    plain.write_text("".join(text + "\n" for text in TEXTS), encoding="utf-8")
    odd = tmp_path / "odd.jsonl"
    odd.write_text(json.dumps({"en": "\ud800"}) + "\n", encoding="utf-8")
    return {"jsonl": jsonl, "parquet": parquet, "plain": plain, "odd": odd}


def test_a_column_is_read_from_json_lines_and_parquet_as_from_plain_lines(tables: dict[str, Path]) -> None:
    for kind, column in (("jsonl", "en"), ("parquet", "en"), ("plain", None)):
        source = source_input(argparse.Namespace(input=str(tables[kind]), column=column))
        assert [record.item for record in source.records()] == TEXTS
        assert len(source.digests["input"]) == 64


@pytest.mark.parametrize(
    ("kind", "column", "message"),
    [
        ("jsonl", None, "has columns: say which one holds the sources by --column NAME"),
        ("parquet", None, "has columns: say which one"),
        ("parquet", "de", "row 1 has no column 'de': it has id, en"),
        ("jsonl", "id", "line 1: 'id' must be text, got 0"),
        ("odd", "en", "line 1: 'en' has half of a surrogate pair"),
        ("plain", "en", "line 1 is not JSON"),
    ],
)
def test_wrong_columns_are_named(tables: dict[str, Path], kind: str, column: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(source_input(argparse.Namespace(input=str(tables[kind]), column=column)).records())


def test_what_is_no_parquet_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("text", encoding="utf-8")
    with pytest.raises(ValueError, match=r"x\.parquet is not a parquet file"):
        list(ParquetRows(str(tmp_path / "x.parquet")))


def test_translate_writes_the_same_for_any_kind_of_input(tables: dict[str, Path], tmp_path: Path) -> None:
    made = []
    for kind, more in (("jsonl", ["--column", "en"]), ("parquet", ["--column", "en"]), ("plain", [])):
        output = tmp_path / f"out.{kind}"
        options = ["--num-candidates", "4", "--max-new-tokens", "8", "--quiet", *more]
        assert main(["translate", "--input", str(tables[kind]), "--output", str(output), *options]) == 0
        made.append(output.read_bytes())
    assert made[0] == made[1] == made[2]


def test_rerank_of_a_table_into_a_table_has_the_rows_of_json_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": k, "candidates": ["the cat", "a cat", f"dog {k}"], "counts": [2, 1, 1]} for k in range(20)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for kind in ("jsonl", "parquet"):
        out = str(tmp_path / f"out.{kind}")
        for _ in range(2):  # the second finds it done
            arguments = ["--input", str(tmp_path / f"in.{kind}"), "--output", out, "--format", kind, "--nbest", "2"]
            assert main(["rerank", *arguments, "--decoder", "mbr", "--quiet", "--resume"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    table = pq.read_table(tmp_path / "out.parquet")
    maps = [column.name for column in table.schema if pa.types.is_map(column.type)]
    assert [{**row, **{name: dict(row[name]) for name in maps}} for row in table.to_pylist()] == lines
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".parts")]
    assert main(["rerank", "--input", str(tmp_path / "in.jsonl"), "--decoder", "mbr", "--format", "parquet"]) == 2
    assert "--format parquet needs --output FILE" in capsys.readouterr().err


def test_a_table_of_unlike_rows_is_refused_instead_of_losing_a_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_acpmbr.runs.formats.ROWS_AT_ONCE", 1)
    (tmp_path / "lines").write_text('{"text": "a", "calls": {}}\n{"text": "b", "calls": {}, "id": 1}\n')
    with pytest.raises(ValueError, match="the field 'id' is not in the first 1 rows"):
        write_parquet(tmp_path / "lines", tmp_path / "table")


@pytest.mark.parametrize("rows", [[{"id": 1}, {"id": "x"}], [{"id": [1]}, {"id": 1}]])
def test_fields_that_do_not_fit_into_one_table_are_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, object]]
) -> None:
    monkeypatch.setattr("hf_acpmbr.cli.rerank.build_mbr", lambda *_: pytest.fail("it loads utilities"))
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"candidates": ["a"], **row}) + "\n" for row in rows), encoding="utf-8")
    files = ["--input", str(source), "--output", str(tmp_path / "out"), "--format", "parquet"]
    assert main(["rerank", *files, "--decoder", "mbr"]) == 2
    assert "the field 'id' is not of one type in all rows" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [source]
