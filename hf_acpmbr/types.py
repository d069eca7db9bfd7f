"""Objects of other libraries, by the part of them that is used here: the types of what users hand over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch.utils.hooks import RemovableHandle
    from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

# What only some have (src_lang, get_lang_id, special tokens) comes from its `__getattr__`, which has no type.
Tokenizer: TypeAlias = "PreTrainedTokenizerBase"

# What JSON can hold.
JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"


class Outputs(Protocol):
    """What a forward pass gives."""

    @property
    def logits(self) -> torch.Tensor: ...

    def get(self, name: str, /) -> object: ...


class GenerativeModel(Protocol):
    """A model of transformers with a `generate`, encoder-decoder or decoder-only."""

    @property
    def config(self) -> PreTrainedConfig: ...

    @property
    def generation_config(self) -> GenerationConfig: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def generate(self) -> Callable[..., Any]: ...  # whatever its custom_generate returns

    @property
    def get_output_embeddings(self) -> Callable[[], torch.nn.Module | None]: ...

    @property
    def prepare_inputs_for_generation(self) -> Callable[..., Mapping[str, object]]: ...

    @property
    def register_forward_pre_hook(self) -> Callable[..., RemovableHandle]: ...

    @property
    def __call__(self) -> Callable[..., Outputs]: ...

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]: ...


@runtime_checkable
class ScoreObject(Protocol):
    """A metric of another library that can serve as a utility."""

    @property
    def higher_is_better(self) -> bool: ...

    @property
    def score(self) -> Callable[..., object]:
        """`score(hypotheses, references, sources=None)`: one number for each pair."""
        ...


@runtime_checkable
class EvaluateModule(Protocol):
    """What `evaluate.load` gives."""

    @property
    def compute(self) -> Callable[..., Mapping[str, object]]: ...

    @property
    def features(self) -> object: ...
