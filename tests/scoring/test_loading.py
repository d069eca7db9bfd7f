"""Loading by name, path and object; each utility as an `evaluate` metric; imports that stay cheap."""

from __future__ import annotations

import copy
import json
import math
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_acpmbr import ACPMBR, Recipe
from hf_acpmbr.cli.main import main
from hf_acpmbr.scoring import (
    Kernel,
    MatrixUtility,
    Utility,
    UtilitySpec,
    as_utility,
    available_utilities,
    distilled_partners,
    load_utility,
)
from hf_acpmbr.scoring.checkpoints import read_weights
from hf_acpmbr.scoring.load import UTILITIES

from ..metrics.cases import CASES
from ..metrics.checkpoints import SENTENCES, write_bleurt, write_encoder

MODULE = """
import datasets
import evaluate


class Lengths(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("string"), "references": datasets.Value("string")})
        return evaluate.MetricInfo(description="lengths", citation="none", inputs_description="", features=features)

    def _compute(self, predictions, references):
        values = [abs(len(p) - len(r)) for p, r in zip(predictions, references)]
        return {"total": sum(values), "lengths": values}
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_and_string_metrics_load_no_heavy_library() -> None:
    code = (
        "import sys; from hf_acpmbr.scoring import load_utility; u = load_utility('chrf'); u.score(['a'], ['b']);"
        "print(hasattr(u, 'encode_all'), sorted({'transformers', 'evaluate', 'datasets'} & set(sys.modules)))"
    )
    assert run(code) == "False []"


def test_a_bleurt_scores_without_the_libraries_that_take_seconds_to_import() -> None:
    code = (
        "import sys; from hf_acpmbr import ACPMBR; ACPMBR(target='embedded').rerank(['a b', 'a c', 'b c']);"
        "print(sorted({'transformers', 'torch._dynamo', 'evaluate', 'datasets'} & set(sys.modules)))"
    )
    assert run(code) == "[]"


def test_as_metric_is_an_evaluate_metric() -> None:
    import evaluate

    utility = load_utility("chrf")
    assert not isinstance(utility, evaluate.EvaluationModule), "a utility does not pretend"
    metric = utility.as_metric()
    assert isinstance(metric, evaluate.Metric)
    assert metric is utility.as_metric()
    assert metric.name == "chrf"
    assert "Popović" in metric.citation
    assert metric.description == "Character n-gram F-score, 0 to 100."
    assert set(metric.features) == {"predictions", "references"}
    expected = utility.score(SENTENCES[:3], SENTENCES[3:6]).tolist()
    assert metric.compute(predictions=SENTENCES[:3], references=SENTENCES[3:6])["scores"] == expected
    metric.add(prediction=SENTENCES[0], reference=SENTENCES[3])
    metric.add_batch(predictions=SENTENCES[1:3], references=SENTENCES[4:6])
    result = metric.compute()
    assert result == {"scores": expected, "mean_score": np.mean(expected)}
    assert utility.compute(predictions=SENTENCES[:3], references=SENTENCES[3:6]) == result


def test_metrics_can_be_combined() -> None:
    import evaluate

    metrics = [load_utility(name).as_metric() for name in ("chrf", "bleu")]
    combined = evaluate.combine(metrics)
    assert set(combined.compute(predictions=["a b"], references=["a c"])) >= {"chrf_scores", "bleu_scores"}


@pytest.mark.parametrize("kind", [list, tuple])
def test_references_may_be_lists_of_one_text_as_evaluates_own_metrics_take_them(kind: type) -> None:
    metric = load_utility("chrf").as_metric()
    plain = metric.compute(predictions=SENTENCES[:3], references=SENTENCES[3:6])
    listed = [kind([text]) for text in SENTENCES[3:6]]
    assert metric.compute(predictions=SENTENCES[:3], references=listed) == plain
    metric.add(prediction=SENTENCES[0], reference=listed[0])
    metric.add_batch(predictions=SENTENCES[1:3], references=[listed[1], SENTENCES[5]])
    assert metric.compute() == plain
    for texts in ([], ["a", "b"]):
        with pytest.raises(ValueError, match=rf"references\[1\] has {len(texts)} texts, and chrf compares with one"):
            metric.compute(predictions=["a", "b"], references=[["a"], texts])


def test_the_mean_of_no_prediction_is_an_error_and_not_nan() -> None:
    for utility in (load_utility("chrf"), load_utility("embedded")):
        with pytest.raises(ValueError, match=r"predictions is empty: .* has no mean of nothing"):
            utility.compute(predictions=[], references=[])
        assert utility.compute(predictions=["a"], references=["a"])["mean_score"] > 0, "and it can go on"
        assert utility.score([], []).tolist() == []


def test_features_say_what_a_metric_needs() -> None:
    def with_source(h: list[str], r: list[str], sources: list[str]) -> list[float]:
        return [float(s in h_) for h_, s in zip(h, sources, strict=True)]

    metric = as_utility(with_source).as_metric()
    assert set(metric.features) == {"predictions", "references", "sources"}
    assert metric.compute(predictions=["a b"], references=["x"], sources=["a"])["scores"] == [1.0]


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
def test_a_plain_encoder_says_what_to_write_instead(tmp_path: Path, kind: str) -> None:
    folder = str(write_encoder(tmp_path / "encoder", kind))
    with pytest.raises(
        ValueError, match=f"'{kind}' checkpoint, which is not a metric.*'bertscore', checkpoint='{folder}'"
    ):
        load_utility(folder)
    assert np.isfinite(load_utility("bertscore", checkpoint=folder).score(["a"], ["b"])).all()


@pytest.mark.parametrize(
    "command", ["rerank --target {}", "rerank --distilled {}", "score --utility {} --hypotheses {}"]
)
def test_a_command_says_of_a_plain_encoder_what_to_write_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    folder = write_encoder(tmp_path / "encoder", "bert")
    assert main(command.replace("{}", str(folder)).split()) == 2
    assert f"--target bertscore --target-option checkpoint={folder}" in capsys.readouterr().err


def test_utilities_can_be_copied_and_pickled(tmp_path: Path) -> None:
    import evaluate  # noqa: F401  (its presence must not change how a utility is pickled)

    for utility in (load_utility("chrf++"), load_utility(str(write_bleurt(tmp_path / "b")))):
        expected = utility.score(SENTENCES[:2], SENTENCES[2:4])
        utility.as_metric()
        for twin in (pickle.loads(pickle.dumps(utility)), copy.deepcopy(utility)):
            assert type(twin) is type(utility)
            np.testing.assert_allclose(twin.score(SENTENCES[:2], SENTENCES[2:4]), expected)


def test_every_name_loads_without_weights_and_says_what_it_is() -> None:
    for name in available_utilities():
        utility = load_utility(name, **({"device": "cpu"} if "checkpoint" in UTILITIES[name].options else {}))
        assert utility.name == name
        assert utility.scale in (1.0, 25.0, 100.0)
        assert utility.higher_is_better == (not name.startswith(("ter", "metricx")))
        assert "https://" in sys.modules[type(utility).__module__].__doc__, "the paper, for `evaluate`"


def test_hub_ids_find_their_line() -> None:
    utility = load_utility("lucadiliello/BLEURT-20-D3", device="cpu")
    assert utility.checkpoint == "lucadiliello/BLEURT-20-D3"
    assert utility.parameters == 30_000_000


def test_the_page_names_every_utility() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "utilities.md").read_text(encoding="utf-8")
    assert [name for name in available_utilities() if f"`{name}`" not in page] == []


def test_other_hub_ids_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_bleurt(tmp_path / "snapshots" / "0123456789abcdef")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(folder))
    utility = load_utility("someone/own-bleurt", device="cpu")
    assert utility.signature == "own-bleurt@0123456789ab|max_length:none|dtype:float32"
    assert np.isfinite(utility.score(["a bird"], ["the window"])).all()
    monkeypatch.setattr("huggingface_hub.snapshot_download", _unreachable)
    with pytest.raises(ValueError, match=r"unknown utility 'no/such'.*cannot be reached: .*no network"):
        load_utility("no/such")


def _unreachable(*_: object, **__: object) -> str:
    raise OSError("no network")


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(ValueError, match="unknown utility 'chrff': did you mean 'chrf'"):
        load_utility("chrff")
    with pytest.raises(TypeError, match="use as_utility"):
        load_utility(len)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="int is not a utility"):
        as_utility(3)
    with pytest.raises(ValueError, match="no effect on a ready utility"):
        as_utility(load_utility("chrf"), beta=1)


@pytest.mark.parametrize(
    ("utility", "option", "message"),
    [
        ("chrf", "betta", "'betta' is not an option of utility 'chrf': did you mean 'beta'?"),
        ("ter", "zzz", "'zzz' is not an option of utility 'ter': choose one of normalized, no_punct, asian_support,"),
        (
            "embedded",
            "batch_token",
            "'batch_token' is not an option of utility 'embedded': did you mean 'batch_tokens'?",
        ),
        (len, "simetric", "'simetric' is not an option of utility 'len': did you mean 'symmetric'?"),
    ],
)
def test_unknown_options_are_refused_with_the_names_there_are(utility: object, option: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        as_utility(utility, **{option: 1})


class Scored:
    """A metric of somebody else's, with what it says about itself."""

    def __init__(self, **said: object) -> None:
        self.higher_is_better: object = True
        self.__dict__.update(said)

    def score(self, hypotheses: list[str], references: list[str]) -> list[float]:
        return [1.0] * len(hypotheses)


