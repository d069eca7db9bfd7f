"""A language model as the utility, to be named: none is in the package. It judges pairs of candidates in both orders.

The probabilities of its answers are the score (Wu et al. 2024, https://arxiv.org/abs/2410.02902). Models favour a place
in the prompt, so both orders are asked and averaged.

python examples/llm_judge.py --judge HuggingFaceTB/SmolLM2-1.7B-Instruct
python examples/llm_judge.py --judge HuggingFaceTB/SmolLM2-1.7B-Instruct --question preference
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_acpmbr import ACPMBR, as_utility

TASK = "{source}\n\nFirst answer:\n{first}\n\nSecond answer:\n{second}\n\n"
# What is asked, and the value of each answer: of a preference, how far the first text is better.
QUESTIONS = {
    "agreement": (
        TASK + "How well do the two answers agree in meaning? Reply with one digit from 1 (they contradict each "
        "other) to 5 (they say the same).",
        {"1": 0.0, "2": 0.25, "3": 0.5, "4": 0.75, "5": 1.0},
    ),
    "preference": (
        TASK + "Which of the two answers is better? Reply with one letter: A for the first, B for the second.",
        {"A": 1.0, "B": 0.0},
    ),
}
BATCH = 8  # questions in a forward pass
LEAST_SHARE = 0.5  # below this probability of all answers together, a judge mostly says something else


class Judge:
    """A metric for `as_utility`: the mean value of a causal model's answers about a hypothesis and a reference.

    Args:
        checkpoint: hub id or folder of a causal model with its tokenizer.
        question: "agreement" asks how well the two agree; "preference" asks which is better, so that the expected
            utility is the share of the pool that a candidate beats.
        both_orders: ask with either text first and average; False asks once, with the hypothesis first.
        prompt, answers: your own instead of the question's; the first tokens of the answers must differ.
    """

    higher_is_better, scale, version = True, 1.0, "1"

    def __init__(self, checkpoint, question="agreement", both_orders=True, prompt=None, answers=None):
        self.prompt, self.answers = prompt or QUESTIONS[question][0], answers or QUESTIONS[question][1]
        self.question, self.both_orders = question, both_orders
        self.symmetric = both_orders and question == "agreement"
        self.name = f"judge-{question}"
        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint, padding_side="left")
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        self.device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint).to(self.device).eval()
        self.parameters = self.model.num_parameters() * (2 if both_orders else 1)
        self.tokens, self.values = self.answer_tokens()
        self.warned = False

    def score(self, hypotheses, references, sources=None):
        """Return one number per pair, as `as_utility` wants it."""
        asked = self.asked_once(hypotheses, references, sources)
        if not self.both_orders:
            return asked
        swapped = self.asked_once(references, hypotheses, sources)
        return (asked + (1 - swapped if self.question == "preference" else swapped)) / 2

    def asked_once(self, first, second, sources):
        """Return the mean values of the answers, their probabilities renormalised among them."""
        prompts = [self.ask(*texts) for texts in zip(sources or [""] * len(first), first, second, strict=True)]
        means, shares = [], []
        for start in range(0, len(prompts), BATCH):
            batch = self.tokenizer.pad({"input_ids": prompts[start : start + BATCH]}, return_tensors="pt")
            with torch.inference_mode():
                logits = self.model(**batch.to(self.device), logits_to_keep=1).logits[:, -1].double().cpu()
            answers = logits[:, self.tokens]
            means.append(answers.softmax(-1) @ self.values)
            shares.append((answers.logsumexp(-1) - logits.logsumexp(-1)).exp())
        share = float(torch.cat(shares).mean())
        if share < LEAST_SHARE and not self.warned:
            self.warned = True
            said = f"the judge gives its answers ({', '.join(self.answers)}) only {share:.1%} of the probability"
            warnings.warn(f"{said}, so it mostly says something else: choose another model", stacklevel=2)
        return torch.cat(means).numpy()

    def ask(self, source, first, second):
        """Return the token ids of one question, in the tokenizer's chat template if it has one."""
        asked = self.prompt.format(source=source, first=first, second=second).strip()
        if self.tokenizer.chat_template is None:
            return self.tokenizer(asked + "\nAnswer:")["input_ids"]
        turn = [{"role": "user", "content": asked}]
        text = self.tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def answer_tokens(self):
        """Return the tokens that an answer can begin with, and the value of the answer that each belongs to."""
        owners = {}
        for answer in self.answers:
            for spelled in (answer, f" {answer}"):
                token = self.tokenizer(spelled, add_special_tokens=False)["input_ids"][:1]
                if token and token[0] != self.tokenizer.unk_token_id:
                    owners.setdefault(token[0], set()).add(answer)
        own = {token: answers.pop() for token, answers in owners.items() if len(answers) == 1}
        if silent := [answer for answer in self.answers if answer not in own.values()]:
            raise ValueError(f"answers {silent} have no first token of their own: choose others of the vocabulary")
        return list(own), torch.tensor([self.answers[answer] for answer in own.values()], dtype=torch.float64)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge", required=True, help="hub id or folder of a causal model")
    parser.add_argument("--question", default="agreement", choices=QUESTIONS)
    args = parser.parse_args()

    source = "Why is the sky blue?"
    candidates = [
        "Air scatters blue light more than red light.",
        "Blue light is scattered by air more strongly than red light.",
        "Because the air scatters short waves, which are blue, most.",
        "It reflects the sea.",
        "Monday.",
    ]
    judge = as_utility(Judge(args.judge, args.question))
    decision = ACPMBR(target=judge, decoder="mbr").rerank(candidates, source=source, nbest=len(candidates))
    for entry in decision.nbest():
        print(f"{entry.expected:8.3f}  {entry.text}")
    print(f"{decision.total_calls} pairs judged: {decision.status}")

    # The favour of a place in the prompt, which averaging takes away.
    first, second = candidates[0], candidates[3]
    once = Judge(args.judge, args.question, both_orders=False)
    print(f"asked once: {np.round(once.score([first, second], [second, first], [source] * 2), 3).tolist()}")
    print(f"both orders: {judge.score([first, second], [second, first], [source] * 2).round(3).tolist()}")
