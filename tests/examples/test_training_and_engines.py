"""The examples on training data, CTranslate2, pools and agreement run as a user would start them."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import tokenizers
import transformers

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def start(name: str, *arguments: str, cwd: Path) -> str:
    """In a process of its own: the trainers warn about one another's versions, which is not for us to judge."""
    root = str(EXAMPLES.parent)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root, "HF_HOME": str(cwd)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: pip install {package}")


def untrained_model(folder: Path) -> None:
    """Write a tiny causal model and a tokenizer of bytes with a chat template."""
    core = tokenizers.Tokenizer(tokenizers.models.BPE())
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(special.values()), initial_alphabet=letters, show_progress=False
    )
    core.train_from_iterator(["Guten Morgen!"], trainer)
    template = "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>{% endfor %}"
    template += "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, chat_template=template, **special)
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    transformers.set_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=len(tokenizer), **sizes, **ids)).save_pretrained(
        folder
    )


@needs("trl")
@pytest.mark.parametrize("options", [[], ["--conversational"]])
def test_dpo_with_trl_learns_to_tell_chosen_from_rejected(options: list[str], tmp_path: Path) -> None:
    untrained_model(tmp_path / "model")
    train = ["--train", str(tmp_path / "model"), "--steps", "6", "--num-candidates", "32"]
    out = start("preference_data.py", *train, *options, cwd=tmp_path)
    margins = [float(found) for found in re.findall(r"margin of the rewards (-?[\d.]+)", out)]
    assert margins[0] == 0.0, "before the first step the model is its own reference"
    assert margins[1] > 0.0


def test_preference_data_alone_needs_no_trainer(tmp_path: Path) -> None:
    out = start("preference_data.py", "--num-candidates", "16", cwd=tmp_path)
    count = int(re.match(r"(\d+) pairs of 8 sources", out)[1])  # type: ignore[index]
    assert 0 < count == out.count(" > ")


@pytest.mark.parametrize("conversational", [False, True])
def test_the_reward_of_grpo_is_the_mean_score_against_the_other_completions(conversational: bool) -> None:
    example = runpy.run_path(str(EXAMPLES / "grpo_reward.py"))
    metric, groups = sacrebleu.CHRF(), example["GROUPS"]
    # The completions of two prompts, mixed.
    mixed = [(prompt, texts[k]) for k in range(4) for prompt, texts in groups.items()]
    others = {(p, k): [t for j, (q, t) in enumerate(mixed) if q == p and j != k] for k, (p, _) in enumerate(mixed)}
    expected = [
        np.mean([metric.sentence_score(text, [other]).score for other in others[prompt, k]])
        for k, (prompt, text) in enumerate(mixed)
    ]
    prompts, texts = (list(part) for part in zip(*mixed, strict=True))
    if conversational:
        prompts = [[{"role": "user", "content": prompt}] for prompt in prompts]
        texts = [[{"role": "assistant", "content": text}] for text in texts]
    np.testing.assert_allclose(example["Agreement"]()(prompts, texts, source=["x"] * 8), expected, atol=1e-9)
    with pytest.raises(ValueError, match="at least two completions"):
        example["Agreement"]()(["a", "a", "b"], ["x", "y", "z"])


@needs("trl")
def test_grpo_with_trl_takes_agreement_as_its_reward(tmp_path: Path) -> None:
    untrained_model(tmp_path / "model")
    out = start("grpo_reward.py", "--train", str(tmp_path / "model"), cwd=tmp_path)
    assert re.findall(r"step (\d): mean reward [\d.]+", out) == ["1", "2"]


@needs("ctranslate2")
def test_ctranslate2_candidates(tmp_path: Path) -> None:
    out = start("ctranslate2_candidates.py", "--num-candidates", "24", cwd=tmp_path)
    assert "Where is the station? → W" in out
    assert out.count("of 24 drawn") == 3


def test_model_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["model_pool.py", "--num-candidates", "8"])
    runpy.run_path(str(EXAMPLES / "model_pool.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert out.count("several models: ") == 2
    assert "several sources: " in out


def test_self_consistency(capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(EXAMPLES / "self_consistency.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "= 22 (agrees with 60% of them)" in printed
    assert "programs: 2*x+1 (agrees with 50% of them)" in printed
    answers = example["agreement"](example["final_number"])
    assert answers(["3+4=7", "3+4=7", "no", "no"], ["4+3=7", "3+4=8", "no", "3+4=7"]) == [1.0, 0.0, 0.0, 0.0]
    programs = example["agreement"](example["results"])
    assert programs(["2*x+1", "2*x+1", "x*"], ["1+x+x", "2*x", "x*"]) == [1.0, 0.0, 0.0]
    assert example["results"]("__import__('os')") is None, "samples are not trusted"
    assert example["results"]("9**9**9") is None


@needs("openai")
def test_openai_client(tmp_path: Path) -> None:
    out = start("openai_client.py", "--requests", "5", "--best-of", "8", cwd=tmp_path)
    assert "Where is the station? → Wo ist der Bahnhof?" in out
    assert out.count("different of 8)") == 5
    assert "5 requests, 4 at a time: " in out


@needs("openai")
def test_openai_client_draws_until_sure(tmp_path: Path) -> None:
    out = start("openai_client.py", "--until-sure", "80", cwd=tmp_path)
    assert "Good morning! → Guten Morgen!" in out
    assert re.search(r"64 of at most 80 draws, expected loss below 0.1 in all|all 80 draws taken", out)
