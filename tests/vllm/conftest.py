"""A real vLLM: its engine in this process, and its OpenAI server in another one.

The model is a small chat model: ACPMBR_VLLM_MODEL names its folder, or a GGUF file, which is converted first.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

PROMPTS = ["What is the capital of France?", "Say hello.", "Why do cats purr?"]
DRAWN, NEW_TOKENS = 24, 24
STARTS_WITHIN = 400  # seconds; a quarter of them on an idle machine

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GB; the default is a part of the machine's memory
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the engine of the tests stays in their process


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that vLLM and transformers read."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: make test-vllm")
    if not (given := os.environ.get("ACPMBR_VLLM_MODEL")):
        pytest.skip("ACPMBR_VLLM_MODEL names no model: give the folder, or the GGUF file, of a small chat model")
    path = Path(given)
    if path.suffix != ".gguf":
        assert (path / "config.json").is_file(), f"ACPMBR_VLLM_MODEL={given} is neither a model's folder nor *.gguf"
        return path
    from transformers import AutoModelForCausalLM, AutoTokenizer

    made = tmp_path_factory.mktemp("model")
    named = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    read = AutoModelForCausalLM.from_pretrained(**named, dtype=torch.float32)
    # A model that was read from GGUF refuses to be saved, so its weights move into a new one.
    del read.config.quantization_config
    model = AutoModelForCausalLM.from_config(read.config).to(torch.float32)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(made)
    AutoTokenizer.from_pretrained(**named).save_pretrained(made)
    return made


@pytest.fixture(scope="session")
def outputs(folder: Path) -> list[Any]:
    """A RequestOutput for each of the prompts, drawn by vLLM."""
    from vllm import LLM, SamplingParams

    engine = LLM(str(folder), dtype="float32", enforce_eager=True, max_model_len=512, seed=0)
    settings = SamplingParams(n=DRAWN, temperature=0.7, min_p=0.02, max_tokens=NEW_TOKENS, logprobs=0, seed=0)
    return list(engine.chat([[{"role": "user", "content": prompt}] for prompt in PROMPTS], settings))


class Teacher:
    """The same model in transformers, which is given the tokens."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def logprob(self, prompt: Sequence[int], ids: Sequence[int]) -> float:
        """The log-probability of tokens after a prompt.

        Normalised in float32, as vLLM does: torch's sum over 49,152 words is below that of float64, which alone makes
        5e-6 to 8e-6 per token.
        """
        with torch.no_grad():
            logits = self.model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        return float(logits.log_softmax(-1)[range(len(ids)), list(ids)].double().sum())


@pytest.fixture(scope="session")
def teacher(folder: Path) -> Teacher:
    return Teacher(folder)


@pytest.fixture(scope="session")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of vLLM's server with the model as "small"."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Not `vllm serve`, which looks for a distribution of the name vllm.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--port", str(port)]
    command += ["--served-model-name", "small", "--dtype", "float32", "--enforce-eager", "--max-model-len", "512"]
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + STARTS_WITHIN
        while not _is_up(port):
            assert process.poll() is None, log.read_text(errors="replace")[-5000:]
            assert time.monotonic() < deadline, log.read_text(errors="replace")[-5000:]
            time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(60)


def _is_up(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
