"""Tokenisers of encoders as their own library made them, and how they put texts together.

tokenizer.json is taken as it is: transformers 5 rebuilds some tokenisers (DeBERTa's) without the normalisation that is
in the file, and so gives other ids than the programs that the metrics were published with. Checked with transformers
5.23.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from transformers import BatchEncoding, PretrainedConfig, PreTrainedTokenizerFast

NO_LIMIT = 10**6  # tokenisers that know no limit report a huge one
_SENTENCEPIECE = ("sentencepiece.bpe.model", "spm.model", "spiece.model", "sentencepiece.model")
# Encoders that count positions from padding_idx + 1.
_OFFSET_POSITIONS = ("roberta", "camembert", "mpnet", "longformer", "xmod", "data2vec-text")


class SpecialTokens:
    """Token ids without special tokens, and how a tokeniser puts segments together.

    Args:
        folder: local folder of the tokeniser.
    """

    def __init__(self, folder: Path) -> None:
        self.tokenizer = load_tokenizer(folder)
        self.pad_id = int(self.tokenizer.pad_token_id or 0)
        # Any ordinary word shows where the special tokens go.
        word = _ids(self.tokenizer("a", add_special_tokens=False))
        alone, both = _ids(self.tokenizer("a")), _ids(self.tokenizer("a", "a"))
        first = next(k for k in range(len(alone)) if alone[k : k + len(word)] == word)
        self.before = alone[:first]
        self.after = alone[first + len(word) :]
        self.between = both[first + len(word) : len(both) - len(self.after) - len(word)]

    @property
    def count(self) -> int:
        """Special tokens of a single text."""
        return len(self.before) + len(self.after)

    def encode(self, texts: Sequence[str], limit: int | None = None) -> list[list[int]]:
        """Ids of each text without special tokens, cut to `limit`."""
        if not texts:
            return []
        rows: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        return rows if limit is None else [row[:limit] for row in rows]

    def join(self, *segments: Sequence[int]) -> list[int]:
        """Ids of one input with special tokens around and between the segments."""
        out = [*self.before, *segments[0]]
        for segment in segments[1:]:
            out += [*self.between, *segment]
        return out + self.after


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokeniser of a folder: its tokenizer.json, or one converted from its sentencepiece model."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.utils.import_utils import is_protobuf_available

    if (folder / "tokenizer.json").is_file():
        return cast("PreTrainedTokenizerFast", PreTrainedTokenizerFast.from_pretrained(folder))
    pieces = next((folder / name for name in _SENTENCEPIECE if (folder / name).is_file()), None)
    if pieces is not None and not is_protobuf_available():
        raise ImportError(
            f"{folder} has no tokenizer.json, and converting {pieces.name} needs the package protobuf: "
            "pip install protobuf"
        )
    tokenizer = cast("PreTrainedTokenizerFast", AutoTokenizer.from_pretrained(folder))
    if pieces is not None:
        _restore_normalizer(tokenizer, pieces)
    return tokenizer


def position_limit(tokenizer: PreTrainedTokenizerFast, config: PretrainedConfig) -> int:
    """Longest input with special tokens: the tokeniser's limit, or what the position embeddings hold."""
    positions = int(getattr(config, "max_position_embeddings", 0) or NO_LIMIT)
    if any(kind in str(config.model_type) for kind in _OFFSET_POSITIONS):
        positions -= int(config.pad_token_id or 0) + 1
    return min(int(min(tokenizer.model_max_length, NO_LIMIT)), positions)


def _restore_normalizer(tokenizer: PreTrainedTokenizerFast, pieces: Path) -> None:
    """Give a converted tokeniser the normalisation of its sentencepiece model, as transformers 4 converted it."""
    from tokenizers import Regex, normalizers
    from transformers.convert_slow_tokenizer import SentencePieceExtractor

    characters = SentencePieceExtractor(str(pieces)).proto.normalizer_spec.precompiled_charsmap
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(characters)] if characters else []
    kind = type(tokenizer).__name__
    if kind.startswith("DebertaV2"):
        lower = [normalizers.Lowercase()] if tokenizer.init_kwargs.get("do_lower_case") else []
        steps = [*lower, normalizers.Strip(), *steps, normalizers.Replace(Regex(" {2,}"), " ")]
    elif kind.startswith("XLMRoberta"):
        steps = [*steps, normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")]
    else:
        return
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(steps)


def _ids(encoding: BatchEncoding) -> list[int]:
    return list(encoding["input_ids"])
