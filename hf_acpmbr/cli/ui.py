"""`acpmbr ui`: an interactive page in the browser, on this machine only unless --host says otherwise."""

from __future__ import annotations

import argparse

from ..generation.models import hide_loading_bars
from ..ui.session import Limits, Offer

_EXAMPLES = """\
examples:
  acpmbr ui                                              the embedded models, offline
  acpmbr ui --model facebook/m2m100_418M --target bleurt-20 --distilled bleurt-20-d3
  acpmbr ui --host 0.0.0.0 --max-candidates 64           for others in the network
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    offer, limits = Offer(), Limits()
    parser.epilog = _EXAMPLES
    offered = parser.add_argument_group("what the page offers", "In addition to the embedded models; repeatable.")
    offered.add_argument("--model", action="append", default=[], metavar="NAME", help="hub id or folder")
    offered.add_argument("--target", action="append", default=[], metavar="NAME", help="a utility that decides")
    offered.add_argument(
        "--distilled", action="append", default=[], metavar="NAME", help="a cheaper utility that guides it"
    )
    offered.add_argument(
        "--prompt", default=offer.prompt, metavar="TEXT", help="what the model reads, with {source} for the source"
    )
    offered.add_argument("--chat", action="store_true", help="put the prompt into the tokenizer's chat template")
    offered.add_argument("--device", help="cpu, cuda, cuda:1, mps, ... (default: an accelerator if there is one)")
    allowed = parser.add_argument_group("what visitors may ask for")
    for name, value, what in (
        ("characters", limits.source_characters, "characters of the longest source or pasted candidate"),
        ("candidates", limits.candidates, "most samples, and most pasted candidates"),
        ("jobs", limits.jobs, "jobs at the same time; the others wait"),
    ):
        allowed.add_argument(f"--max-{name}", type=int, default=value, metavar="N", help=f"{what} (default: {value})")
    server = parser.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1", help="address to bind to (default: 127.0.0.1, this machine)")
    server.add_argument("--port", type=int, metavar="PORT", help="(default: the first free one from 7860)")
    server.add_argument("--open", action="store_true", help="open the page in the browser")


def run(args: argparse.Namespace) -> int:
    from ..ui.page import launch

    hide_loading_bars(quiet=True)
    launch(*settings(args), host=args.host, port=args.port, browser=args.open)
    return 0


def settings(args: argparse.Namespace) -> tuple[Offer, Limits]:
    """Return what the page offers (named models first, then the embedded ones), and what it allows."""
    known, named = Offer(), {"models": args.model, "targets": args.target, "guides": args.distilled}
    offered = {what: tuple(dict.fromkeys((*names, *getattr(known, what)))) for what, names in named.items()}
    limits = Limits(source_characters=args.max_characters, candidates=args.max_candidates, jobs=args.max_jobs)
    return Offer(**offered, prompt=args.prompt, chat=args.chat, device=args.device), limits
