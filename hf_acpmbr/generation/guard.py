"""What a call of `generate` asks for and does not hand over to a custom_generate callable: found, served or refused."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import TYPE_CHECKING

from ..config import integer
from ..sampling.base import Sampler

if TYPE_CHECKING:
    from transformers import GenerationConfig
    from transformers.generation.streamers import BaseStreamer

    from ..mbr import ACPMBR
    from ..types import GenerativeModel

logger = logging.getLogger(__name__)

# Settings of a call that have no effect: the values that ask for nothing, and the sampler's name for it.
_OVERRULED: dict[str, tuple[tuple[float | None, ...], str | None]] = {
    "temperature": ((None, 1.0), "temperature"),
    "top_k": ((None, 0, 50), "top_k"),
    "top_p": ((None, 1.0), "top_p"),
    "min_p": ((None, 0.0), "min_p"),
    "typical_p": ((None, 1.0), "typical_p"),
    "epsilon_cutoff": ((None, 0.0), "epsilon"),
    "eta_cutoff": ((None, 0.0), "eta"),
    "top_h": ((None,), None),
    "length_penalty": ((None, 1.0), "length_penalty"),
    "early_stopping": ((None, False), "early_stopping"),
    "num_beam_groups": ((None, 1), None),
}
# What MBR cannot do beside its own way of decoding.
_OTHER_DECODING = ("penalty_alpha", "dola_layers", "diversity_penalty", "force_words_ids", "constraints")
_SINGLE_SAMPLES = ("prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp")
_FORCED = ("forced_bos_token_id", "forced_eos_token_id")
_RECORDS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
_PER_SOURCE = ("num_beams", "num_return_sequences")  # rows that `generate` would make of one source


@dataclass(frozen=True)
class Caller:
    """The call of `generate` that is running.

    Args:
        model: whose `generate` it is; None outside of one.
        options: its keywords, the very dict that `generate` goes on with.
        config: the GenerationConfig that it was given, before `generate` fills it up.
        rows: number of sources it was given.
        sequences: how many it asks for per source; known once it is prepared.
        streamer, assistant_model, synced_gpus: as given, else None.
    """

    model: GenerativeModel | None = None
    options: dict[str, object] = field(default_factory=dict)
    config: GenerationConfig | None = None
    rows: int = 1
    sequences: int = 1
    streamer: BaseStreamer | None = None
    assistant_model: object = None
    synced_gpus: bool | None = None

    @classmethod
    def find(cls) -> Caller | None:
        """Read the frame of a `generate` that has not begun its work; None if there is none."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            values = frame.f_locals
            if frame.f_code.co_name == "generate" and {"self", "kwargs", "custom_generate", "streamer"} <= set(values):
                if "generation_mode_kwargs" in values:
                    return None
                options, model, config = values["kwargs"], values["self"], values.get("generation_config")
                inputs = (values.get("inputs"), options.get("input_ids"), options.get("inputs_embeds"))
                return cls(
                    model,
                    options,
                    config,
                    max((len(tensor) for tensor in inputs if tensor is not None), default=1),
                    streamer=values["streamer"],
                    assistant_model=values.get("assistant_model"),
                    synced_gpus=values.get("synced_gpus"),
                )
            frame = frame.f_back
        return None

    def setting(self, name: str) -> object:
        """Return what holds for this call: its keyword, else its GenerationConfig's value, else the model's own."""
        if name in self.options:
            return self.options[name]
        own = None if self.model is None else getattr(self.model.generation_config, name, None)
        given = getattr(self.config, name, None)
        return own if given is None else given

    def given(self, name: str) -> object:
        """Return what this call asks for beyond the model's own settings."""
        value = self.setting(name)
        own = None if self.model is None else getattr(self.model.generation_config, name, None)
        return value if name in self.options or value != own else None

    def prepare(self) -> None:
        """Make `generate` prepare one row per source, and hand this object over."""
        prepared = replace(
            self, sequences=integer(1)("num_return_sequences", self.setting("num_return_sequences") or 1)
        )
        for name in _PER_SOURCE:
            if self.setting(name) not in (None, 1):
                self.options[name] = 1
                if name == "num_beams":
                    _say_own_beams()
        self.options["caller"] = prepared

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """End the streamer whatever happens: its reader must not wait for what never comes."""
        try:
            yield
        finally:
            if self.streamer is not None:
                self.streamer.end()


class CheckedSignature:
    """The signature of a custom_generate callable, which checks the call that asks for it.

    `generate` reads the signature before any work: the moment to refuse what it would fail at halfway, with a message
    that does not help or a reader of the streamer who waits forever.
    """

    def __get__(self, instance: ACPMBR | None, owner: type) -> inspect.Signature | None:
        if instance is None:
            return None
        if (caller := Caller.find()) is not None:
            reason = _refusal(caller)
            if reason is not None:
                with caller.streaming():
                    raise ValueError(reason)
            _warn_of_ignored(caller, instance.recipe.sampling.sampler)
            caller.prepare()
        return inspect.signature(instance.__call__)


