from __future__ import annotations

import gzip
import json

import pytest

from evaluation.wmt.data import COUNTS, Source, load_sentences, load_wmt
from evaluation.wmt.settings import DataSettings


def write(folder, name, rows):
    file = folder / "wmt" / name
    file.parent.mkdir()
    with gzip.open(file, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)


def test_a_folder_of_test_sets(tmp_path):
    write(tmp_path, "wmt99.en-de.jsonl.gz", [{"id": "a", "source": "x", "reference": "y"}])
    data = load_wmt("wmt99", "en-de", tmp_path)
    assert data == [Source(0, "a", "x", "y")]


def test_a_truncated_known_set_is_refused(tmp_path):
    write(tmp_path, "wmt23.en-de.jsonl.gz", [{"source": "x", "reference": "y"}])
    with pytest.raises(ValueError, match="has 1 sentences, the published set has 557"):
        load_wmt("wmt23", "en-de", tmp_path)


def test_a_folder_without_the_set_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no wmt/wmt23\.de-en\.jsonl\.gz\. Layout: .* Source: sacrebleu"):
        load_wmt("wmt23", "de-en", tmp_path)


def test_real_test_sets_have_their_published_sizes(shared_data):
    for (name, pair), count in COUNTS.items():
        assert len(load_wmt(name, pair, shared_data)) == count


@pytest.mark.parametrize("pair", ["en-de", "de-en"])
def test_the_builtin_sentences_go_both_ways(pair):
    data = load_sentences(DataSettings("builtin", (pair,)), pair)
    assert len(data) >= 40
    assert len({sentence.text for sentence in data}) == len(data)
    german = [sentence.reference if pair == "en-de" else sentence.text for sentence in data]
    assert sum(any(letter in text for letter in "äöüßÄÖÜ") for text in german) > 15


def test_hub_style_rows_and_limits(tmp_path):
    file = tmp_path / "set.jsonl"
    file.write_text('{"translation": {"en": "a", "de": "b"}}\n{"translation": {"en": "c", "de": "d"}}\n')
    data = load_sentences(DataSettings(str(file), ("de-en",), limit=1), "de-en")
    assert [(sentence.text, sentence.reference) for sentence in data] == [("b", "a")]


def test_errors_say_where(tmp_path):
    file = tmp_path / "set.jsonl"
    file.write_text('{"en": "a"}\n')
    with pytest.raises(ValueError, match=r"row 0: needs source and reference, or en and de; has \['en'\]"):
        load_sentences(DataSettings(str(file), ("en-de",)), "en-de")
    file.write_text("no json\n")
    with pytest.raises(ValueError, match="line 1: not JSON"):
        load_sentences(DataSettings(str(file), ("en-de",)), "en-de")


def test_long_sources_can_be_left_out():
    every = load_sentences(DataSettings("builtin", ("en-de",)), "en-de")
    short = load_sentences(DataSettings("builtin", ("en-de",), longest=35, limit=5), "en-de")
    assert [sentence.text for sentence in short] == [each.text for each in every if len(each.text) <= 35][:5]
    assert [sentence.index for sentence in short] == list(range(5))
    with pytest.raises(ValueError, match=r"data\.longest=1 leaves no sentence of builtin en-de"):
        load_sentences(DataSettings("builtin", ("en-de",), longest=1), "en-de")
