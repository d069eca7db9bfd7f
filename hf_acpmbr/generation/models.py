"""Load a model that is ready to generate: on its device, with its tokenizer and its languages."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..config import one_of, suggest
from ..devices import default_device
from ..scoring.checkpoints import revision_of

if TYPE_CHECKING:
    from ..types import GenerativeModel, Tokenizer

EMBEDDED = "embedded"
EMBEDDED_LANGUAGES = ("en", "de")
CPU_KERNELS = ("default", "onednn", "auto")
_SHOWN = 8  # languages that a message lists
_FILES = ("*.json", "*.safetensors", "*.bin", "*.model", "*.txt", "*.jinja", "*.py")  # that change what a model draws
# Codes as NLLB and mBART spell them among their special tokens: deu_Latn, de_DE.
_LANGUAGE = re.compile(r"[a-z]{2,3}([_-][A-Za-z]{2,4})+")


class LoadedModel(NamedTuple):
    """A model in eval mode on its device, its tokenizer, and what `model.generate` needs besides the inputs."""

    model: GenerativeModel
    tokenizer: Tokenizer
    generate: dict[str, int]


def load_model(
    name_or_path: str | os.PathLike[str],
    *,
    device: str | None = None,
    dtype: str = "auto",
    source_language: str | None = None,
    target_language: str | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
    cpu_kernels: str = "default",
) -> LoadedModel:
    """Load a model by hub id or folder, encoder-decoder or decoder-only; "embedded" is this package's translator.

    Args:
        device: "cpu", "cuda:1", ...; default: an accelerator if there is one, else cpu.
        dtype: of the weights: "float32", "bfloat16", ...; "auto" is what the checkpoint has (embedded: float32).
        source_language, target_language: for multilingual models, in their own spelling ("de", "deu_Latn"); the
            default of the embedded translator is from English to German.
        trust_remote_code, revision: as `from_pretrained` of transformers takes them.
        cpu_kernels: the library of matrix products on a CPU: "default", "onednn", often faster, or "auto", the faster
            one by a short trial. They differ in the last digits of log-probabilities.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    from ..embedded import load_translator
    from .cpu_kernels import use_kernels

    name = os.fspath(name_or_path)
    one_of(*CPU_KERNELS)("cpu_kernels", cpu_kernels)
    if dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise ValueError(f"dtype must be auto or a floating-point type of torch such as bfloat16, got {dtype!r}")
    network: Any
    tokenizer: Tokenizer
    if name == EMBEDDED:
        if revision is not None:
            raise ValueError(f"the embedded translator has no revisions: leave out revision={revision!r}")
        source_language, target_language = embedded_languages(source_language, target_language)
        network, tokenizer = load_translator(dtype=torch.float32 if dtype == "auto" else getattr(torch, dtype))
    else:
        options: dict[str, object] = {"trust_remote_code": trust_remote_code, "revision": revision}
        with _explained(name):
            config = AutoConfig.from_pretrained(name, **options)
            family = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
            tokenizer = AutoTokenizer.from_pretrained(name, **options)
            # Some releases (5.5) take a tokenizer without languages for the one that NLLB's files name, and forget it.
            if "eng_Latn" in tokenizer.all_special_tokens and not hasattr(tokenizer, "src_lang"):
                tokenizer = AutoTokenizer.from_pretrained(name, tokenizer_type="nllb", **options)
            network = family.from_pretrained(name, dtype=dtype, **options)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    device = device or default_device()
    try:
        model: GenerativeModel = network.to(device).eval()
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"the model cannot be moved to device {device!r}: {_one_line(error)}") from error
    if cpu_kernels != "default":
        use_kernels(network, cpu_kernels)
    return LoadedModel(model, tokenizer, set_languages(tokenizer, source_language, target_language))


def hide_loading_bars(quiet: bool) -> None:
    """Show no bars of transformers for loading weights if nobody would see them."""
    if quiet or not sys.stderr.isatty():
        from transformers.utils import logging

        logging.disable_progress_bar()


def load_tokenizer(name_or_path: str, **options: object) -> Tokenizer:
    """Load the tokenizer of a model, without its weights; the options are trust_remote_code and revision."""
    from transformers import AutoTokenizer

    with _explained(name_or_path):
        return cast("Tokenizer", AutoTokenizer.from_pretrained(_place(name_or_path), **options))


def model_revision(name_or_path: str, **options: object) -> str:
    """Return what tells a model from another one of its name: the Hub's commit, or a digest of a folder's content.

    Args:
        options: trust_remote_code and revision, as for `load_model`.
    """
    from transformers import AutoConfig

    place = _place(name_or_path)
    if Path(place).is_dir():
        return revision_of(Path(place), _FILES)
    with _explained(name_or_path):
        return str(getattr(AutoConfig.from_pretrained(place, **options), "_commit_hash", None))


def set_languages(tokenizer: Tokenizer, source: str | None = None, target: str | None = None) -> dict[str, int]:
    """Set the source language in the tokenizer; return the target language as an argument of `generate`."""
    for role, language in (("source_language", source), ("target_language", target)):
        if language is None:
            continue
        known = known_languages(tokenizer)
        if not known or (role == "source_language" and not hasattr(tokenizer, "src_lang")):
            raise ValueError(
                f"{role}={language!r}, but this model's tokenizer has no languages: leave it out, or write the "
                "language into the prompt if the model reads it there"
            )
        if language not in known:
            alike = sorted(known, key=lambda code: code[:2] != language[:2])[:_SHOWN]
            few = f"it knows {', '.join(alike)} and {len(known) - _SHOWN} more"
            hint = suggest(language, known) if len(known) <= _SHOWN else few
            raise ValueError(f"{role}={language!r} is not a language of this model: {hint}")
    if source is not None:
        tokenizer.src_lang = source
    if target is None:
        return {}
    if hasattr(tokenizer, "get_lang_id"):
        return {"forced_bos_token_id": int(tokenizer.get_lang_id(target))}
    token = tokenizer.convert_tokens_to_ids(target)
    return {"forced_bos_token_id": token} if isinstance(token, int) and token != tokenizer.unk_token_id else {}


def known_languages(tokenizer: Tokenizer) -> list[str]:
    """List the language codes of a multilingual tokenizer; empty if it has none."""
    if hasattr(tokenizer, "lang_code_to_token"):
        return list(tokenizer.lang_code_to_token)
    return [token for token in tokenizer.all_special_tokens if _LANGUAGE.fullmatch(token)]


def embedded_languages(source: str | None, target: str | None) -> tuple[str, str]:
    """Return both languages of the embedded translator if one or none is given."""
    other = dict(zip(EMBEDDED_LANGUAGES, reversed(EMBEDDED_LANGUAGES), strict=True))
    source = source or other.get(target or "de", "en")
    target = target or other.get(source, "de")
    if other.get(source) != target:
        raise ValueError(f"the embedded translator knows en→de and de→en, got {source}→{target}")
    return source, target


def _place(name: str) -> str:
    """Return a model's name as transformers takes it: the folder of the embedded one, else what was given."""
    if name != EMBEDDED:
        return name
    from ..embedded import TRANSLATOR

    return str(TRANSLATOR)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # readers of damaged files raise anything
        raise ValueError(
            f"model {name!r} cannot be loaded: give a hub id, a folder written by save_pretrained, or {EMBEDDED!r} "
            f"({_one_line(error)})"
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
