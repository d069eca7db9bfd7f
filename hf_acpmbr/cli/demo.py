"""`acpmbr demo`: what a choice costs and what it is worth, on the models in the package; offline, about a minute."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sacrebleu

from ..candidates import Candidates
from ..decoding import Decision
from ..differences import pieces
from ..generation.models import hide_loading_bars, load_model, set_languages
from ..mbr import ACPMBR
from ..recipe import PAPER_SAMPLES, Recipe
from ..scoring import MatrixUtility, Utility, load_utility

# Lines of target language, source and reference: every 15th of the first 300 pairs of Tatoeba's test set, from the
# first on, each in both directions. They come from tatoeba.org under CC BY 2.0 FR. No line was chosen by its result.
SENTENCES = Path(__file__).with_name("demo_sentences.tsv")
# The same rule against beam search: on all 300 pairs, by an earlier implementation, and on 300 of the dev set, by
# `python -m evaluation.benchmarks.which_rule --part dev`.
MEASURED = Path(__file__).with_name("demo_measured.json")
OTHER_LANGUAGE = {"de": "en", "en": "de"}
MODEL, TARGET, DISTILLED = "embedded", "embedded", "embedded-d1"
# The best rule known for the small translator: string agreement alone prefers long and unlikely texts.
RULE: dict[str, Any] = {"target": "chrf", "logprob_weight": 1.5, "add_beam": True}
RULE_NAME = "chrF + 1.5 × log-probability, beam added"
BEAM, BEAMS = "beam search", 5
FULL = "full MBR"
COSTED = 6  # sentences whose pairs are all scored, which is the slow part
_REAL = "acpmbr demo --model facebook/m2m100_418M --target bleurt-20 --distilled bleurt-20-d3"
_YELLOW, _PLAIN = "\033[33m", "\033[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the demo."""
    parser.add_argument("--source", help="your own sentence instead of the built-in ones")
    parser.add_argument("--reference", help="a translation of --source to compare with")
    parser.add_argument("--model", default=MODEL, help=f"hub id or folder that knows en and de (default {MODEL})")
    parser.add_argument("--to", choices=("de", "en"), default="de", help="language to translate --source into")
    parser.add_argument("--target", default=TARGET, help=f"utility that decides (default {TARGET})")
    parser.add_argument("--distilled", default=DISTILLED, help=f"cheaper utility that guides it (default {DISTILLED})")
    parser.add_argument("--candidates", type=int, default=64, help="samples per sentence (default 64)")
    parser.add_argument("--seed", type=int, default=0)


@dataclass(frozen=True)
class Sentence:
    """A sentence to translate into the language `to`."""

    to: str
    source: str
    reference: str | None = None  # a human translation


@dataclass(frozen=True)
class Translated:
    """What beam search and MBR make of a sentence, and by how much MBR's is better (0–100), with a reference."""

    sentence: Sentence
    beam: str
    chosen: str
    gain: float | None = None


