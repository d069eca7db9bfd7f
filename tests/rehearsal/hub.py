"""A cache of the Hub with tiny models under published ids, in the files that were published under them.

What each repository holds (pickled or safe weights, shards, tokenizer files, generation settings, encoders named
without an owner) is as published; only layers, widths and most vocabularies are small.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers as hf
from safetensors.torch import load_file

from hf_acpmbr.embedded import TRANSLATOR
from tests.metrics.checkpoints import (
    SENTENCES,
    train_sentencepiece,
    write_bleurt,
    write_comet,
    write_encoder,
    write_hub_cache,
    write_metricx,
)
from tests.models import tiny_pair
from tests.published import FAMILIES, published_model

M2M100, NLLB, OPUS = "facebook/m2m100_418M", "facebook/nllb-200-distilled-600M", "Helsinki-NLP/opus-mt-en-de"
LLAMA, QWEN = "HuggingFaceTB/SmolLM2-1.7B-Instruct", "Qwen/Qwen3-0.6B"
BLEURTS = [f"lucadiliello/BLEURT-20{size}" for size in ("", "-D12", "-D6", "-D3")]
METRICX = {"large": 1, "xl": 2}  # files of weights
MT5_VOCABULARY = 250112  # the score is the logit of one of its last tokens, so it cannot be smaller
M2M100_LANGUAGES, M2M100_UNUSED = 100, 8

_TRAINED_ON: dict[str, Any] = {"train_data": "data/train.csv", "validation_data": 0.1, "keep_embeddings_frozen": True}
# COMET's checkpoints by id: the encoder that each names (one without an owner), its kind, and the hyper-parameters.
COMETS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Unbabel/wmt22-comet-da": (
        "xlm-roberta-large",
        "xlm-roberta",
        {"blocks": 6, "class_identifier": "regression_metric"},
    ),
    "Unbabel/wmt22-cometkiwi-da": (
        "microsoft/infoxlm-large",
        "xlm-roberta",
        {
            "blocks": 1,
            "class_identifier": "unified_metric",
            "input_segments": ["mt", "src"],
            "layer": None,
            "sent_layer": "mix",
            "word_layer": 3,
            "word_level_training": False,
            "layer_transformation": "sparsemax_patch",
        },
    ),
    "Unbabel/XCOMET-XL": (
        "facebook/xlm-roberta-xl",
        "xlm-roberta-xl",
        {
            "blocks": 1,
            "tags": 4,
            "class_identifier": "xcomet_metric",
            "layer": None,
            "sent_layer": "mix",
            "word_layer": 3,
        },
    ),
}


def build(folder: Path) -> Path:
    """Write every repository; the folder that is returned is for HF_HUB_CACHE."""
    drafts = folder / "drafts"
    writers: dict[str, Callable[[Path], object]] = {
        M2M100: _m2m100,
        NLLB: _nllb,
        OPUS: _opus,
        LLAMA: lambda path: _chat(path, "llama", {}),
        QWEN: lambda path: _chat(path, "qwen3", {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}),
        "FacebookAI/roberta-large": _roberta,
        "google-bert/bert-base-multilingual-cased": lambda path: write_encoder(path, "bert", layers=12),
        **{name: functools.partial(_bleurt, seed=seed) for seed, name in enumerate(BLEURTS)},
    }
    repositories = {name: drafts / name for name in writers}
    for name, write in writers.items():
        repositories[name].mkdir(parents=True)
        write(repositories[name])
    return write_hub_cache(folder / "hub", {**repositories, **_comets(drafts), **_metricx(drafts)})


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2), encoding="utf-8")


def _m2m100(folder: Path) -> None:
    """The embedded translator with M2M100's hundred languages, pickled weights and beam search as the default."""
    for name in ("vocab.json", "sentencepiece.bpe.model"):
        shutil.copy(TRANSLATOR / name, folder)
    pieces = len(json.loads((folder / "vocab.json").read_text(encoding="utf-8")))
    family = FAMILIES[M2M100]
    settings = json.loads((TRANSLATOR / "config.json").read_text(encoding="utf-8"))
    settings |= {**family.generation, "vocab_size": pieces + M2M100_LANGUAGES + M2M100_UNUSED}
    _write_json(folder / "config.json", {key: value for key, value in settings.items() if key != "dtype"})
    _write_json(folder / "generation_config.json", family.generation)
    _write_json(folder / "tokenizer_config.json", {"tokenizer_class": "M2M100Tokenizer"})
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>"}
    languages = list(hf.M2M100Tokenizer.from_pretrained(folder).lang_token_to_id)
    _write_json(folder / "special_tokens_map.json", {**special, "additional_special_tokens": languages})
    trained = load_file(TRANSLATOR / "model.safetensors")
    known = hf.M2M100Tokenizer.from_pretrained(TRANSLATOR)
    rows = torch.zeros(settings["vocab_size"], settings["d_model"])
    rows[:pieces] = trained["model.shared.weight"][:pieces]
    tokenizer = hf.M2M100Tokenizer.from_pretrained(folder)
    for language in ("en", "de"):
        rows[tokenizer.get_lang_id(language)] = trained["model.shared.weight"][known.get_lang_id(language)]
    weights = {name: tensor.float() for name, tensor in trained.items()}
    shared = ("model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    torch.save({**weights, **dict.fromkeys((*shared, "lm_head.weight"), rows)}, folder / "pytorch_model.bin")


def _nllb(folder: Path) -> None:
    """A random model that reads letters, with NLLB's two hundred languages."""
    letters = sorted({letter for text in SENTENCES for letter in text.replace(" ", "▁")})
    numbers = [f"▁{number}" for number in range(200)]  # written, never read; languages come after what is probable
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *letters, *numbers]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    hf.NllbTokenizer(vocab=vocabulary, merges=[]).save_pretrained(folder)
    published_model(NLLB).save_pretrained(folder)


