"""ACPMBR on Ray Data: callables for `map_batches`, and files whose shards a cluster's actors make.

ds.map_batches(Reranker, fn_constructor_kwargs={"recipe": recipe}, batch_size=64, compute=ActorPoolStrategy(size=2))

Ray places the actors, feeds them, and repeats what a lost node was working on. Every row is decided by itself, so its
result depends neither on the batch nor on the actor that it meets.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Generic

import numpy as np
import numpy.typing as npt

from ..candidates import Candidates
from ..decision import Decision
from ..generation.corpus import decide_texts, prediction_columns
from ..generation.models import load_model
from ..generation.prompts import Prompting
from ..mbr import ACPMBR
from ..recipe import Recipe
from .job import FileRun, Item, Summary, Work
from .shards import Share

Batch = Mapping[str, npt.NDArray[Any]]
# What is wrong with a row raises these; anything else, such as a lost device, is for Ray to see.
_OF_A_ROW = (ValueError, TypeError, OverflowError)
_NO_SHARD = -1
_POOL = ("size", "min_size", "max_size")  # options that are the actor pool's


class _Rows:
    """Adds PREDICTION, PREDICTION_utility and PREDICTION_error to a batch, and PREDICTION_nbest if more are asked for.

    The error is "" if there is none; a row with an error has an empty prediction and the utility NaN.
    """

    def __init__(self, needed: Sequence[str], prediction: str, nbest: int) -> None:
        self._needed, self._prediction, self._nbest = needed, prediction, nbest

    def decide(self, row: Mapping[str, Any]) -> Decision | None:
        """Decide for one row; None for a blank source."""
        raise NotImplementedError

    def __call__(self, batch: Batch) -> dict[str, npt.NDArray[Any]]:
        if missing := [name for name in self._needed if name not in batch]:
            raise ValueError(f"no column {missing[0]!r} in the dataset, which has {', '.join(batch)}: name it")
        decisions: list[Decision | None] = []
        errors: list[object] = []
        for k in range(len(batch[self._needed[0]])):
            decision, error = None, ""
            try:
                decision = self.decide({name: batch[name][k] for name in self._needed})
            except _OF_A_ROW as caught:
                error = f"{type(caught).__name__}: {caught}"
            decisions.append(decision)
            errors.append(error)
        name = self._prediction
        columns = prediction_columns(name, decisions, self._nbest) | {f"{name}_error": errors}
        made = {column: _column(values) for column, values in columns.items()}
        made[f"{name}_utility"] = made[f"{name}_utility"].astype(np.float64)
        return {**batch, **made}


class Reranker(_Rows):
    """Chooses among the candidates of each row.

    Args:
        recipe: a Recipe, one of the five names, or the dict of a recipe's JSON.
        candidates: the column with a list of texts per row.
        counts: the column with how often each was drawn; default: repeated texts count.
        source, references: columns with the source text and with separate pseudo-references.
        prediction: the column of the chosen text; see above for those beside it.
        nbest: with more than 1, lists of the n best texts and utilities are added.
        settings: as `ACPMBR` takes them, such as target="bleurt-20", distilled="auto".
    """

    def __init__(
        self,
        recipe: str | Recipe | Mapping[str, object] = "auto",
        *,
        candidates: str = "candidates",
        counts: str | None = None,
        source: str | None = None,
        references: str | None = None,
        prediction: str = "prediction",
        nbest: int = 1,
        **settings: Any,
    ) -> None:
        self._columns = {"candidates": candidates, "counts": counts, "source": source, "references": references}
        super().__init__([name for name in self._columns.values() if name is not None], prediction, nbest)
        self._mbr = ACPMBR(recipe=_recipe(recipe), **settings)

    def decide(self, row: Mapping[str, Any]) -> Decision:
        given = {role: None if name is None else row[name] for role, name in self._columns.items()}
        counts, references, source = given["counts"], given["references"], given["source"]
        pool = Candidates.from_texts(_texts(given["candidates"]), counts=None if counts is None else list(counts))
        return self._mbr.rerank(pool, source, None if references is None else _texts(references))


class Translator(_Rows):
    """Draws candidates for the source of each row and chooses among them.

    Args:
        recipe: as for `Reranker`.
        model: hub id or folder, or "embedded".
        source: the column with the text to translate or continue.
        prediction, nbest: as for `Reranker`.
        load: further arguments of `load_model`, such as target_language, dtype, trust_remote_code.
        generate: further arguments of `model.generate`, such as max_new_tokens.
        prompt, chat, too_long, keep_blank: as for `ACPMBR.map_fn`.
        settings: as `ACPMBR` takes them.
    """

    def __init__(
        self,
        recipe: str | Recipe | Mapping[str, object] = "auto",
        *,
        model: str = "embedded",
        source: str = "source",
        prediction: str = "prediction",
        nbest: int = 1,
        load: Mapping[str, Any] | None = None,
        generate: Mapping[str, object] | None = None,
        prompt: str = "{source}",
        chat: bool = False,
        too_long: str = "cut",
        keep_blank: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__([source], prediction, nbest)
        network, tokenizer, language = load_model(model, **(load or {}))
        mbr = ACPMBR(tokenizer, recipe=_recipe(recipe), **settings)
        self._translate = partial(
            decide_texts,
            mbr,
            network,
            prompting=Prompting(prompt, chat, too_long),
            keep_blank=keep_blank,
            generate={**language, **(generate or {})},
        )

    def decide(self, row: Mapping[str, Any]) -> Decision | None:
        return self._translate([row[self._needed[0]]]).decisions[0]


def _recipe(given: str | Recipe | Mapping[str, object]) -> str | Recipe:
    return Recipe.from_dict(given) if isinstance(given, Mapping) else given


def _texts(cell: Any) -> list[str]:
    """Return the texts of a cell, which Ray gives as a list or an array."""
    if isinstance(cell, str) or cell is None:
        raise TypeError(f"a list of texts is needed, got {cell!r:.40}")
    return list(cell)


def _column(values: Sequence[object]) -> npt.NDArray[np.object_]:
    return np.fromiter(values, dtype=object, count=len(values))


class _Maker(Generic[Item]):
    """Makes shards of a file in an actor. Mistakes come back as a message instead of a stack of Ray's."""

    def __init__(self, args: argparse.Namespace, work: Work[Item], folder: str) -> None:
        if os.path.isdir(folder):
            os.chdir(folder)  # paths are relative to the folder of the command
        self._args, self._work = args, work
        self._run: FileRun[Item] | None = None

    def __call__(self, batch: Batch) -> dict[str, npt.NDArray[Any]]:
        (shard,) = batch["shard"].tolist()
        data, error = b"", ""
        about: dict[str, object] = {}
        summary = Summary()
        try:
            if self._run is None:  # not in the constructor, whose errors Ray would repeat
                self._job = self._work.load(self._args)
                self._run = FileRun(self._args, self._work.open(self._args), self._work, Share())
                self._run.output.about |= self._job.about()
            self._run.summary = summary
            about = self._run.output.about
            if shard != _NO_SHARD:
                data = self._run.lines_of(self._job, shard)
        except (ValueError, OSError, ImportError) as caught:
            error = str(caught) or type(caught).__name__
        told = json.dumps([about, summary.counts, summary.calls, error], default=str)
        return {"shard": batch["shard"], "data": _column([data]), "told": _column([told])}


