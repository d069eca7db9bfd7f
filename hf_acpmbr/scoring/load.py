"""Utilities by name: the table of names and checkpoints, loading from a name, hub id, path or object, and the setting.

`load_utility` and `as_utility` make utilities; a `UtilitySpec` is what a recipe holds, and can be loaded again.
"""

from __future__ import annotations

import difflib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..config import Configured, describe, flag, number, plain
from .checkpoints import checkpoint_folder, read_config
from .fingerprint import check_options
from .utility import NEUTRAL_OPTIONS, PRICES, Utility

if TYPE_CHECKING:
    from ..types import JSON

# What users may hand over: a name, {"name": ..., options}, a Utility, or what `as_utility` makes one of.
UtilityLike: TypeAlias = object
_EMBEDDED = Path(__file__).resolve().parent.parent / "embedded"
_MILLION = 10**6
_SCALE = number(0, above=True)


class Entry(NamedTuple):
    """Where a utility's class is, "module:Class" inside hf_acpmbr, and the options that make this name out of it."""

    place: str
    options: Mapping[str, object] = {}


def _network(place: str, checkpoint: str, millions: float | None = None, **options: object) -> Entry:
    parameters = None if millions is None else round(millions * _MILLION)
    return Entry(place, {"checkpoint": checkpoint, "parameters": parameters, **options})


_BLEURT, _METRICX = "metrics.bleurt:BLEURT", "metrics.metricx:MetricX"
_COMET, _UNIFIED = "metrics.comet.regression:COMET", "metrics.comet.unified:UnifiedMetric"
_QE = {"reference_free": True}
_FUNCTION, _EVALUATE = "scoring.adapters:FunctionUtility", "scoring.adapters:EvaluateUtility"
# What a metric from elsewhere may say about itself, by an attribute of this name.
_SAID_BY_OBJECTS = ("higher_is_better", "scale", "symmetric", "needs_source", "parameters", *PRICES)
UTILITIES: dict[str, Entry] = {
    "chrf": Entry("metrics.chrf:ChrF"),
    "chrf++": Entry("metrics.chrf:ChrF", {"word_order": 2}),
    "bleu": Entry("metrics.bleu:SentenceBLEU"),
    "ter": Entry("metrics.ter:TER"),
    "bleurt-20": _network(_BLEURT, "lucadiliello/BLEURT-20", 579),
    "bleurt-20-d12": _network(_BLEURT, "lucadiliello/BLEURT-20-D12", 167),
    "bleurt-20-d6": _network(_BLEURT, "lucadiliello/BLEURT-20-D6", 45),
    "bleurt-20-d3": _network(_BLEURT, "lucadiliello/BLEURT-20-D3", 30),
    **{
        f"bleurt-{size}-{length}": _network(_BLEURT, f"lucadiliello/bleurt-{size}-{length}")
        for size in ("tiny", "base", "large")
        for length in (128, 512)
    },
    "comet": _network(_COMET, "Unbabel/wmt22-comet-da", 581),
    "comet-20": _network(_COMET, "Unbabel/wmt20-comet-da"),
    "comet-qe-20": _network(_COMET, "Unbabel/wmt20-comet-qe-da", **_QE),
    "cometkiwi": _network(_UNIFIED, "Unbabel/wmt22-cometkiwi-da", 565, **_QE),
    "cometkiwi-xl": _network(_UNIFIED, "Unbabel/wmt23-cometkiwi-da-xl", 3500, **_QE),
    "cometkiwi-xxl": _network(_UNIFIED, "Unbabel/wmt23-cometkiwi-da-xxl", 10700, **_QE),
    "unite": _network(_UNIFIED, "Unbabel/wmt22-unite-da", reference_free=False),
    "xcomet-xl": _network(_UNIFIED, "Unbabel/XCOMET-XL", 3500, reference_free=False),
    "xcomet-xxl": _network(_UNIFIED, "Unbabel/XCOMET-XXL", 10700, reference_free=False),
    "xcomet-lite": _network(_UNIFIED, "myyycroft/XCOMET-lite", 278, reference_free=False),
    "metricx-24": _network(_METRICX, "google/metricx-24-hybrid-large-v2p6", 1230),
    "metricx-24-xl": _network(_METRICX, "google/metricx-24-hybrid-xl-v2p6", 3700),
    "metricx-24-xxl": _network(_METRICX, "google/metricx-24-hybrid-xxl-v2p6", 13000),
    "metricx-24-qe": _network(_METRICX, "google/metricx-24-hybrid-large-v2p6", 1230, **_QE),
    "metricx-23": _network(_METRICX, "google/metricx-23-large-v2p0", 1230),
    "metricx-23-xl": _network(_METRICX, "google/metricx-23-xl-v2p0", 3700),
    "metricx-23-xxl": _network(_METRICX, "google/metricx-23-xxl-v2p0", 13000),
    "metricx-23-qe": _network(_METRICX, "google/metricx-23-qe-large-v2p0", 1230, **_QE),
    "bertscore": _network("metrics.bertscore:BERTScore", "google-bert/bert-base-multilingual-cased"),
    "embedding-cosine": _network(
        "metrics.embedding:EmbeddingCosine", "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2", 118
    ),
    "embedded": _network(_BLEURT, str(_EMBEDDED / "utility")),
    "embedded-d1": _network(_BLEURT, str(_EMBEDDED / "utility-d1")),
    "embedded-d2": _network(_BLEURT, str(_EMBEDDED / "utility-d2")),
}

