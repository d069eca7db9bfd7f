"""What transformers runs for `model.generate(..., custom_generate="<this repository>", trust_remote_code=True)`."""

from hf_acpmbr import ACPMBR


def generate(model, tokenizer=None, target="chrf", distilled=(), mbr_settings=None, **kwargs):
    """MBR decoding with hf_acpmbr.

    Args:
        model: the model that generates.
        tokenizer: its tokenizer.
        target: the utility that decides: name, hub id or path.
        distilled: cheaper utilities that guide it.
        mbr_settings: further settings of ACPMBR as a dict, such as {"num_candidates": 1024, "recipe": "fast"}.
        kwargs: the usual arguments of `generate`.
    """
    if tokenizer is None:
        raise ValueError("pass the model's tokenizer: model.generate(..., tokenizer=tokenizer)")
    mbr = ACPMBR(tokenizer, target=target, distilled=distilled, **(mbr_settings or {}))
    return model.generate(custom_generate=mbr, **kwargs)