def _opus(folder: Path) -> None:
    """A random Marian model with all of its 58,101 tokens, of which two small sentencepiece models use a few."""
    pieces: dict[str, None] = {}
    for side in ("source", "target"):
        train_sentencepiece(folder / f"{side}.spm", specials=())
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
        (folder / f"{side}.vocab").unlink()
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        pieces |= dict.fromkeys(model.id_to_piece(number) for number in range(model.get_piece_size()))
    family = FAMILIES[OPUS]
    words = dict.fromkeys(["</s>", "<unk>", *(piece for piece in pieces if piece != "<pad>")])
    unused = [f"unused{number}" for number in range(len(words), family.vocabulary - 1)]
    _write_json(folder / "vocab.json", {word: k for k, word in enumerate([*words, *unused, "<pad>"])})
    _write_json(
        folder / "tokenizer_config.json",
        {"source_lang": "en", "target_lang": "de", "tokenizer_class": "MarianTokenizer"},
    )
    published_model(OPUS).save_pretrained(folder)


def _chat(folder: Path, kind: str, generation: dict[str, Any]) -> None:
    model, tokenizer = tiny_pair(kind)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": [tokenizer.eos_token_id, tokenizer.bos_token_id]}
    _write_json(folder / "generation_config.json", {**ids, "pad_token_id": tokenizer.pad_token_id, **generation})


def _bleurt(folder: Path, seed: int) -> None:
    write_bleurt(folder, file="pytorch_model.bin", seed=seed)
    tokenizer = {"tokenizer_class": "BleurtSPTokenizer", "model_max_length": 10**30}
    _write_json(folder / "tokenizer_config.json", tokenizer)


def _roberta(folder: Path) -> None:
    """RoBERTa over single bytes; its encoder has as many layers as bert-score's choice for it needs."""
    from tokenizers.pre_tokenizers import ByteLevel

    symbols = ["<s>", "<pad>", "</s>", "<unk>", *sorted(ByteLevel.alphabet()), "<mask>"]
    tokenizer = hf.RobertaTokenizer(vocab={symbol: number for number, symbol in enumerate(symbols)}, merges=[])
    tokenizer.save_pretrained(folder)
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 24,
        "num_attention_heads": 4,
        "intermediate_size": 32,
    }
    torch.manual_seed(0)
    config = hf.RobertaConfig(vocab_size=len(symbols), max_position_embeddings=514, initializer_range=0.2, **sizes)
    hf.RobertaModel(config).save_pretrained(folder)


def _comets(drafts: Path) -> dict[str, Path]:
    made: dict[str, Path] = {}
    for name, (encoder, kind, options) in COMETS.items():
        folder = write_comet(drafts / name, encoder=kind, pretrained_model=encoder, **_TRAINED_ON, **options)
        made |= {name: folder, encoder: (folder / "encoder").rename(drafts / encoder.replace("/", "--"))}
    return made


def _metricx(drafts: Path) -> dict[str, Path]:
    """Pickled weights, in shards where they are large; the tokenizer is another repository's."""
    tokenizer = drafts / "google" / "mt5-xl"
    tokenizer.mkdir(parents=True)
    made = {"google/mt5-xl": tokenizer}
    for size, files in METRICX.items():
        folder = write_metricx(drafts / f"metricx-24-{size}", tied=False)
        (folder / "spiece.model").replace(tokenizer / "spiece.model")
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        _write_json(folder / "config.json", {**settings, "vocab_size": MT5_VOCABULARY})
        weights = load_file(folder / "model.safetensors")
        for name in ("shared.weight", "lm_head.weight"):
            rows = torch.randn(MT5_VOCABULARY, settings["d_model"])
            rows[: len(weights[name])] = weights[name]
            weights[name] = rows
        (folder / "model.safetensors").unlink()
        _pickle(folder, weights, files)
        made[f"google/metricx-24-hybrid-{size}-v2p6"] = folder
    return made


def _pickle(folder: Path, weights: dict[str, torch.Tensor], files: int) -> None:
    """pytorch_model.bin, or its shards and their index."""
    if files == 1:
        torch.save(weights, folder / "pytorch_model.bin")
        return
    names = sorted(weights)
    places = {name: f"pytorch_model-{1 + k % files:05d}-of-{files:05d}.bin" for k, name in enumerate(names)}
    for file in sorted(set(places.values())):
        torch.save({name: weights[name] for name in names if places[name] == file}, folder / file)
    _write_json(folder / "pytorch_model.bin.index.json", {"metadata": {}, "weight_map": places})
