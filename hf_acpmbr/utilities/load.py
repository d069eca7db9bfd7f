"""`load_utility` and `as_utility`: from a name, hub id, path or object to a Utility."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path

from ..foreign import EvaluateModule, ScoreObject
from .base import Utility
from .checkpoints import checkpoint_folder, read_config
from .identity import check_option_types
from .table import COMET_KINDS, KINDS, UTILITIES, Entry


class PlainEncoder(ValueError):
    """A checkpoint that compares texts only as the encoder of another utility; the message says how to write that."""

    def __init__(self, checkpoint: str, model_type: str) -> None:
        super().__init__(checkpoint, model_type)
        self.checkpoint, self.model_type = checkpoint, model_type

    def __str__(self) -> str:
        return self.advice("load_utility({name!r}, checkpoint={checkpoint!r})")

    def advice(self, form: str) -> str:
        """The message with `form` filled in by a utility's name and the checkpoint."""
        ways = [form.format(name=name, checkpoint=self.checkpoint) for name in ("bertscore", "embedding-cosine")]
        what = f"{self.checkpoint} is a {self.model_type or 'model'!r} checkpoint, which is not a metric by itself"
        return f"{what}. To compare texts with it as an encoder, write {' or '.join(ways)}"


def available_utilities() -> list[str]:
    """Names that `load_utility` knows."""
    return list(UTILITIES)


def load_utility(name: str, /, *, trust_remote_code: bool = False, **options: object) -> Utility:
    """A utility by name ("chrf", "bleurt-20", ...), hub id or path of a checkpoint, or path of an `evaluate` script.

    Args:
        name: see `available_utilities()`; hub ids and folders in the public checkpoint formats work too.
        trust_remote_code: allow what runs a program that comes from elsewhere: the script of an `evaluate` module.
        options: of the utility; networks take `device=`, `dtype=`, `batch_tokens=`, `compile=`, all take `cache=`
            (a file that keeps scores between runs), `cache_required=` and `progress=`.
    """
    if not isinstance(name, str):
        raise TypeError(f"load_utility takes a name, got {type(name).__name__}: use as_utility for objects")
    known = name.lower()
    entry = UTILITIES.get(known) or _from_table(known) or _from_path(name) or _from_hub(name)
    if entry is None:
        raise ValueError(_unknown(name))
    named = {"name": known} if known in UTILITIES and "checkpoint" in entry.options else {}
    trusted = {"trust_remote_code": trust_remote_code} if entry.module == "evaluate_module" else {}
    factory = _factory(entry.module, entry.factory)
    check_option_types(factory, options)
    utility = factory(**{**entry.options, **named, **trusted, **options})
    utility.loaded_as = (name, options)  # without the trust, which whoever loads it again has to give
    return utility


def load_with(name: str, options: Mapping[str, object]) -> Utility:
    """`load_utility` with options that came as a mapping."""
    others = {option: value for option, value in options.items() if option != "trust_remote_code"}
    return load_utility(name, trust_remote_code=options.get("trust_remote_code") is True, **others)


def as_utility(utility: object, /, **options: object) -> Utility:
    """Whatever users have, as a Utility: one already, a name, an `evaluate` module, a callable, or an object with
    `score(hypotheses, references, sources=None)` and `higher_is_better`."""
    if isinstance(utility, str):
        return load_with(utility, options)
    if isinstance(utility, Utility):
        if options:
            raise ValueError(f"options {sorted(options)} have no effect on a ready utility: set them when making it")
        return utility
    if isinstance(utility, ScoreObject):
        return _from_score_object(utility, options)
    if isinstance(utility, EvaluateModule):
        return _factory("evaluate_module", "EvaluateUtility")(utility, **options)
    if callable(utility):
        return _factory("function", "FunctionUtility")(utility, **options)
    raise TypeError(
        f"{type(utility).__name__} is not a utility: give a name, an evaluate module, a callable "
        "f(hypotheses, references) or an object with score(hypotheses, references, sources=None) and higher_is_better"
    )


def _factory(module: str, name: str) -> Callable[..., Utility]:
    """A utility's class, imported when it is asked for; it checks its own options."""
    found: Callable[..., Utility] = getattr(importlib.import_module(f".{module}", __package__), name)
    return found


def _from_score_object(utility: ScoreObject, options: dict[str, object]) -> Utility:
    known = {
        key: getattr(utility, key)
        for key in ("name", "version", "higher_is_better", "scale", "symmetric", "needs_source", "parameters", "device")
        if hasattr(utility, key)
    }
    made = _factory("function", "FunctionUtility")(utility.score, **{**known, **options})
    if "name" not in known and "name" not in options:
        made.name = type(utility).__name__
    return made


def _from_table(name: str) -> Entry | None:
    """The table's line for a checkpoint it knows by hub id."""
    return next((entry for entry in UTILITIES.values() if str(entry.options.get("checkpoint")).lower() == name), None)


def _from_path(name: str) -> Entry | None:
    """A folder in a public checkpoint format, or an `evaluate` script."""
    path = Path(name).expanduser()
    script = path / f"{path.name}.py" if path.is_dir() else path
    if script.suffix == ".py" and script.is_file():
        return Entry("evaluate_module", "EvaluateUtility", {"module": str(path)})
    return _from_folder(path, str(path)) if path.is_dir() else None


def _from_hub(name: str) -> Entry | None:
    """A checkpoint of a known format that the table does not name; its small files say what it is."""
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        return None
    try:
        folder = checkpoint_folder(name, ("config.json", "hparams.yaml"))
    except Exception as error:  # whatever the hub's client raises for unknown, gated or unreachable repositories
        raise ValueError(f"{_unknown(name)} (as a hub id it cannot be reached: {error})") from error
    return _from_folder(folder, name)


def _from_folder(folder: Path, checkpoint: str) -> Entry | None:
    from .comet_hparams import CometHparams, is_hub_mixin

    if (folder / "hparams.yaml").is_file() or is_hub_mixin(folder):
        module, factory, options = COMET_KINDS[CometHparams.read_class(folder)]
        return Entry(module, factory, {"checkpoint": checkpoint, **options})
    if not (folder / "config.json").is_file():
        return None
    model_type = str(read_config(folder).get("model_type", ""))
    if model_type not in KINDS:
        raise PlainEncoder(checkpoint, model_type)
    module, factory = KINDS[model_type]
    return Entry(module, factory, {"checkpoint": checkpoint})


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name.lower(), UTILITIES, n=3)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"known names: {', '.join(UTILITIES)}"
    return f"unknown utility {name!r}: {hint} Hub ids, checkpoint folders and evaluate scripts are accepted too"
