"""Every example runs, as a user would start it."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from packaging.version import Version

from hf_acpmbr import ACPMBR
from hf_acpmbr.embedded import TRANSLATOR
from tests.models import tiny_pair

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = ["--num-candidates", "8", "--max-new-tokens", "5"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for kind in ("m2m100", "llama"):
        made[kind] = tmp_path_factory.mktemp(kind)
        for part in tiny_pair(kind):
            part.save_pretrained(made[kind])
    return made


def run(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch, cwd: Path) -> None:
    monkeypatch.chdir(cwd)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_every_example_has_a_test() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parents[1].rglob("test_*.py"))
    missing = [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in tests and path.stem not in tests]
    assert not missing


OLD = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.17"), reason="the folder asks for transformers 5.17 (CVE-2026-80047)"
)


@pytest.mark.parametrize("name", ["drop_in_generate.py", pytest.param("hub_generate.py", marks=OLD)])
def test_encoder_decoder_examples(
    name: str,
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    run(name, "--model", str(folders["m2m100"]), *SMALL, monkeypatch=monkeypatch, cwd=tmp_path)
    assert capsys.readouterr().out


@pytest.mark.skipif(not (TRANSLATOR / "config.json").is_file(), reason="the embedded translator is not there")
def test_the_default_is_the_embedded_translator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("drop_in_generate.py", "--num-candidates", "16", monkeypatch=monkeypatch, cwd=tmp_path)
    assert "Where is the station? → W" in capsys.readouterr().out


@pytest.mark.parametrize("program", ["slurm_array.sh", "hf_jobs.py"])
def test_parts_on_a_cluster_give_the_lines_of_one_process(
    program: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    """What SLURM and the Hub start, one after the other; one part comes twice, as after a failure."""
    (tmp_path / "en.txt").write_text("a dog ran\nthe cat sat\nthe sun\n", encoding="utf-8")
    model = ["--model", str(folders["m2m100"]), "--batch-size", "1", "--quiet", *SMALL]
    files = ["--input", "en.txt", "--output"]
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": programs, "PYTHONPATH": str(EXAMPLES.parent), "SHARES": "2"}

    def start(*command: str, part: int = 0) -> None:
        task = {**environment, "SLURM_ARRAY_TASK_ID": str(part)}
        subprocess.run([*command, *model], cwd=tmp_path, env=task, check=True, timeout=300)

    start(sys.executable, "-m", "hf_acpmbr", "translate", *files, "one.txt")
    for part in (0, 0, 1):
        assert not (tmp_path / "de.txt").exists()
        if program == "slurm_array.sh":
            start(str(EXAMPLES / program), "translate", part=part)
        else:
            start(sys.executable, str(EXAMPLES / program), *files, "de.txt", "--shard", f"{part}/2")
    assert (tmp_path / "de.txt").read_bytes() == (tmp_path / "one.txt").read_bytes()


def test_rerank_strings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("rerank_strings.py", monkeypatch=monkeypatch, cwd=tmp_path)
    assert "Die Katze schläft auf dem Sofa." in capsys.readouterr().out


def test_map_corpus_writes_parquet(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from datasets import Dataset

    (tmp_path / "in.txt").write_text("a dog ran\nthe cat sat\n", encoding="utf-8")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    options = ["--model", str(folders["m2m100"]), "--output", "out.parquet", *SMALL]
    run("map_corpus.py", *options, monkeypatch=monkeypatch, cwd=tmp_path)
    data = Dataset.from_parquet(str(tmp_path / "out.parquet"), cache_dir=str(tmp_path / "cache"))
    assert data.column_names[:3] == ["source", "prediction", "prediction_utility"]


def test_decoder_only_chat(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("decoder_only_chat.py", "--model", str(folders["llama"]), *SMALL, monkeypatch=monkeypatch, cwd=tmp_path)
    assert "Where is the station? →" in capsys.readouterr().out


def test_accelerate_in_one_process(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", str(folders["m2m100"]), "--cpu", *SMALL]
    run("accelerate_inference.py", *options, monkeypatch=monkeypatch, cwd=tmp_path)
    assert capsys.readouterr().out.count("→") == 5


@pytest.mark.slow
def test_accelerate_gives_the_same_lines_in_one_process_and_in_two(folders: dict[str, Path], tmp_path: Path) -> None:
    script = [str(EXAMPLES / "accelerate_inference.py"), "--model", str(folders["m2m100"]), "--cpu", *SMALL]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29611"]
    outputs = []
    for start in ([], launcher):
        done = subprocess.run(
            [sys.executable, *start, *script],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        outputs.append([line for line in done.stdout.splitlines() if "→" in line])
    assert len(outputs[0]) == 5
    assert outputs[0] == outputs[1]


def test_a_step_of_datatrove_chooses_as_rerank_does(tmp_path: Path) -> None:
    pytest.importorskip("datatrove", reason="datatrove is not installed: pip install 'datatrove[io]'")
    pools = [[f"the cat {k}", f"the cat {k}", f"a dog {k}", "x"] for k in range(40)]
    folder = tmp_path / "in"
    folder.mkdir()
    for part in (0, 1):
        lines = [{"id": str(k), "text": f"s{k}", "candidates": pools[k]} for k in range(part, 40, 2)]
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    command = [sys.executable, str(EXAMPLES / "datatrove_step.py"), str(folder), str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "OMP_NUM_THREADS": "1"}
    options = ["--tasks", "2", "--target", "chrf"]
    subprocess.run([*command, *options], env=environment, check=True, cwd=tmp_path, timeout=600)
    files = sorted((tmp_path / "out").glob("*.jsonl"))
    found = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    mbr = ACPMBR(target="chrf")
    assert {row["id"]: row["text"] for row in found} == {
        str(k): mbr.rerank(pool, f"s{k}").text for k, pool in enumerate(pools)
    }


@pytest.mark.skipif(not (TRANSLATOR / "config.json").is_file(), reason="the embedded translator is not there")
def test_the_notebook_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    cells = json.loads((EXAMPLES / "quickstart.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "stored without outputs"
            exec(compile("".join(cell["source"]), "quickstart.ipynb", "exec"), names)
    printed = capsys.readouterr().out
    assert "Es tut mir leid, dass ich nicht mit dir geht.\n" in printed
    assert printed.count("'embedded'") == 2
    assert printed.splitlines()[-1].startswith("lost: ")
