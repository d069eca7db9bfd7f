"""acpmbr rerank on files of candidates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu

from hf_acpmbr import ACPMBR, Recipe
from hf_acpmbr.cli.main import main
from tests.metrics.cases import write_script

POOLS = [
    ["the cat sat", "the cat sat", "a cat sat down", "dogs"],
    ["one", "one two", "one two three", "one two"],
    ["x", "y", "z", "x"],
]


def rerank(tmp_path: Path, text: str, *more: str, decoder: str = "mbr") -> tuple[int, Path]:
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text(text, encoding="utf-8")
    given = [option.format_map({"in": source, "folder": tmp_path}) if "{" in option else option for option in more]
    options = ["--input", str(source), "--output", str(output), "--decoder", decoder, "--quiet", *given]
    return main(["rerank", *options]), output


def test_jsonl_lists_objects_and_plain_lines_give_the_choice_of_the_library(tmp_path: Path) -> None:
    mbr = ACPMBR(target="chrf", decoder="mbr")
    expected = [mbr.rerank(pool).text for pool in POOLS]
    counted = [
        {"candidates": list(dict.fromkeys(pool)), "counts": [pool.count(t) for t in dict.fromkeys(pool)]}
        for pool in POOLS
    ]
    for text, more in (
        ("".join(json.dumps(pool) + "\n" for pool in POOLS), ()),
        ("".join(json.dumps(entry) + "\n" for entry in counted), ()),
        ("".join(line + "\n" for pool in POOLS for line in pool), ("--candidates-per-source", "4")),
    ):
        code, output = rerank(tmp_path, text, *more)
        assert code == 0
        assert output.read_text(encoding="utf-8").splitlines() == expected


def test_jsonl_output_with_sources_and_nbest(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    sources.write_text("a\nb\nc\n", encoding="utf-8")
    text = "".join(json.dumps(pool) + "\n" for pool in POOLS)
    code, output = rerank(tmp_path, text, "--format", "jsonl", "--nbest", "2", "--sources", str(sources))
    assert code == 0
    found = records(output)
    assert [record["source"] for record in found] == ["a", "b", "c"]
    assert [len(record["nbest"]) for record in found] == [2, 2, 2]
    assert found[0]["drawn"] == 4


def test_resume_after_a_kill_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(json.dumps([f"{a} {pool[0]}", *pool]) + "\n" for a in range(15) for pool in POOLS)
    code, output = rerank(tmp_path, text)
    whole = output.read_bytes()
    output.unlink()
    calls = []
    original = ACPMBR.rerank_many

    def dies(self: ACPMBR, *args: object, **kwargs: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(ACPMBR, "rerank_many", dies)
    code, output = rerank(tmp_path, text)
    assert code == 130
    assert output.with_name("out.parts").joinpath("00000.txt").read_bytes().count(b"\n") == 16
    assert not output.exists()
    monkeypatch.setattr(ACPMBR, "rerank_many", original)
    code, output = rerank(tmp_path, text, "--resume")
    assert code == 0
    assert output.read_bytes() == whole


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("not json\n", (), "in line 1 is not JSON"),
        ("{}\n", (), "in line 1 has no candidates: give a list of texts or"),
        ('["a"]\n\n', (), "in line 2 is blank: remove it"),
        (
            '["a"]\n{"candidates": ["a"], "count": [1]}\n',
            (),
            "in line 2: field 'count' is unknown, did you mean 'counts'",
        ),
        ('["a"]\n["a", 3]\n', (), "in line 2: candidates[1] must be text, got 3"),
        ('["a"]\n["\\ud800"]\n', (), "in line 2: candidates[0] has half of a surrogate pair ('\\ud800')"),
        ('{"candidates": ["a"], "counts": [1.9]}\n', (), "in line 1: counts[0] must be an integer, got 1.9"),
        ('{"candidates": ["a"], "counts": ["3"]}\n', (), "in line 1: counts[0] must be an integer, got '3'"),
        ('{"candidates": {"a": true}}\n', (), "in line 1: counts[0] must be an integer, got True"),
        ('{"candidates": {"a": 1}, "counts": [1]}\n', (), "in line 1: 'candidates' has counts of its own"),
        ('{"candidates": {"a": 1, "a": 2}}\n', (), "'a' is there twice"),
        ('{"candidates": ["a"], "counts": [9223372036854775808]}\n', (), "in line 1: "),
        ('{"candidates": ["a"], "counts": 1}\n', (), "in line 1: 'counts' must be a list"),
        (
            '{"candidates": ["a", "b"], "counts": [1]}\n',
            (),
            "in line 1: counts has shape (1,), expected (2,)",
        ),
        ('{"candidates": ["a"], "logprobs": ["-1"]}\n', (), 'in line 1: logprobs[0] must be a number, got "-1"'),
        ('{"candidates": ["a"], "logprobs": [NaN]}\n', (), "in line 1: logprobs has NaN"),
        ('{"candidates": ["a"], "source": 3}\n', (), "in line 1: source must be text, got 3"),
        ('{"candidates": ["a"], "references": []}\n', (), "in line 1: 'references' must be a list of texts"),
        ('{"candidates": ["a"], "references": [null]}\n', (), "in line 1: references[0] must be text, got null"),
        (
            '{"candidates": ["a"], "text": 1}\n',
            ("--format", "jsonl"),
            "in line 1: field 'text' is one of the output",
        ),
        ("[" * 100_000 + "\n", (), "in line 1 is not JSON"),
        ("a\nb\nc\n", ("--candidates-per-source", "2"), "has 3 lines, which --candidates-per-source 2 does not divide"),
        ("a\n", ("--candidates-per-source", "0"), "--candidates-per-source must be at least 1, got 0"),
        ("a\n", ("--input-format", "lines"), "--input-format lines and --candidates-per-source N go together"),
        ("a\n", ("--input-format", "nbest"), "in line 1 is not 'id ||| text ||| ...'"),
        (
            "0 ||| a\n1 ||| b\n0 ||| c\n",
            ("--input-format", "nbest"),
            "in line 3: id 0 comes after id 1: sort the list by id",
        ),
        ("0 ||| a\n", ("--input-format", "nbest", "--nbest-logprobs"), "in line 1: its last field 'a' is not a log"),
        ('["a"]\n', ("--nbest-logprobs",), "--nbest-logprobs is for --input-format nbest"),
        ('["a"]\n', ("--output", "{in}"), "is the --input file: choose another --output"),
        ('["a"]\n', ("--output", "{folder}"), "is a folder: give a file in it"),
        ('["a"]\n', ("--sources", "/no/such"), "--sources /no/such cannot be read: there is no such file"),
        ('["a"]\n["b"]\n', ("--sources", "{in}", "--input", "/no/such"), "--input /no/such cannot be read"),
        ('["a"]\n', ("--nbest", "0"), "--nbest must be at least 1, got 0"),
        ('["a"]\n', ("--target", "chrff"), "unknown utility 'chrff': did you mean 'chrf'"),
        ('["a"]\n', ("--set", "epsilon=0.1"), "--set epsilon: rerank draws no candidates"),
        ('["a"]\n', ("--set", "reduction=8"), "reduction is not a setting of decoder 'mbr'; decoders that take it: "),
        ('["a"]\n', ("--set", "reductoin=8"), "--set reductoin: there is no such setting, did you mean 'reduction'?"),
        ('["a"]\n', ("--set", "seed=8"), "--set seed: use --seed"),
        ('["a"]\n', ("--set", "decoder=map"), "decoder is given twice: by --set and by --decoder"),
        ('["a"]\n', ("--distilled", "bleu"), "mbr uses no distilled utilities"),
        ('["a"]\n', ("--target-option", "betta=1"), "betta"),
        ('["a"]\n', ("--nbest", "2"), "--nbest 2 needs --format jsonl"),
        ('{"candidates": ["a"], "reference": "b"}\n', (), "field 'reference' is unknown, did you mean 'references'?"),
        ('{"candidates": ["a"], "src": "b"}\n', (), "field 'src' is unknown, did you mean 'source'?"),
        ('{"candidates": ["a"], "souce": "b"}\n', (), "field 'souce' is unknown, did you mean 'source'?"),
        ('{"candidates": ["a"], "ref": ["b"]}\n', (), "field 'ref' is unknown, did you mean 'references'?"),
        (
            '{"candidates": ["a"], "meta": ' + "[" * 200 + "]" * 200 + "}\n",
            ("--format", "jsonl"),
            "has lists and objects more than 100 levels deep",
        ),
        (
            "0 ||| a\n2 ||| b\n",
            ("--input-format", "nbest"),
            "in line 2: id 2 where 1 was expected: a text has one line per id; --format jsonl has the ids",
        ),
        ("1 ||| a\n", ("--input-format", "nbest"), "in line 1: id 1 where 0 was expected"),
        ('["a"]\n', ("--decoder", "acpmbr"), "acpmbr needs a distilled utility: --distilled NAME"),
    ],
)
def test_wrong_input_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, more: tuple[str, ...], message: str
) -> None:
    assert rerank(tmp_path, text, *more)[0] == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1, "one line"
    assert sorted(tmp_path.iterdir()) == [tmp_path / "in"], "a mistake leaves nothing behind"


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_counts_references_and_logprobs_decide(tmp_path: Path) -> None:
    def chosen(entry: dict[str, Any], decoder: str = "mbr") -> str:
        code, output = rerank(tmp_path, json.dumps(entry) + "\n", decoder=decoder)
        assert code == 0
        return output.read_text(encoding="utf-8").removesuffix("\n")

    texts = ["red sun", "blue moon"]
    assert chosen({"candidates": texts, "counts": [1, 5]}) == "blue moon"
    assert chosen({"candidates": dict(zip(texts, (5, 1), strict=True))}) == "red sun"
    assert chosen({"candidates": texts, "references": ["a red sun"]}) == "red sun"
    assert chosen({"candidates": texts, "references": ["a blue moon"]}) == "blue moon"
    assert chosen({"candidates": texts, "references": {"a red sun": 1, "a blue moon": 3}}) == "blue moon"
    assert chosen({"candidates": texts, "logprobs": [-2.0, -1.0]}, "map") == "blue moon"
    assert chosen({"candidates": texts, "logprobs": [-1.0, -2.0]}, "map") == "red sun"


def test_ids_and_other_fields_go_through(tmp_path: Path) -> None:
    entry = {"id": "a-1", "candidates": ["x", "y"], "source_id": "human", "meta": {"n": [1]}, "odd": "\ud800"}
    code, output = rerank(tmp_path, json.dumps(entry) + "\n", "--format", "jsonl")
    assert code == 0
    record = records(output)[0]
    assert {name: record[name] for name in entry if name != "candidates"} == {
        name: value for name, value in entry.items() if name != "candidates"
    }
    assert "candidates" not in record


def test_nbest_lists_of_marian_and_fairseq(tmp_path: Path) -> None:
    lines = ["0 ||| x ||| F0= -2 ||| -2.5", "0 ||| y z ||| F0= -1 ||| -1.5", "1 ||| q ||| F0= -1 ||| -1.0", "3 ||| r"]
    nbest = ("--input-format", "nbest", "--format", "jsonl")
    code, output = rerank(tmp_path, "\n".join(lines), *nbest)
    assert code == 0
    assert [(record["id"], record["drawn"]) for record in records(output)] == [(0, 2), (1, 1), (3, 1)]
    assert [record["text"] for record in records(output)][1:] == ["q", "r"]
    assert records(output)[0]["text"] in ("x", "y z")
    code, output = rerank(tmp_path, "\n".join(lines[:3]), *nbest, "--nbest-logprobs", decoder="map")
    assert [record["text"] for record in records(output)] == ["y z", "q"]
    sources = tmp_path / "sources"
    sources.write_text("a\nb\n", encoding="utf-8")
    code, output = rerank(tmp_path, "\n".join(lines[:3]), *nbest, "--sources", str(sources))
    assert [(record["id"], record["source"]) for record in records(output)] == [(0, "a"), (1, "b")]
    assert rerank(tmp_path, "\n".join([*lines[:2], lines[3]]), *nbest, "--sources", str(sources))[0] == 2


@pytest.mark.parametrize(
    ("sources", "message"),
    [("a\n", "has 1 lines, and there are more"), ("a\nb\nc\n", "line 3 has no list of candidates: there are only 2")],
)
def test_sources_are_aligned(tmp_path: Path, capsys: pytest.CaptureFixture[str], sources: str, message: str) -> None:
    file = tmp_path / "sources"
    file.write_text(sources, encoding="utf-8")
    assert rerank(tmp_path, '["a"]\n["b"]\n', "--sources", str(file))[0] == 2
    assert message in capsys.readouterr().err
    file.write_text("a\n", encoding="utf-8")
    assert rerank(tmp_path, '{"candidates": ["a"], "source": "s"}\n', "--sources", str(file))[0] == 2
    assert "has a source of its own, and --sources gives another" in capsys.readouterr().err


def test_the_nbest_list_has_different_texts_best_first(tmp_path: Path) -> None:
    text = "".join(json.dumps(pool) + "\n" for pool in POOLS)
    code, output = rerank(tmp_path, text, "--format", "jsonl", "--nbest", "9")
    assert code == 0
    for record, pool in zip(records(output), POOLS, strict=True):
        texts = [entry["text"] for entry in record["nbest"]]
        assert sorted(texts) == sorted(set(pool))
        assert {entry["text"]: entry["count"] for entry in record["nbest"]} == {t: pool.count(t) for t in pool}
        values = [entry["expected"] for entry in record["nbest"]]
        assert values == sorted(values, reverse=True)
        expected = [sum(sacrebleu.sentence_chrf(t, [r]).score for r in pool) / len(pool) for t in texts]
        assert values == pytest.approx(expected)


def test_matrices_are_what_the_utility_says(tmp_path: Path) -> None:
    entry = {"candidates": ["red sun", "red sun", "blue"], "references": ["a red sun", "blue"]}  # drawn once each
    folder = tmp_path / "matrices"
    text = json.dumps(POOLS[0]) + "\n" + json.dumps(entry) + "\n"
    assert rerank(tmp_path, text, "--save-matrices", str(folder))[0] == 0
    assert sorted(path.name for path in folder.iterdir()) == ["000001.npz", "000002.npz"]
    with np.load(folder / "000002.npz") as saved:
        assert saved["candidates"].tolist() == ["red sun", "blue"]
        assert saved["counts"].tolist() == [2, 1]
        assert saved["references"].tolist() == ["a red sun", "blue"]
        assert saved["reference_counts"].tolist() == [1, 1]
        rows = [[sacrebleu.sentence_chrf(c, [r]).score for r in entry["references"]] for c in ("red sun", "blue")]
        np.testing.assert_allclose(saved["observed"], rows)
        np.testing.assert_allclose(saved["completed"], rows)
        np.testing.assert_allclose(saved["expected"], np.mean(rows, axis=1))
    output = tmp_path / "pmbr"
    more = ("--save-matrices", str(folder), "--set", "scores_per_row=1", "--output", str(output))
    assert rerank(tmp_path, json.dumps([f"{k} {k}" for k in range(8)]) + "\n", *more, decoder="pmbr")[0] == 0
    with np.load(folder / "000001.npz") as saved:
        assert np.isnan(saved["observed"]).any()
        assert np.isfinite(saved["completed"]).all()
    assert rerank(tmp_path, text, "--save-matrices", str(folder), "--resume", decoder="map")[0] == 2


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--set", "rank"), "argument --set: 'rank' is not KEY=VALUE"),
        (("--set", "rank=2", "--set", "rank=3"), "argument --set: rank is given twice"),
        (("--decoder", "{name"), "starts like JSON, but is not valid JSON"),
        (("--recipe", "fats"), "'fats' is neither a file nor a recipe's name: did you mean 'fast'?"),
        (("--distilled-option", "device=cpu"), "give --distilled NAME first"),
        (("--preset", "low"), "unrecognized arguments: --preset low"),
    ],
)
def test_wrong_options_are_explained_in_one_line(
    capsys: pytest.CaptureFixture[str], more: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["rerank", *more])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def signature(tmp_path: Path, *more: str) -> str:
    pools, output = tmp_path / "pools", tmp_path / "out.jsonl"
    pools.write_text("".join(json.dumps(pool) + "\n" for pool in POOLS), encoding="utf-8")
    options = ["--input", str(pools), "--output", str(output), "--format", "jsonl", "--quiet", *more]
    assert main(["rerank", *options]) == 0
    return str(json.loads(output.read_text(encoding="utf-8").splitlines()[0])["signature"])


def signature_of(**settings: Any) -> str:
    return ACPMBR(**settings).rerank(POOLS[0]).signature


@pytest.mark.filterwarnings("ignore::hf_acpmbr.completion.PaperWarning")
def test_every_option_reaches_its_stage(tmp_path: Path) -> None:
    decoder = {"name": "n-by-s", "num_references": 2}
    expected = signature_of(target="chrf", decoder=decoder, seed=5)
    assert signature(tmp_path, "--decoder", json.dumps(decoder), "--seed", "5") == expected
    assert signature(tmp_path, "--decoder", json.dumps({**decoder, "num_references": 3}), "--seed", "5") != expected
    utilities = ["--target", "chrf", "--target-option", "beta=1", "char_order=4"]
    guides = ["--distilled", "bleu", "--distilled", "chrf", "--distilled-option", "beta=3"]
    expected = signature_of(
        target={"name": "chrf", "beta": 1, "char_order": 4},
        distilled=["bleu", {"name": "chrf", "beta": 3}],
        recipe="paper-high",
        rank=3,
        agreement=0.5,
    )
    settings = ["--recipe", "paper-high", "--set", "rank=3", "agreement=0.5"]
    assert signature(tmp_path, *utilities, *guides, *settings) == expected


def test_a_recipe_file_is_the_recipe(tmp_path: Path) -> None:
    recipe = Recipe.named("thorough", target={"name": "chrf", "beta": 1}, decoder="halving", seed=7)
    file = recipe.save_pretrained(tmp_path / "mine")
    expected = signature_of(recipe=recipe)
    assert signature(tmp_path, "--recipe", str(file)) == expected
    assert signature(tmp_path, "--recipe", str(file.parent)) == expected
    changed = [
        (["--target-option", "beta=3"], {"target": {"name": "chrf", "beta": 3}}),
        (["--decoder", "mbr"], {"decoder": "mbr"}),
        (["--seed", "8"], {"seed": 8}),
    ]
    for more, settings in changed:
        assert signature(tmp_path, "--recipe", str(file), *more) == signature_of(recipe=recipe, **settings) != expected


def test_a_program_as_a_utility_needs_trust(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = write_script(tmp_path / "lengths")
    files = tmp_path / "files"
    files.mkdir()
    utility = ("--target", str(script), "--target-option", "output_key=lengths", "higher_is_better=false")
    text = '["a", "abc", "abcd", "abcde"]\n'
    assert rerank(files, text, *utility)[0] == 2
    assert "is a program that would run here" in (error := capsys.readouterr().err)
    assert error.count("\n") == 1
    assert rerank(files, text, *utility, "trust_remote_code=true")[0] == 2
    assert "which no recipe or file can grant" in (error := capsys.readouterr().err)
    assert "--trust-remote-code" in error
    code, output = rerank(files, text, *utility, "--trust-remote-code")
    assert (code, output.read_text()) == (0, "abc\n"), "the middle one is nearest in length to all"
    score = ["score", "--utility", str(script), "--option", "output_key=lengths", "--hypotheses", str(output)]
    assert main([*score, "--references", str(output)]) == 2
    assert "is a program that would run here" in capsys.readouterr().err
    assert main([*score, "--references", str(output), "--trust-remote-code"]) == 0


def test_a_recipe_file_cannot_give_trust(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = write_script(tmp_path / "lengths")
    recipe = Recipe.named("auto", target={"name": str(script), "output_key": "lengths"}, decoder="mbr").to_dict()
    file, files = tmp_path / "recipe.json", tmp_path / "files"
    files.mkdir()
    file.write_text(json.dumps({**recipe, "target": {**recipe["target"], "trust_remote_code": True}}))
    for role in ("target", "distilled"):
        for trust in ([], ["--trust-remote-code"]):
            with pytest.raises(SystemExit, match="2"):
                rerank(files, '["a"]\n', "--recipe", str(file), *trust)
            assert "have trust_remote_code, which no recipe or file can grant" in capsys.readouterr().err, role
        changed = {**recipe, "target": "chrf", "distilled": [{"name": str(script), "trust_remote_code": True}]}
        file.write_text(json.dumps(changed))
    file.write_text(json.dumps(recipe))
    assert rerank(files, '["a"]\n', "--recipe", str(file))[0] == 2
    assert rerank(files, '["a"]\n', "--recipe", str(file), "--trust-remote-code")[0] == 0


SOURCE_MODULE = """
import datasets
import evaluate


class Echo(evaluate.Metric):
    def _info(self):
        names = ("predictions", "references", "sources")
        features = datasets.Features({name: datasets.Value("string") for name in names})
        return evaluate.MetricInfo(description="echo", citation="none", inputs_description="", features=features)

    def _compute(self, predictions, references, sources):
        return {"scores": [float(p == s) for p, s in zip(predictions, sources)]}
"""


def test_the_source_reaches_the_utility(tmp_path: Path) -> None:
    script = tmp_path / "echo" / "echo.py"
    script.parent.mkdir()
    script.write_text(SOURCE_MODULE)
    more = ("--target", str(script), "--trust-remote-code")
    for source in ("a", "b"):
        entry = {"candidates": ["a", "b", "c"], "source": source}
        code, output = rerank(tmp_path, json.dumps(entry) + "\n", *more)
        assert (code, output.read_text()) == (0, f"{source}\n")
    sources = tmp_path / "sources"
    sources.write_text("b\nc\n", encoding="utf-8")
    code, output = rerank(tmp_path, '["a", "b", "c"]\n' * 2, *more, "--sources", str(sources))
    assert (code, output.read_text()) == (0, "b\nc\n")