class OwnUtility(Utility):
    name = "own"

    def kernel(self, table: object, statistics: object) -> Kernel:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("said", "message"),
    [
        *(({"scale": scale}, "scale of utility '.*' must be above 0") for scale in (0, -1.0, math.nan, math.inf)),
        ({"higher_is_better": "no"}, "higher_is_better.* must be true or false, got 'no'"),
    ],
)
@pytest.mark.parametrize("form", ["object", "function", "matrix", "own"])
def test_a_meaningless_scale_or_direction_is_refused(form: str, said: dict[str, object], message: str) -> None:
    own = OwnUtility()
    own.__dict__.update(said)
    given: dict[str, Callable[[], object]] = {
        "object": lambda: as_utility(Scored(**said)),
        "function": lambda: as_utility(lambda h, r: [1.0] * len(h), **said),
        "matrix": lambda: as_utility(MatrixUtility(np.eye(2), **said)),  # type: ignore[arg-type]
        "own": lambda: as_utility(own),
    }
    with pytest.raises(ValueError, match=message):
        given[form]()


@pytest.mark.parametrize(
    ("name", "option", "value", "message"),
    [
        ("embedded", "batch_tokens", 0, "batch_tokens must be at least 1, got 0"),
        ("embedded", "batch_tokens", 1.5, "batch_tokens must be an integer or none, got 1.5"),
        ("embedded", "batch_tokens", "8", "batch_tokens must be an integer or none, got '8'"),
        ("embedded", "device", "xpu9", "device='xpu9' is not a device of torch"),
        ("embedded", "device", 5, "device must be a text or none, got 5"),
        ("embedded", "compile", "no", "compile must be true or false, got 'no'"),
        ("embedded", "name", 5, "name must be a text or none"),
        ("chrf", "cache", 5, "cache must be a text or a path or none, got 5"),
        ("chrf", "progress", "maybe", "progress must be true or false, got 'maybe'"),
        ("chrf", "progress", 1, "progress must be true or false, got 1"),
        ("chrf", "lowercase", "false", "lowercase must be true or false, got 'false'"),
        ("chrf", "char_order", True, "char_order must be an integer, got True"),
        ("ter", "normalized", 5, "normalized must be true or false, got 5"),
    ],
)
def test_options_of_another_type_are_refused(name: str, option: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        load_utility(name, **{option: value})


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="embedded-d2 cannot be moved to device 'cuda:77'"):
        load_utility("embedded-d2", device="cuda:77").score(["a"], ["b"])


