"""Tiny random checkpoints on disk in the public formats: same file names, keys and configs as the published ones."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import sentencepiece
import torch
from safetensors.torch import load_file, save_file

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


def write_hub_cache(cache: Path, repositories: dict[str, Path], revision: str = "a" * 40, ref: str = "main") -> Path:
    """Folders laid out as the Hub's client keeps them, for HF_HUB_CACHE: by repository id."""
    for name, folder in repositories.items():
        repository = cache / f"models--{name.replace('/', '--')}"
        (repository / "refs").mkdir(parents=True, exist_ok=True)
        (repository / "refs" / ref).write_text(revision)
        shutil.copytree(folder, repository / "snapshots" / revision)
    return cache


def train_sentencepiece(
    path: Path, size: int = 160, specials: tuple[str, ...] = ("[CLS]", "[SEP]", "[MASK]"), **options
) -> None:
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
        **options,
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


def write_encoder(folder: Path, kind: str = "xlm-roberta", seed: int = 0, layers: int = 3) -> Path:
    """An encoder with its tokeniser in transformers' format: "xlm-roberta", "xlm-roberta-xl", "bert" or "rembert"."""
    from transformers import AutoModel

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _xlmr_tokenizer() if kind.startswith("xlm") else _bert_tokenizer(folder)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    model = AutoModel.from_config(_encoder_config(kind, len(tokenizer), layers))
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0.0, 0.25)
        elif "bias" in name:
            parameter.data.normal_(0.0, 0.1)
    model.save_pretrained(folder)
    return folder


def _encoder_config(kind: str, vocabulary: int, layers: int):
    from transformers import BertConfig, RemBertConfig, XLMRobertaConfig, XLMRobertaXLConfig

    shared = {
        "vocab_size": vocabulary,
        "hidden_size": 16,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    if kind == "bert":
        return BertConfig(**shared, max_position_embeddings=64, pad_token_id=0)
    if kind == "rembert":
        return RemBertConfig(**shared, max_position_embeddings=64, pad_token_id=0, input_embedding_size=8)
    config_class = XLMRobertaXLConfig if kind == "xlm-roberta-xl" else XLMRobertaConfig
    return config_class(**shared, max_position_embeddings=66, pad_token_id=1, bos_token_id=0, eos_token_id=2)


def _xlmr_tokenizer():
    from transformers import XLMRobertaTokenizer

    letters = sorted({letter for text in SENTENCES for letter in text if letter != " "})
    words = sorted({"▁" + word for text in SENTENCES for word in text.split()})
    vocabulary = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -20.0), ("▁", -8.0)]
    vocabulary += [(letter, -9.0) for letter in letters] + [(word, -7.0) for word in words] + [("<mask>", 0.0)]
    return XLMRobertaTokenizer(vocab=vocabulary, model_max_length=64)


def _bert_tokenizer(folder: Path):
    from transformers import BertTokenizer

    words = sorted({word.strip(".,!").lower() for text in SENTENCES for word in text.split()})
    letters = sorted({letter for word in words for letter in word})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ",", "!", *words]
    vocabulary += [letter for letter in letters if letter not in words] + [f"##{letter}" for letter in letters]
    return BertTokenizer(vocab={word: number for number, word in enumerate(vocabulary)}, model_max_length=64)


COMET_HPARAMS = {
    "encoder_model": "XLM-RoBERTa",
    "layer": "mix",
    "layer_transformation": "sparsemax",
    "layer_norm": False,
    "pool": "avg",
    "hidden_sizes": [12, 8],
    "activations": "Tanh",
    "final_activation": None,
    "dropout": 0.1,
}


def write_comet(folder: Path, blocks: int, tags: int = 0, encoder: str = "xlm-roberta", **hparams) -> Path:
    """A COMET-like checkpoint: hparams.yaml and checkpoints/model.ckpt, with the encoder beside it.

    A hyper-parameter given as None is left out.
    """
    import yaml
    from transformers import AutoModel

    path = write_encoder(folder / "encoder", encoder)
    settings = {**COMET_HPARAMS, "pretrained_model": str(path), **hparams}
    settings = {key: value for key, value in settings.items() if value is not None}
    generator = torch.Generator().manual_seed(7)

    def random(*shape: int) -> torch.Tensor:
        return 0.5 * torch.randn(*shape, generator=generator)

    state = {f"encoder.model.{key}": value for key, value in AutoModel.from_pretrained(path).state_dict().items()}
    state = {key: value for key, value in state.items() if ".pooler." not in key}
    for layer in range(4):
        state[f"layerwise_attention.scalar_parameters.{layer}"] = random(1)
    state["layerwise_attention.gamma"] = torch.tensor([1.3])
    state["layerwise_attention.dropout_mask"] = torch.zeros(4)
    width = 16 * blocks
    sizes = [width, *settings.get("hidden_sizes", COMET_HPARAMS["hidden_sizes"]), 1]
    for number, (before, after) in enumerate(pairwise(sizes)):
        state[f"estimator.ff.{3 * number}.weight"] = random(after, before)
        state[f"estimator.ff.{3 * number}.bias"] = random(after)
    if tags:
        state["hidden2tag.weight"], state["hidden2tag.bias"] = 40 * random(tags, 16), torch.zeros(tags)
    (folder / "checkpoints").mkdir(exist_ok=True)
    checkpoint = {"state_dict": state, "hyper_parameters": settings, "epoch": 1, "pytorch-lightning_version": "1.8"}
    torch.save(checkpoint, folder / "checkpoints" / "model.ckpt")
    (folder / "hparams.yaml").write_text(yaml.safe_dump(settings))
    return folder


def write_metricx(folder: Path, tied: bool | None = False, **options) -> Path:
    """A MetricX-like checkpoint: mT5 weights with an output matrix of their own (unless tied) and spiece.model.

    With tied=None, config.json does not say. The options are sentencepiece's.
    """
    from transformers import MT5Config, MT5ForConditionalGeneration

    folder.mkdir(parents=True, exist_ok=True)
    train_sentencepiece(folder / "spiece.model", size=options.pop("vocab_size", 170), specials=(), **options)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model")).get_piece_size()
    torch.manual_seed(3)
    config = MT5Config(
        vocab_size=pieces + 20,
        d_model=16,
        d_kv=4,
        d_ff=32,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        dropout_rate=0.0,
    )
    model = MT5ForConditionalGeneration(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0.0, 0.5)
    model.save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    settings = {key: value for key, value in settings.items() if key != "tie_word_embeddings"}
    (folder / "config.json").write_text(
        json.dumps(settings if tied is None else {**settings, "tie_word_embeddings": tied})
    )
    weights = {key: value for key, value in load_file(folder / "model.safetensors").items() if key != "lm_head.weight"}
    if not tied:
        weights["lm_head.weight"] = torch.randn(config.vocab_size, config.d_model)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