# What the files of a folder say it is: config.json's model_type, or hparams.yaml's class_identifier (COMET).
_KINDS: dict[str, Entry] = {
    "bleurt": Entry(_BLEURT),
    "mt5": Entry(_METRICX),
    "regression_metric": Entry(_COMET),
    "referenceless_regression_metric": Entry(_COMET, _QE),
    "unified_metric": Entry(_UNIFIED),
    "xcomet_metric": Entry(_UNIFIED, {"reference_free": False}),
}


class Partner(NamedTuple):
    """A distilled utility of a target.

    Args:
        name: its name in `UTILITIES`.
        low: reduction rate r′ of the paper's Low setting (target at r = 32).
        high: reduction rate r′ of the paper's High setting (target at r = 1024).
    """

    name: str
    low: float
    high: float


# The first partner is the one that `distilled="auto"` takes. For BLEURT-20 the rates are the paper's, and D12 had its
# best BLEURT and High XCOMET; the embedded models follow the same rule: about as much spent on guide as on target.
DISTILLED: dict[str, tuple[Partner, ...]] = {
    "bleurt-20": (
        Partner("bleurt-20-d12", 8, 256),
        Partner("bleurt-20-d6", 4, 128),
        Partner("bleurt-20-d3", 2, 64),
    ),
    "embedded": (Partner("embedded-d1", 8, 256), Partner("embedded-d2", 4, 128)),
}


def distilled_partners(name: str) -> tuple[Partner, ...]:
    """List the known distilled versions of a utility, the preferred one first."""
    return DISTILLED.get(name.lower(), ())


def available_utilities() -> list[str]:
    """List the names that `load_utility` knows."""
    return list(UTILITIES)


def load_utility(name: str, /, *, trust_remote_code: bool = False, **options: object) -> Utility:
    """Load a utility by name ("chrf", "bleurt-20", ...), hub id or path of a checkpoint, or an `evaluate` script.

    Args:
        name: see `available_utilities()`; hub ids and folders in the public checkpoint formats work too.
        trust_remote_code: allow what runs a program from elsewhere: the script of an `evaluate` module.
        options: of the utility; networks take `device=`, `dtype=`, `batch_tokens=`, `compile=`, all take `cache=`
            (a file that keeps scores between runs), `progress=`, `price_per_pair=` and `price_per_text=`.
    """
    if not isinstance(name, str):
        raise TypeError(f"load_utility takes a name, got {type(name).__name__}: use as_utility for objects")
    known = name.lower()
    by_id = (entry for entry in UTILITIES.values() if str(entry.options.get("checkpoint")).lower() == known)
    entry = UTILITIES.get(known) or next(by_id, None) or _look_at(name)
    fixed = dict(entry.options)
    if known in UTILITIES and "checkpoint" in fixed:
        fixed["name"] = known
    if "checkpoint" in options:
        fixed.pop("parameters", None)  # of the table's own checkpoint
    if "module" in fixed:
        fixed["trust_remote_code"] = trust_remote_code
    utility = _make(name, entry.place, options, **fixed)
    utility.loaded_as = (name, options)  # without the trust, which every later load has to be given
    return utility