def test_no_name_is_no_utility() -> None:
    for name in ("", " "):
        with pytest.raises(ValueError, match="unknown utility"):
            load_utility(name)


def test_objects_with_score_only() -> None:
    class Minimal:
        higher_is_better = False

        def score(self, hypotheses: list[str], references: list[str], sources: list[str] | None = None) -> list[int]:
            return [len(h) for h in hypotheses]

    utility = as_utility(Minimal())
    assert not utility.higher_is_better
    assert utility.name == "Minimal"
    assert utility.score(["abc"], ["x"]).tolist() == [3.0]


def test_evaluate_modules_by_object_and_path(tmp_path: Path) -> None:
    import evaluate

    script = tmp_path / "lengths" / "lengths.py"
    script.parent.mkdir()
    script.write_text(MODULE)
    by_path = load_utility(str(script), output_key="lengths", higher_is_better=False, trust_remote_code=True)
    assert by_path.score(["a", "abc"], ["abc", "abc"]).tolist() == [2.0, 0.0]
    assert not by_path.higher_is_better
    by_object = as_utility(evaluate.load(str(script.parent)), output_key="lengths")
    assert by_object.score(["a"], ["abcd"]).tolist() == [3.0]
    with pytest.raises(ValueError, match="corpus metric and cannot be a utility"):
        as_utility(evaluate.load(str(script))).score(["a"], ["b"])
    with pytest.raises(ValueError, match="output_key='f1' is not in the output"):
        as_utility(evaluate.load(str(script)), output_key="f1").score(["a"], ["b"])


