"""Choosing among answers of a language model by their agreement: the utility is a function of two lists of texts.

- Self-consistency (https://arxiv.org/abs/2203.11171): two samples agree if the answers extracted from them are equal.
- MBR-exec (https://arxiv.org/abs/2204.11454): two programs agree if they give the same results for the same inputs.

The texts stand for samples of a model; `ACPMBR(tokenizer, target=...)` in `model.generate` draws them too.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Hashable

from hf_acpmbr import ACPMBR, as_utility

ANSWERS = [
    "Each box has 6 eggs, so 4 boxes have 4 * 6 = 24. Two broke: 24 - 2 = 22",
    "4 + 6 = 10, and two broke, so 10 - 2 = 8",
    "There are 24 eggs. Without the two broken ones it is 24 - 2 = 22",
    "6 + 6 + 6 + 6 - 2 = 22",
    "4 * 6 = 24",
]
PROGRAMS = ["2*x+1", "x+x+1", "2*(x+1)", "1+2*x", "x*x+1", "2*x+"]


def agreement(read: Callable[[str], Hashable | None]) -> Callable[[list[str], list[str]], list[float]]:
    """Make a utility: 1 where `read` finds the same in both texts, else 0; a text in which it finds nothing has 0."""

    def utility(hypotheses: list[str], references: list[str]) -> list[float]:
        pairs = [(read(h), read(r)) for h, r in zip(hypotheses, references, strict=True)]
        return [float(h is not None and h == r) for h, r in pairs]

    return utility


def final_number(text: str) -> str | None:
    """Find the number behind the last equals sign, whatever way led there."""
    found = re.search(r"=\s*(\d+)\s*$", text)
    return found and found[1]


OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def results(program: str) -> tuple[int, ...] | None:
    """Compute a formula for a few x. Only +, -, * of numbers and x are run, because samples are not to be trusted."""

    def run(node: ast.expr, x: int) -> int:
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](run(node.left, x), run(node.right, x))
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name) and node.id == "x":
            return x
        raise ValueError(f"{ast.dump(node)} is not allowed")

    try:
        return tuple(run(ast.parse(program.strip(), mode="eval").body, x) for x in (0, 1, 2, 7))
    except (ValueError, SyntaxError):
        return None


for name, texts, read in (("answers", ANSWERS, final_number), ("programs", PROGRAMS, results)):
    mbr = ACPMBR(target=as_utility(agreement(read), name=name, scale=1.0, symmetric=True), decoder="mbr")
    decision = mbr.rerank(texts)
    print(f"{name}: {decision.text} (agrees with {decision.expected[decision.index]:.0%} of them)")
