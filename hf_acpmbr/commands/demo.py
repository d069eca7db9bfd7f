"""`acpmbr demo`: the embedded models at work, and what AC-PMBR saves."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..candidates import Candidates, FloatArray
from ..decoding import Decision
from ..mbr import ACPMBR
from ..utilities import Utility, load_utility
from ._resumable import hide_loading_bars

SENTENCES: dict[str, tuple[str, ...]] = {
    "de": (
        "The children were playing in the garden when it began to rain.",
        "I would like to buy two tickets to Berlin, please.",
        "My sister forgot her new umbrella on the train.",
        "Could you tell me how to get to the station?",
        "We have been waiting for you for more than two hours.",
        "He was so tired that he fell asleep in front of the television.",
    ),
    "en": (
        "Morgen fahren wir mit dem ersten Zug nach Hamburg.",
        "Mein Nachbar hat mir ein interessantes Buch geschenkt.",
        "Warum hast du gestern nicht auf meinen Brief geantwortet?",
        "Das Wetter war so schlecht, dass wir den ganzen Tag zu Hause blieben.",
        "Meine Mutter kocht jeden Sonntag für die ganze Familie.",
        "Ich weiß nicht, ob er die Wahrheit über seine Arbeit sagt.",
    ),
}
OTHER_LANGUAGE = {"de": "en", "en": "de"}
TARGET, DISTILLED = "embedded", "embedded-d1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the demo."""
    parser.add_argument("--source", help="your own sentence instead of the built-in ones")
    parser.add_argument("--to", choices=("de", "en"), default="de", help="language to translate --source into")
    parser.add_argument("--target", default=TARGET, help=f"utility that decides (default {TARGET})")
    parser.add_argument("--distilled", default=DISTILLED, help=f"cheaper utility that guides it (default {DISTILLED})")
    parser.add_argument("--candidates", type=int, default=40, help="samples per sentence (default 40)")
    parser.add_argument("--recipe", choices=("fast", "thorough"), default="fast", help="default fast")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", default="acpmbr_demo.png", help="file of the picture; '' for none")


@dataclass(frozen=True)
class Choice:
    """What one method chose; `expected` is the true expected utility, `error` the completed matrix's squared error."""

    method: str
    text: str
    expected: float
    calls: dict[str, int]
    seconds: float
    cost: float
    error: float | None


@dataclass(frozen=True)
class Example:
    """One sentence: its candidates, all target scores, and the choices and decisions of the methods."""

    source: str
    to: str
    candidates: Candidates
    truth: FloatArray
    choices: tuple[Choice, ...]
    decisions: dict[str, Decision]
    sampling_seconds: float


class Demo:
    """The embedded translator with MAP, MBR, PMBR and AC-PMBR, the latter with a balanced mask and in rounds.

    Args:
        target, distilled: names of the two utilities.
        candidates: samples per sentence.
        recipe: "fast" or "thorough".
        seed: same seed, same samples and pairs.
    """

    def __init__(self, target: str, distilled: str, candidates: int, recipe: str, seed: int) -> None:
        from ..models import load_model

        self.model, self.tokenizer, _ = load_model("embedded", device="cpu")
        self.target: Utility = load_utility(target)
        self.distilled: Utility = load_utility(distilled)
        common: dict[str, Any] = {"target": self.target, "num_candidates": candidates, "recipe": recipe, "seed": seed}
        guided = {**common, "distilled": self.distilled}
        self.methods = {
            "MBR": ACPMBR(self.tokenizer, decoder="mbr", **common),
            "PMBR": ACPMBR(self.tokenizer, **common),
            # Equal shares for all rows complete the matrix best, rounds (the default) choose best.
            "AC-PMBR": ACPMBR(self.tokenizer, observation="balanced", **guided),
            "AC-PMBR, rounds": ACPMBR(self.tokenizer, **guided),
        }

    def translate(self, source: str, to: str) -> Example:
        """All methods on one sentence, over the same samples."""
        from ..models import set_languages

        limits = set_languages(self.tokenizer, OTHER_LANGUAGE[to], to)
        inputs = self.tokenizer(source, return_tensors="pt")
        limits["max_new_tokens"] = 2 * inputs["input_ids"].shape[1] + 10
        start = time.perf_counter()
        found = self.model.generate(**inputs, num_beams=5, do_sample=False, **limits)
        beam_seconds = time.perf_counter() - start
        output: Any = self.model.generate(
            **inputs, custom_generate=self.methods["MBR"], return_dict_in_generate=True, **limits
        )
        pool: Candidates = output.candidates[0]
        exact: Decision = output.decisions[0]
        truth = exact.matrix
        assert truth is not None
        beam = self.tokenizer.batch_decode(found, skip_special_tokens=True)[0]
        sources = [source] * len(pool)
        worth = float(self.target.score([beam] * len(pool), pool.texts, sources) @ pool.weights)
        decisions = {"MBR": exact} | {
            name: decide(method, pool, source, truth) for name, method in self.methods.items() if name != "MBR"
        }
        choices = [Choice("MAP (beam 5)", beam, worth, {}, beam_seconds, 0.0, None)]
        choices += [self._choice(name, decision, exact) for name, decision in decisions.items()]
        return Example(source, to, pool, truth, tuple(choices), decisions, float(output.seconds["sampling"]))

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

    def cost(self, calls: Any) -> float:
        """Calls weighted by parameters (metrics without parameters count as one another)."""
        sizes = {utility.name: max(utility.parameters, 1) for utility in (self.target, self.distilled)}
        return float(sum(sizes[name] * count for name, count in calls.items()))


