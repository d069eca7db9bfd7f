"""Whatever a file or a text holds, its reader gives a result or an error of the package's own, and comes to an end."""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_acpmbr import ACPMBR, Recipe
from hf_acpmbr.cli.main import main
from hf_acpmbr.cli.options import add_method_arguments
from hf_acpmbr.config import DECODERS
from hf_acpmbr.metrics.comet.hparams import CometHparams
from hf_acpmbr.runs.inputs import source_input
from hf_acpmbr.scoring import load_utility
from hf_acpmbr.scoring.checkpoints import read_config
from hf_acpmbr.serve.api import CHAT, TEXT, ApiError, Asked, RequestLimits

NAMES = (
    "name decoder target chrf seed auto halving candidates counts logprobs references source a ref text model messages "
    "prompt n mbr role"
)
WORDS = st.sampled_from([*NAMES.split(" "), "", "\ud800", "\x00", "\uffff", "🎉"])
TEXTS = WORDS | st.text(st.characters(), max_size=8)  # halves of surrogate pairs included
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.just(10**400)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=12
)
RECIPES = [
    json.loads(Recipe.named(name, target="chrf", distilled=["bleu"], **settings).to_json())
    for name, settings in [
        ("auto", {}),
        ("paper-low", {}),
        ("fast", {"completer": "transfer", "sampler": "chunked"}),
        ("auto", {"references_sampler": {"name": "beam-search"}, "num_references": 3}),
        *(("auto", {"decoder": name}) for name in ("coarse-to-fine", "ensemble")),
    ]
]
RECIPES += [
    json.loads(Recipe.named(target="chrf", decoder=name).to_json())
    for name in sorted(set(DECODERS) - {"map", "distilled-mbr", "coarse-to-fine", "ensemble", "acpmbr", "qe-filter"})
]


def damaged(value: Any, change: Any, choose: Any) -> Any:
    """A copy in which one place holds something else, or is gone."""
    value = copy.deepcopy(value)
    inner = value
    while isinstance(inner, (dict, list)) and inner:
        key = choose(st.sampled_from(list(inner) if isinstance(inner, dict) else range(len(inner))))
        if not isinstance(inner[key], (dict, list)) or not inner[key] or choose(st.booleans()):
            if choose(st.integers(0, 4)):
                inner[key] = change
            else:
                del inner[key]
            break
        inner = inner[key]
    return value


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """An error of the package's own names the file."""
    try:
        yield
    except ValueError as error:
        if str(path) not in str(error):
            raise


def recipe_of(text: str) -> None:
    try:
        recipe = Recipe.from_json(text)
    except ValueError:
        return
    assert Recipe.from_json(recipe.to_json()) == recipe
    with suppress(ValueError, OSError, ImportError):
        ACPMBR(recipe=recipe)


@given(st.sampled_from(RECIPES), JSON, st.data())
def test_a_damaged_recipe(recipe: Any, change: Any, data: Any) -> None:
    recipe_of(json.dumps(damaged(recipe, change, data.draw)))


@given(st.text(st.characters()) | JSON.map(json.dumps))
def test_a_recipe_of_anything(text: str) -> None:
    recipe_of(text)


LINES = st.one_of(
    JSON.map(json.dumps),
    st.fixed_dictionaries({"candidates": JSON}, optional=dict.fromkeys(("counts", "logprobs", "source"), JSON)).map(
        json.dumps
    ),
    st.lists(st.integers(-1, 3).map(str) | TEXTS, max_size=4).map(" ||| ".join),
).map(lambda line: line.encode("utf-8", "surrogatepass"))
FILES = st.lists(LINES, max_size=4).map(b"\n".join) | st.binary(max_size=60)


@given(FILES, st.sampled_from(["jsonl", "lines", "nbest"]), st.booleans(), st.sampled_from(["text", "jsonl"]))
def test_a_file_of_candidates(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, kind: str, logprobs: bool, output: str
) -> None:
    path = tmp_path_factory.mktemp("lists") / "input"
    path.write_bytes(content)
    sized = {"lines": ["--candidates-per-source", "2"], "nbest": ["--nbest-logprobs"] * logprobs}.get(kind, [])
    written = ["--output", str(path.with_name("output")), "--format", output, "--quiet"]
    code = main(["rerank", "--input", str(path), "--input-format", kind, *sized, *written])
    assert code in (0, 2)
    assert path.with_name("output").exists() == (code == 0)


@given(FILES, st.sampled_from([None, "a", "text"]))
def test_a_file_of_sources(tmp_path_factory: pytest.TempPathFactory, content: bytes, column: str | None) -> None:
    path = tmp_path_factory.mktemp("sources") / "input"
    path.write_bytes(content)
    with explained(path):
        for text in source_input(argparse.Namespace(input=str(path), column=column)).records():
            text.item.encode()


YAML = st.lists(
    st.tuples(
        st.sampled_from(["class_identifier", "layer", "hidden_sizes", "pool", "input_segments", "<<", "&a", "- "]),
        st.sampled_from(
            ["regression_metric", "unified_metric", "xcomet_metric", "[1, 2]", "*a", "&a [*a]", "!!set", "{"]
        )
        | TEXTS,
    ).map(": ".join),
    max_size=5,
).map("\n".join)


@given(YAML | st.text(st.characters()))
def test_hyper_parameters_of_a_checkpoint(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("comet")
    (folder / "hparams.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    with explained(folder):
        CometHparams.read(folder)


@given((JSON.map(json.dumps) | st.text(st.characters())).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_the_configuration_of_a_checkpoint(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_bytes(content)
    with explained(folder):
        assert isinstance(read_config(folder), dict)
        load_utility(str(folder))


@given(TEXTS | JSON.map(json.dumps), TEXTS)
def test_a_value_on_the_command_line(value: str, key: str) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_method_arguments(parser)
    for option in (f"--set={key}={value}", f"--decoder={value}", f"--target={value}"):
        with suppress(argparse.ArgumentError):
            parser.parse_args([option])


@given(JSON, st.sampled_from([CHAT, TEXT]))
def test_the_body_of_a_request(value: Any, path: str) -> None:
    with suppress(ApiError):
        Asked.read(json.dumps(value).encode(), path, RequestLimits())


def test_aliases_that_would_grow_without_end_are_read_in_no_time(tmp_path: Path) -> None:
    levels = [f"{chr(97 + k)}: &{chr(97 + k)} [{', '.join(['*' + chr(96 + k)] * 9)}]" for k in range(1, 20)]
    text = "\n".join(["class_identifier: regression_metric", "a: &a [0]", *levels, "hidden_sizes: *t"])
    (tmp_path / "hparams.yaml").write_text(text)
    assert CometHparams.read(tmp_path).class_identifier == "regression_metric"
