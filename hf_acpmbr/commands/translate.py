"""`acpmbr translate`: one line in, one line out, with any generative model."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..inputs import encode, language_token
from ._mbr import Summary, add_mbr_arguments, build_mbr, output_line
from ._resumable import ResumableOutput, batches, progress, read_lines

HELP = "translate or continue a file of lines with any model, by MBR"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="embedded", help="hub id or folder (default: the embedded translator)")
    parser.add_argument("--input", default="-", metavar="FILE", help="one source a line; - is standard input (default)")
    add_mbr_arguments(parser)
    parser.add_argument("--num-candidates", type=int, default=1024, metavar="N", help="samples a line (default: 1024)")
    parser.add_argument("--num-references", type=int, metavar="M", help="draw M pseudo-references apart")
    parser.add_argument("--epsilon", type=float, default=0.02, help="cut of ε-sampling (default: 0.02)")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--max-rows", type=int, default=512, help="most decoder rows in one pass (default: 512)")
    parser.add_argument("--batch-size", type=int, default=4, help="sources decoded together (default: 4)")
    parser.add_argument("--source-language", metavar="CODE", help="for multilingual tokenizers, as these spell it")
    parser.add_argument("--target-language", metavar="CODE", help="forced as the first token")
    parser.add_argument("--prompt", default="{source}", help="what the model reads, with {source} for the line")
    parser.add_argument("--chat", action="store_true", help="put the prompt into the tokenizer's chat template")
    parser.add_argument("--generate", type=json.loads, default={}, metavar="JSON", help="further arguments of generate")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, mps (default: cuda where there is one)")
    parser.add_argument("--dtype", default="auto", help="of the weights: auto, float32, bfloat16, float16")


def run(args: argparse.Namespace) -> int:
    if args.batch_size < 1:
        raise ValueError(f"--batch-size must be at least 1, got {args.batch_size}")
    if args.resume and args.input == "-":
        raise ValueError("--resume needs --input FILE: standard input cannot be read again")
    sources = read_lines(args.input)
    settings = {key: value for key, value in vars(args).items() if key not in ("command", "resume", "quiet", "device")}
    output = ResumableOutput(args.output, settings, resume=args.resume, batch_size=args.batch_size)
    summary = Summary()
    if output.done < len(sources):
        _translate(args, sources, output, summary)
    if not args.quiet:
        summary.show(output.done)
    return 0


def _translate(args: argparse.Namespace, sources: list[str], output: ResumableOutput, summary: Summary) -> None:
    model, tokenizer = _load(args)
    mbr = build_mbr(
        args,
        tokenizer,
        num_candidates=args.num_candidates,
        num_references=args.num_references,
        epsilon=args.epsilon,
        temperature=args.temperature,
        max_rows=args.max_rows,
    )
    options = {"max_new_tokens": args.max_new_tokens, **_language(args, tokenizer), **args.generate}
    with output, progress(len(sources), output.done, args.quiet) as bar:
        for batch in batches(sources, args.batch_size, output.done):
            inputs = encode(tokenizer, batch, model, prompt=args.prompt, chat=args.chat)
            out = model.generate(
                **inputs, custom_generate=mbr, sources=list(batch), return_dict_in_generate=True, **options
            )
            decided = list(zip(batch, out.decisions, strict=True))
            output.write(output_line(args, decision, {"source": source}) for source, decision in decided)
            for decision in out.decisions:
                summary.add(decision)
            summary.add_rows(out.model_rows)
            bar.update(len(batch))


def _load(args: argparse.Namespace) -> tuple[Any, Any]:
    """Model in eval mode on its device, and its tokenizer with something to pad by."""
    import torch

    model: Any
    tokenizer: Any
    if args.model == "embedded":
        from ..embedded import load_translator

        model, tokenizer = load_translator()
    else:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

        config = AutoConfig.from_pretrained(args.model)
        family = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        model = family.from_pretrained(args.model, dtype=args.dtype)
        tokenizer = AutoTokenizer.from_pretrained(args.model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    return model.to(device).eval(), tokenizer


def _language(args: argparse.Namespace, tokenizer: Any) -> dict[str, int]:
    """Source language set in the tokenizer, target language as the forced first token."""
    default = ("en", "de") if args.model == "embedded" else (None, None)
    source, target = args.source_language or default[0], args.target_language or default[1]
    if source:
        tokenizer.src_lang = source
    if not target:
        return {}
    token = language_token(tokenizer, target)
    if token is None:
        raise ValueError(f"--target-language {target!r} is no token of this tokenizer")
    return {"forced_bos_token_id": token}
