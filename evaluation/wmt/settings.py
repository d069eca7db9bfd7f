"""What an evaluation run does, read from YAML: every key is checked, and an error names file, key and nearest name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import sacrebleu
import yaml

from evaluation.assets import BUILTIN
from hf_acpmbr import Recipe, available_utilities
from hf_acpmbr.config import (
    Check,
    Configured,
    flag,
    integer,
    nested,
    number,
    one_of,
    optional,
    setting,
    several,
    suggest,
)
from hf_acpmbr.recipe import KEYWORDS, Sampling

T = TypeVar("T")
S = TypeVar("S", bound="Section")
Keywords = Mapping[str, Any]
LINES = (".jsonl", ".jsonl.gz")  # how a file of sentences ends
CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def refuse_others(given: Iterable[object], names: Sequence[str], message: str) -> None:
    """Refuse a name that is not one of `names`; {} in the message is that name."""
    for name in given:
        if name not in names:
            raise ValueError(f"{message.format(name)}: {suggest(str(name), names)}")


class Section(Configured):
    """A part of the configuration; messages begin with the key at fault, so that callers can put its path before it."""

    @classmethod
    def from_dict(cls: type[S], values: Mapping[str, Any]) -> S:
        refuse_others(values, cls.field_names(), "{} is not a setting")
        for entry in dataclasses.fields(cls):
            required = entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
            if required and entry.name not in values:
                raise ValueError(f"{entry.name} is missing")
        return cls(**values)

    @classmethod
    def check(cls: type[S], name: str, value: object) -> S:
        """Check a field that holds this section."""
        if isinstance(value, cls):
            return value
        try:
            return cls.from_dict(mapping(anything)(name, value))
        except ValueError as error:
            raise ValueError(error if str(error).startswith(name) else f"{name}.{error}") from None


def required(check: Check[T]) -> T:
    """Make a field without a default."""
    made: T = field(metadata={"check": check})
    return made


def anything(name: str, value: object) -> Any:
    return value


def text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, got {value!r}")
    return value


def texts(name: str, value: object) -> tuple[str, ...]:
    return several(text, least=0)(name, [value] if isinstance(value, str) else value)


def file_name(name: str, value: object) -> str:
    """Accept a text that can name a file or folder and lead nowhere else."""
    given = text(name, value)
    if not re.fullmatch(r"[^./\\\0][^/\\\0]*", given):
        raise ValueError(f"{name} becomes the name of a folder, so it has no slash and no dot in front: got {given!r}")
    return given


def language_pairs(name: str, value: object) -> tuple[str, ...]:
    pairs = texts(name, value)
    for pair in pairs:
        if not re.fullmatch(r"\w+-\w+", pair):
            raise ValueError(f"{name}: a language pair is written like en-de, got {pair!r}")
    if not pairs or len(set(pairs)) < len(pairs):
        raise ValueError(f"{name} must name at least one language pair, each once: got {', '.join(pairs) or 'none'}")
    return pairs


def mapping(check: Check[T]) -> Check[dict[str, T]]:
    def check_all(name: str, value: object) -> dict[str, T]:
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} must hold keys and values, got {value!r}")
        return {str(key): check(f"{name}.{key}", item) for key, item in value.items()}

    return check_all


def known(names: Callable[[], list[str]], also: Callable[[str], bool] = lambda name: False) -> Check[str]:
    """Accept one of some names, or another text that `also` accepts."""

    def check(name: str, value: object) -> str:
        given = text(name, value)
        if given not in names() and not also(given):
            raise ValueError(f"{name} {given!r} is unknown: {suggest(given, names())}")
        return given

    return check


def sampling(name: str, value: object) -> Keywords:
    """Accept keywords of `Recipe.named` about sampling; candidates serve as references."""
    given = mapping(anything)(name, value)
    names = [key for key, path in KEYWORDS.items() if path[0] == "sampling" and "references" not in key]
    refuse_others(given, names, f"{name}.{{}} is not a setting")
    try:
        Recipe.named(**given)
    except ValueError as error:
        raise ValueError(f"{name}.{error}") from None
    return given


def generation(name: str, value: object) -> Keywords:
    from transformers import GenerationConfig

    given = mapping(anything)(name, value)
    empty: Any = GenerationConfig
    refuse_others(given, list(empty().to_dict()) if given else [], f"{name}.{{}} is not a setting of generate")
    return given


utility = known(lambda: list(available_utilities()), also=lambda name: "/" in name)  # a folder or an id on the Hub


def utilities(name: str, value: object) -> tuple[str, ...]:
    return tuple(utility(f"{name}[{k}]", item) for k, item in enumerate(texts(name, value)))


@dataclass(frozen=True)
class DataSettings(Section):
    """Which sentences.

    Args:
        name: "builtin", "tatoeba", a test set of sacrebleu ("wmt23"), or a JSONL(.gz) file.
        pairs: language pairs, such as ["en-de", "de-en"]; each is evaluated on its own.
        longest: leave out sources with more characters than this.
        limit: use at most this many of the others, the first.
    """

    name: str = required(known(lambda: [BUILTIN, "tatoeba", *sacrebleu.DATASETS], lambda name: name.endswith(LINES)))
    pairs: tuple[str, ...] = required(language_pairs)
    longest: int | None = setting(None, optional(integer(1)))
    limit: int | None = setting(None, optional(integer(1)))


@dataclass(frozen=True)
class ModelSettings(Section):
    """Which model, and how a source becomes what it reads.

    Args:
        name: "embedded", a Hub id or a folder; encoder-decoder or decoder-only.
        dtype: "float16", "bfloat16", …; default float32.
        prompt, chat: for decoder-only models, see `hf_acpmbr.generation.prompts.Prompting`; {source_language} and
            {target_language} are filled in.
        generate: further arguments of `model.generate`, such as max_new_tokens.
        languages: the tokenizer's own codes where they differ from the pair's: {en: eng_Latn, de: deu_Latn}.
    """

    name: str = required(text)
    dtype: str = setting("float32", one_of("float32", "float16", "bfloat16", "float64"))
    prompt: str = setting("{source}", text)
    chat: bool = setting(False, flag)
    generate: Keywords = nested(generation, dict)
    languages: Mapping[str, str] = nested(mapping(text), dict)


@dataclass(frozen=True)
class FigureSettings(Section):
    """What the figures show besides the table's rows; empty lists leave a figure out.

    Args:
        scores_per_row: of the curves over the cost: target scores per row of AC-PMBR (PMBR has twice as many).
        agreement: the values of γ.
    """

    scores_per_row: tuple[float, ...] = setting((), several(number(0, above=True), least=0))
    agreement: tuple[float, ...] = setting((), several(number(0), least=0))


@dataclass(frozen=True)
class EvaluationSettings(Section):
    """A whole run.

    Args:
        target: the utility that decides.
        distilled: its cheaper versions; each has its rows.
        metrics: columns: "bleu", "chrf", "chrf++" and "ter" on the corpus by sacrebleu, any other utility as a mean.
        budgets: the paper's settings that have a block of rows: low, high.
        density: what those keep of the paper if N is not its 1,024: "rate", the part of the drawn pairs that is scored;
            "row", the scores per row, for each unique candidate, since the paper's rarely repeat.
        own: the package's own rows by name, each with the keywords of `Recipe.named` and the recipe's name. A row
            without a guide, and one with each, as far as the decoder allows.
        sampling: keywords of `Recipe.named` for the draws; candidates serve as pseudo-references too.
        utility_options: of `load_utility`, for each utility by name: {bleurt-20: {batch_tokens: 16384}}.
        full_matrices: score every pair, which MBR, MBR with a distilled utility, MSE and regret need.
        shard_size: sentences in one file of results: what a killed run loses at most, for each process.
        threads: of torch, for each process on a CPU; their number changes the last digits, so it is fixed.
        seed: of the draws and of the observed pairs.
    """

    name: str = required(file_name)
    data: DataSettings = required(DataSettings.check)  # noqa: RUF009
    model: ModelSettings = required(ModelSettings.check)  # noqa: RUF009
    target: str = required(utility)
    distilled: tuple[str, ...] = required(utilities)
    metrics: tuple[str, ...] = required(utilities)
    budgets: tuple[str, ...] = setting(("low", "high"), several(one_of("low", "high"), least=0))
    density: str = setting("rate", one_of("rate", "row"))
    own: Mapping[str, Keywords] = nested(mapping(mapping(anything)), dict)
    sampling: Keywords = nested(sampling, dict)
    figures: FigureSettings = nested(FigureSettings.check, FigureSettings)
    utility_options: Mapping[str, Keywords] = nested(mapping(mapping(anything)), dict)
    full_matrices: bool = setting(True, flag)
    shard_size: int = setting(8, integer(1))
    threads: int = setting(1, integer(1))
    seed: int = setting(0, integer(0))

    def __post_init__(self) -> None:
        super().__post_init__()
        repeated = [name for name in self.distilled if name == self.target or self.distilled.count(name) > 1]
        if repeated:
            raise ValueError(f"distilled must name other utilities than target, each once; {repeated[0]!r} is repeated")
        codes = sorted({code for pair in self.data.pairs for code in pair.split("-")})
        refuse_others(self.model.languages, codes, "model.languages: {!r} is unknown")
        used = [self.target, *self.distilled, *self.metrics]
        refuse_others(self.utility_options, used, "utility_options: {!r} is unknown")
        for name in self.own:
            self.own_recipes(name)

    @property
    def drawing(self) -> Sampling:
        """How candidates are drawn."""
        return Recipe.named(**self.sampling).sampling

    def recipe(self, name: str = "auto", *, target: bool = True, guide: str | None = None, **changes: Any) -> Recipe:
        """Make a recipe, by name and keywords of `Recipe.named`, for this run's sampling and utilities."""
        specs = [{"name": each, **self.utility_options.get(each, {})} for each in (self.target, guide or "")]
        return Recipe.named(
            name,
            target=specs[0] if target else None,
            distilled=specs[1:] if guide else (),
            seed=self.seed,
            **self.sampling,
            **changes,
        )

    def own_recipes(self, name: str) -> dict[str | None, Recipe]:
        """Return the package's own recipe of this name without a guide and with each, as far as its decoder allows."""
        found, refused = dict[str | None, Recipe](), list[Exception]()
        for guide in (None, *self.distilled):
            keywords = dict(self.own[name])
            try:
                recipe = self.recipe(str(keywords.pop("recipe", "auto")), guide=guide, **keywords)
                recipe.decoder.check_utilities(True, len(recipe.distilled))
            except (TypeError, ValueError) as error:
                refused.append(error)
            else:
                found[guide] = recipe
        if not found:
            raise ValueError(f"own.{name}: {refused[-1]}")
        return found


def load_settings(file: str | Path, overrides: Mapping[str, Any] | None = None) -> EvaluationSettings:
    """Read a YAML file, or one of `evaluation/configs` by name.

    Args:
        overrides: values by dotted key, such as {"data.limit": 30}; None leaves the file's value.
    """
    path = Path(file)
    if not path.is_file() and path.parent == Path():
        path = CONFIGS / f"{path.stem}.yaml"
    if not path.is_file():
        names = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
        raise FileNotFoundError(f"there is no configuration {file}: {suggest(str(file), names)}")
    try:
        values = mapping(anything)("a configuration", yaml.safe_load(path.read_text(encoding="utf-8")))
        for key, value in (overrides or {}).items():
            if value is not None:
                *path_of_keys, last = key.split(".")
                place = values
                for name in path_of_keys:
                    place = place.setdefault(name, {})
                place[last] = value
        return EvaluationSettings.from_dict(values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
