"""Stages as settings: what is refused, what a new variant needs, and where the help of a setting shows."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hf_acpmbr import ACPMBR, Candidates, Recipe, load_utility
from hf_acpmbr.cli.main import main
from hf_acpmbr.config import (
    COMPLETERS,
    DECODERS,
    OBSERVATIONS,
    SAMPLERS,
    Configured,
    Registry,
    integer,
    number,
    setting,
)
from hf_acpmbr.sampling import Truncation

VARIANTS = [(table, name) for table in (SAMPLERS, OBSERVATIONS, COMPLETERS, DECODERS) for name in table]
MODULE = """
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
from hf_acpmbr.completion.als import ALS
from hf_acpmbr.config import integer, setting
from hf_acpmbr.decoding import Decoder
from hf_acpmbr.scoring import Ask

@dataclass(frozen=True)
class Mine(ALS):
    '''ALS of mine.'''
    extra: int = setting(3, integer(0), help="what it adds.")
    name: ClassVar[str] = "mine"

@dataclass(frozen=True)
class FirstReferences(Decoder):
    '''MBR with the first pseudo-references.'''
    first: int = setting(2, integer(1), help="how many of them.")
    name: ClassVar[str] = "first"

    def decide(self, problem):
        columns = np.arange(min(self.first, len(problem.references)))
        scores = yield Ask.block(problem.target, np.arange(len(problem)), columns)
        return self.decision(problem, scores.mean(axis=1), "first", deciding=problem.target)
"""


@pytest.fixture
def added(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module elsewhere whose two classes are in the tables for the length of a test."""
    (tmp_path / "variants_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "variants_of_mine", raising=False)
    for table in (COMPLETERS, DECODERS):
        monkeypatch.setattr(table, "_entries", dict(table._entries))
    COMPLETERS.add("mine", "variants_of_mine:Mine")
    DECODERS.add("first", "variants_of_mine:FirstReferences")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Recipe(decoder=print), "decoder must be a name .*Decoder, got <built-in function print>"),
        (lambda: ACPMBR(target="chrf", sampler=object()), "sampler must be .*Sampler, got <object object"),
        (lambda: ACPMBR(target="chrf", completer=len), "completer must be .*Completer, got <built-in function len>"),
        (lambda: ACPMBR(target="chrf", observation=Truncation()), "observation must be .*Observation, got Truncation"),
        (lambda: ACPMBR(target="chrf", references_sampler=3), "references_sampler must be .*Sampler, got 3"),
        (lambda: DECODERS.build({"rank": 3}), 'a decoder is {"name": ..., its settings}'),
    ],
)
def test_what_is_no_stage_is_refused_with_what_was_given_and_what_is_expected(make: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        make()


def test_a_variant_needs_a_class_and_one_line(added: None) -> None:
    mbr = ACPMBR(target="chrf", decoder="pmbr", completer="mine", rank=2)
    assert mbr.recipe.to_dict()["decoder"]["completer"] == {**COMPLETERS.build("mine", rank=2).to_dict(), "extra": 3}
    assert Recipe.from_json(mbr.recipe.to_json()) == mbr.recipe
    assert "mine(" in mbr.rerank(["a b", "a c", "b c"]).full_signature
    recipe = Recipe.named("fast", target="chrf", decoder={"name": "first", "first": 3})
    assert Recipe.from_json(recipe.to_json()) == recipe
    decision = ACPMBR(recipe=recipe).rerank(["a c", "a b", "d", "a d"])
    assert decision.calls == {"chrf": 3 * 4}
    assert "decoder:first|" in decision.signature
    assert "|first:3|" in decision.full_signature


def test_an_added_decoder_is_known_to_the_command_line(added: None, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"candidates": ["a b", "a b", "a c"]}\n')
    files = ["--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.txt")]
    assert main(["rerank", *files, "--target", "chrf", "--decoder", '{"name": "first", "first": 1}', "--quiet"]) == 0
    assert (tmp_path / "out.txt").read_text() == "a b\n"


def test_an_added_decoder_is_known_to_the_page(added: None) -> None:
    pytest.importorskip("gradio", reason="needs the extra ui")
    from hf_acpmbr.ui.analysis import Workbench
    from hf_acpmbr.ui.session import PASTE, Form, Offer

    workbench = Workbench(Offer(decoders=("rounds", "first")))
    form = Form("", mode=PASTE, pasted="a b\na b\na c", decoder="first", target="chrf", guide="none")
    found = []

    def keep() -> Any:
        found.append((yield from workbench.analyse(form)))

    list(keep())
    assert found[0].decision.status == "first"


