"""The drop-in: any encoder-decoder model, one more argument to `model.generate`.

    python examples/drop_in_generate.py
    python examples/drop_in_generate.py --model facebook/m2m100_418M --source-language en --target-language de \\
        --target bleurt-20 --distilled bleurt-20-d3
"""

from __future__ import annotations

import argparse

from hf_acpmbr import ACPMBR
from hf_acpmbr.generation.models import load_model

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="embedded", help="hub id or folder; default: the embedded translator, en→de")
parser.add_argument("--source-language", help="for multilingual models, in their own spelling")
parser.add_argument("--target-language", help="the same")
parser.add_argument("--target", default="embedded", help="utility that decides; default: the embedded one")
parser.add_argument("--distilled", action="append", default=[], help="cheaper utility that guides it")
parser.add_argument("--num-candidates", type=int, default=256)
parser.add_argument("--max-new-tokens", type=int, default=64)
args = parser.parse_args()

model, tokenizer, language = load_model(
    args.model, source_language=args.source_language, target_language=args.target_language
)

sources = ["The cat sleeps on the sofa.", "Where is the station?", "I have never seen this film."]
inputs = tokenizer(sources, return_tensors="pt", padding=True).to(model.device)
guides = args.distilled or (["auto"] if args.target == "embedded" else [])  # "auto": the one known for the target
mbr = ACPMBR(tokenizer, target=args.target, distilled=guides, num_candidates=args.num_candidates)

# As any other call of generate: token ids come back.
ids = model.generate(**inputs, **language, max_new_tokens=args.max_new_tokens, custom_generate=mbr)
for source, text in zip(sources, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
    print(f"{source} → {text}")

# Or with all details.
out = model.generate(
    **inputs, **language, max_new_tokens=args.max_new_tokens, custom_generate=mbr, return_dict_in_generate=True
)
for decision in out.decisions:
    print(decision.summary())
    for entry in decision.nbest(3):
        print(f"  {entry.expected:8.3f}  drawn {entry.count:4d} times  {entry.text}")
print(f"{out.model_rows:,} decoder rows; calls {dict(out.calls)}")
