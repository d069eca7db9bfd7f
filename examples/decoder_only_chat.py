"""A decoder-only chat model, to be named: none is in the package. Left padding and the chat template are taken care of.

The utility compares only what the model wrote:

    python examples/decoder_only_chat.py --model Qwen/Qwen3-0.6B
"""

from __future__ import annotations

import argparse

from hf_acpmbr import ACPMBR
from hf_acpmbr.generation.models import load_model

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", required=True, help="hub id or folder of a chat model")
parser.add_argument("--target", default="chrf", help="utility that decides")
parser.add_argument("--distilled", action="append", default=[], help="cheaper utility that guides it")
parser.add_argument("--num-candidates", type=int, default=64)
parser.add_argument("--max-new-tokens", type=int, default=64)
args = parser.parse_args()

model, tokenizer, _ = load_model(args.model)
tokenizer.padding_side = "left"

sources = ["The cat sleeps on the sofa.", "Where is the station?"]
chats = [
    [{"role": "user", "content": f"Translate into German, answer with the translation only: {s}"}] for s in sources
]
inputs = tokenizer.apply_chat_template(
    chats, add_generation_prompt=True, return_tensors="pt", return_dict=True, padding=True
).to(model.device)
inputs.pop("token_type_ids", None)
mbr = ACPMBR(tokenizer, target=args.target, distilled=args.distilled, num_candidates=args.num_candidates)
ids = model.generate(**inputs, max_new_tokens=args.max_new_tokens, custom_generate=mbr, sources=sources)
written = ids[:, inputs["input_ids"].shape[1] :]  # generate returns the prompt as well
for source, text in zip(sources, tokenizer.batch_decode(written, skip_special_tokens=True), strict=True):
    print(f"{source} → {text}")
