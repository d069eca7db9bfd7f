"""Candidates from anywhere (another engine, an API, a file): choose among strings, without a model.

python examples/rerank_strings.py
python examples/rerank_strings.py --target bleurt-20 --distilled bleurt-20-d3
"""

from __future__ import annotations

import argparse

from hf_acpmbr import ACPMBR

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--target", default="embedded", help="utility that decides; default: the embedded one")
parser.add_argument("--distilled", action="append", default=[], help="cheaper utility that guides it")
args = parser.parse_args()

guides = args.distilled or (["auto"] if args.target == "embedded" else [])  # "auto": the one known for the target
mbr = ACPMBR(target=args.target, distilled=guides)
candidates = [
    "Die Katze schläft auf dem Sofa.",
    "Die Katze schläft auf dem Sofa.",  # drawn twice: counts twice
    "Die Katze liegt auf dem Sofa.",
    "Eine Katze schläft auf der Couch.",
    "Das Sofa schläft.",
]
decision = mbr.rerank(candidates, source="The cat sleeps on the sofa.", nbest=3)
print(decision.summary())
for entry in decision.nbest():
    print(f"{entry.expected:8.3f}  {entry.text}")
print(decision.signature)
