"""Candidates of CTranslate2, which it needs: it converts and samples the model, and the choice is made here.

pip install ctranslate2
python examples/ctranslate2_candidates.py
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import ctranslate2
from ctranslate2.converters import TransformersConverter
from transformers import AutoTokenizer

from hf_acpmbr import ACPMBR, Candidates
from hf_acpmbr.embedded import TRANSLATOR

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default=str(TRANSLATOR), help="hub id or folder; default: the embedded translator")
parser.add_argument("--source-language", default="en")
parser.add_argument("--target-language", default="de")
parser.add_argument("--target", default="embedded", help="utility that decides; default: the embedded one")
parser.add_argument("--distilled", action="append", default=[], help="cheaper utility that guides it")
parser.add_argument("--num-candidates", type=int, default=128)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

tokenizer = AutoTokenizer.from_pretrained(args.model)
tokenizer.src_lang = args.source_language
sources = ["The cat sleeps on the sofa.", "Where is the station?", "I have never seen this film."]
guides = args.distilled or (["auto"] if args.target == "embedded" else [])  # "auto": the one known for the target
mbr = ACPMBR(target=args.target, distilled=guides, seed=args.seed)

with tempfile.TemporaryDirectory() as folder:
    converted = TransformersConverter(args.model).convert(str(Path(folder) / "model"), quantization="float32")
    engine = ctranslate2.Translator(converted, device="cpu")
    ctranslate2.set_random_seed(args.seed)
    prefix = tokenizer.convert_ids_to_tokens(tokenizer.get_lang_id(args.target_language))
    results = engine.translate_batch(
        [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(sources)["input_ids"]],
        target_prefix=[[prefix]] * len(sources),
        beam_size=1,
        sampling_topk=50,  # CTranslate2 has no ε-sampling; this takes a quarter of the time that its top-p does
        num_hypotheses=args.num_candidates,
        return_scores=True,
        length_penalty=0,  # scores are then log-probabilities
    )

for source, result in zip(sources, results, strict=True):
    candidates = Candidates.from_ctranslate2(result, tokenizer, length_penalty=0)
    decision = mbr.rerank(candidates, source=source)
    likely = candidates.texts[int(candidates.logprobs.argmax())]
    print(f"{source} → {decision.text} ({candidates}; most probable: {likely})")