def _refusal(caller: Caller) -> str | None:
    """Say why a call cannot be served; None if it can. The model's own settings conflict with nothing."""
    assert caller.model is not None
    if (reason := _other_loop(caller.model)) is not None:
        return reason
    for place, config in (
        ("generation_config", caller.config),
        ("the model's generation_config", caller.model.generation_config),
    ):
        if getattr(config, "stop_strings", None):
            return (
                f"stop_strings in {place} cannot be honoured: generate gives custom_generate no tokenizer to read "
                "them with: set them to None there, and pass stop_strings=[...] to the call of generate itself or "
                "stopping_criteria=StoppingCriteriaList([StopStringCriteria(tokenizer, [...])])"
            )
    if caller.synced_gpus:
        return (
            "synced_gpus=True cannot be honoured: each process runs the model once per distinct prefix, so their "
            "passes do not match; give every process a whole copy of the model"
        )
    if caller.model.config.model_type == "whisper" and caller.setting("return_dict_in_generate"):
        return (
            "return_dict_in_generate=True cannot be had with MBR on Whisper, whose generate takes the output apart: "
            "leave it out, and with it logprob_threshold and return_token_timestamps, which ask for it "
            "(return_segments=True gives the chosen segments)"
        )
    if (beams := caller.given("num_beams")) not in (None, 1):
        return (
            f"num_beams={beams} conflicts with MBR, which draws its own candidates: leave it out; to "
            "choose among the beams of a beam search give ACPMBR(sampler=GenerationConfig(num_beams=...))"
        )
    if caller.assistant_model is not None or any(caller.given(name) for name in _SINGLE_SAMPLES):
        return (
            f"assistant_model and {', '.join(_SINGLE_SAMPLES)} speed up single samples and have no effect on MBR's "
            "sampling, which already runs the model once per distinct prefix: leave them out"
        )
    if other := [name for name in _OTHER_DECODING if caller.given(name)]:
        return f"{', '.join(other)} asks for another way of decoding than MBR: leave it out"
    if records := [name for name in _RECORDS if caller.given(name)]:
        return (
            f"{', '.join(records)}=True cannot be honoured: MBR scores texts, not tokens. "
            "return_dict_in_generate=True gives an MBROutput with log-probabilities, utilities and matrices"
        )
    size = getattr(getattr(caller.model.get_output_embeddings(), "weight", None), "shape", (None,))[0]
    for name in _FORCED:
        forced = caller.setting(name)
        ids = forced if isinstance(forced, (list, tuple)) else [forced]
        if any(isinstance(token, int) and size is not None and not 0 <= token < size for token in ids):
            return f"{name}={forced} is no token of this model, which has {size}: give the id of one of them"
    several = [f"{caller.rows} sources"] if caller.rows > 1 else []
    if (sequences := caller.setting("num_return_sequences")) not in (None, 1):
        several.append(f"num_return_sequences={sequences}")
    if caller.streamer is not None and several:
        return (
            f"a streamer takes one source and one sequence, and this call has {' and '.join(several)}: call generate "
            "for each source by itself, without num_return_sequences"
        )
    return None


def _other_loop(model: GenerativeModel) -> str | None:
    """Say why a model cannot be sampled from as `generate` samples text; None if it can."""
    from ..sampling.generation_mixin import samples_as_all

    name = type(model).__name__
    if not samples_as_all(model):
        return (
            f"{name} draws by a loop of its own, for sound or its codes, and MBR compares texts: decode with its own "
            "generate, and choose among texts by ACPMBR(...).rerank"
        )
    modes = getattr(model, "_supported_generation_modes", None)
    if modes is not None and all(mode.value != "sample" for mode in modes):
        return f"{name} can only be decoded greedily, so there is nothing to choose among: leave custom_generate out"
    if model.config.model_type == "rwkv":
        return (
            "rwkv: transformers mixes the rows of a batch once a state is kept, so samples would be wrong: draw "
            "candidates with another engine, and choose among them by ACPMBR(...).rerank"
        )
    return None


def _warn_of_ignored(caller: Caller, sampler: Sampler) -> None:
    """Warn of sampling settings of the call; the model's own are left aside without a word."""
    ignored = []
    for name, (unset, ours) in _OVERRULED.items():
        value = caller.given(name)
        here = getattr(getattr(sampler, "truncation", None), ours or "", getattr(sampler, ours or "", None))
        if value not in unset and value != here:
            ignored.append(f"{name}={value} ({'not used here' if here is None else f'here {here}'})")
    if ignored:
        warnings.warn(
            f"sampling settings given to generate are ignored: {', '.join(ignored)}; ACPMBR samples by its own, "
            "so set them there",
            UserWarning,
            stacklevel=3,
        )


@functools.cache  # once per process
def _say_own_beams() -> None:
    logger.info("the model's own num_beams is left aside: MBR draws its own candidates")
