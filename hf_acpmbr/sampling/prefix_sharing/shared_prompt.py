"""The keys and values of a prompt, held once for all prefixes of its source.

A layer of the cache keeps the prompt with one row per source, (S, H, P, D), and what follows it with one row per
prefix, (U, H, t, D). It hands the model a `Joined` tensor that stands for their concatenation without being built.
Attention is computed from the two parts,

    scores = [q · promptᵀ | q · suffixᵀ],    output = weights[:P] · prompt + weights[P:] · suffix,

which are the sums over the concatenation, whatever a model does between scores and weights: masks, windows, soft caps,
sinks. The prefixes of a source share one matrix product with its prompt. Any other operation builds the concatenation
first, so that it is exact too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map_only
from transformers import Cache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from ..rows import Rows

# From this product of prompt tokens and prefixes per source on, attention from two parts takes less time than a copy of
# the prompt per prefix (measured: from 200 to 600, by the size of the heads).
_JOINED_FROM = 1024
# Scores computed at a time: at most 16 MB of float32, however long the prompt.
_BLOCK = 1 << 22
# Attention of transformers that consists of the operations which `Joined` answers.
_ANSWERED = ("sdpa", "eager")


def share_prompts(cache: Cache, attention: str | None) -> None:
    """Make a cache hold each prompt once, in place, in the layers that grow by concatenation.

    Args:
        cache: of a decoder-only model after its first forward pass, one row per source.
        attention: the model's attention implementation; others than sdpa and eager get the concatenation.
    """
    kinds: dict[type, type[SharedPrompt]] = {
        DynamicLayer: SharedPrompt,
        DynamicSlidingWindowLayer: SlidingSharedPrompt,
    }
    layers: list[Any] = cache.layers
    for number, layer in enumerate(layers):
        if type(layer) in kinds and layer.is_initialized:
            layers[number] = kinds[type(layer)](layer, attention in _ANSWERED)


class SharedPrompt(DynamicLayer):
    """A layer whose `keys` and `values` hold only what follows the prompt; `sources` are those of its rows."""

    keys: torch.Tensor
    values: torch.Tensor
    sliding_window: int  # if it is a sliding one
    sources: Rows

    def __init__(self, layer: Any, joins: bool) -> None:
        vars(self).update(vars(layer))
        self.cumulative_length = layer.get_seq_length()
        self._joins = joins
        self._prompt = layer.keys, layer.values
        if self.is_sliding:  # views of all the prompt, of which only the window is needed
            self._prompt = layer.keys.clone(), layer.values.clone()
        self.keys, self.values = (part[:, :, :0] for part in self._prompt)

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the states of new tokens; return those of the prompt and all that follows it."""
        self.cumulative_length += key_states.shape[2]
        shown = self._prompt[0].shape[2]
        keys, values = (
            torch.cat([old, new], dim=2) for old, new in ((self.keys, key_states), (self.values, value_states))
        )
        if self.is_sliding:  # what the suffix leaves of the window, and what later tokens will see of the suffix
            past = self.sliding_window - 1
            shown = min(shown, past - self.keys.shape[2])
            self.keys, self.values = keys[:, :, -past:], values[:, :, -past:]
        else:
            self.keys, self.values = keys, values
        return self._whole(self._prompt[0], keys, shown), self._whole(self._prompt[1], values, shown)

    def _whole(self, prompt: torch.Tensor, suffix: torch.Tensor, shown: int) -> torch.Tensor:
        tail = prompt[:, :, prompt.shape[2] - shown :]
        rows = self.sources
        worth = shown * len(rows) >= _JOINED_FROM * len(rows.runs)
        # torch.compile cannot follow a tensor that computes itself.
        if worth and self._joins and not torch.compiler.is_compiling():
            return Joined(tail, suffix, rows)
        return torch.cat([rows.pick(tail), suffix], dim=2)


class SlidingSharedPrompt(SharedPrompt, DynamicSlidingWindowLayer):
    """The same with a window: the part of the prompt that is seen shrinks as the suffix grows."""


