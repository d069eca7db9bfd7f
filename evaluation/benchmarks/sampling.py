"""What prefix sharing saves: `python -m evaluation.benchmarks.sampling`.

n ε-samples per source, drawn by plain `generate` in chunks of rows and by the prefix-sharing sampler, in one run on one
thread: decoder rows, CPU time and peak memory above what the model takes. A small M2M100 with random weights serves
at several entropies (its output weights are scaled until the entropy is the wanted one); its end-of-sequence token is
held back so that both write equally long texts. "flat" is the worst case: every token equally likely, so that no two
samples share more than their first tokens. The embedded translator follows on real sentences. "over forward" is the CPU
time of the sampler in units of what the model's own forward passes took on the same rows, timed in place: 1 would be a
sampler that costs nothing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    M2M100Config,
    M2M100ForConditionalGeneration,
    StoppingCriteriaList,
)

from evaluation.benchmarks.measures import ForwardTime, cpu_seconds
from hf_acpmbr.foreign import GenerativeModel
from hf_acpmbr.sampling import SAMPLERS, Request, Samples, Truncation, source_key

SENTENCES = [
    "Tom is reading a book.",
    "I don't know where she lives, but I can ask my brother.",
    "The weather is nice today.",
]
PAD, EOS = 1, 2
Inputs: TypeAlias = Mapping[str, torch.Tensor]
Settings: TypeAlias = Mapping[str, int]  # of generate
T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One line of the table; rows, seconds and megabytes of plain generate and of prefix sharing."""

    case: str
    nats_per_token: float
    unique: float
    plain_rows: int
    shared_rows: int
    plain_seconds: float
    shared_seconds: float
    plain_megabytes: float
    shared_megabytes: float
    over_forward: float

    @property
    def speedup(self) -> float:
        return self.plain_seconds / self.shared_seconds


def synthetic_model(vocabulary: int, size: int, layers: int) -> M2M100ForConditionalGeneration:
    """Random weights in a real architecture; dropout off."""
    torch.manual_seed(0)
    config = M2M100Config(
        vocab_size=vocabulary,
        d_model=size,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=size // 64,
        decoder_attention_heads=size // 64,
        encoder_ffn_dim=4 * size,
        decoder_ffn_dim=4 * size,
        tie_word_embeddings=False,
        max_position_embeddings=256,
    )
    model = M2M100ForConditionalGeneration(config)
    model.eval()
    model.generation_config.suppress_tokens = [PAD, EOS]
    return model


def sharpen(model: M2M100ForConditionalGeneration, inputs: Inputs, settings: Settings, nats: float) -> None:
    """Scale the output weights so that the entropy of a sampled token is about `nats`, by bisection."""
    weight = model.lm_head.weight.data
    weight.div_(weight.std())
    low, high, current = 0.01, 3.0, 1.0
    for _ in range(12):
        scale = float(np.sqrt(low * high))
        weight.mul_(scale / current)
        current = scale
        if entropy(timed_sample("prefix-sharing", model, inputs, settings, 32, Truncation(), 512)[0]) > nats:
            low = scale
        else:
            high = scale


def entropy(drawn: list[Samples]) -> float:
    """Nats per token of the sampling distribution, estimated from the samples themselves."""
    surprise = tokens = 0.0
    for samples in drawn:
        assert samples.sampling_logprobs is not None
        surprise -= float(samples.counts @ samples.sampling_logprobs)
        tokens += float(samples.counts @ np.array([len(ids) for ids in samples.token_ids]))
    return surprise / tokens


def timed_sample(
    sampler: str,
    model: GenerativeModel,
    inputs: Inputs,
    settings: Settings,
    n: int,
    truncation: Truncation,
    max_rows: int,
) -> tuple[list[Samples], float]:
    """The samples, and the CPU time of the sampler in units of the time inside the model's forward passes."""
    drawn: list[Samples] = []
    whole = before = 0.0

    def decode(
        model: GenerativeModel,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **kwargs: object,
    ) -> torch.Tensor:
        nonlocal whole, before
        keys = tuple(source_key(row) for row in inputs["input_ids"].tolist())
        request = Request(model, input_ids, kwargs, logits_processor, stopping_criteria, generation_config, keys)
        before = inside.seconds  # of the encoder, which generate has run
        build = SAMPLERS.build(sampler, truncation=truncation, max_rows=max_rows)
        whole, found = cpu_seconds(lambda: build.sample(request, n))
        drawn.extend(found)
        return input_ids

    with ForwardTime(model) as inside:
        model.generate(**inputs, **settings, custom_generate=decode)
    return drawn, whole / (inside.seconds - before)


