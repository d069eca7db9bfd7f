"""What prefix sharing saves: `python -m evaluation.benchmarks.sampling`.

n ε-samples per source, drawn by plain `generate` in chunks of rows and by the prefix-sharing sampler, in one run on one
thread: decoder rows, CPU time and peak memory above what the model takes. A small M2M100 with random weights serves
at several entropies (its output weights are scaled until the entropy is the wanted one); its end-of-sequence token is
held back so that both write equally long texts. The last two columns are shares of the sampler's time: of the model's
forward passes, and of what their matrix products would take by themselves at the hardware's speed. "flat" is the worst
case: every token equally likely, so that no two samples share more than their first tokens. The embedded translator
follows on real sentences.

The last table is about long prompts of a decoder-only model (SmolLM2-135M's shape with `--layers` layers and random
weights, 64 tokens equally likely, so that nearly all samples are prefixes of their own after two steps): CPU time of a
step and peak memory above the model's, with a copy of the prompt per prefix, with it held once, and by `generate`.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessorList,
    M2M100Config,
    M2M100ForConditionalGeneration,
    StoppingCriteriaList,
)

from evaluation.benchmarks.measures import Shares, cpu_seconds, shares
from hf_acpmbr.sampling import SAMPLERS, Request, Samples, Truncation, source_key

SENTENCES = [
    "Tom is reading a book.",
    "I don't know where she lives, but I can ask my brother.",
    "The weather is nice today.",
]
PAD, EOS = 1, 2
T = TypeVar("T")
HEADER = (
    "| case | nats/token | unique | rows plain | rows shared | fewer | CPU s plain | CPU s shared | faster | MB plain |"
    " MB shared | in forward passes | matrix products alone |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Task:
    """`n` samples of each source in `inputs`, at most `max_rows` rows per forward pass."""

    model: Any
    inputs: Mapping[str, torch.Tensor]
    settings: Mapping[str, int]  # of generate
    n: int
    max_rows: int
    truncation: Truncation = dataclasses.field(default_factory=Truncation)


@dataclass(frozen=True)
class Row:
    """One line of the table; rows, seconds and megabytes of plain generate and of prefix sharing."""

    case: str
    nats_per_token: float
    unique: float
    plain_rows: int
    shared_rows: int
    plain_seconds: float
    plain_megabytes: float
    shared_seconds: float
    shared_megabytes: float
    shares: Shares

    def __str__(self) -> str:
        return (
            f"| {self.case} | {self.nats_per_token:.2f} | {self.unique:.0f} | {self.plain_rows:,} | "
            f"{self.shared_rows:,} | {self.plain_rows / self.shared_rows:.1f}× | {self.plain_seconds:.2f} | "
            f"{self.shared_seconds:.2f} | {self.plain_seconds / self.shared_seconds:.2f}× | "
            f"{self.plain_megabytes:.0f} | {self.shared_megabytes:.0f} | {self.shares.forward:.0%} | "
            f"{self.shares.products:.0%} |"
        )


def synthetic_model(vocabulary: int, size: int, layers: int) -> M2M100ForConditionalGeneration:
    """Make random weights in a real architecture; dropout off."""
    torch.manual_seed(0)
    each = {"layers": layers, "attention_heads": size // 64, "ffn_dim": 4 * size}
    sides: dict[str, Any] = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in each.items()}
    config = M2M100Config(
        vocab_size=vocabulary, d_model=size, tie_word_embeddings=False, max_position_embeddings=256, **sides
    )
    model = M2M100ForConditionalGeneration(config)
    model.eval()
    model.generation_config.suppress_tokens = [PAD, EOS]
    return model


def sharpen(model: M2M100ForConditionalGeneration, task: Task, nats: float) -> None:
    """Scale the output weights so that the entropy of a sampled token is about `nats`, by bisection."""
    weight = model.lm_head.weight.data
    weight.div_(weight.std())
    probe = dataclasses.replace(task, n=32, max_rows=512)
    low, high, current = 0.01, 3.0, 1.0
    for _ in range(12):
        scale = float(np.sqrt(low * high))
        weight.mul_(scale / current)
        current = scale
        if entropy(shared(probe)) > nats:
            low = scale
        else:
            high = scale


def entropy(drawn: list[Samples]) -> float:
    """Estimate the nats per token of the sampling distribution from the samples themselves."""
    surprise = tokens = 0.0
    for samples in drawn:
        assert samples.sampling_logprobs is not None
        surprise -= float(samples.counts @ samples.sampling_logprobs)
        tokens += float(samples.counts @ np.array([len(ids) for ids in samples.token_ids]))
    return surprise / tokens


def shared(task: Task) -> list[Samples]:
    """Draw with prefix sharing."""
    drawn: list[Samples] = []

    def decode(
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **kwargs: object,
    ) -> torch.Tensor:
        keys = tuple(source_key(row) for row in task.inputs["input_ids"].tolist())
        request = Request(model, input_ids, kwargs, logits_processor, stopping_criteria, generation_config, keys)
        sampler = SAMPLERS.build("prefix-sharing", truncation=task.truncation, max_rows=task.max_rows)
        drawn.extend(sampler.sample(request, task.n))
        return input_ids

    task.model.generate(**task.inputs, **task.settings, custom_generate=decode)
    return drawn


def plain(task: Task) -> int:
    """Draw the usual way, by generate with num_return_sequences in chunks of rows; the decoder rows spent."""
    rows = 0
    sampling = {"do_sample": True, "top_k": 0, "epsilon_cutoff": task.truncation.epsilon}
    for source in range(len(task.inputs["input_ids"])):
        one = {name: tensor[source : source + 1] for name, tensor in task.inputs.items()}
        for start in range(0, task.n, task.max_rows):
            chunk = min(task.max_rows, task.n - start)
            made = task.model.generate(**one, **task.settings, **sampling, num_return_sequences=chunk)
            rows += chunk * (torch.as_tensor(made).shape[1] - 1)
    return rows


def apart(work: Callable[[], T]) -> tuple[T, float, float]:
    """Run `work` in a forked process; (result, CPU seconds, megabytes of peak memory above the start)."""
    receive, send = multiprocessing.get_context("fork").Pipe(duplex=False)

    def child() -> None:
        torch.set_num_threads(1)
        with open("/proc/self/statm", encoding="ascii") as file:
            before = int(file.read().split()[1]) * resource.getpagesize() / 2**20
        seconds, result = cpu_seconds(work)
        send.send((result, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    send.close()
    try:
        measured: tuple[T, float, float] = receive.recv()
    except EOFError:
        raise RuntimeError("the measured process died: see its message above") from None
    process.join()
    return measured


def compare(case: str, task: Task) -> Row:
    """Measure and print both ways on the same inputs, after a short draw that loads what is loaded at first use."""
    shared(dataclasses.replace(task, n=2))
    drawn, seconds, megabytes = apart(lambda: shared(task))
    plain_rows, plain_seconds, plain_megabytes = apart(lambda: plain(task))
    unique, shared_rows = np.mean([len(samples) for samples in drawn]), sum(samples.model_rows for samples in drawn)
    row = Row(
        *(case, entropy(drawn), float(unique), plain_rows, shared_rows),
        *(plain_seconds, plain_megabytes, seconds, megabytes, shares(task.model, lambda: shared(task))),
    )
    print(row, flush=True)
    return row


def synthetic_rows(n: int, tokens: int, max_rows: int, nats: list[float], vocabulary: int, size: int) -> list[Row]:
    """Measure a model of random weights at each entropy, and the flat case."""
    model = synthetic_model(vocabulary, size, layers=3)
    ids = torch.randint(4, vocabulary, (1, 24), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    task = Task(model, inputs, {"max_new_tokens": tokens}, n, max_rows)
    rows = []
    for wanted in nats:
        sharpen(model, task, wanted)
        rows.append(compare("synthetic", task))
    model.lm_head.weight.data.zero_()
    return [*rows, compare("flat", dataclasses.replace(task, truncation=Truncation(epsilon=0.0)))]


def translator_rows(n: int, max_rows: int) -> None:
    """Measure the embedded translator on each sentence."""
    from hf_acpmbr.embedded import load_translator

    model, tokenizer = load_translator()
    tokenizer.src_lang = "en"
    settings = {"forced_bos_token_id": tokenizer.get_lang_id("de"), "max_new_tokens": 64}
    for sentence in SENTENCES:
        compare(sentence[:24], Task(model, dict(tokenizer([sentence], return_tensors="pt")), settings, n, max_rows))


@dataclass(frozen=True)
class LongPrompt:
    """One line of the last table: tokens of the prompt, prefixes, MB of the prompt; per way seconds per step and MB."""

    tokens: int
    prefixes: int
    prompt_megabytes: float
    copied: tuple[float, float]
    shared: tuple[float, float]
    plain: tuple[float, float]

    def __str__(self) -> str:
        ways = self.copied, self.shared, self.plain
        seconds, megabytes = (" | ".join(f"{way[k]:{form}}" for way in ways) for k, form in ((0, ".3f"), (1, ".0f")))
        faster = f"{self.copied[0] / self.shared[0]:.1f}× | {self.plain[0] / self.shared[0]:.1f}×"
        return (
            f"| {self.tokens:,} × {self.prefixes} | {seconds} | {faster} | {megabytes} | {self.prompt_megabytes:.0f} |"
        )


LONG_HEADER = (
    "| prompt × prefixes | CPU s per step copied | shared | generate | copied / shared | generate / shared | "
    "MB copied | shared | generate | MB of the prompt |\n|---|---|---|---|---|---|---|---|---|---|"
)


LONG_PROMPTS = ((20, 128), (500, 128), (2000, 32), (2000, 48), (2000, 128))  # tokens, prefixes


def long_prompt(tokens: int, prefixes: int, layers: int, steps: int = 6) -> LongPrompt:
    """Measure and print one line: prompts that are copied per prefix, held once, and plain `generate`."""
    torch.manual_seed(0)
    vocabulary, heads, size = 49152, 3, 64
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=9 * size,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=heads,
        max_position_embeddings=8192,
    )
    model = LlamaForCausalLM(config).eval()
    model.lm_head.weight.data.zero_()
    # So that most samples are prefixes of their own after two steps, and some prefixes end at every step.
    model.generation_config.suppress_tokens = [token for token in range(vocabulary) if not EOS <= token < EOS + 64]
    ids = torch.randint(4, vocabulary, (1, tokens))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    settings = {"max_new_tokens": steps + 4, "pad_token_id": PAD, "eos_token_id": EOS}
    task = Task(model, inputs, settings, prefixes, prefixes, Truncation(epsilon=0.0))

    def steps_of(work: Callable[[], object]) -> float:
        """Return the median CPU seconds between forward passes that have nearly one row per sample."""
        stamps: list[float] = []
        with model.register_forward_pre_hook(lambda *_: stamps.append(time.process_time())):
            work()
        return float(np.median(np.diff(stamps)[3:]))

    def measured(work: Callable[[], object]) -> tuple[float, float]:
        seconds, _, megabytes = apart(lambda: steps_of(work))
        return seconds, megabytes

    with mock.patch("hf_acpmbr.sampling.prefix_sharing.forward.share_prompts"):
        copied = measured(lambda: shared(task))
    prompt = 2 * 4 * layers * tokens * heads * size / 2**20
    row = LongPrompt(tokens, prefixes, prompt, copied, measured(lambda: shared(task)), measured(lambda: plain(task)))
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=24, help="new tokens of the synthetic model")
    parser.add_argument("--max-rows", type=int, default=512, help="at most this many rows per forward pass")
    parser.add_argument("--nats", type=float, nargs="+", default=[0.2, 0.35, 0.9, 1.4], help="entropies per token")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--size", type=int, default=256, help="hidden size of the synthetic model")
    parser.add_argument("--layers", type=int, default=6, help="of the model with long prompts")
    parser.add_argument("--only-long", action="store_true", help="measure long prompts alone")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if not args.only_long:
        print(f"{args.samples} samples, maximum rows per pass {args.max_rows}, one thread\n\n{HEADER}")
        synthetic_rows(args.samples, args.tokens, args.max_rows, args.nats, args.vocabulary, args.size)
        translator_rows(args.samples, args.max_rows)
    print(f"\n{LONG_HEADER}")
    for tokens, prefixes in LONG_PROMPTS:
        long_prompt(tokens, prefixes, args.layers)


if __name__ == "__main__":
    main()
