"""A corpus: `Dataset.map` adds the chosen text and its expected utility, and the result goes to a parquet file.

The rows are the same for any number of processes and any batch size.

    python examples/map_corpus.py --output translated.parquet --num-proc 2
"""

from __future__ import annotations

import argparse

from datasets import Dataset, load_dataset

from hf_acpmbr import ACPMBR
from hf_acpmbr.generation.models import load_model

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="embedded", help="hub id or folder; default: the embedded translator, en→de")
parser.add_argument("--source-language", help="for multilingual models, in their own spelling")
parser.add_argument("--target-language", help="the same")
parser.add_argument("--target", default="embedded", help="utility that decides; default: the embedded one")
parser.add_argument("--distilled", action="append", default=[], help="cheaper utility that guides it")
parser.add_argument("--input", help="text file, one source per line; default: a few sentences")
parser.add_argument("--output", default="translated.parquet")
parser.add_argument("--num-candidates", type=int, default=128)
parser.add_argument("--max-new-tokens", type=int, default=64)
parser.add_argument("--num-proc", type=int, default=1)
args = parser.parse_args()

model, tokenizer, language = load_model(
    args.model,
    device="cpu" if args.num_proc > 1 else None,  # a GPU does not survive the fork into several processes
    source_language=args.source_language,
    target_language=args.target_language,
)

if args.input:
    data = load_dataset("text", data_files=args.input, split="train").rename_column("text", "source")
else:
    data = Dataset.from_dict({"source": ["Good morning!", "Tom is reading a book.", "It is raining.", "See you soon."]})

guides = args.distilled or (["auto"] if args.target == "embedded" else [])  # "auto": the one known for the target
mbr = ACPMBR(tokenizer, target=args.target, distilled=guides, num_candidates=args.num_candidates)
translate = mbr.map_fn(model, nbest=3, generate={"max_new_tokens": args.max_new_tokens, **language})
data = data.map(translate, batched=True, batch_size=4, num_proc=args.num_proc if args.num_proc > 1 else None)
data.to_parquet(args.output)
for row in data:
    print(f"{row['source']} → {row['prediction']} ({row['prediction_utility']:.2f})")