class Demo:
    """A translator, the utility whose calls are counted with its guide, and the rule that competes with beam search."""

    def __init__(self, model: str, target: str, distilled: str, candidates: int, seed: int) -> None:
        self.model, self.tokenizer, _ = load_model(model)
        self.target, self.distilled, self.seed = load_utility(target), load_utility(distilled), seed
        self.draw = ACPMBR(self.tokenizer, decoder="map", num_candidates=candidates, seed=seed)
        # Another utility than the embedded one is meant to choose by itself.
        small = target == TARGET
        rule = RULE if small else {"target": self.target, "distilled": self.distilled}
        self.rule = ACPMBR(self.tokenizer, num_candidates=candidates, seed=seed, **rule)
        self.rule_name = RULE_NAME if small else f"MBR, {target}"
        self.judge = self.target if small else load_utility("chrf")  # one that did not choose

    def generate(self, sentences: Sequence[Sentence], **options: Any) -> Any:
        """Generate for sentences of one target language, as `model.generate` does."""
        to = sentences[0].to
        languages = set_languages(self.tokenizer, OTHER_LANGUAGE[to], to)
        inputs = self.tokenizer([each.source for each in sentences], return_tensors="pt", padding=True)
        size = 2 * inputs["input_ids"].shape[1] + 10
        return self.model.generate(**inputs.to(self.model.device), **languages, max_new_tokens=size, **options)

    def translate(self, sentences: Sequence[Sentence]) -> list[Translated]:
        """Translate sentences of one target language by beam search and by the rule."""
        beam, chosen = (
            self.tokenizer.batch_decode(self.generate(sentences, **options), skip_special_tokens=True)
            for options in ({"num_beams": BEAMS, "do_sample": False}, {"custom_generate": self.rule})
        )
        gains: Sequence[float | None] = [None] * len(sentences)
        if all(each.reference is not None for each in sentences):
            sources, references = ([getattr(s, name) for s in sentences] for name in ("source", "reference"))
            scores = [self.judge.score(texts, references, sources) / self.judge.scale for texts in (chosen, beam)]
            gains = (100 * (scores[0] - scores[1]) * (1 if self.judge.higher_is_better else -1)).tolist()
        return [Translated(*row) for row in zip(sentences, beam, chosen, gains, strict=True)]

    def methods(self, truth: Utility) -> Iterator[tuple[str, ACPMBR]]:
        """Yield what chooses, given the target's scores: with a guide, the paper's also without."""
        guided = partial(ACPMBR, target=truth, distilled=self.distilled, seed=self.seed)
        yield "default", guided()
        yield 'recipe "fast"', guided(recipe="fast")
        for name, guides in (("the paper's PMBR, High", []), ("the paper's AC-PMBR, High", [self.distilled])):
            yield name, ACPMBR(target=truth, distilled=guides, recipe=per_row(self.target, guides, self.seed))

    def cost(self, calls: dict[str, int]) -> float:
        """Weight calls by parameters; metrics without parameters count as one each."""
        sizes = {utility.name: max(utility.parameters, 1) for utility in (self.target, self.distilled)}
        return float(sum(sizes[name] * count for name, count in calls.items()))

    def compare(self, sentence: Sentence) -> dict[str, tuple[Decision, float]]:
        """Choose by each method among the same samples; also the expected utility × 100 lost against full MBR."""
        pool: Candidates = self.generate(
            [sentence], custom_generate=self.draw, return_dict_in_generate=True
        ).candidates[0]
        full = ACPMBR(target=self.target, decoder="mbr").rerank(pool, sentence.source)
        assert full.matrix is not None, "full MBR scores all pairs"
        truth = MatrixUtility.standing_for(self.target, full.matrix, pool.texts)  # scored once, counted each time
        found = {FULL: (full, 0.0)}
        for name, method in self.methods(truth):
            decision = method.rerank(pool, sentence.source)
            lost = abs(full.expected[full.index] - full.expected[decision.index]) * 100 / self.target.scale
            found[name] = (decision, float(lost))
        return found


def per_row(target: Utility, guides: Sequence[Utility], seed: int) -> Recipe:
    """Make the paper's High with its scores per row, since its rates are meant for 1,024 samples."""
    recipe = Recipe.named("paper-high", target=target.name, distilled=[guide.name for guide in guides], seed=seed)
    paper = (PAPER_SAMPLES, PAPER_SAMPLES)
    target_calls, *guide_calls = recipe.decoder.most_calls(paper, paper, len(guides))
    budgets = {"scores_per_row": target_calls / PAPER_SAMPLES}
    if guides:
        budgets["distilled_scores_per_row"] = guide_calls[0] / PAPER_SAMPLES
    return recipe.changed(**budgets)


def marked(text: str, other: str, colour: bool) -> str:
    """Mark what differs from the other text: in yellow, or in brackets without colours."""
    before, after = (_YELLOW, _PLAIN) if colour else ("[", "]")
    return "".join(f"{before}{piece.text}{after}" if piece.differs else piece.text for piece in pieces(text, other))


def describe_costs(demo: Demo, compared: Sequence[dict[str, tuple[Decision, float]]]) -> str:
    """Show each method's calls, cost, and how far its choices are from full MBR's."""
    sizes = [len(each[FULL][0].candidates) for each in compared]
    lines = [
        f"1. What a choice costs: {len(compared)} × {np.mean(sizes):.0f} different samples, scored by "
        f"{demo.target.name!r}, guided by {demo.distilled.name!r}\n",
        f"  {'':<27}{'target calls':>12}{'guide calls':>13}{'cost':>8}   lost × 100   full MBR's choice",
    ]
    full = sum(demo.cost(dict(each[FULL][0].calls)) for each in compared)
    for name in compared[0]:
        rows = [each[name] for each in compared]
        calls = [sum(d.calls.get(utility.name, 0) for d, _ in rows) for utility in (demo.target, demo.distilled)]
        same = sum(d.index == each[FULL][0].index for (d, _), each in zip(rows, compared, strict=True))
        cost = sum(demo.cost(dict(decision.calls)) for decision, _ in rows) / full
        line = f"  {name:<27}{calls[0]:>12,}{calls[1]:>13,}{cost:>8.1%}"
        lines.append(f"{line}{np.mean([lost for _, lost in rows]):>13.2f}   {same} of {len(rows)}")
    lines.append("\n  lost: of full MBR's expected utility, a mean; the paper's: ALS and AC-ALS, at its scores per row")
    return "\n".join(lines)