def test_a_program_runs_only_when_it_is_trusted(tmp_path: Path) -> None:
    from hf_acpmbr.scoring.adapters import EvaluateUtility

    script, ran = tmp_path / "lengths" / "lengths.py", tmp_path / "ran"
    script.parent.mkdir()
    script.write_text(f"import pathlib\npathlib.Path({str(ran)!r}).touch()\n{MODULE}")
    for make in (load_utility, as_utility, EvaluateUtility):
        for path in (script, script.parent):
            with pytest.raises(ValueError, match=r"is a program that would run here.*trust_remote_code=True"):
                make(str(path), output_key="lengths")
    with pytest.raises(ValueError, match="is a program that would run here"):
        EvaluateUtility("comet")
    assert not ran.exists()
    utility = load_utility(str(script), output_key="lengths", trust_remote_code=True)
    assert ran.exists()
    assert utility.loaded_as == (str(script), {"output_key": "lengths"}), "trust is given anew every time"
    assert load_utility("chrf", trust_remote_code=True).score(["a"], ["a"]).tolist() == [100.0]
    spec = UtilitySpec.of({"name": str(script), "output_key": "lengths"})
    with pytest.raises(ValueError, match="is a program that would run here"):
        spec.load()
    assert spec.load(trust_remote_code=True).signature == utility.signature


@pytest.mark.parametrize("trust", [True, False, "yes"])
def test_no_mapping_grants_trust(tmp_path: Path, trust: object) -> None:
    script, ran = tmp_path / "lengths" / "lengths.py", tmp_path / "ran"
    script.parent.mkdir()
    script.write_text(f"import pathlib\npathlib.Path({str(ran)!r}).touch()\n{MODULE}")
    options: dict[str, object] = {"output_key": "lengths", "trust_remote_code": trust}
    recipe = {"target": {"name": str(script), **options}, "decoder": "mbr"}
    for load in (
        lambda: UtilitySpec(str(script), options).load(trust_remote_code=True),
        lambda: UtilitySpec(str(script), options),
        lambda: UtilitySpec.of({"name": str(script), **options}),
        lambda: Recipe.from_json(json.dumps({**Recipe.named("auto", target="chrf").to_dict(), **recipe})),
    ):
        with pytest.raises(
            ValueError, match=r"have trust_remote_code, which no recipe .*ACPMBR\(.*--trust-remote-code"
        ):
            load()
    assert not ran.exists()


