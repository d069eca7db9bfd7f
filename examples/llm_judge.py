"""A language model as the utility, to be named: none is in the package. It judges pairs of candidates in both orders.

python examples/llm_judge.py --judge HuggingFaceTB/SmolLM2-1.7B-Instruct
python examples/llm_judge.py --judge HuggingFaceTB/SmolLM2-1.7B-Instruct --question preference
"""

from __future__ import annotations

import argparse

from hf_acpmbr import ACPMBR
from hf_acpmbr.metrics.judge import LLMJudge

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--judge", required=True, help="hub id or folder of a causal model")
parser.add_argument("--question", default="agreement", choices=("agreement", "preference"))
args = parser.parse_args()

source = "Why is the sky blue?"
candidates = [
    "Air scatters blue light more than red light.",
    "Blue light is scattered by air more strongly than red light.",
    "Because the air scatters short waves, which are blue, most.",
    "It reflects the sea.",
    "Monday.",
]
judge = LLMJudge(args.judge, question=args.question)
decision = ACPMBR(target=judge, decoder="mbr").rerank(candidates, source=source, nbest=len(candidates))
for entry in decision.nbest():
    print(f"{entry.expected:8.3f}  {entry.text}")
print(f"{decision.total_calls} pairs judged: {decision.status}")

# The favour of a place in the prompt, which averaging takes away.
first, second = candidates[0], candidates[3]
once = LLMJudge(args.judge, question=args.question, both_orders=False)
print(f"asked once: {once.score([first, second], [second, first], [source] * 2).round(3).tolist()}")
print(f"both orders: {judge.score([first, second], [second, first], [source] * 2).round(3).tolist()}")