def describe_measured() -> str:
    """Show the stored comparison of the rule with beam search."""
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    lines = [f"  Measured, {measured['about']}:\n", f"  {'':<12}" + "".join(f"{m:>16}" for m in measured["metrics"])]
    for direction, cells in measured["rows"].items():
        lines.append(f"  {direction:<12}" + "".join(f"{cell:>16}" for cell in cells))
    return "\n".join([*lines, f"\n  {measured['note']}"])


def example_text(found: Translated, judge: str, colour: bool) -> str:
    """Show both translations, what differs, and which is better by a metric that did not choose."""
    sentence = found.sentence
    lines = [f"  {OTHER_LANGUAGE[sentence.to]}→{sentence.to}  {sentence.source}"]
    if sentence.reference is not None:
        lines.append(f"     {'reference':<12}{sentence.reference}")
    verdict = "" if found.gain is None else f"   ({judge} {found.gain:+.0f})"
    lines.append(f"     {BEAM:<12}{found.beam}")
    lines.append(f"     {'MBR':<12}{marked(found.chosen, found.beam, colour)}{verdict}")
    return "\n".join(lines)


def summarise(found: Sequence[Translated], judge: str) -> str:
    """Count wins and losses, and show corpus metrics of both against the references."""
    gains = [each.gain or 0.0 for each in found if each.chosen != each.beam]
    same = len(found) - len(gains)
    references = [[each.sentence.reference or "" for each in found]]
    lines = [f"  Of {len(found)} sentences {same} are the same; by {judge} against the reference, MBR is better in"]
    lines[0] += f" {sum(gain > 0 for gain in gains)} and worse in {sum(gain < 0 for gain in gains)}."
    corpus = (("BLEU", sacrebleu.corpus_bleu), ("chrF", sacrebleu.corpus_chrf), ("TER", sacrebleu.corpus_ter))
    for name, metric in corpus:
        beam, chosen = (metric([getattr(e, which) for e in found], references).score for which in ("beam", "chosen"))
        lines.append(
            f"     {name:<5} {BEAM} {beam:.1f}, MBR {chosen:.1f}{' (lower is better)' if name == 'TER' else ''}"
        )
    return "\n".join(lines)


def run(args: argparse.Namespace) -> int:
    """Count calls on a few sentences, translate all, and print both."""
    hide_loading_bars(quiet=True)
    start, colour = time.perf_counter(), sys.stdout.isatty()
    if args.reference is not None and args.source is None:
        raise ValueError("--reference belongs to a --source of your own: give both")
    demo = Demo(args.model, args.target, args.distilled, args.candidates, args.seed)
    if args.source:
        sentences = costed = [Sentence(args.to, args.source, args.reference)]
    else:
        rows = SENTENCES.read_text(encoding="utf-8").splitlines()
        sentences = [Sentence(*row.split("\t")) for row in rows]
        costed = sentences[:: len(sentences) // COSTED][:COSTED]
    print(f"{args.candidates} samples per sentence by {args.model!r}\n")
    print(describe_costs(demo, [demo.compare(each) for each in costed]), flush=True)
    print(f"\n2. What it is worth: {demo.rule_name}, against beam search\n")
    if args.model == MODEL and args.target == TARGET:
        print(describe_measured(), end="\n\n")
    if not args.source:
        marks = "in yellow" if colour else "in brackets"
        print(f"  Live, every 15th test sentence, where the two differ (marked {marks}):\n")
    directions = dict.fromkeys(each.to for each in sentences)
    found = [made for to in directions for made in demo.translate([each for each in sentences if each.to == to])]
    for each in found:
        if args.source or each.chosen != each.beam:
            print(example_text(each, demo.judge.name, colour), end="\n\n", flush=True)
    if all(each.sentence.reference is not None for each in found):
        print(summarise(found, demo.judge.name))
    if not args.source:
        print("  Sentences: tatoeba.org, CC BY 2.0 FR.")
    print(f"\n{time.perf_counter() - start:.0f} s in all, on {demo.model.device}")
    if args.model == MODEL:
        print(f"The embedded models are small. On real ones:\n  {_REAL}")
    return 0