def test_a_recipe_from_elsewhere_chooses_no_file_to_write(tmp_path: Path) -> None:
    victim = tmp_path / "file"
    plain = Recipe.named("auto", target="chrf", distilled="bleu").to_dict()
    evil = {"name": "chrf", "cache": str(victim)}
    for changed in ({"target": evil}, {"distilled": [evil]}, {"target": {**evil, "beta": 1}}):
        with pytest.raises(ValueError, match=r"has cache.*a recipe does not choose files.*--target-option cache=FILE"):
            Recipe.from_json(json.dumps({**plain, **changed}))
        with pytest.raises(ValueError, match="a recipe does not choose files"):
            ACPMBR(recipe=Recipe.from_dict({**plain, **changed}))
    diverse = {**plain, "decoder": {"name": "diverse", "similarity": evil}}
    with pytest.raises(ValueError, match="similarity has cache"):
        Recipe.from_json(json.dumps(diverse))
    assert not victim.exists()
    mbr = ACPMBR(target=evil)
    assert mbr.rerank(["a b", "a c"]).text
    assert victim.exists(), "the caller may"
    saved = mbr.recipe.to_json()
    assert "cache" not in saved
    again = ACPMBR(recipe=Recipe.from_json(saved))
    assert again.target is not None
    assert again.target.cache is None


@pytest.mark.parametrize("shard", ["../outside.safetensors", "/tmp/outside.safetensors", "sub/../../outside.bin"])
def test_an_index_cannot_name_files_outside_its_folder(tmp_path: Path, shard: str) -> None:
    folder = write_bleurt(tmp_path / "checkpoint")
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    index = {"metadata": {}, "weight_map": {"any": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"index\.json names '.*', which is outside its folder"):
        load_utility(str(folder)).score(["a"], ["b"])


def test_all_shards_of_an_index_are_read(tmp_path: Path) -> None:
    for name in ("first", "second", "consolidated"):
        save_file({name: torch.zeros(10)}, tmp_path / f"{name}.safetensors")
    places = {name: f"{name}.safetensors" for name in ("first", "second")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert set(read_weights(tmp_path)) == {"first", "second"}


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_pointers_in_place_of_weights_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1000000\n")
    with pytest.raises(ValueError, match="is a Git LFS pointer and not the weights: fetch them with git lfs pull"):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ({"type": "sentence_transformers.models.Transformer", "path": "../other"}, "encoder cannot be read.*other"),
        ({"type": "own_code.Encoder", "path": ""}, "own_code.Encoder"),
    ],
)
def test_a_sentence_encoder_cannot_name_files_outside_its_folder_or_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: dict, message: str
) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the extra sentence-transformers")
    folder = write_encoder(tmp_path / "encoder")
    (folder / "own_code.py").write_text("raise SystemExit('it ran')")
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", **module}]))
    with pytest.raises(ValueError, match=message):
        load_utility("embedding-cosine", checkpoint=str(folder)).score(["a"], ["b"])


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("it ran",)


DAMAGE = {
    "config.json": [b"[]", b"{", b"[" * 10**5, b'"text"', b"\xff\xfe"],
    "tokenizer_config.json": [b"[]"],
    "model.safetensors": [b"", b"\x10", b"version https://git-lfs.github.com/spec/v1\n", None],
    "pytorch_model.bin": [b"", b"PK", pickle.dumps(Evil(), 2), pickle.dumps([1], 2), None],
    "spm.model": [b"", b"[]", None],
    "tokenizer.json": [b"", b"[]", None],
    "model.safetensors.index.json": [b"{}", b'{"weight_map": []}', b'{"weight_map": {"a": 1}}'],
}


@pytest.mark.parametrize(
    ("file", "content"),
    [
        pytest.param(file, content, id=f"{file}-{number}")
        for file in DAMAGE
        for number, content in enumerate(DAMAGE[file])
    ],
)
@pytest.mark.parametrize("kind", ["bleurt", "encoder"])
def test_damaged_and_malicious_files_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, file: str, content: bytes | None
) -> None:
    folder = (write_bleurt if kind == "bleurt" else write_encoder)(tmp_path / "checkpoint")
    if file in ("spm.model", "tokenizer.json") and not (folder / file).exists():
        pytest.skip("it has no such file")
    whole = folder / "model.safetensors"
    if file == "pytorch_model.bin":
        torch.save(load_file(whole), folder / file)
    if "model" in file and file != whole.name:
        whole.unlink()
    # None: the file without its last part.
    (folder / file).write_bytes((folder / file).read_bytes()[:-500] if content is None else content)
    name, options = (str(folder), {}) if kind == "bleurt" else ("bertscore", {"checkpoint": str(folder)})
    with pytest.raises((ValueError, OSError), match=re.escape(str(folder))):
        load_utility(name, **options).score(["a"], ["b"])
    assert "it ran" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["bleurt", "comet", "unite", "metricx", "bertscore", "embedding"])
