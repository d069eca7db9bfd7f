"""The options that several commands share, and the ACPMBR that they describe."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import DECODERS, suggest
from ..files import parse_json
from ..generation.models import CPU_KERNELS, EMBEDDED, LoadedModel, load_model
from ..generation.preferences import COLUMNS
from ..mbr import ACPMBR
from ..recipe import KEYWORDS, NAMED, Recipe
from ..runs.formats import FORMATS, ROW
from ..runs.shards import Share

if TYPE_CHECKING:
    from ..types import Tokenizer

DEFAULT_TARGET = "chrf"
_OWN_OPTIONS = ("target", "distilled", "recipe", "seed")


def add_model_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the model that draws."""
    group.add_argument("--model", metavar="NAME", help="hub id or folder (default: the embedded translator, en→de)")
    group.add_argument(
        "--source-language", metavar="CODE", help="of a multilingual model, as its tokenizer spells it: en, eng_Latn"
    )
    group.add_argument("--target-language", metavar="CODE", help="spelled likewise; forced as the first token")
    group.add_argument("--device", help="cpu, cuda, cuda:1, mps, ... (default: an accelerator if there is one)")
    group.add_argument("--dtype", default="auto", help="of the weights: auto (default), float32, bfloat16, float16")
    group.add_argument(
        "--cpu-kernels",
        choices=CPU_KERNELS,
        default="default",
        help="the library of matrix products on a CPU: default (torch's own), onednn (often faster) or auto (the "
        "faster one by a short trial); the last digits of log-probabilities depend on it",
    )
    group.add_argument("--revision", help="branch, tag or commit on the Hub")


def load_named(args: argparse.Namespace) -> LoadedModel:
    """Load the model that the options of `add_model_arguments` name."""
    return load_model(
        args.model or EMBEDDED,
        device=args.device,
        dtype=args.dtype,
        source_language=args.source_language,
        target_language=args.target_language,
        trust_remote_code=args.trust_remote_code,
        revision=args.revision,
        cpu_kernels=args.cpu_kernels,
    )