def make_shards(run: FileRun[Item]) -> list[int] | None:
    """Let the actors of a Ray cluster make the missing shards, keep each as it comes, and return which they were.

    None if the file was finished.
    """
    args, output = run.args, run.output
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError(f"--ray needs Ray ({error}): pip install '.[ray]' in a copy of the repository") from error
    if not ray.is_initialized():
        where: dict[str, Any] = {"address": args.ray} if args.ray else {}
        if not args.ray and "RAY_ADDRESS" not in os.environ:
            where = {"include_dashboard": False}  # a cluster that ends with this process
        ray.init(log_to_driver=not args.quiet, logging_level="ERROR" if args.quiet else "INFO", **where)
    ray.data.DataContext.get_current().enable_progress_bars = False  # the command has one
    output.adopt()
    missing = output.start()
    # One block per shard, so that what is finished is kept at once; a shard of none asks what a run would depend on.
    numbers = missing or [_NO_SHARD]
    shards = ray.data.from_items([{"shard": shard} for shard in numbers], override_num_blocks=len(numbers))
    options = dict(args.ray_options)
    pool = {name: options.pop(name) for name in _POOL if name in options} or {"min_size": 1, "max_size": len(numbers)}
    options["compute"] = ray.data.ActorPoolStrategy(**pool)
    made = shards.map_batches(
        _Maker, fn_constructor_args=(args, run.work, os.getcwd()), batch_size=1, batch_format="numpy", **options
    )
    with run.progress(missing or []) as bar:
        for row in made.iter_rows():
            shard = row["shard"]
            about, counts, calls, problem = json.loads(row["told"])
            if problem:
                raise ValueError(problem)
            output.adopt(about)
            if shard != _NO_SHARD:
                output.put(shard, row["data"], records := run.records_in([shard]))
                bar.update(records)
            run.summary.counts.update(counts)
            run.summary.calls.update(calls)
    return output.start() if missing is None else missing
