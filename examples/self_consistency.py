"""Agreement as the utility, for answers that are right or wrong: a plain function of two lists is all it takes.

- Self-consistency (https://arxiv.org/abs/2203.11171): two samples agree if the answers extracted from them are equal.
- MBR-exec (https://arxiv.org/abs/2204.11454): two programs agree if they give the same results on the same inputs.

The model is a tiny one, trained here in less than a minute to add and to write formulas; it is often wrong:

    python examples/self_consistency.py
"""

from __future__ import annotations

import argparse
import ast
import operator
import random
import re
import string
from collections.abc import Callable, Hashable

import tokenizers
import torch
import transformers

from hf_acpmbr import ACPMBR, Candidates, as_utility
from hf_acpmbr.generation.corpus import decide_texts

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=250, help="training steps of the tiny model")
parser.add_argument("--num-candidates", type=int, default=64)
parser.add_argument("--questions", type=int, default=40, help="of each kind")
args = parser.parse_args()


# ---- the two utilities ----------------------------------------------------------------------------------------------
def agreement(read: Callable[[str], Hashable | None]) -> Callable[[list[str], list[str]], list[float]]:
    """1 where `read` makes the same of both texts, else 0; a text that it makes nothing of agrees with none."""

    def utility(hypotheses: list[str], references: list[str]) -> list[float]:
        pairs = [(read(h), read(r)) for h, r in zip(hypotheses, references, strict=True)]
        return [float(h is not None and h == r) for h, r in pairs]

    return utility


def final_number(text: str) -> str | None:
    """The number behind the last equals sign: the answer, whatever way led there."""
    found = re.search(r"=\s*(\d+)\s*$", text)
    return found and found[1]


_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def results(program: str) -> tuple[int, ...] | None:
    """What a formula of x gives for a few inputs. Only +, -, * on numbers and x are run: samples are not trusted."""

    def run(node: ast.expr, x: int) -> int:
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](run(node.left, x), run(node.right, x))
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name) and node.id == "x":
            return x
        raise ValueError(f"{ast.dump(node)} is not allowed")

    try:
        return tuple(run(ast.parse(program.strip(), mode="eval").body, x) for x in (0, 1, 2, 7))
    except (ValueError, SyntaxError):
        return None


# ---- the tiny model -------------------------------------------------------------------------------------------------
def sum_question(dice: random.Random) -> tuple[str, str]:
    a, b = dice.randrange(20), dice.randrange(20)
    return f"sum {a} {b}: ", dice.choice([f"{a}+{b}={a + b}", f"{b}+{a}={a + b}", f"{a + b}={a + b}"])


def formula_question(dice: random.Random) -> tuple[str, str]:
    k, c = dice.randrange(2, 4), dice.randrange(10)
    times = dice.choice([f"{k}*x", f"x*{k}", "+".join(["x"] * k)])
    return f"{k} times x plus {c}: ", dice.choice([f"{times}+{c}", f"{c}+{times}"])


characters = ["<pad>", "<s>", "</s>", *string.ascii_lowercase, *string.digits, *" :+*="]
core = tokenizers.Tokenizer(tokenizers.models.WordLevel({c: k for k, c in enumerate(characters)}, unk_token="<pad>"))
core.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
core.decoder = tokenizers.decoders.Fuse()
tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>", padding_side="left"
)
torch.manual_seed(0)
model = transformers.LlamaForCausalLM(
    transformers.LlamaConfig(
        vocab_size=len(characters),
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
)
dice = random.Random(0)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(args.steps):
    lines = [sum_question(dice) if k % 2 else formula_question(dice) for k in range(64)]
    batch = tokenizer([f"{q}{a}</s>" for q, a in lines], return_tensors="pt", padding=True, padding_side="right")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    loss = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
print(f"trained {args.steps} steps, loss {loss.item():.2f}")


# ---- single samples, the most frequent string, and agreement of what the strings mean --------------------------------
def right(read: Callable[[str], Hashable | None], text: str, truth: str) -> bool:
    return read(text) is not None and read(text) == read(truth)


for name, ask, read in (("sums", sum_question, final_number), ("formulas", formula_question, results)):
    questions = [ask(dice) for _ in range(args.questions)]
    target = as_utility(agreement(read), name=name, scale=1.0, symmetric=True)
    mbr = ACPMBR(tokenizer, target=target, decoder="mbr", num_candidates=args.num_candidates, epsilon=0.0)
    decided = decide_texts(mbr, model, [q for q, _ in questions], generate={"max_new_tokens": 12})
    sampled = frequent = agreed = 0.0
    for decision, (_, truth) in zip(decided.decisions, questions, strict=True):
        assert decision is not None
        pool: Candidates = decision.candidates
        sampled += sum(w for text, w in zip(pool.texts, pool.weights, strict=True) if right(read, text, truth))
        frequent += right(read, pool.texts[int(pool.counts.argmax())], truth)
        agreed += right(read, decision.text, truth)
    shown = [f"{100 * value / len(questions):.0f} %" for value in (sampled, frequent, agreed)]
    print(
        f"{name}: right are {shown[0]} of the samples, {shown[1]} of the most frequent strings, {shown[2]} by agreement"
    )
    example = next(d for d in decided.decisions if d is not None)
    print(f"  {questions[0][0]}→ {example.text} (agreement {example.expected[example.index]:.2f})")
