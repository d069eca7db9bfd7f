"""What an evaluation run does, read from YAML: every key is checked, and an error names the key at fault."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from hf_acpmbr.config import PRESETS, MBRConfig

CONFIGS = Path(__file__).resolve().parent / "configs"
T = TypeVar("T")


@dataclass(frozen=True)
class DataSettings:
    """Which sentences.

    Args:
        name: "wmt22", "wmt23", … , "tatoeba", "builtin", a JSONL(.gz) file, or a dataset id on the Hub.
        pairs: language pairs, such as ["en-de", "de-en"]; each is evaluated on its own.
        folder: where WMT test sets lie as `<name>.<pair>.jsonl.gz`; default: beside the project, else
            sacrebleu's download.
        longest: leave out sources with more characters than this.
        limit: of the others only the first so many.
    """

    name: str
    pairs: tuple[str, ...]
    folder: str | None = None
    longest: int | None = None
    limit: int | None = None


@dataclass(frozen=True)
class ModelSettings:
    """Which model, and how a source becomes what it reads.

    Args:
        name: "embedded", a Hub id or a folder; encoder-decoder or decoder-only.
        dtype: "float16", "bfloat16", …; default float32.
        prompt, chat: for decoder-only models, see `hf_acpmbr.inputs.encode`; {source_language} and
            {target_language} are filled in.
        generate: further arguments of `model.generate`, such as max_new_tokens.
        languages: the tokenizer's own codes where they differ from the pair's: {en: eng_Latn, de: deu_Latn}.
    """

    name: str
    dtype: str = "float32"
    prompt: str = "{source}"
    chat: bool = False
    generate: Mapping[str, Any] = field(default_factory=dict)
    languages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SamplingSettings:
    """How candidates are drawn; they serve as pseudo-references too, as in the paper."""

    num_candidates: int = 1024
    epsilon: float = 0.02
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    sampler: str = "auto"
    max_rows: int = 512


@dataclass(frozen=True)
class BudgetSettings:
    """One block of the table: PMBR, and AC-PMBR with each distilled utility, at about equal cost.

    Args:
        preset: the paper's "low" or "high".
        paper: exactly the paper's rates, uniform masks and uncentred completion, instead of scores per row and this
            package's defaults.
        count: "drawn": scores per drawn candidate, so never dearer than the paper; "unique": per unique candidate, so
            that rows hold as few scores as the paper's, whose candidates rarely repeat.
        distilled_rates: r′ for a distilled utility, where it is not the known one.
        mbr: any setting of MBRConfig, for both methods.
    """

    preset: str
    paper: bool = False
    count: str = "drawn"
    distilled_rates: Mapping[str, float] = field(default_factory=dict)
    mbr: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FigureSettings:
    """What the figures show besides the table's rows; empty lists leave a figure out.

    Args:
        scores_per_row: of the curves over the cost: target scores a row of AC-PMBR (PMBR has twice as many).
        agreement: the values of γ.
        base: the block of `budgets` whose `count`, `paper` and `mbr` the curves over the cost follow.
    """

    scores_per_row: tuple[float, ...] = ()
    agreement: tuple[float, ...] = ()
    base: str | None = None


@dataclass(frozen=True)
class EvaluationSettings:
    """A whole run.

    Args:
        target: the utility that decides.
        distilled: its cheaper versions; each has its rows.
        metrics: columns: "bleu", "chrf", "chrf++" and "ter" on the corpus by sacrebleu, any other utility as a mean.
        utility_options: of `load_utility`, for each utility by name: {bleurt-20: {batch_tokens: 16384}}.
        budgets: blocks of the table by name.
        full_matrices: score every pair, which MBR, MBR with a distilled utility, MSE and regret need.
        shard_size: sentences in one file of results: what a killed run loses at most, for each process.
        threads: of torch, for each process on a CPU; their number changes the last digits, so it is fixed.
        seed: of the draws and of the observed pairs.
    """

    name: str
    data: DataSettings
    model: ModelSettings
    target: str
    distilled: tuple[str, ...]
    metrics: tuple[str, ...]
    budgets: Mapping[str, BudgetSettings]
    sampling: SamplingSettings = SamplingSettings()
    figures: FigureSettings = FigureSettings()
    utility_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    full_matrices: bool = True
    shard_size: int = 8
    threads: int = 1
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


_SECTIONS: dict[str, type] = {
    "data": DataSettings,
    "model": ModelSettings,
    "sampling": SamplingSettings,
    "figures": FigureSettings,
}
_MAPPINGS = {"generate", "languages", "distilled_rates", "mbr", "utility_options"}
_AT_LEAST_ONE = {"limit", "longest", "num_candidates", "max_rows", "shard_size", "threads"}


def load_settings(file: str | Path, overrides: Mapping[str, Any] | None = None) -> EvaluationSettings:
    """Read a YAML file, or one of `evaluation/configs` by name.

    Args:
        overrides: values by dotted key, such as {"data.limit": 30}; None leaves the file's value.
    """
    path = Path(file)
    if not path.is_file() and (CONFIGS / f"{path.stem}.yaml").is_file() and path.parent == Path():
        path = CONFIGS / f"{path.stem}.yaml"
    if not path.is_file():
        raise FileNotFoundError(f"no configuration {file}: give a YAML file or one of {', '.join(_names())}")
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ValueError(f"{file} must hold keys and values, got {type(values).__name__}")
    for key, value in (overrides or {}).items():
        if value is not None:
            _put(values, key, value)
    return parse_settings(values)


def parse_settings(values: Mapping[str, Any]) -> EvaluationSettings:
    """Settings from nested mappings."""
    prepared = dict(values)
    for name, cls in _SECTIONS.items():
        if name in prepared:
            prepared[name] = _build(cls, prepared[name], name)
    budgets = prepared.get("budgets")
    if not isinstance(budgets, Mapping):
        raise ValueError("budgets must map names to blocks of the table, such as {high: {preset: high}}")
    prepared["budgets"] = {str(name): _budget(str(name), block) for name, block in budgets.items()}
    settings = _build(EvaluationSettings, prepared, "")
    if settings.figures.base is not None and settings.figures.base not in settings.budgets:
        raise ValueError(
            f"figures.base must be one of budgets ({', '.join(settings.budgets)}), got {settings.figures.base!r}"
        )
    repeated = [name for name in settings.distilled if name == settings.target or settings.distilled.count(name) > 1]
    if repeated:
        raise ValueError(f"distilled must name other utilities than target, each once; {repeated[0]!r} is repeated")
    return settings


def _budget(name: str, block: Any) -> BudgetSettings:
    key = f"budgets.{name}"
    budget = _build(BudgetSettings, block, key)
    if budget.preset not in PRESETS:
        raise ValueError(f"{key}.preset must be one of {', '.join(PRESETS)}, got {budget.preset!r}")
    if budget.count not in ("drawn", "unique"):
        raise ValueError(f"{key}.count must be 'drawn' or 'unique', got {budget.count!r}")
    try:
        MBRConfig.from_dict(budget.mbr)
    except ValueError as error:
        raise ValueError(f"{key}.mbr: {error}") from None
    return budget


def _build(cls: type[T], values: Any, key: str) -> T:
    """A dataclass from a mapping; unknown, missing and ill-typed keys are refused by name."""
    prefix = f"{key}." if key else ""
    if not isinstance(values, Mapping):
        raise ValueError(f"{key} must hold keys and values, got {values!r}")
    fields = {entry.name: entry for entry in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in values:
        if name not in fields:
            close = difflib.get_close_matches(str(name), fields, n=1)
            hint = f"did you mean {prefix}{close[0]}?" if close else f"known: {', '.join(fields)}"
            raise ValueError(f"{prefix}{name} is no setting: {hint}")
    for name, entry in fields.items():
        required = entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
        if name not in values and required:
            raise ValueError(f"{prefix}{name} is missing")
    return cls(**{name: _typed(prefix + name, fields[name], value) for name, value in values.items()})


def _typed(key: str, entry: dataclasses.Field[Any], value: Any) -> Any:
    kind = str(entry.type)
    if value is None and "None" in kind:
        return None
    if dataclasses.is_dataclass(value) or entry.name == "budgets":
        return value
    if kind.startswith("tuple"):
        items = value if isinstance(value, (list, tuple)) else [value]
        return tuple(_plain(f"{key}[{i}]", "float" if "float" in kind else "str", item) for i, item in enumerate(items))
    if entry.name in _MAPPINGS:
        if not isinstance(value, Mapping):
            raise ValueError(f"{key} must hold keys and values, got {value!r}")
        return dict(value)
    value = _plain(key, kind.split(" |")[0], value)
    if entry.name in _AT_LEAST_ONE and value < 1:
        raise ValueError(f"{key} must be at least 1, got {value}")
    return value


def _plain(key: str, kind: str, value: Any) -> Any:
    allowed: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}
    if not isinstance(value, allowed[kind]) or (isinstance(value, bool) and kind != "bool"):
        raise ValueError(f"{key} must be {_WORDS[kind]}, got {value!r}")
    return float(value) if kind == "float" else value


_WORDS = {"str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false"}


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for name in path:
        values = values.setdefault(name, {})
    values[last] = value


def _names() -> list[str]:
    return sorted(path.name for path in CONFIGS.glob("*.yaml"))