def decide(method: ACPMBR, pool: Candidates, source: str, truth: FloatArray) -> Decision:
    """The method's decision, with the completed matrix and its error against all true scores."""
    return method.decoder.decode(
        pool, target=method.target, guides=method.guides, source=source, seed=method.recipe.seed, full_matrix=truth
    )


def describe(example: Example, target: Utility) -> str:
    """The table of one sentence."""
    n = len(example.candidates)
    lines = [
        f"{OTHER_LANGUAGE[example.to]}→{example.to}  {example.source}",
        f"       {n} different of {example.candidates.total} samples, drawn in {example.sampling_seconds:.2f} s",
    ]
    full = next(choice.cost for choice in example.choices if choice.method == "MBR")
    width = max(len(choice.text) for choice in example.choices)
    for choice in example.choices:
        calls = " + ".join(f"{count:,} {name}" for name, count in choice.calls.items()) or "no"
        line = f"  {choice.method:<16}{choice.text:<{width}}  {_percent(choice.expected, target)}"
        line += f"  {choice.seconds:6.2f} s  {calls} calls"
        if choice.error is not None:
            line += f", {1 - choice.cost / full:.0%} saved, MSE {choice.error:.1f}"
        lines.append(line)
    return "\n".join(lines)


def summarise(examples: Sequence[Example], target: Utility) -> str:
    """Averages over all sentences."""
    lines = [
        f"Over {len(examples)} sentences (expected {target.name} of the choice on a 0–100 scale, as all pairs tell it):"
    ]
    for k, method in enumerate(choice.method for choice in examples[0].choices):
        row = [example.choices[k] for example in examples]
        full = [next(c for c in example.choices if c.method == "MBR") for example in examples]
        line = f"  {method:<16}{_percent(float(np.mean([c.expected for c in row])), target)}"
        line += f"  {sum(c.seconds for c in row):6.2f} s  {sum(sum(c.calls.values()) for c in row):7,} calls"
        errors = [c.error for c in row if c.error is not None]
        if errors:
            saved = 1 - sum(c.cost for c in row) / sum(c.cost for c in full)
            same = sum(c.text == other.text for c, other in zip(row, full, strict=True))
            line += f", {saved:.0%} of the cost saved, MSE {np.mean(errors):.1f}, MBR's choice {same} times"
        lines.append(line)
    return "\n".join(lines)


def _percent(value: float, target: Utility) -> str:
    return f"{100 * value / target.scale:5.1f}"


def run(args: argparse.Namespace) -> int:
    """Translate, print the tables, draw the picture."""
    hide_loading_bars(quiet=True)
    start = time.perf_counter()
    demo = Demo(args.target, args.distilled, args.candidates, args.recipe, args.seed)
    built_in = [(text, to) for to, texts in SENTENCES.items() for text in texts]
    examples = []
    for text, to in [(args.source, args.to)] if args.source else built_in:
        examples.append(demo.translate(text, to))
        print(describe(examples[-1], demo.target), end="\n\n", flush=True)
    if len(examples) > 1:
        print(summarise(examples, demo.target))
    if args.picture:
        try:
            from ._demo_picture import draw
        except ImportError:
            print("no picture: it needs matplotlib (pip install 'hf-acpmbr[demo]')")
        else:
            draw(examples, demo, args.picture)
            print(f"picture: {args.picture}")
    print(f"{time.perf_counter() - start:.0f} s in all")
    return 0
