"""``treespec view``: a finished run, looked at tree by tree.

Reads the run folder and, if it is on this machine, the tokenizer of the run's target;
loads no model and uses no network.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from treespec.analysis.trees import StepTree, step_trees
from treespec.analysis.trees_svg import step_svg
from treespec.analysis.trees_text import LEGEND, step_text
from treespec.analysis.viewer_page import run_page
from treespec.analysis.viewer_words import Words, find_words
from treespec.analysis.visible import visible_text
from treespec.errors import TreespecError, unknown_name
from treespec.outcome import PromptOutcome
from treespec.sinks.reader import Run, read_run
from treespec.sinks.run_folder import (
    CONFIG,
    ENVIRONMENT,
    NODES,
    PROMPTS,
    STATUS,
    STEPS,
    SUMMARY,
)

HELP = """\
treespec view RUN [key=value ...] shows the trees of a run that was recorded with
trace=nodes.

  treespec view RUN                        writes RUN/view.html, a page to browse the
                    steps of all prompts; it needs no network and no server
  treespec view RUN format=text            prints the trees; prompt=ID step=N for some
  treespec view RUN format=svg prompt=ID step=N
                    writes one step for a paper

  format=html|text|svg   what to make (html)
  prompt=ID              a prompt by its id (text: all; svg: needed, if there are more)
  step=N                 a step by its number, from 0 (text: all; svg: needed)
  output=FILE            where to write (html: RUN/view.html; svg: RUN/view.svg; text:
                         the terminal)
  tokenizer=FOLDER       a tokenizer, if the target of the run is not on this machine
"""
_FORMATS = ("html", "text", "svg")
MOST_DIGITS = 10
_OF_THE_RUN = (CONFIG, ENVIRONMENT, NODES, PROMPTS, STATUS, STEPS, SUMMARY, "DONE")
_KEYS = ("format", "prompt", "step", "output", "tokenizer")


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user wants to see.

    Attributes:
        folder: The run folder.
        format: ``html``, ``text`` or ``svg``.
        prompt: Id of a prompt; ``None`` for all.
        step: Number of a step; ``None`` for all.
        output: The file to write; ``None`` for the usual place.
        tokenizer: A folder with a tokenizer; ``None`` for the target's.
    """

    folder: Path
    format: str = "html"
    prompt: str | None = None
    step: int | None = None
    output: Path | None = None
    tokenizer: str | None = None


def view(arguments: Sequence[str]) -> str:
    """Make what the arguments ask for, and return what to print.

    Args:
        arguments: A run folder and ``key=value`` pairs, in any order.

    Raises:
        TreespecError: The arguments are wrong, the run is not finished or torn, or it
            was recorded without trees.
    """
    if not {"-h", "--help"}.isdisjoint(arguments):
        return HELP
    wish = read_wish(arguments)
    run = read_run(wish.folder)
    _check_traced(run)
    trees = [_trees(outcome) for outcome in run.outcomes]
    if wish.format == "html":
        words = find_words(run, wish.tokenizer)
        return _written(wish, "view.html", run_page(run, trees, words), words)
    return _chosen_steps(run, trees, wish)


def read_wish(arguments: Sequence[str]) -> Wish:
    """Return what the arguments ask for.

    Raises:
        TreespecError: There is not exactly one folder, or a key or value is wrong.
    """
    folders = [text for text in arguments if not _is_key(text)]
    given = dict(text.split("=", 1) for text in arguments if _is_key(text))
    if len(folders) != 1:
        seen = " and ".join(folders) if folders else "none"
        raise TreespecError(
            f"view: give one run folder, got {seen}; for example treespec view "
            "outputs/default/KEY"
        )
    for key in given:
        if key not in _KEYS:
            raise unknown_name("key of view", key, _KEYS)
    form = given.get("format", "html")
    if form not in _FORMATS:
        raise TreespecError(f"format: must be html, text or svg, got {form!r}")
    if form == "html" and (unused := {"prompt", "step"} & given.keys()):
        raise TreespecError(
            f"{min(unused)}: a page holds all of the run; choose with format=text or "
            "format=svg"
        )
    if given.get("output") == "":
        raise TreespecError("output: must be a file, got nothing; give output=FILE")
    return Wish(
        folder=_path(folders[0]),
        format=form,
        prompt=given.get("prompt"),
        step=_step_number(given.get("step")),
        output=_path(given["output"]) if "output" in given else None,
        tokenizer=given.get("tokenizer"),
    )


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~ of somebody unknown
        raise TreespecError(f"{text}: {error}; write out the folder") from error