class Joined(torch.Tensor):
    """Stands for the keys or values of prompt and suffix, (U, H, P + t, D).

    What attention does to them before it multiplies is noted here and changes neither part.

    Args:
        prompt: (S, H, P, D), one row per source.
        suffix: (U, H, t, D), one row per prefix.
        sources: the source of each prefix.
        copies: how often each head stands beside itself, for models with fewer heads of keys than of queries.
        form: "plain"; "flipped", (U, H, D, P + t); "grouped", (U, H, copies, P + t, D).
    """

    prompt: torch.Tensor
    suffix: torch.Tensor
    sources: Rows
    copies: int
    form: str

    @staticmethod
    def __new__(
        cls, prompt: torch.Tensor, suffix: torch.Tensor, sources: Rows, copies: int = 1, form: str = "plain"
    ) -> Joined:
        rows, heads, tokens, size = suffix.shape
        length = prompt.shape[2] + tokens
        shapes = {
            "plain": (rows, heads * copies, length, size),
            "flipped": (rows, heads * copies, size, length),
            "grouped": (rows, heads, copies, length, size),
        }
        self: Joined = torch.Tensor._make_wrapper_subclass(cls, shapes[form], dtype=suffix.dtype, device=suffix.device)
        self.prompt, self.suffix, self.sources, self.copies, self.form = prompt, suffix, sources, copies, form
        return self

    def noted(self, **changes: Any) -> Joined:
        """Return the same keys or values with other `copies` or another `form`."""
        return Joined(self.prompt, self.suffix, self.sources, **{"copies": self.copies, "form": self.form, **changes})

    def built(self) -> torch.Tensor:
        """Build the tensor that this stands for."""
        whole = torch.cat([self.sources.pick(self.prompt), self.suffix], dim=2)
        if self.form == "grouped":
            return whole[:, :, None].expand(self.shape)
        whole = whole.repeat_interleave(self.copies, dim=1) if self.copies > 1 else whole
        return whole.transpose(2, 3) if self.form == "flipped" else whole

    def blocks(self) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Yield (rows, their (H, P, D) prompt, their (n, H, t, D) suffix) of one source each, a block at a time."""
        heads = self.suffix.shape[1] * self.copies
        most = max(1, _BLOCK // (heads * (self.prompt.shape[2] + self.suffix.shape[2])))
        for source, start, end in self.sources.runs:
            for first in range(start, end, most):
                rows = slice(first, min(first + most, end))
                yield rows, self.prompt[source], self.suffix[rows]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention or (func in _ANSWERS and not kwargs):
            answer = _ANSWERS[func](*args, **kwargs)
            if answer is not NotImplemented:
                return answer
        with torch._C.DisableTorchFunctionSubclass():
            if func not in _LOOKS and func.__name__ != "__get__":  # properties, such as shape and dtype
                args, kwargs = tree_map_only(Joined, Joined.built, (args, kwargs))
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        args, kwargs = tree_map_only(Joined, Joined.built, (args, kwargs or {}))
        return func(*args, **kwargs)


def _scores(query: torch.Tensor, prompt: torch.Tensor, suffix: torch.Tensor) -> torch.Tensor:
    """Multiply the queries of n rows of one source with its keys.

    Args:
        query: (n, H·g, L, D), g query heads per head of the keys.
        prompt, suffix: (H, P, D), (n, H, t, D).

    Returns:
        (H, n, g·L, P + t).
    """
    rows, heads, _, size = suffix.shape
    each = query.reshape(rows, heads, -1, size)
    packed = each.transpose(0, 1)
    with_prompt = torch.bmm(packed.reshape(heads, -1, size), prompt.transpose(1, 2))
    with_suffix = each @ suffix.transpose(2, 3)
    return torch.cat([with_prompt.view(*packed.shape[:3], -1), with_suffix.transpose(0, 1)], dim=-1)


def _outputs(weights: torch.Tensor, prompt: torch.Tensor, suffix: torch.Tensor) -> torch.Tensor:
    """Multiply (H, n, g·L, P + t) weights with values, the parts as for `_scores`: (n, H, g·L, D)."""
    heads, rows, queries, _ = weights.shape
    shown = prompt.shape[1]
    found = torch.bmm(weights[..., :shown].reshape(heads, rows * queries, shown), prompt)
    return found.view(heads, rows, queries, -1).transpose(0, 1) + weights[..., shown:].transpose(0, 1) @ suffix


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Answer `scaled_dot_product_attention`."""
    if not (isinstance(key, Joined) and isinstance(value, Joined) and key.form == value.form == "plain"):
        return NotImplemented
    if isinstance(query, Joined) or query.dim() != 4 or dropout_p or is_causal:
        return NotImplemented
    if query.shape[1] != key.shape[1] and key.shape[1] != 1 and not enable_gqa:
        return NotImplemented
    scaled = query * (query.shape[3] ** -0.5 if scale is None else scale)
    mask = None
    if attn_mask is not None:
        mask = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask
        mask = mask.expand(*query.shape[:3], key.shape[2])
    found = []
    for (here, keys, own_keys), (_, values, own_values) in zip(key.blocks(), value.blocks(), strict=True):
        scores = _scores(scaled[here], keys, own_keys)
        if mask is not None:
            heads, rows, queries, length = scores.shape
            own = mask[here].reshape(rows, heads, queries, length).transpose(0, 1)
            scores = scores.masked_fill_(own, -torch.inf) if own.dtype == torch.bool else scores.add_(own)
        weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(own_values.dtype)
        found.append(_outputs(weights, values, own_values))
    return torch.cat(found).reshape(*query.shape[:3], -1)


