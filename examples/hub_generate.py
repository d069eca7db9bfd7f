"""The same from a repository in the Hub's form: `custom_generate="<folder or hub id>", trust_remote_code=True`.

python examples/hub_generate.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_acpmbr.embedded import load_translator

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="embedded", help="hub id or folder; default: the embedded translator")
parser.add_argument("--target", default="embedded", help="utility that decides; default: the embedded one")
parser.add_argument("--repository", default=str(Path(__file__).parent / "hub_folder"), help="hub id or folder")
parser.add_argument("--num-candidates", type=int, default=128)
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

ids = model.generate(
    **tokenizer(["The cat sleeps on the sofa."], return_tensors="pt"),
    **language,
    max_new_tokens=args.max_new_tokens,
    tokenizer=tokenizer,
    custom_generate=args.repository,
    trust_remote_code=True,
    target=args.target,
    mbr_settings={"num_candidates": args.num_candidates},
)
print(tokenizer.decode(ids[0], skip_special_tokens=True))
