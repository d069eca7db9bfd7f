"""MBR from a repository in the Hub's form; needs transformers 5.17: `custom_generate="<folder or hub id>"`.

python examples/hub_generate.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hf_acpmbr.generation.models import load_model

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="embedded", help="hub id or folder; default: the embedded translator, en→de")
parser.add_argument("--source-language", help="for multilingual models, in their own spelling")
parser.add_argument("--target-language", help="the same")
parser.add_argument("--target", default="embedded", help="utility that decides; default: the embedded one")
parser.add_argument("--repository", default=str(Path(__file__).parent / "hub_folder"), help="hub id or folder")
parser.add_argument("--num-candidates", type=int, default=128)
parser.add_argument("--max-new-tokens", type=int, default=64)
args = parser.parse_args()

model, tokenizer, language = load_model(
    args.model, source_language=args.source_language, target_language=args.target_language
)

ids = model.generate(
    **tokenizer(["The cat sleeps on the sofa."], return_tensors="pt").to(model.device),
    **language,
    max_new_tokens=args.max_new_tokens,
    tokenizer=tokenizer,
    custom_generate=args.repository,
    trust_remote_code=True,
    target=args.target,
    mbr_settings={"num_candidates": args.num_candidates},
)
print(tokenizer.decode(ids[0], skip_special_tokens=True))
