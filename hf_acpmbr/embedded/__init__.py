"""The small models shipped with the package: a translator (English↔German) and a family of learned utilities.

They are real networks, trained for demonstration and tests on sentences from Tatoeba; see the README.md in each folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from transformers import M2M100ForConditionalGeneration, M2M100Tokenizer

_FOLDER = Path(__file__).resolve().parent
TRANSLATOR = _FOLDER / "translator"
UTILITY_FOLDERS = {
    "embedded": _FOLDER / "utility",
    "embedded-d1": _FOLDER / "utility-d1",
    "embedded-d2": _FOLDER / "utility-d2",
}
ATTRIBUTION = "Trained on sentence pairs from Tatoeba (https://tatoeba.org), CC BY 2.0 FR."

__all__ = ["ATTRIBUTION", "TRANSLATOR", "UTILITY_FOLDERS", "load_translator"]


def load_translator(**options: object) -> tuple[M2M100ForConditionalGeneration, M2M100Tokenizer]:
    """Load the embedded translator: (model in evaluation mode, tokenizer with `src_lang` and `get_lang_id`).

    Args:
        options: of `AutoModelForSeq2SeqLM.from_pretrained`, such as `dtype` (default float32).
    """
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    options.setdefault("dtype", torch.float32)
    if not (TRANSLATOR / "config.json").is_file():
        raise FileNotFoundError(
            f"the embedded translator is not in {TRANSLATOR}: install the package again, or train one with the "
            "project's train_translator.py and copy its `model` folder there"
        )
    model = AutoModelForSeq2SeqLM.from_pretrained(TRANSLATOR, **options)
    return model.eval(), cast("M2M100Tokenizer", AutoTokenizer.from_pretrained(TRANSLATOR))