def test_an_added_decoder_and_completer_are_known_to_the_evaluation(added: None) -> None:
    from evaluation.wmt.phases.decisions import Judges, Source, decide
    from evaluation.wmt.rows import table_rows
    from evaluation.wmt.settings import EvaluationSettings

    first = {"decoder": {"name": "first", "first": 1}}
    own = {
        "counted": first,
        "completed": {"decoder": "pmbr", "completer": "mine"},
        "likely": {**first, "logprob_weight": 1e3},
    }
    values = {"data": {"name": "builtin", "pairs": ["en-de"]}, "model": {"name": "embedded"}, "metrics": ["chrf"]}
    settings = EvaluationSettings.from_dict(
        {"name": "mine", **values, "target": "chrf", "distilled": ["bleu"], "budgets": [], "own": own}
    )
    rows = [row for row in table_rows(settings) if row.own]
    assert [row.key for row in rows] == [f"own/{name}" for name in own], "none takes the guide"
    source = Source(0, "x", "a b", "a c")
    judges = Judges({"chrf": load_utility("chrf")}, "chrf")
    pool = Candidates(("a b", "a c"), [2, 1], logprobs=[-2.0, -1.0])
    counted, completed, likely = decide(rows, pool, judges, source, seed=0)
    assert (counted.text, counted.status, counted.calls) == ("a b", "first", {"chrf": 2})
    assert likely.text == "a c"
    assert "mine(" in completed.full_signature


def test_a_table_holds_each_name_once_and_nothing_of_another_kind(added: None) -> None:
    with pytest.raises(ValueError, match="decoder 'first' exists already"):
        DECODERS.add("first", "variants_of_mine:FirstReferences")
    with pytest.raises(ValueError, match="completer 'other' is at \"module:Class\", got 'nowhere'"):
        COMPLETERS.add("other", "nowhere")
    COMPLETERS.add("other", "variants_of_mine:Mine")
    DECODERS.add("mine", "variants_of_mine:Mine")
    for table, name, expected in ((COMPLETERS, "other", "'other'"), (DECODERS, "mine", "Decoder")):
        with pytest.raises(ValueError, match=f"must be a subclass of .*{expected}"):
            table.build(name)


@pytest.mark.parametrize(("table", "name"), VARIANTS)
def test_every_setting_has_help_that_its_docstring_shows(table: Registry[Any], name: str) -> None:
    variant = table.get(name)
    shown = " ".join((inspect.getdoc(variant) or "").split())
    for field in dataclasses.fields(variant):
        assert field.metadata["help"].endswith("."), f"{name}: {field.name} has no help"
        assert f"{field.name}: {field.metadata['help']}" in shown
    assert shown.count("Args:") == (1 if variant.field_names() else 0)


def test_numbers_that_no_float_holds_are_integers_or_refused() -> None:
    assert integer()("seed", 10**400) == 10**400
    for value in (10**400, -(10**400), float("inf"), float("nan")):
        with pytest.raises(ValueError, match="margin must be finite"):
            number()("margin", value)
    with pytest.raises(ValueError, match="count must be an integer, got inf"):
        integer()("count", float("inf"))


def test_a_docstring_with_its_own_arguments_is_left_alone() -> None:
    @dataclasses.dataclass(frozen=True)
    class Own(Configured):
        """Settings.

        Args:
            size: in its own words.
        """

        size: int = setting(1, integer(0), help="in others.")

    assert "in others" not in (Own.__doc__ or "")


def test_settings_work_without_docstrings() -> None:
    program = "from hf_acpmbr.completion import ALS; print(ALS(rank=3))"
    done = subprocess.run([sys.executable, "-OO", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("als(rank=3,")


def test_a_recipe_with_default_samplers_imports_no_transformers() -> None:
    program = "import sys, hf_acpmbr; hf_acpmbr.Recipe(); print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_all_bases_are_abstract() -> None:
    for table in (SAMPLERS, OBSERVATIONS, COMPLETERS, DECODERS):
        assert inspect.isabstract(table.base)