def _is_key(argument: str) -> bool:
    """Return whether an argument is ``key=value``, and not a folder with a = in it."""
    key, equals, _ = argument.partition("=")
    return bool(equals) and key.isidentifier()


def _step_number(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < MOST_DIGITS):
        raise TreespecError(f"step: must be an integer >= 0, got {text!r}")
    return int(text)


def _check_traced(run: Run) -> None:
    """Refuse a run without trees."""
    if not run.outcomes:
        raise TreespecError(f"{run.folder}: the run has no prompts, nothing to view")
    traced = any(outcome.speculative.traces for outcome in run.outcomes)
    if not traced and run.config.get("trace") != "nodes":
        raise TreespecError(
            f"{run.folder}: the run was recorded without its trees "
            f"(trace={run.config.get('trace')}); run it again with trace=nodes: "
            f"treespec --config-path {run.folder} trace=nodes"
        )


def _trees(outcome: PromptOutcome) -> list[StepTree]:
    try:
        return step_trees(outcome.speculative)
    except TreespecError as error:
        raise TreespecError(f"prompt {outcome.id!r}: {error}") from error


def _chosen_steps(run: Run, trees: list[list[StepTree]], wish: Wish) -> str:
    """Return or write the steps that were asked for, as text or as a picture."""
    pairs = list(zip(run.outcomes, trees, strict=True))
    if wish.prompt is not None:
        ids = [visible_text(outcome.id) for outcome in run.outcomes]
        pairs = [pair for pair in pairs if pair[0].id == wish.prompt]
        if not pairs:
            raise unknown_name("prompt", wish.prompt, ids)
    if wish.format == "svg" and len(pairs) > 1:
        known = ", ".join(visible_text(outcome.id) for outcome, _ in pairs)
        raise TreespecError(
            f"prompt: format=svg shows one, give prompt=ID; of: {known}"
        )
    chosen = [(outcome, _some(steps, outcome, wish)) for outcome, steps in pairs]
    words = find_words(run, wish.tokenizer)
    used = {t for _, steps in chosen for step in steps for t in step.tokens}
    labels = words.labels(used)
    if wish.format == "text":
        return _written(wish, None, _text(chosen, labels), words)
    (outcome, (step,)) = chosen[0]
    title = visible_text(f"Step {step.record.step} of prompt {outcome.id}")
    content = step_svg(step, labels.__getitem__, title)
    return _written(wish, "view.svg", content, words)


def _some(steps: list[StepTree], outcome: PromptOutcome, wish: Wish) -> list[StepTree]:
    last = f"the last step of prompt {outcome.id!r} is {len(steps) - 1}"
    if wish.step is None:
        if wish.format == "svg":
            raise TreespecError(f"step: format=svg shows one, give step=N; {last}")
        return steps
    if wish.step >= len(steps):
        raise TreespecError(f"step: there is no {wish.step}; {last}")
    return [steps[wish.step]]


def _text(
    chosen: list[tuple[PromptOutcome, list[StepTree]]], labels: dict[int, str]
) -> str:
    blocks = [LEGEND]
    for outcome, steps in chosen:
        blocks.append(visible_text(f"prompt {outcome.id} ({outcome.category})"))
        blocks += [step_text(step, labels.__getitem__) for step in steps]
        if not steps:
            blocks.append("no steps: the text is one token long")
    return "\n\n".join(blocks)


def _written(wish: Wish, name: str | None, content: str, words: Words) -> str:
    """Write what was made, if it has a place, and return what to print."""
    note = f"\n{visible_text(words.note)}" if words.note else ""
    if wish.output is None and name is None:
        return content + note
    path = wish.output or wish.folder / str(name)
    if path.resolve() in {(wish.folder / own).resolve() for own in _OF_THE_RUN}:
        raise TreespecError(
            f"output: {path} is a part of the run; choose another place with "
            "output=FILE"
        )
    try:
        _write(path, content)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TreespecError(
            f"output: cannot write {path}: {reason}; choose another place with "
            "output=FILE"
        ) from error
    return f"{path}{note}"


def _write(path: Path, content: str) -> None:
    """Write a file, whole or not at all; a device or a pipe is there already."""
    if path.exists() and not path.is_file():
        path.write_text(content, encoding="utf-8")
        return
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(content, encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
