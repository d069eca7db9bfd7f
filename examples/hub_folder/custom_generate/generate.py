"""What transformers runs for `model.generate(..., custom_generate="<this repository>", trust_remote_code=True)`.

It also runs for `model.generate(...)` of a model that was loaded from this repository with trust_remote_code=True.
"""

import json
from collections import OrderedDict

from transformers import AutoTokenizer, GenerationMixin

from hf_acpmbr import ACPMBR

MOST_KEPT = 8
_BUILT = OrderedDict()  # settings → ACPMBR with its utilities loaded, the latest used last
_TOKENIZERS = {}


def generate(
    *inputs,
    model,
    tokenizer=None,
    target="chrf",
    distilled=(),
    mbr_settings=None,
    custom_generate=None,
    streamer=None,
    **kwargs,
):
    """MBR decoding with hf_acpmbr.

    Args:
        inputs: what `generate` takes by position: the input ids, and a GenerationConfig.
        model: the model that generates.
        tokenizer: its tokenizer; default: the one beside the model's files.
        target: the utility that decides: name, hub id or path.
        distilled: cheaper utilities that guide it.
        mbr_settings: further settings of ACPMBR as a dict, such as {"num_candidates": 1024, "recipe": "fast"}.
        custom_generate: another way to decode, instead of MBR.
        streamer: gets the chosen text, once it is chosen.
        kwargs: the usual arguments of `generate`.

    Returns:
        As `generate`: token ids, or an MBROutput with return_dict_in_generate=True.
    """
    if not isinstance(mbr_settings or {}, dict):
        raise TypeError(f"mbr_settings must be a dict of ACPMBR's settings, got {mbr_settings!r}")
    if custom_generate is None:
        custom_generate = built(tokenizer or tokenizer_of(model), target, distilled, mbr_settings or {})
    # Not model.generate: in a model that was loaded from this repository that is this very function.
    return GenerationMixin.generate(model, *inputs, custom_generate=custom_generate, streamer=streamer, **kwargs)


def built(tokenizer, target, distilled, settings):
    """The ACPMBR with these settings; loading the utilities is what takes time, so the last few are kept."""
    # Objects count by identity, which holds as long as the ACPMBR that is kept here refers to them.
    asked = [target, distilled, settings]
    key = (
        id(tokenizer),
        json.dumps(asked, sort_keys=True, default=lambda value: f"{type(value).__name__} {id(value)}"),
    )
    if key not in _BUILT:
        # With what was asked for: an object that has gone must not leave its identity to another.
        _BUILT[key] = (ACPMBR(tokenizer, target=target, distilled=distilled, **settings), asked)
        while len(_BUILT) > MOST_KEPT:
            _BUILT.popitem(last=False)
    _BUILT.move_to_end(key)
    return _BUILT[key][0]


def tokenizer_of(model):
    """The tokenizer beside the model's files."""
    name = model.config._name_or_path
    if not name:
        raise ValueError("the model was not loaded from files: pass its tokenizer, model.generate(..., tokenizer=...)")
    if name not in _TOKENIZERS:
        _TOKENIZERS[name] = AutoTokenizer.from_pretrained(name)
    return _TOKENIZERS[name]
