"""Output files: nothing lost, nothing mixed, whatever happens to the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hf_acpmbr import ACPMBR
from hf_acpmbr.cli import main
from hf_acpmbr.commands._resumable import ResumableOutput

LINES = 128


@pytest.fixture
def pools(tmp_path: Path) -> Path:
    path = tmp_path / "pools.jsonl"
    lines = ([f"{word} {word}{k} {line}" for k in range(40) for word in ("red", "sun")] for line in range(LINES))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def command(source: Path, output: Path, *more: str) -> list[str]:
    options = ["--decoder", "mbr", "--format", "jsonl", "--nbest", "2", "--quiet"]
    return ["rerank", "--input", str(source), "--output", str(output), *options, *more]


def short(tmp_path: Path, *texts: str) -> Path:
    path = tmp_path / "short.jsonl"
    path.write_text("".join(json.dumps([text, text, "x"]) + "\n" for text in texts), encoding="utf-8")
    return path


def started(arguments: list[str]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "hf_acpmbr", *arguments],
        env=environment,
        stderr=subprocess.PIPE,
        # A run in the background inherits that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for(process: subprocess.Popen[bytes], part: Path, lines: int) -> None:
    """Until so many lines are written."""
    deadline = time.monotonic() + 120
    while process.poll() is None and (not part.exists() or part.read_bytes().count(b"\n") < lines):
        assert time.monotonic() < deadline, "it should have written something by now"
        time.sleep(0.001)


def stopped(process: subprocess.Popen[bytes], number: signal.Signals) -> tuple[int, str]:
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    return process.returncode, error.decode()


def test_killed_again_and_again_it_ends_with_the_same_bytes(pools: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    assert main(command(pools, whole)) == 0
    part = tmp_path / "killed.jsonl.unfinished"
    killed.write_text("what an earlier run left\n", encoding="utf-8")
    reached = []
    for lines in (1, LINES // 4, LINES // 2, 3 * LINES // 4):
        process = started(command(pools, killed, "--resume") if reached else command(pools, killed))
        wait_for(process, part, lines)
        assert stopped(process, signal.SIGKILL)[0] == -signal.SIGKILL
        reached.append(part.read_bytes().count(b"\n"))
        assert whole.read_bytes().startswith(part.read_bytes()), "what is there is right"
        assert killed.read_text(encoding="utf-8") == "what an earlier run left\n"
    assert reached == sorted(reached)
    assert reached[-1] < LINES
    assert main(command(pools, killed, "--resume")) == 0
    assert killed.read_bytes() == whole.read_bytes()
    assert not part.exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_sigterm_and_ctrl_c_end_like_a_kill_that_resumes(
    pools: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    whole, output = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    process = started(command(pools, output))
    wait_for(process, tmp_path / "out.jsonl.unfinished", 20)
    returned, error = stopped(process, number)
    assert returned == code
    assert error.count("\n") == 1, error
    assert "acpmbr rerank: interrupted; " in error
    assert "out.jsonl.unfinished, and --resume continues after them" in error
    assert main(command(pools, output, "--resume")) == 0
    assert main(command(pools, whole)) == 0
    assert output.read_bytes() == whole.read_bytes()


def test_a_second_run_into_one_output_is_refused_until_the_first_is_gone(
    pools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.jsonl"
    process = started(command(pools, output))
    wait_for(process, tmp_path / "out.jsonl.unfinished", 1)
    process.send_signal(signal.SIGSTOP)  # alive, and not able to finish meanwhile
    for more in ((), ("--resume",)):
        assert main(command(pools, output, *more)) == 2
        assert f"another run writes {output}: wait for it" in capsys.readouterr().err
    stopped(process, signal.SIGKILL)
    assert main(command(pools, output, "--resume")) == 0, "the lock dies with its process"
    assert output.read_bytes().count(b"\n") == LINES


def test_one_that_came_in_between_is_noticed(tmp_path: Path) -> None:
    first = ResumableOutput(str(tmp_path / "out"), resume=False, batch_size=2)
    second = ResumableOutput(str(tmp_path / "out"), resume=False, batch_size=2)
    second.start({})
    with pytest.raises(ValueError, match="another run writes"):
        first.start({})
    second.write(["a"])
    second.stop()
    with pytest.raises(ValueError, match="another run writes"):
        first.start({})
    assert first.stop() == ""
    assert (tmp_path / "out.unfinished").read_bytes() == b"a\n"


def change_input(source: Path) -> list[str]:
    source.write_text(source.read_text(encoding="utf-8").replace("last", "lost"), encoding="utf-8")
    return []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (change_input, "input.input: "),
        (lambda _: ["--seed", "1"], "seed: 0 → 1"),
        (lambda _: ["--nbest", "3"], "options.nbest: 2 → 3"),
        (lambda _: ["--target-option", "beta=1"], "target: chrf|char_order:6|word_order:0|beta:2"),
        (lambda _: ["--target", "bleu"], "target: chrf|"),
        (lambda _: ["--decoder", '{"name": "n-by-s", "num_references": 1}'], "decoder.name: mbr → n-by-s"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("finished", [False, True])
def test_resuming_something_else_is_refused_with_what_differs(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    finished: bool,
    change: Callable[[Path], list[str]],
    named: str,
) -> None:
    source, output = short(tmp_path, *(f"a{k}" for k in range(20)), "last"), tmp_path / "out.jsonl"
    if finished:
        assert main(command(source, output)) == 0
    else:
        with monkeypatch.context() as patch:
            interrupted(patch, after=1)
            assert main(command(source, output)) == 130
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    more = change(source)
    before[source.name] = source.read_bytes()
    assert main(command(source, output, "--resume", *more)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert named in error
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before, "nothing was touched"


def interrupted(patch: pytest.MonkeyPatch, after: int) -> None:
    original, calls = ACPMBR.rerank_many, []

    def dies(self: ACPMBR, *args: object, **kwargs: object) -> object:
        calls.append(1)
        if len(calls) > after:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)  # type: ignore[arg-type]

    patch.setattr(ACPMBR, "rerank_many", dies)


def test_a_finished_run_has_nothing_left_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = short(tmp_path, "a", "b"), tmp_path / "out.jsonl"
    assert main(command(source, output)) == 0
    whole = output.read_bytes()
    elsewhere = tmp_path / "elsewhere" / "moved.jsonl"
    elsewhere.parent.mkdir()
    source.rename(elsewhere)
    interrupted(monkeypatch, after=0)
    assert main([part for part in command(elsewhere, output, "--resume") if part != "--quiet"]) == 0
    assert "0 lines in" in (error := capsys.readouterr().err)
    assert "2 were there already" in error
    assert output.read_bytes() == whole
    output.write_bytes(whole + b"edited\n")
    assert main(command(elsewhere, output, "--resume")) == 2
    assert "was changed after its run" in capsys.readouterr().err


def test_an_output_of_nobody_knows_which_run_is_not_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = short(tmp_path, "a"), tmp_path / "out.jsonl"
    output.write_text("mine\n", encoding="utf-8")
    assert main(command(source, output, "--resume")) == 2
    assert "has no out.jsonl.run.json" in capsys.readouterr().err
    assert output.read_text(encoding="utf-8") == "mine\n"
    part = tmp_path / "out.jsonl.unfinished"
    part.write_text("mine\n", encoding="utf-8")
    assert main(command(source, output, "--resume")) == 2
    assert "has no out.jsonl.unfinished.json that says which run it is of" in capsys.readouterr().err
    note = tmp_path / "out.jsonl.unfinished.json"
    note.write_text("{", encoding="utf-8")
    assert main(command(source, output, "--resume")) == 2
    assert "is not the note of a run" in capsys.readouterr().err
    assert part.read_text(encoding="utf-8") == "mine\n"


def test_a_failed_start_leaves_the_old_output_and_does_not_block_the_corrected_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = short(tmp_path, "a"), tmp_path / "out.jsonl"
    output.write_text("old\n", encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    for mistake in (["--target", "chrff"], ["--set", "rank=0"], ["--target", "bleurt-20"]):
        assert main(command(source, output, *mistake)) == 2
        assert output.read_text(encoding="utf-8") == "old\n"
        assert sorted(tmp_path.iterdir()) == before
    assert main(command(source, output)) == 0
    assert json.loads(output.read_text(encoding="utf-8"))["text"] == "a"


def test_a_start_that_was_killed_before_its_first_line_blocks_nothing(tmp_path: Path) -> None:
    source, output = short(tmp_path, "a"), tmp_path / "out.jsonl"
    (tmp_path / "out.jsonl.unfinished").touch()
    (tmp_path / "out.jsonl.unfinished.json").write_text('{"about": {"seed": 9}}', encoding="utf-8")
    assert main(command(source, output)) == 0
    assert output.read_bytes().count(b"\n") == 1


@pytest.mark.parametrize("lines", [0, 1, 2, 3, 4, 5])
def test_resume_keeps_complete_batches_only(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "out"
    first = ResumableOutput(str(path), resume=False, batch_size=2)
    first.start({"a": 1})
    first.write([f"old {k}" for k in range(lines)])
    first.stop()
    with (tmp_path / "out.unfinished").open("ab") as file:
        file.write(b"cut off in the mid")
    second = ResumableOutput(str(path), resume=True, batch_size=2)
    assert not second.check({"a": 1})
    assert second.done == lines // 2 * 2
    second.start({"a": 1})
    second.write(["new"])
    second.finish({"a": 1})
    assert path.read_text(encoding="utf-8") == "".join(f"old {k}\n" for k in range(lines // 2 * 2)) + "new\n"
    third = ResumableOutput(str(path), resume=True, batch_size=2)
    assert third.check({"a": 1}), "the note's digest covers what was kept, too"
    assert third.done == lines // 2 * 2 + 1


def test_a_kill_between_the_renames_at_the_end_is_repaired(tmp_path: Path) -> None:
    source, output = short(tmp_path, "a"), tmp_path / "out.jsonl"
    assert main(command(source, output)) == 0
    (tmp_path / "out.jsonl.run.json").rename(tmp_path / "out.jsonl.unfinished.json")
    assert main(command(source, output, "--resume")) == 0
    assert (tmp_path / "out.jsonl.run.json").exists()
    assert not (tmp_path / "out.jsonl.unfinished.json").exists()


def test_an_empty_input_ends_cleanly(tmp_path: Path) -> None:
    source, output = tmp_path / "empty", tmp_path / "out.jsonl"
    source.touch()
    for more in ([], ["--resume"], []):
        assert main(command(source, output, *more)) == 0
        assert output.read_bytes() == b""


def test_links_and_devices_stay_what_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, link, real = short(tmp_path, "a"), tmp_path / "link", tmp_path / "real"
    real.write_text("old\n", encoding="utf-8")
    link.symlink_to(real)
    assert main(command(source, link)) == 0
    assert link.is_symlink()
    assert "old" not in real.read_text(encoding="utf-8")
    assert main(command(source, Path(os.devnull))) == 0
    assert not Path(os.devnull).is_file()
    assert main(command(source, Path(os.devnull), "--resume")) == 2
    assert "cannot be resumed" in capsys.readouterr().err
    other = tmp_path / "linked-input"
    other.symlink_to(source)
    assert main(command(source, other)) == 2
    assert "is the --input file" in capsys.readouterr().err


def test_lines_before_a_bad_one_are_written_and_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = short(tmp_path, *(f"a{k}" for k in range(18)), "bad", "b"), tmp_path / "out.jsonl"
    original = ACPMBR.rerank_many

    def refuses(self: ACPMBR, candidates: object, *args: object) -> object:
        if any("bad" in pool.texts for pool in candidates):  # type: ignore[attr-defined]
            raise ValueError("utility gave NaN")
        return original(self, candidates, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(ACPMBR, "rerank_many", refuses)
    assert main(command(source, output)) == 2
    error = capsys.readouterr().err
    part = tmp_path / "out.jsonl.unfinished"
    assert f"utility gave NaN (at {source} line 19); 18 lines are in {part}, and --resume continues" in error
    assert [json.loads(line)["text"] for line in part.read_text().splitlines()] == [f"a{k}" for k in range(18)]
    assert main(command(source, output)) == 2
    assert "18 lines of an unfinished run: add --resume to continue it, or remove it" in capsys.readouterr().err
    monkeypatch.setattr(ACPMBR, "rerank_many", original)
    assert main(command(source, output, "--resume")) == 0
    assert output.read_bytes().count(b"\n") == 20


def test_a_run_that_fails_at_its_first_line_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = short(tmp_path, "a", "b"), tmp_path / "out.jsonl"
    output.write_text("old\n", encoding="utf-8")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def refuses(self: ACPMBR, *args: object) -> object:
        raise ValueError("utility gave NaN")

    monkeypatch.setattr(ACPMBR, "rerank_many", refuses)
    assert main(command(source, output)) == 2
    assert capsys.readouterr().err == f"acpmbr rerank: utility gave NaN (at {source} line 1)\n"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_input_that_changes_while_it_is_read_is_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = short(tmp_path, *(f"a{k}" + "x" * 10_000 for k in range(20))), tmp_path / "out.jsonl"
    original = ACPMBR.rerank_many

    def meddles(self: ACPMBR, *args: object) -> object:
        source.write_text(source.read_text().replace("a19", "b19"), encoding="utf-8")
        return original(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(ACPMBR, "rerank_many", meddles)
    assert main(command(source, output)) == 2
    assert "changed while it was read" in capsys.readouterr().err
    assert not output.exists()
