"""MBRConfig: every setting of a decoding run, checked, frozen, and saved as JSON."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CONFIG_NAME = "mbr_config.json"


@dataclass(frozen=True)
class Preset:
    """One of the paper's two settings: reduction rates and γ, for N = M = 1,024."""

    pmbr: float
    acpmbr: float
    distilled: float
    agreement: float

    def rate(self, decoder: str) -> float:
        """The target's reduction rate; without a guide there is twice as much to spend on it."""
        return self.pmbr if decoder == "pmbr" else self.acpmbr


# The distilled rates are those of BLEURT-20-D3; other known partners have their own (`utilities.distilled_partners`).
PRESETS = {"low": Preset(16, 32, 2, 0.1), "high": Preset(512, 1024, 64, 1.0)}
PAPER_SAMPLES = 1024


@dataclass(frozen=True)
class MBRConfig:
    """Settings of a decoding run.

    Args:
        decoder: "acpmbr", "pmbr", "mbr", … (`hf_acpmbr.decoding.DECODERS`).
        decoder_options: options of that decoder, for those that have their own.
        target: name, hub id or path of the utility that decides.
        distilled: the cheaper utilities that guide it; "auto" takes the target's known distilled version.
        num_candidates: how many samples to draw.
        num_references: how many separate pseudo-references to draw; None lets the candidates serve as both.
        epsilon, temperature, top_k, top_p: the sampling distribution; the paper's is ε = 0.02 and nothing else.
        sampler: "auto", "prefix-sharing" or "chunked".
        max_rows: at most so many rows in one forward pass while sampling.
        reduction: r: the target scores one pair in r.
        scores_per_row: instead of r: so many target scores a candidate; by default the paper's Low, 32 (PMBR 64).
        distilled_reduction, distilled_scores_per_row: the same for the distilled utility.
        observation: which pairs: "balanced", "uniform" (as in the paper), or "adaptive": in rounds, on the candidates
            that can still be the best, for the best choice rather than the best matrix. "auto" is adaptive for
            AC-PMBR with a completer that knows how sure it is (transfer), else balanced.
        confidence: "adaptive" stops early when it is so sure of the best candidate; 1 spends the whole budget.
        completer: "transfer", "agreement-als" (the paper's), "als"; None takes transfer for AC-PMBR, ALS for PMBR.
        rank, regularization, agreement, max_sweeps, tolerance, absolute_tolerance, center: of the completer, see
            `hf_acpmbr.completion.AgreementALS`; a tolerance of None is the completer's own.
        seed: same seed, same result.
    """

    decoder: str = "acpmbr"
    decoder_options: Mapping[str, Any] = field(default_factory=dict)
    target: str | None = None
    distilled: tuple[str, ...] = ()
    num_candidates: int = 1024
    num_references: int | None = None
    epsilon: float = 0.02
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    sampler: str = "auto"
    max_rows: int = 512
    reduction: float | None = None
    scores_per_row: float | None = None
    distilled_reduction: float | None = None
    distilled_scores_per_row: float | None = None
    observation: str = "auto"
    confidence: float = 0.99
    completer: str | None = None
    rank: int = 8
    regularization: float = 0.1
    agreement: float | tuple[float, ...] = 0.1
    max_sweeps: int = 30
    tolerance: float | None = None
    absolute_tolerance: bool = False
    center: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        given: Any = self.distilled
        object.__setattr__(self, "distilled", (given,) if isinstance(given, str) else tuple(given or ()))
        if not isinstance(self.agreement, (int, float)):  # JSON has lists
            object.__setattr__(self, "agreement", tuple(self.agreement))
        object.__setattr__(self, "decoder_options", dict(self.decoder_options))
        for name, check in _CHECKS.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            check(name, value)
        for rate, per_row in (
            ("reduction", "scores_per_row"),
            ("distilled_reduction", "distilled_scores_per_row"),
        ):
            if getattr(self, rate) is not None and getattr(self, per_row) is not None:
                raise ValueError(f"{rate} and {per_row} are two ways to say one thing: give one of them")
            if getattr(self, rate) is None and getattr(self, per_row) is None:
                low = PRESETS["low"].distilled if rate.startswith("distilled") else PRESETS["low"].rate(self.decoder)
                object.__setattr__(self, per_row, PAPER_SAMPLES / low)

    @classmethod
    def preset(
        cls, name: str, *, paper: bool = False, distilled_rate: float | None = None, **settings: Any
    ) -> MBRConfig:
        """The paper's "low" or "high" setting, changed by `settings`.

        The budgets are given as scores per row. With the paper's 1,024 samples that is its reduction rate; with fewer
        it is still enough to choose by, where 1/r of few pairs would be next to none.

        Args:
            paper: exactly the paper: AC-ALS (ALS for PMBR), reduction rates, uniform masks, no centring, its absolute
                tolerance.
            distilled_rate: r′, for a distilled utility of another cost than the paper's D3.
        """
        if name not in PRESETS:
            raise ValueError(f"preset {name!r} is unknown: choose one of {', '.join(PRESETS)}")
        chosen, decoder = PRESETS[name], settings.get("decoder", cls.decoder)
        fields: dict[str, Any] = {"agreement": chosen.agreement}
        if not {"reduction", "scores_per_row"} & settings.keys():
            fields.update(_budget("", chosen.rate(decoder), not paper))
        if not {"distilled_reduction", "distilled_scores_per_row"} & settings.keys():
            fields.update(_budget("distilled_", distilled_rate or chosen.distilled, not paper))
        if paper:
            fields.update(observation="uniform", center=False, tolerance=1e-4, absolute_tolerance=True)
            fields["completer"] = "als" if decoder == "pmbr" else "agreement-als"
        return cls.from_dict({**fields, **settings})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MBRConfig:
        """From a mapping; a name that is no setting is refused."""
        known = [f.name for f in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"the settings are {', '.join(known)}"
                raise ValueError(f"{name!r} is no setting of MBRConfig: {hint}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "distilled": list(self.distilled)}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> MBRConfig:
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError(f"an MBRConfig is a JSON object, got {type(values).__name__}")
        return cls.from_dict(values)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> Path:
        """Write `mbr_config.json` into a folder (made if need be), all or nothing."""
        path = Path(folder) / CONFIG_NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(self.to_json(), encoding="utf-8")
        temporary.replace(path)
        return path

    @classmethod
    def from_pretrained(cls, name_or_folder: str | os.PathLike[str], **settings: Any) -> MBRConfig:
        """Read `mbr_config.json` from a folder, or from a repository on the Hub; `settings` override it."""
        path = Path(name_or_folder)
        if path.is_dir():
            file = path / CONFIG_NAME
            if not file.is_file():
                raise FileNotFoundError(f"{path} has no {CONFIG_NAME}: save one there with MBRConfig.save_pretrained")
        else:
            from huggingface_hub import hf_hub_download

            file = Path(hf_hub_download(str(name_or_folder), CONFIG_NAME))
        config = cls.from_json(file.read_text(encoding="utf-8"))
        return cls.from_dict({**config.to_dict(), **settings})


def _budget(prefix: str, rate: float, per_row: bool) -> dict[str, float]:
    return {f"{prefix}scores_per_row": PAPER_SAMPLES / rate} if per_row else {f"{prefix}reduction": rate}


def _at_least(low: float, whole: bool = False) -> Any:
    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or (whole and value % 1 != 0):
            raise ValueError(f"{name} must be a {'whole ' if whole else ''}number, got {value!r}")
        if not value >= low:
            raise ValueError(f"{name} must be at least {low:g}, got {value}")

    return check


def _between(low: float, high: float, *, open_low: bool = False) -> Any:
    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{name} must be a number, got {value!r}")
        if not (low < value if open_low else low <= value) or not value <= high:
            raise ValueError(
                f"{name} must be {'above' if open_low else 'at least'} {low:g} and at most {high:g}, got {value}"
            )

    return check


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a name, got {value!r}")


def _agreement(name: str, value: Any) -> None:
    for gamma in value if isinstance(value, tuple) else (value,):
        _at_least(0)(f"{name} (γ)", gamma)


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}")


_OPTIONAL = {
    "target",
    "num_references",
    "reduction",
    "scores_per_row",
    "distilled_reduction",
    "distilled_scores_per_row",
    "completer",
    "tolerance",
}
_CHECKS: dict[str, Any] = {
    "decoder": _text,
    "target": _text,
    "num_candidates": _at_least(1, whole=True),
    "num_references": _at_least(1, whole=True),
    "epsilon": _between(0, 1),
    "temperature": _between(0, float("inf"), open_low=True),
    "top_k": _at_least(0, whole=True),
    "top_p": _between(0, 1, open_low=True),
    "sampler": _text,
    "max_rows": _at_least(1, whole=True),
    "reduction": _at_least(1),
    "scores_per_row": _between(0, float("inf"), open_low=True),
    "distilled_reduction": _at_least(1),
    "distilled_scores_per_row": _between(0, float("inf"), open_low=True),
    "observation": _text,
    "confidence": _between(0, 1, open_low=True),
    "completer": _text,
    "rank": _at_least(1, whole=True),
    "regularization": _at_least(0),
    "agreement": _agreement,
    "max_sweeps": _at_least(1, whole=True),
    "tolerance": _at_least(0),
    "absolute_tolerance": _flag,
    "center": _flag,
    "seed": _at_least(0, whole=True),
}
