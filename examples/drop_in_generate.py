"""The drop-in: any encoder-decoder model, one more argument to `model.generate`.

python examples/drop_in_generate.py
python examples/drop_in_generate.py --model facebook/m2m100_418M --target bleurt-20 --distilled bleurt-20-d3
"""

from __future__ import annotations

import argparse

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_acpmbr import ACPMBR
from hf_acpmbr.embedded import load_translator

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="embedded", help="hub id or folder; default: the embedded translator")
parser.add_argument("--target", default="embedded", help="utility that decides; default: the embedded one")
parser.add_argument("--distilled", action="append", default=[], help="cheaper utility that guides it")
parser.add_argument("--num-candidates", type=int, default=256)
parser.add_argument("--max-new-tokens", type=int, default=64)
args = parser.parse_args()

if args.model == "embedded":
    model, tokenizer = load_translator()
else:
    model = AutoModelForSeq2SeqLM.from_pretrained(args.model)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
language = {}
if hasattr(tokenizer, "get_lang_id"):  # M2M100: languages are tokens
    tokenizer.src_lang = "en"
    language = {"forced_bos_token_id": tokenizer.get_lang_id("de")}

sources = ["The cat sleeps on the sofa.", "Where is the station?", "I have never seen this film."]
inputs = tokenizer(sources, return_tensors="pt", padding=True)
guides = args.distilled or (["auto"] if args.target == "embedded" else [])  # "auto": the one known for the target
mbr = ACPMBR(tokenizer, target=args.target, distilled=guides, num_candidates=args.num_candidates)

# As any other call of generate: token ids come back.
ids = model.generate(**inputs, **language, max_new_tokens=args.max_new_tokens, custom_generate=mbr)
for source, text in zip(sources, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
    print(f"{source} → {text}")

# Or with everything there is to know.
out = model.generate(
    **inputs, **language, max_new_tokens=args.max_new_tokens, custom_generate=mbr, return_dict_in_generate=True
)
for decision in out.decisions:
    print(decision.summary())
    for entry in decision.nbest(3):
        print(f"  {entry.expected:8.3f}  drawn {entry.count:4d} times  {entry.text}")
print(f"{out.model_rows:,} decoder rows; calls {dict(out.calls)}")
