"""Later turns follow plain decoding's answers, in the chat template, on both sides."""

import json
from types import SimpleNamespace

import pytest

from tests.test_measure import counting, decoder_of, measured
from tests.tiny import tiny_tokenizer
from treespec import measure as module
from treespec.conversation import first_turns
from treespec.datasets.base import Prompt
from treespec.errors import TreespecError
from treespec.metrics import by_prompt
from treespec.models.table import TableModel
from treespec.models.tokenizer import HuggingFaceTokenizer
from treespec.outcome import PromptOutcome
from treespec.tasks import Task, Waiting


def info(*, template=True, max_positions=None):
    backend = tiny_tokenizer() if template else tiny_tokenizer(chat_template=None)
    return SimpleNamespace(
        tokenizer=HuggingFaceTokenizer(backend, 1),
        has_chat_template=template,
        max_positions=max_positions,
        vocab_size=32,
    )


def text_of(task, info):
    return info.tokenizer.decode(task.tokens)


def test_the_second_turn_has_the_first_and_its_answer_before_it():
    known = info()
    prompt = Prompt("p", "chat", ("who", "why"))
    (first,) = first_turns([prompt], known, "pair.target")
    second = first.after("me")
    assert (first.id, first.turn, second.id, second.turn) == ("p", 1, "p/2", 2)
    assert text_of(first, known) == "user who.assistant "
    assert text_of(second, known) == "user who.assistant me.user why.assistant "
    assert second.after("so") is None


def test_an_answer_is_not_remembered_by_the_turn_that_it_followed():
    known = info()
    (first,) = first_turns([Prompt("p", "chat", ("a", "b", "c"))], known, "k")
    one, two = first.after("x"), first.after("y")
    assert text_of(one.after("z"), known).count("x.") == 1
    assert "x." not in text_of(two.after("z"), known)


def test_without_a_template_texts_and_answers_stand_one_after_the_other():
    known = info(template=False)
    (first,) = first_turns([Prompt("p", "chat", ("who", "why"))], known, "k")
    assert text_of(first, known) == "who"
    assert text_of(first.after("me"), known).replace("<unk>", "") == "whomewhy"


def test_a_conversation_that_outgrows_the_model_ends_with_a_note(capfd):
    known = info(max_positions=30)
    (first,) = first_turns([Prompt("p", "chat", ("who", "why"))], known, "k")
    assert first.after("a" * 40) is None
    assert "turn 2 of prompt 'p' is left out" in capfd.readouterr().err


def test_a_first_turn_that_does_not_fit_is_an_error():
    with pytest.raises(TreespecError, match=r"'p' has \d+ tokens .* k reads at most 5"):
        first_turns([Prompt("p", "chat", ("who",))], info(max_positions=5), "k")


def turns(number, seen):
    """A prompt of two turns that writes down which answers it was given."""

    def after(answer):
        seen.append((number, answer))
        return Task(f"p{number}/2", "x", (0, 1, 2, 3), turn=2)

    return Task(f"p{number}", "x", (0, 1, 2), after=after)


def test_both_turns_are_decoded_by_both_sides_after_the_plain_answer():
    seen = []
    decoder = decoder_of(TableModel(counting, 5))
    summary, outcomes = measured(decoder, [turns(0, seen), turns(1, seen)])
    assert [outcome.id for outcome in outcomes] == ["p0", "p0/2", "p1", "p1/2"]
    assert [outcome.turn for outcome in outcomes] == [1, 2, 1, 2]
    assert [number for number, _ in seen] == [0, 1]
    assert summary["num_prompts"] == 2
    assert summary["num_requests"] == 4
    assert all(
        o.speculative.prompt_tokens == o.baseline.prompt_tokens for o in outcomes
    )


def test_which_side_goes_first_rotates_over_turns_as_well(monkeypatch):
    """Else every second turn would be timed in the same order."""
    order, decode = [], module._decode

    def spy(side, device, batch, measurement):
        order.append(side.controller.largest.speculates)
        return decode(side, device, batch, measurement)

    monkeypatch.setattr(module, "_decode", spy)
    measured(decoder_of(TableModel(counting, 5)), [turns(0, []), turns(1, [])])
    assert order[::2] == [False, True, True, False]


def test_a_batch_waits_for_all_of_its_second_turns():
    tasks = [turns(number, []) for number in range(3)]
    waiting, seen = Waiting(tasks, 2), []
    for batch in waiting:
        seen.append([task.id for task in batch])
        for task in batch:
            waiting.answered(task, "a")
    assert seen == [["p0", "p1"], ["p0/2", "p1/2"], ["p2"], ["p2/2"]]


def test_the_turns_of_a_prompt_are_one_prompt():
    names = [("a", 1), ("a/2", 2), ("b", 1), ("c/2", 1)]
    outcomes = [PromptOutcome(n, "x", None, None, "lossy", turn=t) for n, t in names]
    grouped = [[o.id for o in group] for group in by_prompt(outcomes)]
    assert grouped == [["a", "a/2"], ["b"], ["c/2"]]


def test_a_conversation_is_decoded_from_the_command_line(command, read_runs, tmp_path):
    rows = [
        {"id": "talk", "category": "chat", "turns": ["who", "why", "so"]},
        {"id": "one", "category": "chat", "turns": ["where"]},
    ]
    path = tmp_path / "talk.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ended = command(f"dataset.path={path}")
    assert (ended.code, ended.errors) == (0, [])
    (run,) = read_runs()
    ids = [outcome.id for outcome in run.outcomes]
    assert ids == ["talk", "talk/2", "talk/3", "one"]
    first, second, third, _ = (list(o.baseline.prompt_tokens) for o in run.outcomes)
    assert len(first) < len(second) < len(third)
    assert run.summary["num_prompts"] == 2
    assert run.summary["lossless"]["violations"] == 0


def test_two_prompts_whose_turns_would_share_a_name_are_refused(command, tmp_path):
    rows = [
        {"id": "a", "category": "chat", "turns": ["who", "why"]},
        {"id": "a/2", "category": "chat", "turns": ["where"]},
    ]
    path = tmp_path / "talk.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ended = command(f"dataset.path={path}")
    assert ended.code == 2
    assert "id 'a/2' was already used in line 1" in ended.errors[0]
