"""The page's layout in gradio, the only file that needs it. What is shown comes from `views` and `rounds`."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable, Generator, Iterator
from html import escape
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from .analysis import Analysis, decide_again, scores_per_row
from .jobs import Jobs
from .rerank import HEADERS, rerank_file
from .rounds import rounds_picture
from .settings import NO_GUIDE, RECIPES, Form, Limits, Offer
from .views import candidates_table, comparison, costs, heat_map, sortable
from .workbench import Cancelled, Workbench

if TYPE_CHECKING:
    from gradio import Blocks, Request
    from gradio.components import Component

T = TypeVar("T")
Updates: TypeAlias = list[object]  # new values of the components that an event changes
_HERE = Path(__file__).parent
_LOG = logging.getLogger(__name__)
_INTRO = """# hf_acpmbr
Minimum Bayes Risk decoding: draw many translations, score them against each other with a quality metric, return the one
that agrees best with the others. Only a part of the pairs is scored; a cheaper metric helps to complete the rest."""
_EXAMPLES = [
    ["The weather was so bad that we stayed at home all day.", "en", "de"],
    ["Could you tell me how to get to the station?", "en", "de"],
    ["Morgen fahren wir mit dem ersten Zug nach Hamburg.", "de", "en"],
]
_UPLOAD_HELP = (
    'One line per source: a list of texts, or `{"candidates": [...], "source": "...", "counts": [...]}`. '
    "The result has what `acpmbr rerank --format jsonl` writes."
)


def gradio() -> ModuleType:
    """The gradio module, or how to get it."""
    try:
        return importlib.import_module("gradio")
    except ImportError as error:
        raise ImportError(f"the page needs gradio ({error}): pip install 'hf-acpmbr[ui]'") from error


def message(text: str, kind: str = "info") -> str:
    """A line above the result; errors are read out by screen readers."""
    role = "alert" if kind == "error" else "status"
    return f"<div class='message {kind}' role='{role}'>{escape(text)}</div>"


def explain(error: Exception) -> str:
    """What a visitor is told about an error; details of unexpected ones go to the log."""
    if isinstance(error, Cancelled):
        return message("cancelled")
    if not isinstance(error, (ValueError, OSError, ImportError)):
        _LOG.exception("the job failed", exc_info=error)
        return message(f"this failed unexpectedly ({type(error).__name__}); the log says more", "error")
    return message(" ".join(str(error).split()), "error")


def finished(steps: Generator[str, None, T]) -> Iterator[tuple[str, T | None]]:
    """The lines of progress, and the value of the generator with the last."""
    while True:
        try:
            yield next(steps), None
        except StopIteration as stop:
            yield "done", stop.value
            return


class Page:
    """Components and what happens when they are used."""

    def __init__(self, workbench: Workbench) -> None:
        self.gr = gradio()
        self.workbench = workbench
        self.jobs = Jobs()

    def build(self) -> Blocks:
        """The gradio Blocks."""
        gr = self.gr
        with gr.Blocks(title="hf_acpmbr", analytics_enabled=False) as blocks:
            gr.Markdown(_INTRO)
            with gr.Tab("Translate"):
                self._translate_tab()
            with gr.Tab("Rerank a file"):
                self._rerank_tab()
        limits = self.workbench.limits
        blocks.queue(max_size=limits.waiting, default_concurrency_limit=limits.jobs, api_open=False)
        return blocks

    def _translate_tab(self) -> None:
        gr, offer, limits, start = self.gr, self.workbench.offer, self.workbench.limits, Form("")
        with gr.Row():
            with gr.Column(scale=3):
                source = gr.Textbox(
                    label="Source", lines=3, max_length=limits.source_characters, elem_id="source", autofocus=True
                )
                with gr.Row():
                    run = gr.Button("Translate", variant="primary", elem_id="run")
                    cancel = gr.Button("Cancel", elem_id="cancel")
            with gr.Column(scale=2):
                with gr.Row():
                    from_ = gr.Textbox(start.source_language, label="From", max_length=12, min_width=80)
                    to = gr.Textbox(start.target_language, label="To", max_length=12, min_width=80)
                    recipe = gr.Dropdown(RECIPES, value=start.recipe, label="Recipe", min_width=120)
                candidates = gr.Slider(2, limits.candidates, start.candidates, step=1, label="Samples")
        with gr.Accordion("Model and utilities", open=False), gr.Row():
            model = gr.Dropdown(offer.models, value=offer.models[0], label="Model")
            target, guide = self._utilities()
            seed = gr.Number(0, label="Seed", precision=0, minimum=0)
            score_all = gr.Checkbox(True, label="Score all pairs, too: full MBR, true scores, other budgets")
        gr.Examples(_EXAMPLES, [source, from_, to], example_labels=[text for text, *_ in _EXAMPLES])
        status = self._html("status", value=message("Type a sentence and press Translate."))
        state = gr.State(None, time_to_live=3600)
        with gr.Column(visible=False) as result:
            views = self._result()
        inputs = [source, model, from_, to, target, guide, recipe, candidates, seed, score_all]
        outputs = [status, state, result, *views]
        job = gr.on(
            [run.click, source.submit], self._for_visitor(self.translate), inputs, outputs, concurrency_id="job"
        )
        cancel.click(self._cancelling(), None, status, cancels=[job], queue=False)
        budget = views[0]
        budget.release(self.change_budget, [state, budget], [status, *views[1:]], concurrency_id="job")

    def _utilities(self) -> tuple[Component, Component]:
        gr, offer = self.gr, self.workbench.offer
        target = gr.Dropdown(offer.targets, value=offer.targets[0], label="Target utility")
        guides = (*offer.guides, NO_GUIDE)
        return target, gr.Dropdown(guides, value=guides[0], label="Distilled utility")

    def _result(self) -> list[Component]:
        """The components of the result, the budget's slider first."""
        gr = self.gr
        budget = gr.Slider(
            0.5,
            64,
            1,
            step=0.5,
            label="Budget: target scores per candidate",
            info="Decides again from the scores that are there.",
            elem_id="budget",
        )
        with gr.Tab("Choice"):
            compared = self._html("comparison")
        with gr.Tab("Candidates"):
            table = self._html("candidates", js_on_load=_read("table.js"))
        with gr.Tab("Matrix"):
            matrix = self._html("matrix", value={}, html_template=_read("heatmap.html"), js_on_load=_read("heatmap.js"))
        with gr.Tab("Cost"):
            cost = self._html("cost")
        with gr.Tab("Rounds"):
            rounds = self._html("rounds")
        return [budget, compared, table, matrix, cost, rounds]

    def _html(self, name: str, **options: object) -> Component:
        """HTML that the page's own style sheet covers."""
        settings = {"value": "", "js_on_load": None, **options}
        return self.gr.HTML(elem_id=name, apply_default_css=False, **settings)

    def _shown(self, analysis: Analysis) -> Updates:
        """Values of all components of the result but the slider."""
        return [
            comparison(analysis),
            candidates_table(analysis),
            heat_map(analysis),
            costs(analysis),
            rounds_picture(analysis),
        ]

    def translate(self, visitor: str, source: str, *settings: Any) -> Iterator[Updates]:
        """Run the form; every step of progress is one update of the status line."""
        gr = self.gr
        unchanged = [gr.skip()] * 8
        form = Form(source, *settings)
        event = self.jobs.start(visitor)
        try:
            for line, analysis in finished(self.workbench.analyse(form, event.is_set)):
                if analysis is None:
                    yield [message(f"{line} …"), *unchanged]
                    continue
                scores = self._slider(analysis)
                said = message(f"{line}: {analysis.decision.summary()}")
                yield [said, analysis, gr.update(visible=True), scores, *self._shown(analysis)]
        except Exception as error:
            yield [explain(error), *unchanged]
        finally:
            self.jobs.end(visitor, event)

    def _slider(self, analysis: Analysis) -> object:
        """The slider at what was spent, up to what scores all pairs."""
        if scores_per_row(analysis.recipe) is None or analysis.truth is None:
            return self.gr.update(interactive=False)
        spent = analysis.decision.calls[analysis.target.name] / analysis.candidates.total
        most = len(analysis.candidates)
        return self.gr.update(value=min(max(round(2 * spent) / 2, 0.5), most), maximum=most, interactive=True)

    def change_budget(self, analysis: Analysis | None, scores: float) -> Updates:
        """Decide again."""
        try:
            if analysis is None:
                raise ValueError("translate a sentence first")
            again = decide_again(analysis, scores)
        except Exception as error:
            return [explain(error), *[self.gr.skip()] * 5]
        return [message(f"decided again: {again.decision.summary()}"), *self._shown(again)]

    def cancel(self, visitor: str) -> str:
        """End the visitor's job."""
        found = self.jobs.cancel(visitor)
        return message("cancelled" if found else "nothing to cancel")

    def _for_visitor(self, job: Callable[..., Iterator[Updates]]) -> Callable[..., Iterator[Updates]]:
        """The job as gradio calls it: with its request, which it recognises by the annotation."""

        def run(request: Request, *values: object) -> Iterator[Updates]:
            yield from job(str(request.session_hash), *values)

        run.__annotations__ = {"request": self.gr.Request}
        return run

    def _cancelling(self) -> Callable[[Request], str]:
        def cancel(request: Request) -> str:
            return self.cancel(str(request.session_hash))

        cancel.__annotations__ = {"request": self.gr.Request}
        return cancel

    def _rerank_tab(self) -> None:
        gr = self.gr
        gr.Markdown(_UPLOAD_HELP)
        with gr.Row():
            file = gr.File(label="Candidates (JSONL)", file_types=[".jsonl", ".json", ".txt"], elem_id="upload")
            with gr.Column():
                target, guide = self._utilities()
                recipe = gr.Dropdown(RECIPES, value="auto", label="Recipe")
        with gr.Row():
            run = gr.Button("Rerank", variant="primary", elem_id="rerank")
            cancel = gr.Button("Cancel")
        status = self._html("rerank-status")
        table = self._html("reranked", js_on_load=_read("table.js"))
        download = gr.File(label="Result (JSONL)", interactive=False, elem_id="download")
        outputs = [status, table, download]
        job = run.click(self._for_visitor(self.rerank), [file, target, guide, recipe], outputs, concurrency_id="job")
        cancel.click(self._cancelling(), None, status, cancels=[job], queue=False)

    def rerank(self, visitor: str, file: str | None, target: str, guide: str, recipe: str) -> Iterator[Updates]:
        """Rerank the uploaded file."""
        unchanged = [self.gr.skip()] * 2
        event: threading.Event = self.jobs.start(visitor)
        try:
            if file is None:
                raise ValueError("upload a file first")
            steps = rerank_file(self.workbench, file, target, guide, recipe, event.is_set)
            for line, result in finished(steps):
                if result is None:
                    yield [message(f"{line} …"), *unchanged]
                else:
                    table = sortable(HEADERS, result.rows)
                    yield [message(f"done: {len(result.rows)} lines"), table, str(result.file)]
        except Exception as error:
            yield [explain(error), *unchanged]
        finally:
            self.jobs.end(visitor, event)


def _read(name: str) -> str:
    """A file of the page: its script, template or style sheet."""
    return (_HERE / name).read_text(encoding="utf-8")


def launch(
    offer: Offer | None = None,
    limits: Limits | None = None,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    browser: bool = False,
    wait: bool = True,
) -> Blocks:
    """Serve the page; with wait=False the running gradio Blocks, whose `close()` ends it."""
    page = Page(Workbench(offer, limits))
    blocks = page.build()
    blocks.launch(
        server_name=host,
        server_port=port,
        inbrowser=browser,
        share=False,
        quiet=True,
        prevent_thread_lock=True,
        max_file_size=f"{page.workbench.limits.file_megabytes}mb",
        css=_read("page.css"),
        theme=page.gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]),
        footer_links=[],
        ssr_mode=False,
    )
    if wait:
        print(f"The page is at {blocks.local_url} (Ctrl+C ends it).", flush=True)
        blocks.block_thread()
    return blocks
