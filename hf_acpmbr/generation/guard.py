"""What a call of `generate` asked for and does not pass on to a custom_generate callable: found, served or refused."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

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
_RECORDS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


@dataclass(frozen=True)
class Caller:
    """The call of `generate` that is running; empty if there is none.

    Args:
        options: its keywords.
        model: whose `generate` it is.
        config: the GenerationConfig that it was given, before `generate` fills it up.
        rows: number of sources it was given.
        streamer, assistant_model, synced_gpus: as given, else None.
    """

    options: Mapping[str, object] = field(default_factory=dict)
    model: GenerativeModel | None = None
    config: GenerationConfig | None = None
    rows: int = 1
    streamer: BaseStreamer | None = None
    assistant_model: object = None
    synced_gpus: bool | None = None

    @classmethod
    def find(cls) -> Caller:
        """Read from the frame of the running `generate`; transformers hands over neither streamer nor assistant."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            values = frame.f_locals
            if frame.f_code.co_name == "generate" and "custom_generate" in values and "streamer" in values:
                options = dict(values.get("kwargs") or {})
                inputs = (values.get("inputs"), options.get("input_ids"), options.get("inputs_embeds"))
                return cls(
                    options,
                    values.get("self"),
                    values.get("generation_config"),
                    max((len(tensor) for tensor in inputs if tensor is not None), default=1),
                    values["streamer"],
                    values.get("assistant_model"),
                    values.get("synced_gpus"),
                )
            frame = frame.f_back
        return cls()

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
        caller = Caller.find()
        if (reason := _refusal(caller)) is not None:
            with caller.streaming():
                raise ValueError(reason)
        return inspect.signature(instance.__call__)


def _refusal(caller: Caller) -> str | None:
    own = None if caller.model is None else caller.model.generation_config
    configs = {"generation_config": caller.config, "the model's generation_config": own}
    for place, config in configs.items():
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
    if caller.streamer is None:
        return None
    several = [f"{caller.rows} sources"] if caller.rows > 1 else []
    for name in ("num_beams", "num_return_sequences"):
        given = [caller.options.get(name), *(getattr(config, name, None) for config in configs.values())]
        value = next((value for value in given if value is not None), 1)
        several += [f"{name}={value}"] if value != 1 else []
    if not several:
        return None
    return (
        f"a streamer takes one source and one sequence, and generate would show it one row for each of "
        f"{', '.join(several)}: call generate for each source by itself, with num_beams=1 where the model has its own"
    )


def check_conflicts(model: GenerativeModel, config: GenerationConfig, sampler: Sampler, caller: Caller) -> None:
    """Raise for settings of the call that cannot hold and warn of overruled ones; the model's own do neither."""
    own = model.generation_config

    def given(name: str) -> object:
        """Return what this call asks for beyond the model's own settings."""
        value = getattr(config, name, None)
        return value if name in caller.options or value != getattr(own, name, None) else None

    if model.config.model_type == "whisper" and config.return_dict_in_generate:
        raise ValueError(
            "return_dict_in_generate=True cannot be had with MBR on Whisper, whose generate takes the output apart: "
            "leave it out, and with it logprob_threshold and return_token_timestamps, which ask for it "
            "(return_segments=True gives the chosen segments)"
        )
    if (config.num_beams or 1) > 1:
        if given("num_beams"):
            raise ValueError(
                f"num_beams={config.num_beams} conflicts with MBR, which draws its own candidates: leave it out; to "
                "choose among the beams of a beam search give ACPMBR(sampler=GenerationConfig(num_beams=...))"
            )
        _say_own_beams()
    if caller.assistant_model is not None or any(given(name) for name in _SINGLE_SAMPLES):
        raise ValueError(
            f"assistant_model and {', '.join(_SINGLE_SAMPLES)} speed up single samples and have no effect on MBR's "
            "sampling, which already runs the model once per distinct prefix: leave them out"
        )
    if other := [name for name in _OTHER_DECODING if given(name)]:
        raise ValueError(f"{', '.join(other)} asks for another way of decoding than MBR: leave it out")
    if records := [name for name in _RECORDS if given(name)]:
        raise ValueError(
            f"{', '.join(records)}=True cannot be honoured: MBR scores texts, not tokens. "
            "return_dict_in_generate=True gives an MBROutput with log-probabilities, utilities and matrices"
        )
    ignored = []
    for name, (unset, ours) in _OVERRULED.items():
        value = given(name)
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
