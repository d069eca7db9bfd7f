"""The options of utilities, method and output that `translate` and `rerank` share, and what they build."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..config import DECODERS, suggest
from ..generation.preferences import COLUMNS
from ..mbr import ACPMBR
from ..recipe import KEYWORDS, NAMED, Recipe
from ..runs.formats import FORMATS, ROW
from ..runs.shards import Share
from .options import add_key_values, named, stage

if TYPE_CHECKING:
    from ..types import Tokenizer

DEFAULT_TARGET = "chrf"
_OWN_OPTIONS = ("target", "distilled", "recipe", "seed")


def add_utility_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the target and the guides with their options."""
    utilities = parser.add_argument_group(
        "utilities",
        "What candidates are scored with: a name (chrf, bleurt-20, comet, ...), hub id, folder, "
        "or with --trust-remote-code the script of an evaluate module.",
    )
    utilities.add_argument(
        "--target", metavar="NAME", help=f"the utility that decides (default: the recipe file's, else {DEFAULT_TARGET})"
    )
    add_key_values(
        utilities,
        "--target-option",
        "its options: checkpoint=PATH, device=cuda:1, dtype=float16, cache=FILE, batch_tokens=8192, ...; repeatable",
    )
    utilities.add_argument(
        "--distilled",
        metavar="NAME",
        action="append",
        type=named,
        default=[],
        help="a cheaper utility that guides the target; auto is the target's known distilled version; repeatable",
    )
    add_key_values(
        utilities,
        "--distilled-option",
        "options of the --distilled that was given last before it; repeatable",
        joins="distilled",
    )
    utilities.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run code that comes with a model's checkpoint, or the script of an evaluate module",
    )


