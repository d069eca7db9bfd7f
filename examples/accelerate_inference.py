"""Several processes or GPUs; needs accelerate. Each translates its share, the main process gathers them in order.

python examples/accelerate_inference.py
accelerate launch --multi_gpu --num_processes 2 examples/accelerate_inference.py
"""

from __future__ import annotations

import argparse

from accelerate import Accelerator
from accelerate.utils import gather_object

from hf_acpmbr import ACPMBR
from hf_acpmbr.generation.models import load_model

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="embedded", help="hub id or folder; default: the embedded translator, en→de")
parser.add_argument("--source-language", help="for multilingual models, in their own spelling")
parser.add_argument("--target-language", help="the same")
parser.add_argument("--target", default="embedded", help="utility that decides; default: the embedded one")
parser.add_argument("--distilled", action="append", default=[], help="cheaper utility that guides it")
parser.add_argument("--num-candidates", type=int, default=128)
parser.add_argument("--max-new-tokens", type=int, default=64)
parser.add_argument("--batch-size", type=int, default=2)
parser.add_argument("--cpu", action="store_true", help="do not use GPUs")
args = parser.parse_args()

accelerator = Accelerator(cpu=args.cpu)
model, tokenizer, language = load_model(
    args.model,
    device=str(accelerator.device),
    source_language=args.source_language,
    target_language=args.target_language,
)

guides = args.distilled or (["auto"] if args.target == "embedded" else [])  # "auto": the one known for the target
mbr = ACPMBR(tokenizer, target=args.target, distilled=guides, num_candidates=args.num_candidates)
sources = ["Good morning!", "Tom is reading a book.", "It is raining.", "See you soon.", "Where do you live?"]
with accelerator.split_between_processes(sources) as mine:
    texts = []
    for start in range(0, len(mine), args.batch_size):
        inputs = tokenizer(mine[start : start + args.batch_size], return_tensors="pt", padding=True)
        ids = model.generate(
            **inputs.to(accelerator.device), **language, max_new_tokens=args.max_new_tokens, custom_generate=mbr
        )
        texts += tokenizer.batch_decode(ids, skip_special_tokens=True)
texts = gather_object(texts)  # in the order of the sources
if accelerator.is_main_process:
    for source, text in zip(sources, texts, strict=True):
        print(f"{source} → {text}")
accelerator.end_training()
