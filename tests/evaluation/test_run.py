"""Whole runs with a tiny random translator: same files whoever makes them and however often they are killed."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from evaluation import run_wmt
from evaluation.report import page
from evaluation.report.page import write_report
from evaluation.report.results import open_results
from evaluation.report.significance import compare
from evaluation.report.table import above_stated, build_table, our_guides, published_table, significance_table
from evaluation.wmt.phases.candidates import CandidatesPhase
from evaluation.wmt.phases.decisions import source_seed
from evaluation.wmt.phases.scores import MatrixPhase
from tests.evaluation.conftest import small_settings

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(ROOT / "evaluation" / "run_wmt.py")


def results_of(folder: Path) -> dict[str, bytes]:
    """Every file of a run."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = {path: str(path.relative_to(folder)) for path in files}
    return {names[path]: path.read_bytes() for path in files}


def start(command: list[str], **environment: str) -> subprocess.Popen[str]:
    # One thread, no inherited launcher: as in the process that made the results to compare with.
    inherited = {name: value for name, value in os.environ.items() if name not in ("WORLD_SIZE", "RANK", "MASTER_ADDR")}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**inherited, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def two_processes(*arguments: str) -> subprocess.Popen[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    return start([*launcher, SCRIPT, *arguments, "--processes", "2"])


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    return output


def kill_when(process: subprocess.Popen[str], reached: Path) -> None:
    """kill -9 of the launcher and all it started, as soon as a file is there."""
    deadline = time.monotonic() + 600
    while not reached.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, f"{reached} never came"
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.fixture(scope="session")
def finished(
    translator: Path, sentences: Path, metric: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """(configuration, folder) of a run by one process that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs")
    config = folder / "tiny.yaml"
    config.write_text(yaml.safe_dump(small_settings(translator, sentences, metric), sort_keys=False), encoding="utf-8")
    assert run_wmt.main(["--config", str(config), "--output", str(folder / "one")]) == 0
    return config, folder / "one"


@pytest.fixture
def copy(finished: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    shutil.copytree(finished[1], tmp_path / "copy")
    return finished[0], tmp_path / "copy"


def run_again(config: Path, folder: Path, *arguments: str) -> None:
    assert run_wmt.main(["--config", str(config), "--output", str(folder), *arguments]) == 0


def fails(capsys: pytest.CaptureFixture[str], config: Path, folder: Path, *arguments: str, code: int = 2) -> str:
    """The one line that a run ends with."""
    capsys.readouterr()
    assert run_wmt.main(["--config", str(config), "--output", str(folder), *arguments]) == code
    lines = [line for line in capsys.readouterr().err.splitlines() if line and "sources/s]" not in line]  # the bars
    assert len(lines) == 1, lines
    assert lines[0].startswith("run_wmt: ")
    return lines[0]


def test_two_processes_of_a_launcher_give_the_same_files_as_one(finished, tmp_path):
    config, expected = finished
    output = finish(two_processes("--config", str(config), "--output", str(tmp_path / "two")))
    assert results_of(tmp_path / "two") == results_of(expected)
    assert "AC-PMBR (AC-ALS) high" in output
    assert output.count("en-de, 6 sentences") == 1, "only the process that merges prints"


def test_a_run_killed_in_the_middle_resumes_to_the_same_files(finished, tmp_path):
    config, expected = finished
    folder = tmp_path / "killed"
    process = start([sys.executable, SCRIPT, "--config", str(config), "--output", str(folder)])
    kill_when(process, folder / "shards" / "en-de" / "matrix-chrf" / "00000.json")
    assert not (folder / "run.en-de.json").exists(), "it was killed before its end"
    run_again(config, folder)
    assert results_of(folder) == results_of(expected)


@pytest.mark.slow
def test_three_processes_of_which_one_is_killed_are_finished_by_two(finished, tmp_path):
    config, expected = finished
    folder = tmp_path / "killed"
    command = [sys.executable, SCRIPT, "--config", str(config), "--output", str(folder), "--shard"]
    parts = [start([*command, f"{k}/3"]) for k in range(3)]
    kill_when(parts[1], folder / "shards" / "en-de" / "matrix-chrf" / "00001.json")
    for k in (0, 2):
        finish(parts[k])
    assert not (folder / "run.en-de.json").exists()
    drawn = folder / "shards" / "en-de" / "candidates" / "00001.parquet"
    before = drawn.stat().st_mtime_ns
    for k in range(2):
        finish(start([*command, f"{k}/2"]))
    assert drawn.stat().st_mtime_ns == before, "what was finished is not made again"
    assert results_of(folder) == results_of(expected)


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["candidates", "matrix-bleu", "decisions"])
def test_two_killed_processes_resume_as_two_to_the_same_files(finished, tmp_path, phase):
    config, expected = finished
    arguments = ("--config", str(config), "--output", str(tmp_path / "killed"))
    kill_when(two_processes(*arguments), tmp_path / "killed" / "shards" / "en-de" / phase / "00001.json")
    finish(two_processes(*arguments))
    assert results_of(tmp_path / "killed") == results_of(expected)


@pytest.mark.parametrize("phase", ["candidates", "matrix-chrf", "decisions"])
def test_a_corrupt_shard_is_found_and_made_again(copy, finished, phase):
    config, folder = copy
    shard = folder / "shards" / "en-de" / phase / "00001.parquet"
    untouched = [path for path in (folder / "shards").rglob("*.parquet") if path != shard]
    before = {path: path.stat().st_mtime_ns for path in untouched}
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 255
    shard.write_bytes(data)
    run_again(config, folder)
    assert results_of(folder) == results_of(finished[1])
    assert {path: path.stat().st_mtime_ns for path in untouched} == before, "nothing else is made again"


def test_a_finished_run_loads_no_model(copy, monkeypatch):
    monkeypatch.setattr(CandidatesPhase, "start", lambda *_: pytest.fail("loaded the model"))
    monkeypatch.setattr(MatrixPhase, "start", lambda *_: pytest.fail("loaded a utility"))
    run_again(*copy)


def test_more_sentences_extend_a_run_and_other_settings_do_not_replace_it(finished, tmp_path, capsys):
    config, expected = finished
    folder = tmp_path / "grown"
    run_again(config, folder, "--limit", "3")
    first = (folder / "shards" / "en-de" / "candidates" / "00000.parquet").stat().st_mtime_ns
    refused = fails(capsys, config, folder, "--num-candidates", "8")
    assert "candidates holds results made with another sampling: choose another --output" in refused
    run_again(config, folder)
    assert (folder / "shards" / "en-de" / "candidates" / "00000.parquet").stat().st_mtime_ns == first
    grown, whole = results_of(folder), results_of(expected)
    assert {name: data for name, data in grown.items() if "run." not in name} == {
        name: data for name, data in whole.items() if "run." not in name
    }


def touch_weights(folder: Path) -> None:
    """Another model under the same name: one byte in the middle of the weights."""
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)


def test_a_replaced_model_or_metric_under_its_path_is_refused_and_never_mixed(
    copy, finished, translator, metric, capsys
):
    config, folder = copy
    for path, key in ((translator, "content of the model"), (metric, f"content of {metric}")):
        saved = (path / "model.safetensors").read_bytes()
        try:
            touch_weights(path)
            assert f"holds results made with another {key}: choose another --output" in fails(capsys, config, folder)
        finally:
            (path / "model.safetensors").write_bytes(saved)
    run_again(config, folder)
    assert results_of(folder) == results_of(finished[1])


def test_a_model_replaced_while_the_run_goes_is_refused(finished, translator, tmp_path, monkeypatch, capsys):
    saved, original = (translator / "model.safetensors").read_bytes(), CandidatesPhase.start

    def replaced_before_loading(self, device):
        touch_weights(translator)
        original(self, device)

    monkeypatch.setattr(CandidatesPhase, "start", replaced_before_loading)
    try:
        said = fails(capsys, finished[0], tmp_path / "run")
    finally:
        (translator / "model.safetensors").write_bytes(saved)
    assert "candidates: the content of the model was replaced while the run was going: start it again" in said
    assert not list((tmp_path / "run").rglob("*.parquet"))


def test_decisions_of_another_version_of_the_code_are_made_anew(copy, finished, monkeypatch):
    config, folder = copy
    shard = folder / "shards" / "en-de" / "decisions" / "00001.parquet"
    drawn = folder / "shards" / "en-de" / "candidates" / "00001.parquet"
    before = shard.stat().st_mtime_ns, drawn.stat().st_mtime_ns
    monkeypatch.setattr("evaluation.wmt.phases.decisions.code_version", lambda *parts: "newer")
    run_again(config, folder)
    assert shard.stat().st_mtime_ns > before[0]
    assert drawn.stat().st_mtime_ns == before[1]
    changed = {name for name, data in results_of(folder).items() if data != results_of(finished[1])[name]}
    assert changed == {f"shards/en-de/decisions/0000{k}.json" for k in range(3)}, "their notes name the code"


def test_candidates_of_another_version_of_the_sampling_code_are_refused(copy, monkeypatch, capsys):
    monkeypatch.setattr("evaluation.wmt.phases.candidates.code_version", lambda *parts: "newer")
    assert "candidates holds results made with another version of the sampling code" in fails(capsys, *copy)


MISTAKES = {
    "no such configuration": (["--config", "tniy"], "there is no configuration tniy"),
    "metric": (["--metrics", "chrf", "no/such-metric"], "unknown utility 'no/such-metric'"),
    "folder without a metric": (["--metrics", "chrf", "{translator}"], "is a 'm2m_100' checkpoint"),
    "target that rates": (["--target", "cometkiwi"], "cometkiwi"),
    "distilled": (["--distilled", "blue"], "distilled[0] 'blue' is unknown: did you mean 'bleu'"),
    "pair": (["--pairs", "en-de", "ende"], "data.pairs: a language pair is written like en-de, got 'ende'"),
    "language of the second pair": (
        ["--model", "embedded", "--pairs", "en-de", "en-fr", "--data", "{data}"],
        "got en→fr",
    ),
    "data of the second pair": (["--pairs", "en-de", "en-fr"], "needs source and reference, or en and fr"),
    "data": (["--data", "/no/such.jsonl"], "/no/such.jsonl"),
    "model": (["--model", "/no/such/model"], "model '/no/such/model' cannot be loaded"),
    "candidates": (["--num-candidates", "0"], "sampling.num_candidates must be at least 1, got 0"),
    "limit": (["--limit", "0"], "data.limit must be at least 1, got 0"),
    "number of processes": (["--processes", "2"], "--processes 2 were expected, but 1 runs"),
    "output": (["--output", "{config}"], "is a file: give a folder"),
}


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_one_line_before_the_first_phase(
    finished, translator, tmp_path, monkeypatch, capsys, arguments, message
):
    monkeypatch.setattr("evaluation.wmt.run.run_phase", lambda *_: pytest.fail("a phase was started"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    data = tmp_path / "data.jsonl"
    data.write_text('{"source": "a dog", "reference": "ein Hund"}\n', encoding="utf-8")
    filled = [argument.format(translator=translator, config=finished[0], data=data) for argument in arguments]
    assert message in fails(capsys, finished[0], tmp_path / "run", *filled)
    assert not (tmp_path / "run").exists()


def test_debug_shows_the_traceback_of_an_error(finished, tmp_path, capsys):
    arguments = ["--config", str(finished[0]), "--output", str(tmp_path / "run"), "--limit", "0"]
    assert run_wmt.main([*arguments, "--debug"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_the_report_says_in_one_line_that_there_is_no_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        page.main()
    said = capsys.readouterr().err
    assert f"{tmp_path} has no run.*.json: it is not a finished run" in said
    assert said.count("\n") == 1


def test_processes_with_different_contents_are_refused(finished, tmp_path, monkeypatch, capsys):
    """Also those that began at the same moment, when neither saw what the other makes."""
    arguments = ["--config", str(finished[0]), "--output", str(tmp_path / "run"), "--shard"]
    assert run_wmt.main([*arguments, "0/2"]) == 0
    assert "process 0 of 2: en-de: of 3 shards these are not through all phases: 1" in capsys.readouterr().err
    monkeypatch.setattr("evaluation.wmt.phases.candidates.code_version", lambda *parts: "newer")
    assert run_wmt.main([*arguments, "1/2"]) == 2
    named = "candidates holds results made with another version of the sampling code: choose another --output"
    assert named in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr("evaluation.wmt.run.check", lambda steps, _: [p.identify() for pair in steps for p in pair])
        assert run_wmt.main([*arguments, "1/2"]) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "run" / "run.en-de.json").exists()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_parts_made_without_a_launcher_give_the_files_of_one_process(finished, tmp_path, capsys, order):
    config, expected = finished
    for part in order:
        assert not (tmp_path / "parts" / "run.en-de.json").exists()
        run_again(config, tmp_path / "parts", "--shard", f"{part}/2")
    assert results_of(tmp_path / "parts") == results_of(expected)
    assert capsys.readouterr().out.count("en-de, 6 sentences") == 1, "only the process that merges prints"


def test_merge_by_hand_starts_no_phase_and_names_what_is_missing(finished, copy, tmp_path, monkeypatch, capsys):
    run_again(finished[0], tmp_path / "part", "--shard", "1/2")
    monkeypatch.setattr("evaluation.wmt.run.run_phase", lambda *_: pytest.fail("a phase was started"))
    said = fails(capsys, finished[0], tmp_path / "part", "--merge")
    assert "--merge: en-de: of 3 shards these are not through all phases: 0, 2" in said
    (copy[1] / "results.en-de.parquet").unlink()
    run_again(*copy, "--merge")
    assert results_of(copy[1]) == results_of(finished[1])


def test_a_failed_source_is_reported_and_loses_no_other(finished, tmp_path, monkeypatch, capsys):
    config, expected = finished
    original = CandidatesPhase.source_rows

    def failing(self, source, given):
        if source.index == 3:
            raise MemoryError("too long")
        return original(self, source, given)

    monkeypatch.setattr(CandidatesPhase, "source_rows", failing)
    run_again(config, tmp_path / "run")
    monkeypatch.undo()
    assert "1 sources failed and are left out" in capsys.readouterr().out
    failure = json.loads((tmp_path / "run" / "failures.en-de.jsonl").read_text())
    assert failure == {"index": 3, "id": "00003", "error": "candidates: MemoryError: too long"}
    (results,), (whole,) = open_results(tmp_path / "run"), open_results(expected)
    assert results.indices == [0, 1, 2, 4, 5]
    for key, row in results.rows.items():
        assert row.texts == [text for i, text in enumerate(whole.rows[key].texts) if i != 3]
    run_again(config, tmp_path / "run", "--retry-failed")
    assert results_of(tmp_path / "run") == results_of(expected)


def test_a_run_where_everything_fails_says_why(finished, tmp_path, monkeypatch, capsys):
    def failing(self, source, given):
        raise ValueError("no such language")

    monkeypatch.setattr(CandidatesPhase, "source_rows", failing)
    said = fails(capsys, finished[0], tmp_path / "run", code=1)
    assert "every source failed; the first: candidates: ValueError: no such language" in said


def test_without_full_matrices_the_choices_are_the_same_at_fewer_calls(finished, tmp_path):
    config, full = finished
    run_again(config, tmp_path / "observed", "--no-full-matrices")
    assert not list((tmp_path / "observed" / "shards" / "en-de").glob("matrix-*"))
    (observed,), (simulated,) = open_results(tmp_path / "observed"), open_results(full)
    for row in observed.table:
        twin = simulated.rows[row.row.key]
        if row.row.method == "rounds":  # where it looks next depends on the last digits of what it saw
            assert len(row.texts) == len(twin.texts)
            continue
        assert row.calls == twin.calls
        agreeing = sum(a == b for a, b in zip(row.texts, twin.texts, strict=True))
        assert agreeing >= 5, "stored matrices are float32, which may decide a tie otherwise"


def test_full_mbr_has_no_regret_and_the_oracle_is_best(finished):
    (results,) = open_results(finished[1])
    rows = {row.row.key: row for row in results.table}
    assert rows["mbr"].columns["regret"].max() == 0
    table = build_table(results)
    chrf = {row[0]: float(row[table.header.index("chrF")]) for row in table.rows if row is not None}
    assert max(chrf, key=chrf.get) == "Oracle"


def test_tables_figures_and_report_are_made(copy):
    folder = copy[1]
    report = write_report(folder, formats=["text", "markdown", "latex"])
    page = report.read_text(encoding="utf-8")
    (results,) = open_results(folder)
    assert page.count("<svg") == 3
    assert results.signature.split("|")[0] in page
    assert 'src="' not in page
    assert page.count("<script") == 1, "the page's own, which sorts the tables"
    assert page.count("<div class=case>") > 0
    assert page.index("class=key") < page.index("<svg") < page.index("<table"), "the key result and one figure first"
    regrets = [row.mean("regret") for row in results.table if row.row.budget == "high" and row.row.distilled]
    assert f"AC-PMBR (bleu) high {min(regrets):.2f} at " in page
    for name in ("table", "significance", "published"):
        for extension in ("txt", "md", "tex"):
            assert (folder / f"{name}.en-de.{extension}").stat().st_size > 100
    again = write_report(folder, folder / "again" / "report.html")
    assert again.read_bytes() == report.read_bytes(), "figures of one run have the same ids each time"
    write_report(folder, folder / "drawn" / "report.html", pictures=["svg", "png"])
    made = list((folder / "drawn" / "figures").iterdir())
    assert len(made) == 6
    for figure in made:
        assert figure.stat().st_size > 5000
        assert (figure.read_bytes()[:4] == b"\x89PNG") == (figure.suffix == ".png")


def test_the_report_escapes_what_models_write(copy):
    folder = copy[1]
    run = folder / "run.en-de.json"
    run.write_text(
        run.read_text(encoding="utf-8").replace("the big dog", "<script>alert(1)</script>"), encoding="utf-8"
    )
    page = write_report(folder).read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_a_lower_score_of_an_error_is_the_better_one_in_the_report(copy):
    (results,) = open_results(copy[1])
    assert not results.higher_is_better("ter")
    assert results.higher_is_better("bleu")
    seen = set()
    for name, higher in itertools.product(results.settings.metrics, (True, False)):
        results.utilities[name]["higher_is_better"] = higher
        compared = compare(results, 20)
        for key in ("map", "distilled-mbr/bleu", "oracle"):  # their baseline is MBR
            gain = compared[key][name].score - compared["mbr"][name].score
            assert compared[key][name].better == (gain > 0 if higher else gain < 0)
            seen.add((higher, compared[key][name].better))
    assert seen == {(True, True), (True, False), (False, True), (False, False)}


def test_every_source_has_random_pairs_of_its_own_whoever_meets_it():
    seeds = [source_seed(seed, index) for seed in (0, 1) for index in range(100)]
    assert len(set(seeds)) == 200
    assert seeds == [source_seed(seed, index) for seed in (0, 1) for index in range(100)]


def test_the_paper_s_table_stands_beside_ours(finished):
    (results,) = open_results(finished[1])
    table = published_table(results)
    own = {row[0]: row for row in build_table(results).rows if row is not None}
    rows = {(row[0], row[1]): row for row in table.rows if row is not None}
    assert rows["PMBR (ALS) high", ""][table.header.index("MSE, paper")] == "26.06"
    assert rows["MBR", ""][table.header.index("XCOMET, paper")] == "67.83"
    assert rows["AC-PMBR (AC-ALS) low", "D12"][table.header.index("MSE, paper")] == "3.10"
    place = build_table(results).header.index("chrF")
    for name in ("MAP", "MBR", "PMBR (ALS) low", "Oracle"):
        assert rows[name, ""][table.header.index("chrF, here")] == own[name][place]


def test_the_paper_s_guides_are_matched_by_name_or_relative_size(finished):
    (results,) = open_results(finished[1])
    assert our_guides(results) == {}, "chrF and BLEU have no size"
    sizes = {"target": 579.0, "small": 25.0, "middle": 60.0, "bleurt-20-d12": 1.0}
    results.utilities.update({name: {"parameters": size} for name, size in sizes.items()})
    object.__setattr__(results.settings, "target", "target")
    object.__setattr__(results.settings, "distilled", tuple(list(sizes)[1:]))
    assert our_guides(results) == {"d3": "small", "d6": "middle", "d12": "bleurt-20-d12"}


def test_the_report_names_each_row_that_lost_more_than_it_stated(finished):
    (results,) = open_results(finished[1])
    row = results.rows["own/fast"]
    assert np.isfinite(row.columns["stated"]).all()
    row.columns["stated"][:], row.columns["regret"][:] = 0.5, 0.25
    others = [each for each in results.table if each is not row]
    for each in others:
        each.columns["stated"][:] = np.nan
    assert above_stated(results) == "No row that states what it expects to lose lost more."
    row.columns["regret"][:] = 0.75
    assert above_stated(results) == "Lost more than stated: fast (this package) lost 0.75 and stated 0.50."
    row.columns["stated"][1:] = np.nan
    row.columns["regret"][:1] = 0.25
    assert above_stated(results).startswith("No row"), "only sentences where it is stated are compared"


def test_the_signature_names_each_completer(finished):
    (results,) = open_results(finished[1])
    assert "low(paper-low,row,ALS,AC-ALS)" in results.signature
    assert "transfer(recipe=fast,decoder=acpmbr,max_sweeps=4,distilled_scores_per_row=4,transfer)" in results.signature


def test_tables_and_signatures_carry_a_hash_of_the_sentences(copy):
    folder = copy[1]
    (results,) = open_results(folder)
    assert results.sentences.startswith("6#")
    assert f"sentences:{results.sentences}|" in results.signature
    tables = build_table(results), significance_table(results, compare(results, 20))
    assert all(results.sentences in "".join(table.notes) for table in tables)
    run = folder / "run.en-de.json"
    run.write_text(run.read_text(encoding="utf-8").replace("the big dog", "the big cat"), encoding="utf-8")
    assert open_results(folder)[0].sentences != results.sentences
