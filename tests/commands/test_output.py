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
from hf_acpmbr.cli.main import main
from hf_acpmbr.runs.output import OutputFile, parts_of
from hf_acpmbr.runs.shards import Shards, Share

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


def written(output: Path) -> bytes:
    """The finished shards, in order."""
    notes = sorted(parts_of(str(output)).glob("[0-9]*.json"))
    return b"".join(note.with_suffix(".txt").read_bytes() for note in notes)


def wait_for(process: subprocess.Popen[bytes], output: Path, lines: int) -> None:
    """Until so many lines are written."""
    deadline = time.monotonic() + 120
    while process.poll() is None and written(output).count(b"\n") < lines:
        assert time.monotonic() < deadline, "it should have written something by now"
        time.sleep(0.001)


def stopped(process: subprocess.Popen[bytes], number: signal.Signals) -> tuple[int, str]:
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    return process.returncode, error.decode()


def test_killed_again_and_again_it_ends_with_the_same_bytes(pools: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    assert main(command(pools, whole)) == 0
    killed.write_text("what an earlier run left\n", encoding="utf-8")
    reached = []
    for lines in (1, LINES // 4, LINES // 2, 3 * LINES // 4):
        process = started(command(pools, killed, "--resume") if reached else command(pools, killed))
        wait_for(process, killed, lines)
        assert stopped(process, signal.SIGKILL)[0] == -signal.SIGKILL
        reached.append(written(killed).count(b"\n"))
        assert whole.read_bytes().startswith(written(killed)), "what is there is right"
        assert killed.read_text(encoding="utf-8") == "what an earlier run left\n"
    assert reached == sorted(reached)
    assert reached[-1] < LINES
    assert main(command(pools, killed, "--resume")) == 0
    assert killed.read_bytes() == whole.read_bytes()
    assert not parts_of(str(killed)).exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_sigterm_and_ctrl_c_end_like_a_kill_that_resumes(
    pools: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    whole, output = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    process = started(command(pools, output))
    wait_for(process, output, 20)
    returned, error = stopped(process, number)
    assert returned == code
    assert error.count("\n") == 1, error
    assert "acpmbr rerank: interrupted; " in error
    assert "out.jsonl.parts, and --resume continues after them" in error
    assert main(command(pools, output, "--resume")) == 0
    assert main(command(pools, whole)) == 0
    assert output.read_bytes() == whole.read_bytes()


def test_a_second_run_into_one_output_is_refused_until_the_first_is_gone(
    pools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.jsonl"
    process = started(command(pools, output))
    wait_for(process, output, 1)
    process.send_signal(signal.SIGSTOP)  # alive, and not able to finish meanwhile
    for more in ((), ("--resume",)):
        assert main(command(pools, output, *more)) == 2
        assert f"another run writes {output}: wait for it" in capsys.readouterr().err
    for share in ("0/2", "2/3"):
        assert main(command(pools, output, "--resume", "--shard", share)) == 2, "nor does it become one of several"
        assert f"another run writes {output}: wait for it" in capsys.readouterr().err
    stopped(process, signal.SIGKILL)
    assert main(command(pools, output, "--resume")) == 0, "the lock dies with its process"
    assert output.read_bytes().count(b"\n") == LINES


def output_file(
    path: Path, about: dict[str, object], count: int = 2, *, resume: bool = False, share: Share | None = None
) -> OutputFile:
    return OutputFile(str(path), share or Share(), count, about, resume=resume)


def test_a_part_of_an_output_has_one_run_at_a_time(tmp_path: Path) -> None:
    first, second = output_file(tmp_path / "out", {}), output_file(tmp_path / "out", {})
    assert second.start() == [0, 1]
    with pytest.raises(ValueError, match="another run writes"):
        first.start()
    second.put(0, b"a\n", 1)
    second.stop()
    with pytest.raises(ValueError, match="has 1 line of an unfinished run: add --resume"):
        first.start()
    assert first.stop() == ""
    assert written(tmp_path / "out") == b"a\n"


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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
    before = files(tmp_path)
    more = change(source)
    before[source] = source.read_bytes()
    assert main(command(source, output, "--resume", *more)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert named in error
    assert files(tmp_path) == before, "nothing was touched"


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
    output.with_name("out.jsonl.run.json").write_text("{", encoding="utf-8")
    assert main(command(source, output, "--resume")) == 2
    assert "out.jsonl.run.json is not the note of a run" in capsys.readouterr().err
    assert output.read_text(encoding="utf-8") == "mine\n"


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
    parts = parts_of(str(output))
    parts.mkdir()
    (parts / "0-of-1.lock").touch()
    (parts / "00000.txt").write_text("cut o", encoding="utf-8")
    assert main(command(source, output)) == 0
    assert output.read_bytes().count(b"\n") == 1


@pytest.mark.parametrize("damage", ["data cut", "data gone", "note cut", "note gone"])
def test_resume_makes_exactly_the_shards_that_are_missing_or_damaged(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "out"
    first = output_file(path, {"a": 1}, 5)
    assert first.start() == [0, 1, 2, 3, 4]
    for shard in (0, 1, 3):
        first.put(shard, f"shard {shard}\n".encode(), 1)
    assert first.stop() == f"3 lines are in {path}.parts"
    kind, how = damage.split()
    file = first.shards.path(1) if kind == "data" else first.shards.note_path(1)
    file.write_bytes(file.read_bytes()[:-4]) if how == "cut" else file.unlink()
    second = output_file(path, {"a": 1}, 5, resume=True)
    assert second.start() == [1, 2, 4]
    for shard in (4, 1, 2):
        assert not second.merge()
        second.put(shard, f"shard {shard}\n".encode(), 1)
    assert second.merge()
    second.stop()
    assert path.read_text(encoding="utf-8") == "".join(f"shard {k}\n" for k in range(5))
    third = output_file(path, {"a": 1}, 5, resume=True)
    assert third.start() is None, "the note has the digest of all"
    third.stop()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out", "out.run.json"]


def test_a_shard_that_is_damaged_before_the_merge_is_noticed(tmp_path: Path) -> None:
    output = output_file(tmp_path / "out", {})
    output.start()
    for shard in (0, 1):
        output.put(shard, b"text\n", 1)
    output.shards.path(0).write_bytes(b"taxt\n")
    with pytest.raises(ValueError, match=r"00000\.txt was damaged: --resume makes it again"):
        output.merge()
    output.stop()
    assert not output.path.exists()
    again = output_file(tmp_path / "out", {}, resume=True)
    assert again.start() == [0]
    again.stop()


def test_shards_of_another_run_are_never_mixed_in_and_what_differs_is_named(tmp_path: Path) -> None:
    """Two machines with different copies of a model that began at the same moment."""
    one, two = (
        output_file(tmp_path / "out", {"seed": 0, "model": name}, share=Share(k, 2)) for k, name in enumerate("ab")
    )
    one.start()
    two.start()
    one.put(0, b"x\n", 1)
    with pytest.raises(ValueError, match=r"out\.parts is of another run \(model: a → b\)"):
        two.start()
    two.put(1, b"y\n", 1)
    with pytest.raises(ValueError, match=r"00001\.txt is of another run \(model: b → a\): give the same settings"):
        one.merge()
    assert not one.path.exists()
    for output in (one, two):
        output.stop()


def test_two_that_merge_at_the_same_time_give_one_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (output_file(tmp_path / "out", {}, share=Share(k, 2)) for k in (0, 1))
    for k, output in enumerate((one, two)):
        output.start()
        output.put(k, f"{k}\n".encode(), 1)
    merged = OutputFile._merge

    def second_comes_first(self: OutputFile) -> None:
        monkeypatch.setattr(OutputFile, "_merge", merged)
        assert two.merge(), "the second merges, too, and is quicker"
        assert two.path.read_bytes() == b"0\n1\n"
        merged(self)

    monkeypatch.setattr(OutputFile, "_merge", second_comes_first)
    assert one.merge()
    assert (tmp_path / "out").read_bytes() == b"0\n1\n"
    for output in (one, two):
        output.stop()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out", "out.run.json"]


@pytest.mark.parametrize("killed_before", ["write_atomically", "remove"])
def test_a_kill_in_the_merge_is_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_before: str) -> None:
    source, output, whole = short(tmp_path, "a", "b"), tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    assert main(command(source, whole)) == 0

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if killed_before == "remove":
            patch.setattr("hf_acpmbr.runs.shards.Shards.remove", dies)
        else:
            merge = OutputFile._merge

            def merges(self: OutputFile) -> None:
                patch.setattr("hf_acpmbr.runs.output.write_atomically", dies)
                merge(self)

            patch.setattr(OutputFile, "_merge", merges)
        assert main(command(source, output)) == 130
    assert parts_of(str(output)).exists()
    assert main(command(source, output, "--resume")) == 0
    assert output.read_bytes() == whole.read_bytes()
    assert sorted(file.name for file in tmp_path.glob("out*")) == ["out.jsonl", "out.jsonl.run.json"]


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


def test_shards_before_a_bad_line_are_kept_and_it_is_named(
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
    parts = parts_of(str(output))
    assert f"utility gave NaN (at {source} line 19); 16 lines are in {parts}, and --resume continues" in error
    assert [json.loads(line)["text"] for line in written(output).splitlines()] == [f"a{k}" for k in range(16)]
    assert main(command(source, output)) == 2
    assert "16 lines of an unfinished run: add --resume to continue it, or remove it" in capsys.readouterr().err
    assert main([*command(source, Path("-")), "--format", "text", "--nbest", "1"]) == 2
    assert capsys.readouterr().out == "".join(f"a{k}\n" for k in range(18)), "a stream has all before it"
    monkeypatch.setattr(ACPMBR, "rerank_many", original)
    assert main(command(source, output, "--resume")) == 0
    assert output.read_bytes().count(b"\n") == 20


def test_a_run_that_fails_at_its_first_line_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = short(tmp_path, "a", "b"), tmp_path / "out.jsonl"
    output.write_text("old\n", encoding="utf-8")
    before = files(tmp_path)

    def refuses(self: ACPMBR, *args: object) -> object:
        raise ValueError("utility gave NaN")

    monkeypatch.setattr(ACPMBR, "rerank_many", refuses)
    assert main(command(source, output)) == 2
    assert capsys.readouterr().err == f"acpmbr rerank: utility gave NaN (at {source} line 1)\n"
    assert files(tmp_path) == before


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


@pytest.mark.parametrize("name", ["score", "rerank"])
def test_an_output_keeps_what_it_is_and_its_permissions(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source, text, pipe = short(tmp_path, "a"), tmp_path / "text", tmp_path / "pipe"
    text.write_text("a\n", encoding="utf-8")

    def into(output: Path) -> list[str]:
        if name == "rerank":
            return command(source, output)
        files = ["--hypotheses", str(text), "--references", str(text), "--output", str(output)]
        return ["score", "--utility", "chrf", *files]

    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert main(into(pipe)) == 0
    assert json.loads(os.read(reader, 10_000)), "a pipe is written to"
    os.close(reader)
    assert pipe.is_fifo()
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("private\n", encoding="utf-8")
    real.chmod(0o600)
    link.symlink_to(real)
    capsys.readouterr()
    assert main(into(link)) == 0
    assert f"replaced {real}, which existed" in capsys.readouterr().err
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o600
    assert json.loads(real.read_text(encoding="utf-8"))
    assert main(into(tmp_path / "new")) == 0
    assert "replaced" not in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("name", ["score", "rerank"])
def test_a_full_device_is_an_error_and_stays_a_device(tmp_path: Path, name: str) -> None:
    source = short(tmp_path, "a")
    files = ["--hypotheses", str(source), "--references", str(source), "--utility", "chrf"]
    arguments = command(source, Path("/dev/full")) if name == "rerank" else ["score", *files, "--output", "/dev/full"]
    assert main(arguments) == 2
    assert not Path("/dev/full").is_file()


@pytest.mark.parametrize("name", ["score", "rerank", "translate"])
def test_an_output_in_a_folder_that_is_missing_is_refused_before_any_work(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = short(tmp_path, "a")
    monkeypatch.setattr("hf_acpmbr.scoring.load.load_utility", lambda *_, **__: pytest.fail("it loads utilities"))
    files = {
        "score": ["--utility", "chrf", "--hypotheses", str(source), "--references", str(source)],
        "rerank": ["--input", str(source)],
        "translate": ["--input", str(source), "--column", "x"],
    }
    assert main([name, *files[name], "--output", str(tmp_path / "no" / "out")]) == 2
    assert f"--output {tmp_path / 'no' / 'out'}: there is no folder {tmp_path / 'no'}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [source]


def test_a_run_that_was_killed_counts_pairs_in_a_cache_as_an_uninterrupted_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, whole, output = short(tmp_path, *(f"a{k}" for k in range(20))), tmp_path / "whole", tmp_path / "out"
    assert main(command(source, whole)) == 0
    cached = ["--target-option", f"cache={tmp_path / 'scores.db'}"]
    put = Shards.put

    def dies(self: Shards, shard: int, *args: object, **kwargs: object) -> None:
        if shard == 1:  # all its pairs are in the cache by now
            raise KeyboardInterrupt
        put(self, shard, *args, **kwargs)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Shards, "put", dies)
        assert main(command(source, output, *cached)) == 130
    assert main(command(source, output, *cached, "--resume")) == 0
    assert output.read_bytes() == whole.read_bytes()
