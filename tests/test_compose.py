import pytest

from treespec.compose import compose_job
from treespec.errors import TreespecError


def test_a_composed_job_is_that_of_the_command():
    job = compose_job(["policy=chain", "num_prompts=2", "sweep_name=studies/x"])
    assert type(job.strategies.policy).__name__ == "Chain"
    assert len(job.prompts) == 2
    assert job.folder.parent.name == "x"


def test_later_overrides_win_over_earlier_ones():
    given = ["pair=qwen25_coder", "pair=custom", "pair.target.path=a", "seed=1"]
    job = compose_job([*given, "seed=2", "pair.target.path=b"])
    assert job.settings.seed == 2
    assert str(job.target.path).endswith("/b")
    assert job.draft is None


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("polcy=chain", "unknown key polcy. Did you mean policy?"),
        ("policy=chan", "unknown policy=chan. Did you mean policy=chain?"),
        ("seed=[", "cannot read 'seed=['"),
        ("policy=null", "write group=OPTION"),
        ("seed=-1", "seed must be an integer >= 0, got -1"),
        ("policy=chain,best_first", "policy=chain,best_first"),
    ],
)
def test_a_wrong_override_is_one_line_as_the_command_tells_it(override, told):
    with pytest.raises(TreespecError) as caught:
        compose_job([override])
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