def as_utility(utility: object, /, *, trust_remote_code: bool = False, **options: object) -> Utility:
    """Turn what users have into a Utility: one already, a name, an `evaluate` module, a callable, or an object with
    `score(hypotheses, references, sources=None)` and `higher_is_better`. Its direction and scale are checked."""
    if isinstance(utility, str):
        return load_utility(utility, trust_remote_code=trust_remote_code, **options)
    if isinstance(utility, Utility):
        if options:
            raise ValueError(f"options {sorted(options)} have no effect on a ready utility: set them when making it")
        # Others would make expected utilities and errors meaningless.
        flag(f"higher_is_better of utility {utility.name!r}", utility.higher_is_better)
        _SCALE(f"scale of utility {utility.name!r}", utility.scale)
        return utility
    kind = type(utility).__name__
    if hasattr(utility, "score") and hasattr(utility, "higher_is_better"):
        said = {key: getattr(utility, key) for key in _SAID_BY_OBJECTS if hasattr(utility, key)}
        # Such objects often have a torch.device and a version that is a number.
        texts = {key: getattr(utility, key, None) for key in ("name", "version", "device")}
        said |= {key: str(value) for key, value in texts.items() if value is not None}
        made = _make(kind, _FUNCTION, {**said, **options}, function=utility.score)
        if "name" not in said and "name" not in options:
            made.name = kind
        return made
    if hasattr(utility, "compute") and hasattr(utility, "features"):  # a module of `evaluate`
        return _make(kind, _EVALUATE, options, module=utility)
    if callable(utility):
        return _make(getattr(utility, "__name__", kind), _FUNCTION, options, function=utility)
    raise TypeError(
        f"{kind} is not a utility: give a name, an evaluate module, a callable f(hypotheses, references) or an object "
        "with score(hypotheses, references, sources=None) and higher_is_better"
    )


def _make(name: str, place: str, options: Mapping[str, object], /, **fixed: object) -> Utility:
    """Import a utility's class and make the object, after a check of the options that the user gave."""
    cls = pkgutil.resolve_name(f"hf_acpmbr.{place}")
    if not options:
        made: Utility = cls(**fixed)
        return made
    check_options(f"utility {name!r}", cls, options)
    return as_utility(cls(**{**fixed, **options}))


def _look_at(name: str) -> Entry:
    """Find out what a path or hub id is that no table names: an `evaluate` script, or what its small files say."""
    from ..metrics.comet.hparams import comet_class

    folder = Path(name).expanduser()
    script = folder / f"{folder.name}.py" if folder.is_dir() else folder
    if script.suffix == ".py" and script.is_file():
        return Entry(_EVALUATE, {"module": str(folder)})
    checkpoint = str(folder)
    close = difflib.get_close_matches(name.lower(), UTILITIES, n=3)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"known names: {', '.join(UTILITIES)}"
    unknown = f"unknown utility {name!r}: {hint} Hub ids, checkpoint folders and evaluate scripts are accepted too"
    if not folder.is_dir() and name.count("/") == 1 and not name.startswith((".", "/", "~")):
        try:
            folder, checkpoint = checkpoint_folder(name, ("config.json", "hparams.yaml")), name
        except Exception as error:  # whatever the hub's client raises for unknown, gated or unreachable repositories
            raise ValueError(f"{unknown} (as a hub id it cannot be reached: {error})") from error
    if not (kind := comet_class(folder)):
        if not (folder / "config.json").is_file():
            raise ValueError(unknown)
        kind = str(read_config(folder).get("model_type", ""))
    if kind not in _KINDS:
        raise ValueError(
            f"{checkpoint} is a {kind or 'model'!r} checkpoint, which is not a metric by itself. To compare texts with "
            f"it as an encoder, write load_utility('bertscore', checkpoint={checkpoint!r}) or 'embedding-cosine'; in a "
            f"command --target bertscore --target-option checkpoint={checkpoint} (`acpmbr score`: --utility, --option)"
        )
    return Entry(_KINDS[kind].place, {"checkpoint": checkpoint, **_KINDS[kind].options})


