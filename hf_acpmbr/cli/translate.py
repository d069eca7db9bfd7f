"""`acpmbr translate`: one line in, one line out, with any generative model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..generation.corpus import decide_texts
from ..generation.fingerprint import ModelSignature
from ..generation.models import EMBEDDED, hide_loading_bars, model_revision
from ..generation.prompts import Prompting
from ..runs.formats import Result
from ..runs.inputs import Record, source_input
from ..runs.job import Job, Work, run_job
from .options import add_key_values, add_model_arguments, add_run_arguments, build_mbr, load_named

_EXAMPLES = """\
examples:
  acpmbr translate --input en.txt --output de.txt
  acpmbr translate --model facebook/m2m100_418M --source-language en --target-language de \\
      --target bleurt-20 --distilled auto --recipe fast --input en.txt --output de.txt
  acpmbr translate --model Qwen/Qwen3-0.6B --chat --prompt "Translate into German: {source}" --input en.txt
  acpmbr translate --input en.txt --decoder halving --set scores_per_row=8 num_candidates=256

two GPUs, one for each utility:
  --target bleurt-20 --target-option device=cuda:0 --distilled bleurt-20-d3 --distilled-option device=cuda:1
"""


def add_generation_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, its input, and how candidates are drawn."""
    add_model_arguments(parser.add_argument_group("model"))
    source = parser.add_argument_group("input")
    source.add_argument("--input", default="-", metavar="FILE", help="one source per line (default: standard input, -)")
    source.add_argument("--column", metavar="NAME", help="of JSON lines or parquet (*.parquet): the field with sources")
    source.add_argument(
        "--prompt", metavar="TEXT", default="{source}", help="what the model reads, with {source} for the source"
    )
    source.add_argument("--chat", action="store_true", help="put the prompt into the tokenizer's chat template")
    source.add_argument(
        "--too-long",
        choices=("cut", "refuse"),
        default="cut",
        help="what happens to sources beyond the model's limit (default: cut, with a warning)",
    )
    source.add_argument(
        "--keep-blank", action="store_true", help="also ask the model about blank lines; by default they stay blank"
    )
    source.add_argument(
        "--batch-size", type=int, metavar="B", default=4, help="how many sources are decoded together (default: 4)"
    )
    drawing = parser.add_argument_group("candidates", "Defaults are the recipe's settings.")
    drawing.add_argument("--num-candidates", type=int, metavar="N", help="samples per source (named recipes: 1024)")
    drawing.add_argument("--num-references", type=int, metavar="M", help="draw M separate pseudo-references")
    drawing.add_argument("--epsilon", type=float, metavar="P", help="cut-off of ε-sampling (named recipes: 0.02)")
    drawing.add_argument("--temperature", type=float, metavar="T", help="(named recipes: 1)")
    drawing.add_argument("--max-rows", type=int, metavar="ROWS", help="most decoder rows per pass")
    drawing.add_argument(
        "--max-new-tokens", type=int, default=256, metavar="TOKENS", help="most tokens per candidate (default: 256)"
    )
    add_key_values(drawing, "--generate", "further arguments of model.generate, such as repetition_penalty=1.2")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    add_generation_arguments(parser)
    add_run_arguments(parser)


def run(args: argparse.Namespace) -> int:
    check_generation(args)
    if args.preferences_option.get("pairs") == "best-beam":
        raise ValueError("--preferences-option pairs=best-beam is for acpmbr rerank, whose input can have such a text")
    return run_job(args, Work(source_input, translator, args.batch_size))


def check_generation(args: argparse.Namespace) -> None:
    """Refuse options of `add_generation_arguments` before anything is read."""
    Prompting(args.prompt, args.chat, args.too_long)
    if args.batch_size < 1:
        raise ValueError(f"--batch-size must be at least 1, got {args.batch_size}")


def translator(args: argparse.Namespace) -> Job[str]:
    """Load the model that the options name and return what decides with it."""
    hide_loading_bars(args.quiet)
    prompting = Prompting(args.prompt, args.chat, args.too_long)
    model, tokenizer, language = load_named(args)
    flags = ("num_candidates", "num_references", "epsilon", "temperature", "max_rows")
    mbr = build_mbr(args, tokenizer, **{name: getattr(args, name) for name in flags})
    if "references" in mbr.decoder.needs:
        raise ValueError(
            f"decoder {mbr.decoder.name!r} needs real references, which translate does not have: use acpmbr rerank"
        )
    generate = {"max_new_tokens": args.max_new_tokens, **language, **args.generate}

    def decide(batch: Sequence[Record[str]]) -> tuple[list[Result], int]:
        texts = [record.item for record in batch]
        decided = decide_texts(
            mbr,
            model,
            texts,
            prompting=prompting,
            keep_blank=args.keep_blank,
            generate=generate,
            first_row=batch[0].position,
        )
        results = [
            Result(decision, {"source": source}, prompting.prompt.replace("{source}", source))
            for decision, source in zip(decided.decisions, texts, strict=True)
        ]
        return results, decided.model_rows

    context = {
        "sampling": mbr.recipe.sampling.to_dict(),
        "model": ModelSignature(model).text,
        "model_files": model_revision(
            args.model or EMBEDDED, trust_remote_code=args.trust_remote_code, revision=args.revision
        ),
        "languages": language,
    }
    return Job(mbr, decide, context)
