"""Trains the embedded translator: a small M2M100 for English↔German on Tatoeba, on one or two processor cores.

    python -m evaluation.embedded.train_translator --data ../shared/data/tatoeba --output FOLDER --minutes 105

The run continues from FOLDER/checkpoint.pt if there is one; `--init MODEL_FOLDER` starts a new schedule from exported
weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import sacrebleu
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    M2M100Config,
    M2M100ForConditionalGeneration,
    M2M100Tokenizer,
)

from evaluation.embedded.bitext import Batch, Bitext, read_pairs, train_tokenizer
from evaluation.embedded.training import Trainer, add_training_arguments, prepare_process
from evaluation.embedded.translation import token_losses, translate


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
    """Summed cross-entropy (nats) of the targets, and how many tokens that are."""
    losses, _ = token_losses(model, batch)
    return losses.sum(), len(losses)


def evaluate(
    model: M2M100ForConditionalGeneration, tokenizer: M2M100Tokenizer, dev: Bitext, pairs: list[tuple[str, str]]
) -> dict[str, float]:
    """Dev loss per token over both directions and greedy BLEU of each direction."""
    total, tokens = 0.0, 0
    for indices in dev.plan(seed=0, epoch=0, batch_tokens=4096):
        loss, count = batch_loss(model, dev.batch(indices))
        total, tokens = total + float(loss), tokens + count
    result = {"dev_loss": total / tokens}
    for source, target, name in ((0, 1, "en-de"), (1, 0, "de-en")):
        hypotheses = translate(model, tokenizer, [pair[source] for pair in pairs], *name.split("-"))
        result[f"bleu_{name}"] = sacrebleu.corpus_bleu(hypotheses, [[pair[target] for pair in pairs]]).score
    return result


def export(model: M2M100ForConditionalGeneration, tokenizer: M2M100Tokenizer, folder: Path) -> None:
    """fp16 safetensors with the tokenizer's files, as `AutoModelForSeq2SeqLM` and `AutoTokenizer` load them."""
    half = M2M100ForConditionalGeneration(model.config)
    half.load_state_dict(model.state_dict())
    half.generation_config.max_new_tokens = half.config.max_position_embeddings // 2
    half.half().save_pretrained(folder)
    tokenizer.src_lang = "en"
    tokenizer.save_pretrained(folder)


def train(model: M2M100ForConditionalGeneration, tokenizer: M2M100Tokenizer, args: argparse.Namespace) -> None:
    data = Bitext(read_pairs(args.data / "train.en-de.jsonl.gz"), tokenizer)
    dev_pairs = read_pairs(args.data / "dev.en-de.jsonl.gz")[:: 1000 // args.dev_sentences]
    dev = Bitext(dev_pairs, tokenizer)
    size = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    print(f"{size:.2f}M parameters, {len(data)} directed pairs, {data.lengths.sum()} tokens an epoch", flush=True)
    Trainer(model, lambda batch: batch_loss(model, batch), args).run(
        lambda epoch: data.plan(args.seed, epoch, args.batch_tokens),
        data.batch,
        lambda: evaluate(model, tokenizer, dev, dev_pairs),
        args.output,
    )


def parse_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/tatoeba"))
    parser.add_argument("--output", type=Path, required=True, help="checkpoint, curve and the exported model")
    parser.add_argument("--init", type=Path, help="exported model folder to continue from with a new schedule")
    parser.add_argument("--vocabulary", type=int, default=5120)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--feed-forward", type=int, default=768)
    parser.add_argument("--encoder-layers", type=int, default=3)
    parser.add_argument("--decoder-layers", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--dev-sentences", type=int, default=200)
    add_training_arguments(parser, minutes=105.0, eval_every=150)
    return parser.parse_args(given)


def load_or_build(args: argparse.Namespace) -> tuple[M2M100ForConditionalGeneration, M2M100Tokenizer]:
    """The model to start from: exported weights (`--init`), or a new one with its own vocabulary."""
    if args.init:
        model = AutoModelForSeq2SeqLM.from_pretrained(args.init, dtype=torch.float32, dropout=args.dropout)
        return model, AutoTokenizer.from_pretrained(args.init)
    folder = args.output / "tokenizer"
    if (folder / "vocab.json").exists():
        tokenizer = AutoTokenizer.from_pretrained(folder)
    else:
        tokenizer = train_tokenizer(read_pairs(args.data / "train.en-de.jsonl.gz"), folder, args.vocabulary, args.seed)
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