def test_no_file_of_a_checkpoint_makes_its_code_run(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(CASES[name].needs)
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # nobody is asked either
    CASES[name].make(tmp_path)
    ran = tmp_path / "ran"
    for path in list(tmp_path.rglob("*config.json")):
        code = f"import pathlib\npathlib.Path({str(ran)!r}).touch()\nclass Own: pass\n"
        path.with_name("own_code.py").write_text(code)
        kinds = ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM")
        places = dict.fromkeys(kinds, "own_code.Own")
        own = {"auto_map": {**places, "AutoTokenizer": ["own_code.Own", "own_code.Own"]}, "trust_remote_code": True}
        path.write_text(json.dumps({**json.loads(path.read_text()), **own}))
    utility = CASES[name].make(tmp_path)
    source = ["see"] if utility.needs_source or utility.takes_source else None
    assert np.isfinite(utility.score(["a cat"], ["the dog"], source)).all()
    assert not ran.exists()


@pytest.mark.parametrize("content", ["[]", "a: [", "text"])
def test_damaged_hyper_parameters_are_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "hparams.yaml").write_text(content)
    with pytest.raises(ValueError, match=r"hparams\.yaml (cannot be read|holds '.*' and not fields by name)"):
        load_utility(str(tmp_path))


def test_what_cannot_be_downloaded_names_the_checkpoint_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.snapshot_download", _unreachable)
    with pytest.raises(
        FileNotFoundError, match=r"'lucadiliello/BLEURT-20' is not in .*\(OSError: no network\).*folder"
    ):
        load_utility("bleurt-20").score(["a"], ["b"])
    with pytest.raises(FileNotFoundError, match=r"'lucadiliello/BLEURT-20' at revision 'v2' is not in"):
        load_utility("bleurt-20", revision="v2").score(["a"], ["b"])


def test_distilled_partners_carry_the_papers_rates() -> None:
    rates = {partner.name: (partner.low, partner.high) for partner in distilled_partners("BLEURT-20")}
    assert rates == {"bleurt-20-d12": (8, 256), "bleurt-20-d6": (4, 128), "bleurt-20-d3": (2, 64)}
    assert distilled_partners("chrf") == ()
    for target in ("bleurt-20", "embedded"):
        assert all(partner.name in UTILITIES for partner in distilled_partners(target))


def test_dtype_and_device_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"dtype must be one of auto, .*, got 'float8'"):
        load_utility("bleurt-20", dtype="float8", device="cpu")
    with pytest.warns(UserWarning, match="slower than float32"):
        load_utility("bleurt-20", dtype="float16", device="cpu")
    for units in (True, False):
        monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda units=units: units, raising=False)
        with nullcontext() if units else pytest.warns(UserWarning, match="slower than float32"):
            load_utility("bleurt-20", dtype="bfloat16", device="cpu")
    assert load_utility("bleurt-20", dtype="auto", device="cpu").dtype == "float32"
    assert load_utility("bleurt-20", dtype="auto", device="cuda:1").dtype == "float16"
    assert load_utility("metricx-24", dtype="auto", device="cuda").dtype == "bfloat16"
    with pytest.raises(FileNotFoundError, match="neither a folder nor a hub id"):
        load_utility("bleurt-20", checkpoint="/no/such/folder").score(["a"], ["b"])


def test_stored_matrices_say_what_is_missing() -> None:
    with pytest.raises(ValueError, match="no hypothesis 'z'"):
        MatrixUtility(np.eye(2), ["a", "b"]).score(["z"], ["a"])
    with pytest.raises(ValueError, match="must be 2 unique texts"):
        MatrixUtility(np.eye(2), ["a", "a"])
    with pytest.raises(ValueError, match="matrix must be 2-D"):
        MatrixUtility(np.zeros(3))
