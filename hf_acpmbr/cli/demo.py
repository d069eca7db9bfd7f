"""`acpmbr demo`: beam search, full MBR and the default on the same sentences, judged by references, and their cost."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..candidates import Candidates, FloatArray
from ..decoding import Decision
from ..differences import pieces
from ..generation.models import hide_loading_bars
from ..mbr import ACPMBR
from ..scoring import Utility, load_utility
from .demo_sentences import SENTENCES

OTHER_LANGUAGE = {"de": "en", "en": "de"}
MODEL, TARGET, DISTILLED = "embedded", "embedded", "embedded-d1"
BEAM = "beam search"
FULL, DEFAULT, FAST = "full MBR", "default", 'recipe "fast"'
_REAL = "acpmbr demo --model facebook/m2m100_418M --target bleurt-20 --distilled bleurt-20-d3"
_YELLOW, _PLAIN = "\033[33m", "\033[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the demo."""
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
class Choice:
    """What one method chose.

    Args:
        expected: the true expected utility of the choice.
        error: the completed matrix's squared error.
        chrf, utility: of the choice against the reference, where there is one, on a 0–100 scale.
    """

    method: str
    text: str
    expected: float
    calls: dict[str, int]
    seconds: float
    cost: float
    error: float | None
    chrf: float | None = None
    utility: float | None = None


@dataclass(frozen=True)
class Example:
    """One sentence: its candidates, all target scores, and the choices and decisions of the methods."""

    source: str
    reference: str | None
    to: str
    candidates: Candidates
    truth: FloatArray
    choices: tuple[Choice, ...]
    decisions: dict[str, Decision]
    sampling_seconds: float


class Demo:
    """A translator with beam search, full MBR, the default, and "fast"; `completing` has two ways for the picture.

    Args:
        model: name for `load_model`.
        target, distilled: names of the two utilities.
        candidates: samples per sentence.
        seed: same seed, same samples and pairs.
    """

    def __init__(self, model: str, target: str, distilled: str, candidates: int, seed: int) -> None:
        from ..generation.models import load_model

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
        """All methods on one sentence, over the same samples."""
        from ..generation.models import set_languages

        limits = set_languages(self.tokenizer, OTHER_LANGUAGE[to], to)
        inputs = self.tokenizer(source, return_tensors="pt").to(self.model.device)
        limits["max_new_tokens"] = 2 * inputs["input_ids"].shape[1] + 10
        start = time.perf_counter()
        found = self.model.generate(**inputs, num_beams=5, do_sample=False, **limits)
        beam_seconds = time.perf_counter() - start
        output = self.model.generate(
            **inputs, custom_generate=self.methods[FULL], return_dict_in_generate=True, **limits
        )
        pool: Candidates = output.candidates[0]
        exact: Decision = output.decisions[0]
        truth = exact.matrix
        assert truth is not None
        beam = self.tokenizer.batch_decode(found, skip_special_tokens=True)[0]
        sources = [source] * len(pool)
        worth = float(self.target.score([beam] * len(pool), pool.texts, sources) @ pool.weights)
        decisions = {FULL: exact} | {
            name: decide(method, pool, source, truth) for name, method in self.methods.items() if name != FULL
        }
        choices = [Choice(BEAM, beam, worth, {}, beam_seconds, 0.0, None)]
        choices += [self._choice(name, decision, exact) for name, decision in decisions.items()]
        if reference is not None:
            choices = self._judged(choices, reference, source)
        drawing = float(output.seconds["sampling"])
        return Example(source, reference, to, pool, truth, tuple(choices), decisions, drawing)

    def _judged(self, choices: Sequence[Choice], reference: str, source: str) -> list[Choice]:
        """The choices with their scores against the reference."""
        texts, references = [choice.text for choice in choices], [reference] * len(choices)
        chrf = self.chrf.score(texts, references) * (100 / self.chrf.scale)
        utility = self.target.score(texts, references, [source] * len(texts)) * (100 / self.target.scale)
        return [
            replace(choice, chrf=float(one), utility=float(other))
            for choice, one, other in zip(choices, chrf, utility, strict=True)
        ]

    def _choice(self, name: str, decision: Decision, exact: Decision) -> Choice:
        return Choice(
            name,
            decision.text,
            float(exact.expected[decision.index]),
            dict(decision.calls),
            sum(decision.seconds.values()),
            self.cost(decision.calls),
            decision.completion_error,
        )

    def cost(self, calls: Mapping[str, int]) -> float:
        """Calls weighted by parameters (metrics without parameters count as one another)."""
        sizes = {utility.name: max(utility.parameters, 1) for utility in (self.target, self.distilled)}
        return float(sum(sizes[name] * count for name, count in calls.items()))


def decide(method: ACPMBR, pool: Candidates, source: str, truth: FloatArray) -> Decision:
    """The method's decision, with the completed matrix and its error against all true scores."""
    return method.decoder.decode(
        pool, target=method.target, guides=method.guides, source=source, seed=method.recipe.seed, full_matrix=truth
    )


def marked(text: str, other: str, colour: bool) -> str:
    """The text with what differs from the other one in yellow, or in brackets where there are no colours."""
    before, after = (_YELLOW, _PLAIN) if colour else ("[", "]")
    return "".join(f"{before}{piece.text}{after}" if piece.differs else piece.text for piece in pieces(text, other))


def describe(example: Example, target: Utility, colour: bool = False) -> str:
    """One sentence: what beam search, full MBR and the default chose, what differs, how good it is, what it cost."""
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
    """All methods over all sentences: quality against the references, calls and cost, and how often beam was better."""
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
    demo = Demo(args.model, args.target, args.distilled, args.candidates, args.seed)
    built_in = [(source, to, reference) for to, pairs in SENTENCES.items() for source, reference in pairs]
    examples = []
    colour = sys.stdout.isatty()
    shown = "in colour" if colour else "in brackets"
    print(f"{args.candidates} samples per sentence by {args.model!r}; {shown}: what differs from beam search\n")
    for source, to, reference in [(args.source, args.to, args.reference)] if args.source else built_in:
        examples.append(demo.translate(source, to, reference))
        print(describe(examples[-1], demo.target, colour), end="\n\n", flush=True)
    print(summarise(examples, demo.target))
    if args.picture:
        try:
            from .demo_picture import draw
        except ImportError:
            print("no picture: it needs matplotlib (pip install 'hf-acpmbr[plots]')")
        else:
            draw(examples, demo, args.picture)
            print(f"picture: {args.picture}")
    print(f"{time.perf_counter() - start:.0f} s in all, on {demo.model.device}")
    if args.model == MODEL:
        print(f"The embedded models are small. On real ones:\n  {_REAL}")
    return 0