def add_method_arguments(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add utilities, recipe and decoder.

    Args:
        several: --recipe takes any number of recipes, each as what was given and what it means.
    """
    utilities = parser.add_argument_group(
        "utilities",
        "Metrics that score candidates against each other: a name (chrf, bleurt-20, comet, ...), a hub id, a folder, "
        "or,\nwith --trust-remote-code, the script of an evaluate module.",
    )
    utilities.add_argument(
        "--target", metavar="NAME", help=f"the utility that decides (default: the recipe's, else {DEFAULT_TARGET})"
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
        type=lambda name: {"name": name},
        default=[],
        help="a cheaper utility that guides the target; auto: the one known for the target; repeatable",
    )
    add_key_values(
        utilities, "--distilled-option", "options of the --distilled before it; repeatable", joins="distilled"
    )
    utilities.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run code that comes with a checkpoint, or the script of an evaluate module",
    )
    method = parser.add_argument_group("method", "How to choose. Start with a recipe and change what you need.")
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
        type=_name_or_object,
        help=f'{", ".join(DECODERS)}; or one with settings: \'{{"name": "n-by-s", "num_references": 32}}\' (default: '
        "rounds; with a recipe of the paper or a setting of a completer acpmbr, or pmbr without --distilled)",
    )
    add_key_values(
        method, "--set", f"other settings, as JSON or plain text; repeatable. They are: {', '.join(KEYWORDS)}"
    )
    method.add_argument("--seed", type=int, help="the same seed gives the same result (default: the recipe's, 0)")


def add_run_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add utilities, recipe, decoder and output; return the group of the output."""
    add_method_arguments(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--output", default="-", metavar="FILE", help="where to write (default: standard output, -)")
    output.add_argument(
        "--format",
        choices=FORMATS,
        default="text",
        help="text: the chosen texts (default). jsonl, parquet: all details. preferences: JSON lines with pairs of a "
        f"better and a worse text, as DPO of TRL reads them: {ROW} (of the source in the input, from 0), "
        f"{', '.join(COLUMNS)}",
    )
    output.add_argument("--nbest", type=int, default=1, metavar="K", help="list the K best in jsonl (default: 1)")
    add_key_values(
        output,
        "--preferences-option",
        "which pairs: pairs=best-worst (default), best-median, best-beam (only rerank, with beam_column=FIELD) or "
        "top-k (with k=K); min_margin=, max_similarity=, conversational=true; repeatable",
    )
    output.add_argument(
        "--resume",
        action="store_true",
        help="continue an unfinished run into --output FILE; input, settings and models must be the same",
    )
    output.add_argument(
        "--shard",
        metavar="I/P",
        type=Share.parse,
        help="make only part I of P, counted from 0. The P processes need no connection; the one that finishes last "
        "writes FILE. Not needed under torchrun or accelerate launch",
    )
    output.add_argument(
        "--merge", action="store_true", help="only write FILE from the finished shards of all parts; loads no models"
    )
    output.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="make FILE on a Ray cluster: the one at ADDRESS, or in RAY_ADDRESS, else a new one on this machine. All "
        "nodes must see the input under the same name (extra ray)",
    )
    add_key_values(
        output,
        "--ray-options",
        "of Ray's map_batches: num_gpus=0.5, num_cpus=2, ...; size=4 actors (default: as many as fit)",
    )
    output.add_argument("--quiet", action="store_true", help="no progress bar and no summary")
    return output


def add_key_values(group: argparse._ActionsContainer, option: str, help: str, *, joins: str | None = None) -> None:
    """Add an option that takes KEY=VALUE [KEY=VALUE ...], repeatable; with `joins`, for the last dict of that list."""
    group.add_argument(
        option,
        nargs="+",
        type=_key_value,
        action=_KeyValues,
        metavar="KEY=VALUE",
        dest=joins or option.removeprefix("--").replace("-", "_"),
        default=[] if joins else {},
        help=help,
    )


class _KeyValues(argparse.Action):
    """Collects pairs in the dict in `dest`, or in the last dict of the list there; a key given twice is refused."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest)
        if before == []:
            raise argparse.ArgumentError(self, f"give --{self.dest} NAME first: the options belong to the one before")
        merged = dict(before[-1] if isinstance(before, list) else before)
        for key, value in values:
            if key in merged:
                raise argparse.ArgumentError(self, f"{key} is given twice")
            merged[key] = value
        setattr(namespace, self.dest, [*before[:-1], merged] if isinstance(before, list) else merged)


def _key_value(text: str) -> tuple[str, object]:
    """Read KEY=VALUE; the value as JSON if it is JSON (8, 0.5, true, {"name": ...}), else as plain text."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key.replace("-", "_"), _json_or_text(value)


def _name_or_object(text: str) -> object:
    value = _json_or_text(text)
    if not isinstance(value, (str, dict)):
        raise argparse.ArgumentTypeError(f'{text!r} is neither a name nor {{"name": ..., settings}}')
    return value


def _json_or_text(text: str) -> object:
    try:
        return parse_json(text)
    except ValueError as error:
        if text.startswith(("{", "[")):
            message = f"{text!r:.80} starts like JSON, but is not valid JSON ({error})"
            raise argparse.ArgumentTypeError(message) from None
        return text


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
    recipe = args.recipe if isinstance(args.recipe, Recipe) else None
    given = keywords.get("decoder", None if recipe is None else recipe.decoder)
    decoder = None if given is None else DECODERS.check("decoder", given)
    guided = args.distilled or (recipe is not None and recipe.distilled)
    if decoder is not None and "guide" in decoder.needs and not guided:
        name = decoder.name
        raise ValueError(f"{name} needs a distilled utility: --distilled NAME (auto: the one known for the target)")
    target: dict[str, object] | None = None
    if args.target is not None:
        target = {"name": args.target}
    elif recipe is not None and recipe.target is not None:
        target = dict(recipe.target.to_dict())
    elif decoder is None or "target" in decoder.needs:
        target = {"name": DEFAULT_TARGET}
    elif args.target_option:
        raise ValueError("--target-option without --target, and the decoder needs no target: leave it out")
    return ACPMBR(
        tokenizer,
        target=None if target is None else {**target, **args.target_option},
        distilled=list(args.distilled),
        recipe=args.recipe,
        seed=args.seed,
        trust_remote_code=args.trust_remote_code,
        **keywords,
    )
