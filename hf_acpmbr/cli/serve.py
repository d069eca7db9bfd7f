"""`acpmbr serve`: MBR behind OpenAI's API."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from ..generation.models import EMBEDDED, hide_loading_bars
from ..mbr import ACPMBR
from ..serve import RequestLimits
from .options import add_key_values, add_method_arguments, add_model_arguments, build_mbr, load_named

if TYPE_CHECKING:
    from ..serve.service import Service

DEFAULT_SECONDS = 5.0  # of scoring, where the decoder takes a limit and the recipe has none
_EXAMPLES = """\
examples:
  acpmbr serve                                           the embedded translator, offline
  acpmbr serve --upstream http://127.0.0.1:8000/v1       candidates of vLLM, SGLang, llama.cpp, ...
  acpmbr serve --upstream http://127.0.0.1:8000/v1 --target bleurt-20 --distilled auto --default min_p=0.02
  curl localhost:8080/v1/chat/completions -H 'Content-Type: application/json' \\
      -d '{"messages": [{"role": "user", "content": "It is raining."}], "best_of": 32}'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    drawing = parser.add_argument_group("candidates", "Drawn by another server, or by a model in this process.")
    drawing.add_argument("--upstream", metavar="URL", help="a server that speaks OpenAI's API: http://HOST:PORT/v1")
    drawing.add_argument("--upstream-n", type=int, metavar="N", help="texts per request to it (default: all at once)")
    add_key_values(
        drawing, "--default", "fields for requests to it that lack them: temperature=1.0 (default), min_p=0.02, ..."
    )
    add_model_arguments(drawing)
    add_method_arguments(parser)
    allowed = parser.add_argument_group("limits")
    allowed.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help="most seconds of scoring, shared by requests that are scored together; a request may ask for less "
        f"(default: the recipe's, else {DEFAULT_SECONDS:g} if the decoder takes a limit)",
    )
    for field in dataclasses.fields(RequestLimits):
        option, value = f"--{field.name.replace('_', '-')}", field.default
        what = f"{field.metadata['help']} (default: {value})"
        allowed.add_argument(option, type=type(value), default=value, metavar="N", help=what)
    server = parser.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1", help="address to bind to (default: 127.0.0.1, this machine)")
    server.add_argument("--port", type=int, default=8080, help="port to listen on (default: 8080)")


def run(args: argparse.Namespace) -> int:
    try:
        import uvicorn
    except ImportError as error:
        raise ImportError(
            f"the service needs more ({error}): pip install '.[serve]' in a copy of the repository"
        ) from error
    service = build(args)
    uvicorn.run(service.app, host=args.host, port=args.port, access_log=False)
    return 0


def build(args: argparse.Namespace) -> Service:
    """Return the service that the options describe, with its models loaded."""
    from ..serve.local import Local
    from ..serve.service import Service
    from ..serve.upstream import Upstream

    if args.upstream is None and (args.upstream_n is not None or args.default):
        raise ValueError("--upstream-n and --default are for requests to --upstream: name it, or leave them out")
    own = ("model", "source_language", "target_language", "device", "revision")
    if args.upstream is not None and (given := [name for name in own if getattr(args, name) is not None]):
        raise ValueError(f"--{given[0].replace('_', '-')} is for a model in this process: leave it or --upstream out")
    limits = RequestLimits(**{field.name: getattr(args, field.name) for field in dataclasses.fields(RequestLimits)})
    mbr = build_mbr(args, time_limit=args.time_limit)
    if getattr(mbr.decoder, "time_limit", 0) is None:
        mbr = ACPMBR(target=mbr.target, distilled=mbr.guides, recipe=mbr.recipe.changed(time_limit=DEFAULT_SECONDS))
    hide_loading_bars(quiet=True)
    drawer: Upstream | Local
    if args.upstream is not None:
        drawer = Upstream(args.upstream, most=args.upstream_n, defaults=args.default)
    else:
        name = args.model or EMBEDDED
        drawer = Local(*load_named(args), recipe=mbr.recipe, name=name, most_tokens=limits.most_tokens)
    service = Service(mbr, drawer, limits)
    service.warm_up()
    return service