def _multiply(left: torch.Tensor, right: torch.Tensor) -> Any:
    """Answer `left @ right`: the scores of queries with flipped keys, or the outputs of weights with values."""
    if isinstance(left, Joined) or not isinstance(right, Joined) or right.form == "grouped":
        return NotImplemented
    if left.dim() != 4 or left.shape[0] != right.shape[0] or right.shape[1] not in (1, left.shape[1]):
        return NotImplemented
    found = []
    for here, prompt, suffix in right.blocks():
        if right.form == "flipped":
            part = _scores(left[here], prompt, suffix).transpose(0, 1)
        else:
            weights = left[here].reshape(*suffix.shape[:2], -1, left.shape[3])
            part = _outputs(weights.transpose(0, 1), prompt, suffix)
        found.append(part.reshape(-1, *left.shape[1:3], right.shape[3]))
    return torch.cat(found)


def _transposed(tensor: Joined, first: int, second: int) -> Any:
    if tensor.form == "grouped" or {first % 4, second % 4} != {2, 3}:
        return NotImplemented
    return tensor.noted(form="plain" if tensor.form == "flipped" else "flipped")


# Heads are repeated by x[:, :, None, :, :].expand(U, H, copies, T, D).reshape(U, H · copies, T, D).


def _grouped(tensor: Joined, index: Any) -> Any:
    everything = slice(None)
    known = isinstance(index, tuple) and not any(isinstance(part, torch.Tensor) for part in index)
    if tensor.form != "plain" or tensor.copies > 1 or not known:
        return NotImplemented
    if index != (everything, everything, None, everything, everything):
        return NotImplemented
    return tensor.noted(form="grouped")


def _expanded(tensor: Joined, *shape: int) -> Any:
    known = (
        tensor.form == "grouped"
        and len(shape) == 5
        and (*shape[:2], *shape[3:]) == (*tensor.shape[:2], *tensor.shape[3:])
    )
    return tensor.noted(copies=shape[2]) if known and shape[2] > 0 else NotImplemented


def _reshaped(tensor: Joined, *shape: int) -> Any:
    plain = tensor.noted(form="plain")
    return plain if tensor.form == "grouped" and shape == plain.shape else NotImplemented


_LOOKS = {torch.Tensor.size, torch.Tensor.dim}
_ANSWERS: dict[Any, Callable[..., Any]] = {
    F.scaled_dot_product_attention: _attend,
    torch.matmul: _multiply,
    torch.Tensor.matmul: _multiply,
    torch.Tensor.__matmul__: _multiply,
    torch.Tensor.transpose: _transposed,
    torch.Tensor.__getitem__: _grouped,
    torch.Tensor.expand: _expanded,
    torch.Tensor.reshape: _reshaped,
    torch.Tensor.contiguous: lambda tensor: tensor,
    torch.Tensor.to: lambda tensor, *to: tensor if to == (tensor.dtype,) else NotImplemented,
}