@dataclass(frozen=True)
class UtilitySpec(Configured):
    """What makes a utility: a name for `load_utility` with its options, or a ready object.

    Args:
        name: as `load_utility` takes it: a name, hub id or path.
        options: of the utility.
        ready: the object itself, if it was given as one; without `load_utility` behind it, it has no JSON.
    """

    name: str
    options: Mapping[str, object] = field(default_factory=dict)
    ready: Utility | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if "trust_remote_code" in self.options:
            raise ValueError(
                f"the options of utility {self.name!r} have trust_remote_code, which no recipe or file can grant: "
                "remove it there and, if you trust the program, pass it to the call that loads "
                "(ACPMBR(..., trust_remote_code=True), load_utility(..., trust_remote_code=True), --trust-remote-code)"
            )

    @classmethod
    def of(cls, utility: object) -> UtilitySpec:
        """Make it from what users have. A name is not loaded yet."""
        if isinstance(utility, UtilitySpec):
            return utility
        if isinstance(utility, str):
            return cls(utility)
        if isinstance(utility, Mapping):
            options = dict(utility)
            name = options.pop("name", None)
            if not isinstance(name, str):
                raise ValueError(f'a utility is a name or {{"name": ..., its options}}, got {utility!r}')
            return cls(name, options)
        ready = as_utility(utility)
        if ready.loaded_as is None:
            return cls(ready.name, {}, ready)
        return cls(*ready.loaded_as, ready)

    @classmethod
    def check(cls, name: str, value: object) -> UtilitySpec:
        """Check a field of a recipe that holds a utility: as JSON from elsewhere it cannot name files to write."""
        if isinstance(value, Mapping) and "cache" in value:
            raise ValueError(
                f"{name} has cache, and a recipe does not choose files to write: remove it there and "
                'give it to the call, as in ACPMBR(target={"name": ..., "cache": FILE}) or --target-option cache=FILE'
            )
        try:
            return cls.of(value)
        except TypeError as error:  # JSON has values of other types, and a setting of another type is a wrong value
            raise ValueError(f"{name}: {error}") from error

    @property
    def scored_by(self) -> object:
        """What two specs of equal scores share: the object, or the name with the options that can change a score."""
        if self.ready is not None and self.ready.loaded_as is None:
            return id(self.ready)
        return self.name.lower(), {key: value for key, value in self.options.items() if key not in NEUTRAL_OPTIONS}

    def load(self, *, trust_remote_code: bool = False) -> Utility:
        """Give the ready object, or load it.

        Args:
            trust_remote_code: allow a utility that is a program to run; the spec itself cannot grant it.
        """
        if self.ready is not None:
            return self.ready
        return load_utility(self.name, trust_remote_code=trust_remote_code, **self.options)

    def to_dict(self) -> dict[str, JSON]:
        """Return name and options as JSON, without the cache: it belongs to a machine, and changes no score."""
        if self.ready is not None and self.ready.loaded_as is None:
            raise ValueError(
                f"the utility {self.name!r} is a Python object, which cannot be written as JSON: give it by name, hub "
                "id or path, with its options"
            )
        return {"name": self.name, **{key: plain(key, value) for key, value in self.options.items() if key != "cache"}}

    def __str__(self) -> str:
        options = ",".join(f"{key}={describe(value)}" for key, value in sorted(self.options.items()))
        return f"{self.name}({options})" if options else self.name