def add_method_arguments(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add utilities, recipe and decoder.

    Args:
        several: --recipe takes any number of recipes, each as what was given and what it means.
    """
    add_utility_arguments(parser)
    method = parser.add_argument_group("method", "How the choice is made. Start with a recipe, change what you need.")
    method.add_argument(
        "--recipe",
        metavar="NAME|FILE",
        type=(lambda given: (given, _recipe(given))) if several else _recipe,
        nargs="+" if several else None,
        default=[("auto", "auto")] if several else "auto",
        help=f"{', '.join(NAMED)} (default: auto), or a file, folder or hub id that Recipe.from_pretrained reads",
    )
    method.add_argument(
        "--decoder",
        metavar="NAME|JSON",
        type=stage,
        help=f'{", ".join(DECODERS)}; or with settings: \'{{"name": "n-by-s", "num_references": 32}}\' (default: '
        "rounds; with a recipe of the paper or a setting of a completer acpmbr, without --distilled pmbr)",
    )
    add_key_values(
        method, "--set", f"any other setting, as JSON or plain text; repeatable. Settings: {', '.join(KEYWORDS)}"
    )
    method.add_argument("--seed", type=int, help="same seed, same result (default: the recipe's, 0)")


def add_mbr_arguments(parser: argparse.ArgumentParser) -> None:
    """Add utilities, recipe, decoder and output."""
    add_method_arguments(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--output", default="-", metavar="FILE", help="where to write; - is standard output (default)")
    output.add_argument(
        "--format",
        choices=FORMATS,
        default="text",
        help="chosen texts (default); all details; or preferences: pairs of a better and a worse text as DPO of TRL "
        f"reads them, JSON lines with {ROW} (the place of the source in the input, from 0), {', '.join(COLUMNS)}",
    )
    output.add_argument("--nbest", type=int, default=1, metavar="K", help="list the K best in jsonl (default: 1)")
    add_key_values(
        output,
        "--preferences-option",
        "which pairs --format preferences writes: pairs=best-worst (default), best-median, best-beam (rerank: "
        "beam_column=FIELD), top-k (k=K); min_margin=, max_similarity=, conversational=true; repeatable",
    )
    output.add_argument("--preferences", nargs="?", action=_Moved, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    output.add_argument(
        "--resume",
        action="store_true",
        help="continue an unfinished run into --output FILE, with the same input, settings and models",
    )
    output.add_argument(
        "--shard",
        metavar="I/P",
        type=Share.parse,
        help="make only part I of P, counted from 0; processes need no connection, and the one that ends last writes "
        "FILE. torchrun and accelerate launch say it themselves",
    )
    output.add_argument(
        "--merge", action="store_true", help="only make FILE of the shards that all parts have made, without models"
    )
    output.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="let the actors of a Ray cluster make FILE: the one at ADDRESS or in RAY_ADDRESS, else one of this "
        "machine; all nodes need the input under its name (extra ray)",
    )
    add_key_values(
        output,
        "--ray-options",
        "how Ray runs the actors: num_gpus=0.5 num_cpus=2 and others of map_batches; size=4 actors (default: as many "
        "as there is room for)",
    )
    output.add_argument("--quiet", action="store_true", help="no progress bar and no summary")


class _Moved(argparse.Action):
    """Refuses `--preferences FILE`, which wrote a second file beside the output."""

    def __call__(self, *args: object, **options: object) -> NoReturn:
        raise argparse.ArgumentError(self, "pairs are an output format now: --format preferences --output FILE")


def _recipe(given: str) -> str | Recipe:
    if given in NAMED:
        return given
    if not Path(given).exists() and given.count("/") != 1:
        raise argparse.ArgumentTypeError(f"{given!r} is neither a file nor a recipe's name: {suggest(given, NAMED)}")
    try:
        return Recipe.from_pretrained(given)
    except (ValueError, TypeError, OSError) as error:
        raise argparse.ArgumentTypeError(f"{given!r} is not a recipe: {error}") from None


def build_mbr(args: argparse.Namespace, tokenizer: Tokenizer | None = None, **flags: object) -> ACPMBR:
    """Build the ACPMBR that the options describe; `flags` are settings with their own option, None if not given."""
    keywords = {key: value for key, value in {"decoder": args.decoder, **flags}.items() if value is not None}
    for key, value in args.set.items():
        if key in _OWN_OPTIONS:
            raise ValueError(f"--set {key}: use --{key}")
        if key not in KEYWORDS:
            raise ValueError(f"--set {key}: there is no such setting, {suggest(key, KEYWORDS)}")
        if key in keywords:
            raise ValueError(f"{key} is given twice: by --set and by --{key.replace('_', '-')}")
        keywords[key] = value
    target, distilled = _target(args, keywords), list(args.distilled)
    if isinstance(args.recipe, Recipe) and not distilled:
        distilled = [spec.to_dict() for spec in args.recipe.distilled]
    chosen = keywords.get("decoder")
    name = chosen.get("name") if isinstance(chosen, dict) else chosen
    if name in DECODERS and "guide" in DECODERS.get(str(name)).needs and not distilled:
        raise ValueError(f"{name} needs a distilled utility: --distilled NAME (auto: the one known for the target)")
    return ACPMBR(
        tokenizer,
        target=target,
        distilled=distilled,
        recipe=args.recipe,
        seed=args.seed,
        trust_remote_code=args.trust_remote_code,
        **keywords,
    )


def _target(args: argparse.Namespace, keywords: Mapping[str, object]) -> dict[str, object] | None:
    """Return the target with its options; chrF if none is named and the decoder needs one."""
    if args.target is not None:
        return {"name": args.target, **args.target_option}
    recipe = args.recipe if isinstance(args.recipe, Recipe) else None
    if recipe is not None and recipe.target is not None:
        return {**recipe.target.to_dict(), **args.target_option}
    decoder = keywords.get("decoder", None if recipe is None else recipe.decoder)
    if decoder is not None and "target" not in DECODERS.check("decoder", decoder).needs:
        if args.target_option:
            raise ValueError("--target-option without --target, and the decoder needs no target: leave it out")
        return None
    return {"name": DEFAULT_TARGET, **args.target_option}
