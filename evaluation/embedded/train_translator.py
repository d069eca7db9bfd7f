"""Trains the embedded translator: a small M2M100 for English↔German on Tatoeba, on one or two processor cores.

    python -m evaluation.embedded.train_translator --data ../shared/data/tatoeba --output FOLDER --minutes 105

The run continues from FOLDER/checkpoint.pt if there is one; `--init MODEL_FOLDER` starts a new schedule from exported weights.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import sacrebleu
import torch
import torch.nn.functional as F
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, M2M100Config, M2M100ForConditionalGeneration
from transformers import M2M100Tokenizer

from evaluation.embedded.bitext import Batch, Bitext, read_pairs, train_tokenizer
from evaluation.embedded.muon import Muon


def build_model(tokenizer: M2M100Tokenizer, args: argparse.Namespace) -> M2M100ForConditionalGeneration:
    config = M2M100Config(
        vocab_size=args.vocabulary,
        max_position_embeddings=256,
        d_model=args.width,
        encoder_layers=args.encoder_layers,
        decoder_layers=args.decoder_layers,
        encoder_ffn_dim=args.feed_forward,
        decoder_ffn_dim=args.feed_forward,
        encoder_attention_heads=args.heads,
        decoder_attention_heads=args.heads,
        dropout=args.dropout,
        attention_dropout=0.0,
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
        init_std=args.width**-0.5,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.eos_token_id,
    )
    model = M2M100ForConditionalGeneration(config)
    # Residual branches that start at zero let a pre-norm network train at a high rate from the first step.
    for name, parameter in model.named_parameters():
        if name.endswith(("out_proj.weight", "fc2.weight")):
            torch.nn.init.zeros_(parameter)
    # Tied to the output, full-size embeddings would make an empty network predict its own input with certainty.
    model.get_input_embeddings().weight.data.mul_(0.5)
    return model


def batch_loss(model: M2M100ForConditionalGeneration, batch: Batch) -> tuple[torch.Tensor, int]:
    """Summed cross-entropy (nats) of the targets after their language token, and how many tokens that are."""
    pad, start = model.config.pad_token_id, model.config.decoder_start_token_id
    inputs = F.pad(batch.targets[:, :-1], (1, 0), value=start)
    hidden = model.model(
        input_ids=batch.sources,
        attention_mask=(batch.sources != pad).long() if batch.padded_source else None,
        decoder_input_ids=inputs,
        use_cache=False,
    ).last_hidden_state
    # Position 0 predicts the language token, which generation forces; padding on the right is invisible to causal attention.
    wanted = batch.targets != pad
    wanted[:, 0] = False
    logits = model.lm_head(hidden[wanted])
    return F.cross_entropy(logits, batch.targets[wanted], reduction="sum"), len(logits)


def build_optimisers(model: torch.nn.Module, args: argparse.Namespace) -> list[torch.optim.Optimizer]:
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "layers" in name]
    others = [p for name, p in model.named_parameters() if not (p.ndim == 2 and "layers" in name)]
    adam: dict[str, Any] = {"lr": args.rate, "betas": (0.9, 0.98), "weight_decay": 0.0, "fused": True}
    if args.muon_rate > 0:
        return [torch.optim.AdamW(others, **adam), Muon(matrices, lr=args.muon_rate, steps=args.muon_steps)]
    return [torch.optim.AdamW(others + matrices, **adam)]


@torch.no_grad()
def evaluate(
    model: M2M100ForConditionalGeneration, tokenizer: M2M100Tokenizer, dev: Bitext, pairs: list[tuple[str, str]]
) -> dict[str, float]:
    """Dev loss per token over both directions and greedy BLEU of each direction."""
    model.eval()
    total, tokens = 0.0, 0
    for indices in dev.epoch(seed=0, epoch=0, batch_tokens=4096):
        loss, count = batch_loss(model, dev.batch(indices))
        total, tokens = total + float(loss), tokens + count
    result = {"dev_loss": total / tokens}
    for source, target, name in ((0, 1, "en-de"), (1, 0, "de-en")):
        hypotheses = translate(model, tokenizer, [pair[source] for pair in pairs], *name.split("-"))
        result[f"bleu_{name}"] = sacrebleu.corpus_bleu(hypotheses, [[pair[target] for pair in pairs]]).score
    model.train()
    return result


def translate(
    model: M2M100ForConditionalGeneration,
    tokenizer: M2M100Tokenizer,
    texts: list[str],
    source: str,
    target: str,
    beams: int = 1,
    batch_size: int = 64,
) -> list[str]:
    """Greedy or beam-search translations, in the order of `texts`."""
    tokenizer.src_lang = source
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    results = [""] * len(texts)
    for first in range(0, len(order), batch_size):
        chosen = order[first : first + batch_size]
        inputs = tokenizer([texts[i] for i in chosen], return_tensors="pt", padding=True)
        outputs = model.generate(
            **inputs,
            forced_bos_token_id=tokenizer.get_lang_id(target),
            num_beams=beams,
            do_sample=False,
            max_new_tokens=2 * inputs["input_ids"].shape[1] + 10,
        )
        for i, text in zip(chosen, tokenizer.batch_decode(outputs, skip_special_tokens=True), strict=True):
            results[i] = text
    return results


class Trainer:
    """Position, clock and optimiser state of one run; everything that a resumed run needs is in its checkpoint."""

    def __init__(self, model: M2M100ForConditionalGeneration, args: argparse.Namespace) -> None:
        self.model = model
        self.args = args
        self.optimisers = build_optimisers(model, args)
        self.rates = [optimiser.param_groups[0]["lr"] for optimiser in self.optimisers]
        self.step = self.tokens = 0
        self.position = (0, 0)
        self.seconds = 0.0

    def progress(self) -> float:
        """The part of the budget that is used: by time, or by steps where `--steps` makes the run repeatable."""
        return self.step / self.args.steps if self.args.steps else self.seconds / (60 * self.args.minutes)

    def update(self, batch: Batch) -> float:
        factor = min(1.0, (self.step + 1) / self.args.warmup) * max(0.0, 1.0 - self.progress())
        for optimiser, rate in zip(self.optimisers, self.rates, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = rate * factor
        loss, count = batch_loss(self.model, batch)
        (loss / count).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += batch.sources.numel() + batch.targets.numel()
        return float(loss.detach()) / count

    def save(self, path: Path) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "random": torch.get_rng_state(),
            "counters": (self.step, self.tokens, self.position, self.seconds),
        }
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, path)

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        torch.set_rng_state(state["random"])
        self.step, self.tokens, self.position, self.seconds = state["counters"]


def export(model: M2M100ForConditionalGeneration, tokenizer: M2M100Tokenizer, folder: Path) -> None:
    """fp16 safetensors with the tokenizer's files, as `AutoModelForSeq2SeqLM` and `AutoTokenizer` load them."""
    half = M2M100ForConditionalGeneration(model.config)
    half.load_state_dict(model.state_dict())
    half.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train(trainer: Trainer, tokenizer: M2M100Tokenizer, args: argparse.Namespace) -> None:
    data = Bitext(read_pairs(args.data / "train.en-de.jsonl.gz"), tokenizer)
    dev_pairs = read_pairs(args.data / "dev.en-de.jsonl.gz")[:: 1000 // args.dev_sentences]
    dev = Bitext(dev_pairs, tokenizer)
    print(f"{len(data)} directed pairs, {data.lengths.sum()} tokens an epoch", flush=True)
    smoothed, last, saved = 0.0, time.monotonic(), time.monotonic()
    with (args.output / "curve.jsonl").open("a", encoding="utf-8") as curve:
        for epoch, index, batch in data.batches(args.seed, args.batch_tokens, trainer.position):
            loss = trainer.update(batch)
            smoothed = loss if smoothed == 0.0 else 0.98 * smoothed + 0.02 * loss
            now = time.monotonic()
            trainer.seconds, last, trainer.position = trainer.seconds + now - last, now, (epoch, index)
            finished = trainer.progress() >= 1.0
            if trainer.step % args.eval_every == 0 or finished:
                record = {"step": trainer.step, "epoch": epoch, "tokens": trainer.tokens, "train_loss": smoothed}
                record |= {"seconds": round(trainer.seconds, 1)} | evaluate(trainer.model, tokenizer, dev, dev_pairs)
                curve.write(json.dumps(record) + "\n")
                curve.flush()
                print(json.dumps(record), flush=True)
            if now - saved > 60 * args.checkpoint_minutes or finished:
                trainer.save(args.output / "checkpoint.pt")
                saved = now
            if finished:
                break


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/tatoeba"))
    parser.add_argument("--output", type=Path, required=True, help="checkpoint, curve and the exported model")
    parser.add_argument("--init", type=Path, help="exported model folder to continue from with a new schedule")
    parser.add_argument("--minutes", type=float, default=105.0, help="time budget at whose end the rate is 0")
    parser.add_argument("--steps", type=int, default=0, help="budget in steps instead: the repeatable schedule")
    parser.add_argument("--vocabulary", type=int, default=5120)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--feed-forward", type=int, default=768)
    parser.add_argument("--encoder-layers", type=int, default=3)
    parser.add_argument("--decoder-layers", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--batch-tokens", type=int, default=2500, help="source and target tokens of a batch")
    parser.add_argument("--rate", type=float, default=2e-3, help="AdamW's peak rate")
    parser.add_argument("--muon-rate", type=float, default=0.0, help="peak rate of Muon for the matrices; 0: AdamW for all")
    parser.add_argument("--muon-steps", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--eval-every", type=int, default=400)
    parser.add_argument("--dev-sentences", type=int, default=200)
    parser.add_argument("--checkpoint-minutes", type=float, default=5.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(args.seed)
    args.output.mkdir(parents=True, exist_ok=True)
    if args.init:
        tokenizer = AutoTokenizer.from_pretrained(args.init)
        model = AutoModelForSeq2SeqLM.from_pretrained(args.init, dtype=torch.float32)
    else:
        folder = args.output / "tokenizer"
        if (folder / "vocab.json").exists():
            tokenizer = AutoTokenizer.from_pretrained(folder)
        else:
            pairs = read_pairs(args.data / "train.en-de.jsonl.gz")
            tokenizer = train_tokenizer(pairs, folder, args.vocabulary, args.seed)
        model = build_model(tokenizer, args)
    trainer = Trainer(model.train(), args)
    checkpoint = args.output / "checkpoint.pt"
    if checkpoint.exists():
        trainer.load(checkpoint)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters", flush=True)
    if trainer.progress() < 1.0:
        train(trainer, tokenizer, args)
    export(model, tokenizer, args.output / "model")


if __name__ == "__main__":
    main()
