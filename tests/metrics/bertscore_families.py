"""Tiny encoders of several families, and the scores of bert-score 0.3.13 for them.

The scores were printed by this file in an environment of its own (bert-score 0.3.13, transformers 4.49, torch 2.6):
`python bertscore_families.py FOLDER`. Weights come from a formula, so every version makes the same ones.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers

WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "it", "rained", "and", "nobody", "saw", "how", "old"]
WORDS += ["clock", "stopped", ".", ",", "!"]
HYPOTHESES = ["the cat sat on a mat .", "it rained !", "", "cat", "a [SEP] clock , old", "the clock stopped " * 200]
REFERENCES = ["a cat sat on the mat .", "it stopped , and rained", "the cat", "mat", "an old clock", "it rained " * 250]
LAYER = 2
_SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
_SIDES = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("layers", 3), ("attention_heads", 2), ("ffn_dim", 24))
}
CONFIGS = {
    "deberta-v2": {
        **_SIZES,
        "relative_attention": True,
        "position_buckets": 16,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "max_position_embeddings": 64,
        "type_vocab_size": 0,
    },
    "t5": {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 3, "num_heads": 2, "vocab_size": 384},
    "bart": {**_SIDES, "d_model": 16, "max_position_embeddings": 700, "pad_token_id": 0},
    "longformer": {**_SIZES, "attention_window": [8, 8, 8], "max_position_embeddings": 700, "pad_token_id": 0},
    "xlnet": {"d_model": 16, "n_layer": 3, "n_head": 2, "d_inner": 24},
    "electra": {**_SIZES, "embedding_size": 8, "max_position_embeddings": 700},
}

# Precision, recall and F1 of each pair by (family, idf). Of an empty text that weighs nothing bert-score gives no
# number (t5 with idf, precision): it is 0 here.
SCORES = {
    ("deberta-v2", False): [
        [0.893257, 0.995629, 0.0, 0.994468, 0.525678, 0.777462],
        [0.898795, 0.998403, 0.0, 0.989529, 0.997841, 0.722595],
        [0.896018, 0.997014, 0.0, 0.991992, 0.688594, 0.749025],
    ],
    ("deberta-v2", True): [
        [0.877887, 0.996923, 0.0, 0.994468, 0.525678, 0.781316],
        [0.903486, 0.998741, 0.0, 0.989529, 0.997841, 0.722595],
        [0.890502, 0.997831, 0.0, 0.991992, 0.688594, 0.750809],
    ],
    ("t5", False): [
        [0.999994, 0.992465, 0.86845, 0.892189, 0.806733, 0.898776],
        [0.999994, 0.965768, 0.28917, 0.898562, 0.95161, 0.916657],
        [0.999994, 0.978935, 0.433873, 0.895365, 0.873203, 0.907628],
    ],
    ("t5", True): [
        [0.999994, 0.995014, 0.0, 0.891374, 0.776193, 0.883445],
        [0.999993, 0.939224, 0.531084, 0.925827, 0.960084, 0.908811],
        [0.999993, 0.966315, 0.0, 0.908274, 0.858401, 0.895949],
    ],
    ("bart", False): [
        [0.91903, 0.798889, 0.0, 0.617125, 0.133809, 0.885797],
        [0.882102, 0.517184, 0.0, 0.14339, 0.746029, 0.841675],
        [0.900187, 0.627887, 0.0, 0.232709, 0.226918, 0.863172],
    ],
    ("bart", True): [
        [0.921242, 0.7985, 0.0, 0.617125, 0.133809, 0.878812],
        [0.868205, 0.515084, 0.0, 0.14339, 0.746029, 0.841675],
        [0.893937, 0.626218, 0.0, 0.232709, 0.226918, 0.859843],
    ],
    ("longformer", False): [
        [0.985122, 0.9983, 0.0, 0.991388, 0.8366, 0.608448],
        [0.830971, 0.929096, 0.0, 0.999705, 0.993528, 0.999557],
        [0.901504, 0.962456, 0.0, 0.995529, 0.908336, 0.756438],
    ],
    ("longformer", True): [
        [0.985332, 0.998325, 0.0, 0.991388, 0.8366, 0.592978],
        [0.84297, 0.944326, 0.0, 0.999705, 0.993528, 0.999557],
        [0.908608, 0.970575, 0.0, 0.995529, 0.908336, 0.744367],
    ],
    ("xlnet", False): [
        [0.991922, 0.899076, 0.0, -0.89103, -0.201361, -0.985812],
        [0.987778, -0.126112, 0.0, -0.988295, 0.315444, -0.982681],
        [0.989846, -0.293376, 0.0, -0.937146, -1.113539, -0.984244],
    ],
    ("xlnet", True): [
        [0.992664, 0.882707, 0.0, -0.89103, -0.201361, -0.985864],
        [0.986682, -0.141567, 0.0, -0.988295, 0.315444, -0.982681],
        [0.989664, -0.337215, 0.0, -0.937146, -1.113539, -0.98427],
    ],
    ("electra", False): [
        [0.999975, 0.996549, 0.0, 0.999794, 0.998523, 0.999314],
        [0.999942, 0.995984, 0.0, 0.999794, 0.998575, 0.999304],
        [0.999959, 0.996266, 0.0, 0.999794, 0.998549, 0.999309],
    ],
    ("electra", True): [
        [0.999975, 0.996555, 0.0, 0.999794, 0.998523, 0.999312],
        [0.99994, 0.99604, 0.0, 0.999794, 0.998574, 0.999304],
        [0.999957, 0.996297, 0.0, 0.999794, 0.998549, 0.999308],
    ],
}


def write_family(folder: Path, kind: str) -> Path:
    """An encoder with WordPiece (T5: bytes) and no limit of its own, as the published DeBERTa tokenisers have none."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    if kind == "t5":
        transformers.ByT5Tokenizer().save_pretrained(folder)
    else:
        (folder / "vocab.txt").write_text("\n".join(vocabulary))
        settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": int(1e30)}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = transformers.AutoConfig.for_model(kind, **{"vocab_size": len(vocabulary), **CONFIGS[kind]})
    model = transformers.AutoModel.from_config(config)
    for number, (_, parameter) in enumerate(sorted(model.named_parameters())):
        if parameter.dim() > 1:
            steps = torch.arange(parameter.numel(), dtype=torch.float64).reshape(parameter.shape)
            parameter.data.copy_(0.4 * torch.sin(steps * 12.9898 + number))
    model.save_pretrained(folder)
    return folder


def main() -> None:
    from bert_score import score

    for kind in CONFIGS:
        folder = write_family(Path(sys.argv[1]) / kind, kind)
        for idf in (False, True):
            options = {"model_type": str(folder), "num_layers": LAYER, "batch_size": 1, "device": "cpu", "nthreads": 1}
            scores = score(HYPOTHESES, REFERENCES, idf=idf, **options)
            print(f'    ("{kind}", {idf}): {[[round(x, 6) for x in part.tolist()] for part in scores]},')


if __name__ == "__main__":
    main()
