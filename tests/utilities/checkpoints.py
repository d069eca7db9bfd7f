"""Tiny random checkpoints on disk in the public formats: same file names, keys and configs as the published ones."""

from __future__ import annotations

import json
from pathlib import Path

import sentencepiece
import torch
from safetensors.torch import save_file

SENTENCES = [
    "A bird chirps by the window.",
    "Der Zug nach Hamburg fährt heute zehn Minuten später ab.",
    "The train to Hamburg leaves ten minutes late today.",
    "Nobody knew why the old clock had stopped.",
    "Warum die alte Uhr stehen geblieben war, wusste niemand.",
    "Please put the bread on the table, not under it!",
    "Bitte leg das Brot auf den Tisch, nicht darunter!",
    "It rained all night, and in the morning the street was a river.",
    "Es regnete die ganze Nacht, und am Morgen war die Straße ein Fluss.",
    "She laughed.",
    "Sie lachte.",
    "In 1998 they sold 3,500 umbrellas, which was a record.",
]


def train_sentencepiece(path: Path, size: int = 160, specials: tuple[str, ...] = ("[CLS]", "[SEP]", "[MASK]")) -> None:
    """A small real sentencepiece model with RemBERT's special pieces."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 20),
        model_prefix=str(path.with_suffix("")),
        vocab_size=size,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=list(specials),
        hard_vocab_limit=False,
        minloglevel=2,
    )


def bleurt_config(vocab_size: int, embedding_size: int | None = 12) -> dict:
    return {
        "architectures": ["BleurtForSequenceClassification"],
        "model_type": "bleurt",
        "vocab_size": vocab_size,
        "embedding_size": embedding_size,
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "hidden_act": "gelu",
        "max_position_embeddings": 64,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        "num_labels": 1,
    }


def bleurt_weights(config: dict, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights under the published names, large enough that scores differ between texts."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    size = config["embedding_size"] or hidden
    shapes: dict[str, tuple[int, ...]] = {
        "bleurt.embeddings.word_embeddings.weight": (config["vocab_size"], size),
        "bleurt.embeddings.position_embeddings.weight": (config["max_position_embeddings"], size),
        "bleurt.embeddings.token_type_embeddings.weight": (config["type_vocab_size"], size),
        "bleurt.embeddings.LayerNorm.weight": (size,),
        "bleurt.embeddings.LayerNorm.bias": (size,),
        "bleurt.pooler.dense.weight": (hidden, hidden),
        "bleurt.pooler.dense.bias": (hidden,),
        "classifier.weight": (1, hidden),
        "classifier.bias": (1,),
    }
    if config["embedding_size"]:
        shapes["bleurt.encoder.embedding_projection.weight"] = (hidden, size)
        shapes["bleurt.encoder.embedding_projection.bias"] = (hidden,)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"bleurt.encoder.layer.{layer}."
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            shapes[f"{prefix}attention.{name}.weight"] = (hidden, hidden)
            shapes[f"{prefix}attention.{name}.bias"] = (hidden,)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"{prefix}{name}.weight"] = shapes[f"{prefix}{name}.bias"] = (hidden,)
        shapes[f"{prefix}intermediate.dense.weight"] = (inner, hidden)
        shapes[f"{prefix}intermediate.dense.bias"] = (inner,)
        shapes[f"{prefix}output.dense.weight"] = (hidden, inner)
        shapes[f"{prefix}output.dense.bias"] = (hidden,)
    return {
        name: 0.4 * torch.randn(shape, generator=generator) + float(name.endswith("LayerNorm.weight"))
        for name, shape in shapes.items()
    }


def write_bleurt(folder: Path, embedding_size: int | None = 12, file: str = "model.safetensors", seed: int = 0) -> Path:
    """A BLEURT-20-like checkpoint: config.json, weights, spm.model, tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    train_sentencepiece(folder / "spm.model")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model")).get_piece_size()
    config = bleurt_config(pieces, embedding_size)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 64, "do_lower_case": False}))
    weights = bleurt_weights(config, seed)
    if file.endswith(".safetensors"):
        save_file(weights, folder / file)
    else:
        # The published .bin files carry this buffer.
        positions = torch.arange(config["max_position_embeddings"]).expand((1, -1))
        torch.save({**weights, "bleurt.embeddings.position_ids": positions}, folder / file)
    return folder
