"""Trains the embedded translator: a small M2M100 for English↔German on Tatoeba, on one or two processor cores.

    python -m evaluation.training.train_translator --output FOLDER --minutes 105

`--init MODEL_FOLDER` starts a new schedule from exported weights.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, M2M100Config, M2M100ForConditionalGeneration

from evaluation.assets import DATA_HELP
from evaluation.training.trainer import Trainer, add_training_arguments, prepare_process
from evaluation.training.translation import (
    Batch,
    Bitext,
    Model,
    Tokenizer,
    tatoeba,
    token_losses,
    train_tokenizer,
    translate,
)


def build_model(tokenizer: Tokenizer, args: argparse.Namespace) -> Model:
    each = {"ffn_dim": args.feed_forward, "attention_heads": args.heads, "layerdrop": 0.0}
    sides: dict[str, Any] = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in each.items()}
    special = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    config = M2M100Config(
        vocab_size=args.vocabulary,
        max_position_embeddings=256,
        d_model=args.width,
        encoder_layers=args.encoder_layers,
        decoder_layers=args.decoder_layers,
        dropout=args.dropout,
        attention_dropout=0.0,
        init_std=args.width**-0.5,
        decoder_start_token_id=tokenizer.eos_token_id,
        **sides,
        **special,
    )
    # For about twenty pieces plain products are faster than fused attention, in the backward pass above all.
    config._attn_implementation = "eager"
    model: Model = M2M100ForConditionalGeneration(config)
    # Residual branches that start at zero let a pre-norm network train at a high rate from the first step.
    for name, parameter in model.named_parameters():
        if name.endswith(("out_proj.weight", "fc2.weight")):
            torch.nn.init.zeros_(parameter)
    # Tied to the output, full-size embeddings would make an empty network predict its own input with certainty.
    model.get_input_embeddings().weight.data.mul_(0.5)
    return model


def batch_loss(model: Model, batch: Batch) -> tuple[torch.Tensor, int]:
    """Sum the cross-entropy (nats) of the targets; also the number of their tokens."""
    losses, _ = token_losses(model, batch)
    return losses.sum(), len(losses)


def evaluate(model: Model, tokenizer: Tokenizer, dev: Bitext, pairs: list[tuple[str, str]]) -> dict[str, float]:
    """Measure the dev loss per token over both directions and greedy BLEU of each direction."""
    total, tokens = 0.0, 0
    for indices in dev.plan(seed=0, epoch=0, batch_tokens=4096):
        loss, count = batch_loss(model, dev.batch(indices))
        total, tokens = total + float(loss), tokens + count
    result = {"dev_loss": total / tokens}
    for side, source, target in ((0, "en", "de"), (1, "de", "en")):
        hypotheses = translate(model, tokenizer, [pair[side] for pair in pairs], source, target)
        references = [[pair[1 - side] for pair in pairs]]
        result[f"bleu_{source}-{target}"] = sacrebleu.corpus_bleu(hypotheses, references).score
    return result


def export(model: Model, tokenizer: Tokenizer, folder: Path) -> None:
    """Write fp16 safetensors with the tokenizer's files, as `AutoModelForSeq2SeqLM` and `AutoTokenizer` load them."""
    half: Model = M2M100ForConditionalGeneration(model.config)
    half.load_state_dict(model.state_dict())
    half.generation_config.max_new_tokens = half.config.max_position_embeddings // 2
    half.half().save_pretrained(folder)
    tokenizer.src_lang = "en"
    tokenizer.save_pretrained(folder)
    vocabulary = folder / "vocab.json"  # the tokenizer indents it: a third of the file
    numbers = json.loads(vocabulary.read_text(encoding="utf-8"))
    vocabulary.write_text(json.dumps(numbers, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def train(model: Model, tokenizer: Tokenizer, args: argparse.Namespace) -> None:
    data = Bitext(tatoeba("train", args.data), tokenizer, segmentations=args.segmentations)
    dev_pairs = tatoeba("dev", args.data)[:: 1000 // args.dev_sentences]
    dev = Bitext(dev_pairs, tokenizer)
    size = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    print(f"{size:.2f}M parameters, {len(data)} directed pairs, {data.lengths.sum()} tokens per epoch", flush=True)
    Trainer[Batch](model, lambda batch: batch_loss(model, batch), args).run(
        lambda epoch: data.plan(args.seed, epoch, args.batch_tokens),
        data.batch,
        lambda: evaluate(model, tokenizer, dev, dev_pairs),
        args.output,
    )


def parse_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help=DATA_HELP)
    parser.add_argument("--output", type=Path, required=True, help="curve and the exported model")
    parser.add_argument("--init", type=Path, help="exported model folder to continue from with a new schedule")
    parser.add_argument("--vocabulary", type=int, default=5120)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--feed-forward", type=int, default=768)
    parser.add_argument("--encoder-layers", type=int, default=3)
    parser.add_argument("--decoder-layers", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--segmentations", type=float, default=0.0, help="share of pairs segmented anew each epoch")
    parser.add_argument("--dev-sentences", type=int, default=200)
    add_training_arguments(parser, minutes=105.0, eval_every=150)
    return parser.parse_args(given)


def load_or_build(args: argparse.Namespace) -> tuple[Model, Tokenizer]:
    """Start from exported weights (`--init`), or from a new model with its own vocabulary."""
    if args.init:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(args.init)
        start: Model = AutoModelForSeq2SeqLM.from_pretrained(args.init, dtype=torch.float32)
        model = build_model(tokenizer, args)
        # Layers beyond those of the start add nothing yet: the deeper network begins as the same function.
        model.load_state_dict(model.state_dict() | start.state_dict())
        return model, tokenizer
    folder = args.output / "tokenizer"
    if (folder / "vocab.json").exists():
        tokenizer = AutoTokenizer.from_pretrained(folder)
    else:
        tokenizer = train_tokenizer(tatoeba("train", args.data), folder, args.vocabulary, args.seed)
    return build_model(tokenizer, args), tokenizer


def main(given: Sequence[str] | None = None) -> None:
    args = parse_arguments(given)
    prepare_process(args)
    args.output.mkdir(parents=True, exist_ok=True)
    model, tokenizer = load_or_build(args)
    train(model, tokenizer, args)
    export(model, tokenizer, args.output / "model")


if __name__ == "__main__":
    main()