def plain(
    model: GenerativeModel, inputs: Inputs, settings: Settings, n: int, truncation: Truncation, max_rows: int
) -> int:
    """The usual way: generate with num_return_sequences, in chunks of rows. Returns the decoder rows spent."""
    rows = 0
    sampling = {"do_sample": True, "top_k": 0, "epsilon_cutoff": truncation.epsilon}
    for source in range(len(inputs["input_ids"])):
        one = {name: tensor[source : source + 1] for name, tensor in inputs.items()}
        for start in range(0, n, max_rows):
            chunk = min(max_rows, n - start)
            ids = torch.as_tensor(model.generate(**one, **settings, **sampling, num_return_sequences=chunk))
            rows += chunk * (ids.shape[1] - 1)
    return rows


def apart(work: Callable[[], T]) -> tuple[T, float, float]:
    """(result, CPU seconds, megabytes of peak memory above the start) of `work` in a forked process."""
    receive, send = multiprocessing.get_context("fork").Pipe(duplex=False)

    def child() -> None:
        torch.set_num_threads(1)
        before, start = _resident(), time.process_time()
        result = work()
        seconds = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        send.send((result, seconds, peak - before))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    send.close()
    try:
        measured: tuple[T, float, float] = receive.recv()
    except EOFError:
        raise RuntimeError("the measured process died: see its message above") from None
    process.join()
    return measured


def compare(
    case: str, model: GenerativeModel, inputs: Inputs, settings: Settings, n: int, truncation: Truncation, rows: int
) -> Row:
    """Both ways on the same inputs, after a short draw that loads what is loaded at first use."""
    timed_sample("prefix-sharing", model, inputs, settings, 2, truncation, rows)
    (drawn, over_forward), shared_seconds, shared_memory = apart(
        lambda: timed_sample("prefix-sharing", model, inputs, settings, n, truncation, rows)
    )
    plain_rows, plain_seconds, plain_memory = apart(lambda: plain(model, inputs, settings, n, truncation, rows))
    return Row(
        case=case,
        nats_per_token=entropy(drawn),
        unique=float(np.mean([len(samples) for samples in drawn])),
        plain_rows=plain_rows,
        shared_rows=sum(samples.model_rows for samples in drawn),
        plain_seconds=plain_seconds,
        shared_seconds=shared_seconds,
        plain_megabytes=plain_memory,
        shared_megabytes=shared_memory,
        over_forward=over_forward,
    )


def synthetic_rows(n: int, tokens: int, max_rows: int, nats: list[float], vocabulary: int, size: int) -> list[Row]:
    """One row for each entropy, and the flat case."""
    model = synthetic_model(vocabulary, size, layers=3)
    ids = torch.randint(4, vocabulary, (1, 24), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    settings = {"max_new_tokens": tokens}
    rows = []
    for wanted in nats:
        sharpen(model, inputs, settings, wanted)
        rows.append(compare("synthetic", model, inputs, settings, n, Truncation(), max_rows))
        show(rows[-1])
    model.lm_head.weight.data.zero_()
    rows.append(compare("flat", model, inputs, settings, n, Truncation(epsilon=0.0), max_rows))
    show(rows[-1])
    return rows


def translator_rows(n: int, max_rows: int) -> list[Row]:
    """One row for each sentence, with the embedded translator."""
    from hf_acpmbr.embedded import load_translator

    model, tokenizer = load_translator()
    tokenizer.src_lang = "en"
    settings = {"forced_bos_token_id": tokenizer.get_lang_id("de"), "max_new_tokens": 64}
    rows = []
    for sentence in SENTENCES:
        inputs = dict(tokenizer([sentence], return_tensors="pt"))
        rows.append(compare(sentence[:24], model, inputs, settings, n, Truncation(), max_rows))
        show(rows[-1])
    return rows


HEADER = (
    "| case | nats/token | unique | rows plain | rows shared | fewer | CPU s plain | CPU s shared | faster | MB plain |"
    " MB shared | over forward |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def show(row: Row) -> None:
    print(
        f"| {row.case} | {row.nats_per_token:.2f} | {row.unique:.0f} | {row.plain_rows:,} | {row.shared_rows:,} | "
        f"{row.plain_rows / row.shared_rows:.1f}× | {row.plain_seconds:.2f} | {row.shared_seconds:.2f} | "
        f"{row.speedup:.2f}× | {row.plain_megabytes:.0f} | {row.shared_megabytes:.0f} | "
        f"{row.over_forward:.2f}× |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--max-rows", type=int, default=512)
    parser.add_argument("--nats", type=float, nargs="+", default=[0.2, 0.35, 0.9, 1.4])
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--size", type=int, default=256, help="hidden size of the synthetic model")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{args.samples} samples, maximum rows per pass {args.max_rows}, one thread\n\n{HEADER}")
    rows = synthetic_rows(args.samples, args.tokens, args.max_rows, args.nats, args.vocabulary, args.size)
    rows += translator_rows(args.samples, args.max_rows)
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


def _resident() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


if __name__ == "__main__":
    main()
