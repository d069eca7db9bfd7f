"""`acpmbr demo`: beam search, full MBR and the default on the same sentences, judged by references, and their cost."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ..candidates import Candidates, FloatArray
from ..decoding import Decision
from ..differences import pieces
from ..files import check_output
from ..generation.models import hide_loading_bars, load_model, set_languages
from ..mbr import ACPMBR
from ..scoring import Utility, load_utility

# Lines of target language, source and reference, written for the demo: new to the embedded translator.
SENTENCES = Path(__file__).with_name("demo_sentences.tsv")
OTHER_LANGUAGE = {"de": "en", "en": "de"}
MODEL, TARGET, DISTILLED = "embedded", "embedded", "embedded-d1"
BEAM = "beam search"
FULL, DEFAULT, FAST = "full MBR", "default", 'recipe "fast"'
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
    parser.add_argument("--picture", default="acpmbr_demo.png", help="file of the picture; '' for none")


@dataclass(frozen=True)
class MethodChoice:
    """The choice of one method.

    Args:
        expected: its true expected utility.
        cost: calls weighted by parameters.
        chrf, utility: against the reference on a 0–100 scale, if there is one.
    """

    method: str
    text: str
    expected: float
    calls: Mapping[str, int]
    seconds: float
    cost: float
    chrf: float | None
    utility: float | None


@dataclass(frozen=True)
class Example:
    """One sentence: its candidates, all target scores, and the choices and decisions of the methods."""

    source: str
    reference: str | None
    to: str
    candidates: Candidates
    truth: FloatArray
    choices: tuple[MethodChoice, ...]
    decisions: dict[str, Decision]


class Demo:
    """A translator with beam search, full MBR, the default, and "fast"; `completing` has two ways for the picture.

    Args:
        model: name for `load_model`.
        target, distilled: names of the two utilities.
        candidates: samples per sentence.
        seed: same seed, same samples and pairs.
    """

    def __init__(self, model: str, target: str, distilled: str, candidates: int, seed: int) -> None:
        self.model, self.tokenizer, _ = load_model(model)
        self.chrf: Utility = load_utility("chrf")
        self.target: Utility = load_utility(target)
        self.distilled: Utility = load_utility(distilled)
        plain = partial(ACPMBR, self.tokenizer, target=self.target, num_candidates=candidates, seed=seed)
        guided = partial(plain, distilled=self.distilled)
        self.methods = {FULL: plain(decoder="mbr"), DEFAULT: guided(), FAST: guided(recipe="fast")}
        # Equal shares for all rows complete the matrix best.
        self.completing = {
            "PMBR": plain(decoder="pmbr", recipe="fast"),
            "AC-PMBR": guided(observation="balanced", recipe="fast"),
        }

    def translate(self, source: str, to: str, reference: str | None = None) -> Example:
        """Translate one sentence by all methods, over the same samples."""
        limits = set_languages(self.tokenizer, OTHER_LANGUAGE[to], to)
        inputs = self.tokenizer(source, return_tensors="pt").to(self.model.device)
        limits["max_new_tokens"] = 2 * inputs["input_ids"].shape[1] + 10
        start = time.perf_counter()
        found = self.model.generate(**inputs, num_beams=5, do_sample=False, **limits)
        seconds = time.perf_counter() - start
        beam = self.tokenizer.batch_decode(found, skip_special_tokens=True)[0]
        output = self.model.generate(
            **inputs, custom_generate=self.methods[FULL], return_dict_in_generate=True, **limits
        )
        exact: Decision = output.decisions[0]
        pool, truth = exact.candidates, exact.matrix
        assert truth is not None, "full MBR scores all pairs"
        decisions = {FULL: exact}
        for name, method in self.methods.items():
            if name != FULL:
                decisions[name] = method.decoder.decode(
                    pool, target=method.target, guides=method.guides, source=source, seed=method.recipe.seed
                )
        worth = float(self.target.score([beam] * len(pool), pool.texts, [source] * len(pool)) @ pool.weights)
        chosen: list[tuple[str, str, float, Mapping[str, int], float]] = [(BEAM, beam, worth, {}, seconds)]
        for name, decision in decisions.items():
            expected = float(exact.expected[decision.index])
            chosen.append((name, decision.text, expected, decision.calls, sum(decision.seconds.values())))
        chrf, utility = (
            self._judged(judge, [row[1] for row in chosen], reference, source) for judge in (self.chrf, self.target)
        )
        choices = [
            MethodChoice(*row, self.cost(row[3]), one, other)
            for row, one, other in zip(chosen, chrf, utility, strict=True)
        ]
        return Example(source, reference, to, pool, truth, tuple(choices), decisions)

    @staticmethod
    def _judged(judge: Utility, texts: list[str], reference: str | None, source: str) -> Sequence[float | None]:
        """Score texts against the reference, if there is one, from 0 to 100."""
        if reference is None:
            return [None] * len(texts)
        scores = judge.score(texts, [reference] * len(texts), [source] * len(texts))
        return [float(score) for score in scores * (100 / judge.scale)]

    def cost(self, calls: Mapping[str, int]) -> float:
        """Weight calls by parameters; metrics without parameters count as one each."""
        sizes = {utility.name: max(utility.parameters, 1) for utility in (self.target, self.distilled)}
        return float(sum(sizes[name] * count for name, count in calls.items()))


def marked(text: str, other: str, colour: bool) -> str:
    """Mark what differs from the other text: in yellow, or in brackets without colours."""
    before, after = (_YELLOW, _PLAIN) if colour else ("[", "]")
    return "".join(f"{before}{piece.text}{after}" if piece.differs else piece.text for piece in pieces(text, other))


def example_text(example: Example, target: Utility, colour: bool = False) -> str:
    """Show the choices of beam search, full MBR and the default, how they differ, their quality and cost."""
    n, drawn = len(example.candidates), example.candidates.total
    lines = [f"{OTHER_LANGUAGE[example.to]}→{example.to}  {example.source}"]
    if example.reference is not None:
        lines.append(f"  {'reference':<13}{example.reference}")
    beam = example.choices[0].text
    full = next(choice.cost for choice in example.choices if choice.method == FULL)
    for choice in (choice for choice in example.choices if choice.method != FAST):
        lines.append(f"  {choice.method:<13}{marked(choice.text, beam, colour)}")
        said = [] if choice.chrf is None else [f"chrF {choice.chrf:.0f}, {target.name} {choice.utility:.0f}"]
        if choice.calls:
            calls = " + ".join(f"{count:,} {name}" for name, count in choice.calls.items())
            said.append(f"{calls} calls, {choice.cost / full:.0%} of the cost")
            if choice.method == FULL:
                said[-1] += f" ({n} different of {drawn} samples)"
        if said:
            lines.append(f"  {'':<13}{'; '.join(said)}")
    return "\n".join(lines)


def summarise(examples: Sequence[Example], target: Utility) -> str:
    """Show all methods over all sentences: quality, calls, cost, and wins and losses against beam search."""
    lines = [
        f"Means of {len(examples)} sentences on a 0–100 scale: chrF and {target.name} against the references, expected",
        f"{target.name} against all samples (what MBR maximises); wins and losses by chrF against beam search:",
        f"  {'':<15}{'chrF':>6}{target.name[:10]:>10}{'expected':>10}{'calls':>9}{'cost':>7}{'time':>9}  wins/losses",
    ]
    for k, method in enumerate(choice.method for choice in examples[0].choices):
        row = [example.choices[k] for example in examples]
        beams = [example.choices[0] for example in examples]
        full = sum(next(c.cost for c in example.choices if c.method == FULL) for example in examples)
        judged = [(one.chrf or 0.0) - (other.chrf or 0.0) for one, other in zip(row, beams, strict=True)]
        line = f"  {method:<15}{_mean(choice.chrf for choice in row):>6}{_mean(choice.utility for choice in row):>10}"
        line += f"{_mean(100 * choice.expected / target.scale for choice in row):>10}"
        line += f"{sum(sum(choice.calls.values()) for choice in row):>9,}"
        line += f"{sum(choice.cost for choice in row) / full:>7.1%}{sum(choice.seconds for choice in row):>7.1f} s"
        if method != BEAM:
            line += f"  {sum(gain > 0 for gain in judged)}/{sum(gain < 0 for gain in judged)}"
        lines.append(line)
    return "\n".join(lines)


def _mean(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.1f}" if known else "–"


def run(args: argparse.Namespace) -> int:
    """Translate, print the tables, draw the picture."""
    hide_loading_bars(quiet=True)
    start = time.perf_counter()
    if args.reference is not None and args.source is None:
        raise ValueError("--reference belongs to a --source of your own: give both")
    if args.picture:
        check_output(args.picture, "--picture")
    demo = Demo(args.model, args.target, args.distilled, args.candidates, args.seed)
    sentences = [(args.to, args.source, args.reference)]
    if not args.source:
        rows = SENTENCES.read_text(encoding="utf-8").splitlines()
        sentences = [(to, source, reference) for to, source, reference in (row.split("\t") for row in rows)]
    examples = []
    colour = sys.stdout.isatty()
    shown = "in colour" if colour else "in brackets"
    print(f"{args.candidates} samples per sentence by {args.model!r}; {shown}: what differs from beam search\n")
    for to, source, reference in sentences:
        examples.append(demo.translate(source, to, reference))
        print(example_text(examples[-1], demo.target, colour), end="\n\n", flush=True)
    print(summarise(examples, demo.target))
    if args.picture:
        try:
            from .demo_picture import draw_picture
        except ImportError:
            print("no picture: it needs matplotlib (in a copy of the repository: pip install '.[plots]')")
        else:
            draw_picture(examples, demo, args.picture)
            print(f"picture: {args.picture}")
    print(f"{time.perf_counter() - start:.0f} s in all, on {demo.model.device}")
    if args.model == MODEL:
        print(f"The embedded models are small. On real ones:\n  {_REAL}")
    return 0
