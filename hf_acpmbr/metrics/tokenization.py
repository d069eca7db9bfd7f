"""Tokenizers of encoders as their own library made them, and how they put texts together.

tokenizer.json is taken as it is: transformers 5 rebuilds some tokenizers (DeBERTa's) without the normalisation that is
in the file, and so gives other ids than the programs that the metrics were published with. Checked with transformers
5.23.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..scoring.checkpoints import naming, read_json, read_pieces

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerFast

NO_LIMIT = 10**6  # tokenizers that know no limit report a huge one
_SENTENCEPIECE = ("sentencepiece.bpe.model", "spm.model", "spiece.model", "sentencepiece.model")
# Encoders that count positions from padding_idx + 1.
_OFFSET_POSITIONS = ("roberta", "camembert", "mpnet", "longformer", "xmod", "data2vec-text")
# Sentencepiece tokenizers that add nothing to the normalisation of their pieces.
_PLAIN = ("BigBirdTokenizer", "MBartTokenizer", "MBart50Tokenizer")
_KINDS = {"roberta": "RobertaTokenizer", "gpt2": "GPT2Tokenizer"}
# transformers 5 saves their tokenizers under RoBERTa's name, older releases did not.
_NOT_ROBERTA = ("bart", "longformer", "led")


class SpecialTokens:
    """Token ids without special tokens, and how a tokenizer puts segments together.

    Args:
        folder: local folder of the tokenizer.
    """

    def __init__(self, folder: Path) -> None:
        with naming(folder):
            self.folder, self.tokenizer = folder, metric_tokenizer(folder)
        self.pad_id = int(self.tokenizer.pad_token_id or 0)
        # Any ordinary word shows where the special tokens go.
        word = list(self.tokenizer("a", add_special_tokens=False)["input_ids"])
        alone, both = list(self.tokenizer("a")["input_ids"]), list(self.tokenizer("a", "a")["input_ids"])
        first = next(k for k in range(len(alone)) if alone[k : k + len(word)] == word)
        self.before, self.after = alone[:first], alone[first + len(word) :]
        self.between = both[first + len(word) : len(both) - len(self.after) - len(word)]
        self.count = len(self.before) + len(self.after)  # special tokens of a single text

    @property
    def splits_words(self) -> bool:
        """Whether it is a WordPiece tokenizer, as BERT's."""
        from tokenizers.models import WordPiece

        return self.tokenizer.is_fast and isinstance(self.tokenizer.backend_tokenizer.model, WordPiece)

    @cached_property
    def marks(self) -> set[int]:
        """Ids of the tokens that begin and separate texts (cls, sep), by the files or else by the tokenizer's class."""
        from transformers import AutoTokenizer

        for tokenizer in (self.tokenizer, AutoTokenizer.from_pretrained(self.folder, trust_remote_code=False)):
            if found := {tokenizer.cls_token_id, tokenizer.sep_token_id} - {None}:
                return found
        return set()

    def kind(self, model_type: str) -> str:
        """Return the name of the tokenizer's class without "Fast"; if no file names one, that of the model's family."""
        if model_type in _NOT_ROBERTA:
            return ""
        named = read_json(self.folder / "tokenizer_config.json").get("tokenizer_class") or _KINDS.get(model_type, "")
        return str(named).removesuffix("Fast")

    def encode(self, texts: Sequence[str], limit: int) -> list[list[int]]:
        """Return the ids of each text without special tokens, cut to `limit`."""
        if not texts:
            return []
        rows: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        return [row[:limit] for row in rows]

    def join(self, *segments: Sequence[int]) -> list[int]:
        """Return the ids of one input with special tokens around and between the segments."""
        out = [*self.before, *segments[0]]
        for segment in segments[1:]:
            out += [*self.between, *segment]
        return out + self.after


def metric_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a folder: its tokenizer.json, or one converted from its sentencepiece model."""
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
    tokenizer = cast("PreTrainedTokenizerFast", AutoTokenizer.from_pretrained(folder, trust_remote_code=False))
    if pieces is not None:
        _restore_normalizer(tokenizer, pieces)
        if type(tokenizer).__name__.startswith("RemBert"):
            _restore_rembert(tokenizer, pieces)
    return tokenizer


def position_limit(tokenizer: PreTrainedTokenizerFast | None, config: PretrainedConfig | None) -> int:
    """Find the longest input with special tokens, by the tokenizer and by the position embeddings, if there are any."""
    positions = int(getattr(config, "max_position_embeddings", 0) or 0)
    if config is None or positions < 1:  # XLNet has -1
        positions = NO_LIMIT
    elif any(kind in str(config.model_type) for kind in _OFFSET_POSITIONS):
        positions -= int(config.pad_token_id or 0) + 1
    return positions if tokenizer is None else min(int(min(tokenizer.model_max_length, NO_LIMIT)), positions)


def _restore_normalizer(tokenizer: PreTrainedTokenizerFast, pieces: Path) -> None:
    """Give a converted tokenizer the normalisation of its sentencepiece model, as transformers 4 converted it."""
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
    elif kind in _PLAIN:
        steps = [*steps, normalizers.Replace(Regex(" {2,}"), " ")]
    else:
        return
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(steps)


def _restore_rembert(tokenizer: PreTrainedTokenizerFast, pieces: Path) -> None:
    """Add unknown pieces, and cls and sep around texts, without which transformers 5 converts RemBERT's pieces."""
    from tokenizers.models import Unigram
    from tokenizers.processors import TemplateProcessing

    model = read_pieces(pieces)
    vocabulary = [(model.id_to_piece(k), model.get_score(k)) for k in range(model.get_piece_size())]
    tokenizer.backend_tokenizer.model = Unigram(vocabulary, model.unk_id())
    cls, sep = str(tokenizer.cls_token), str(tokenizer.sep_token)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, tokenizer.get_vocab()[cls]), (sep, tokenizer.get_vocab()[sep])],
    )
