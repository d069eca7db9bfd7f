"""Completion of dense matrices with masks, as the oracles have them."""

from __future__ import annotations

from hf_acpmbr.matrix import ObservedScores


def complete(completer, target, mask=None, guides=None, guide_masks=None, **options):
    """Complete (N, M) scores where `mask` is true with a guide, or a list of them, in the same form."""
    guides = [] if guides is None else guides if isinstance(guides, list) else [guides]
    masks = guide_masks if isinstance(guide_masks, list) else [guide_masks] * len(guides)
    observed = [
        scores if isinstance(scores, ObservedScores) else ObservedScores.from_dense(scores, seen)
        for scores, seen in zip([target, *guides], [mask, *masks], strict=True)
    ]
    return completer.solve(observed[0], observed[1:], **options)
