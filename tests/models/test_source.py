"""What is wrong in the words of the user is told before anything is opened."""

import pytest
import torch

from treespec.errors import TreespecError
from treespec.models.source import ModelSource, check_source, resolve_device

SHA256 = "0" * 64


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (ModelSource(), r"^pair\.target: give exactly one .* got none of them"),
        (ModelSource(path="a", hub_id="b/c"), r"got path and hub_id"),
        (ModelSource(path="a", dtype="int8"), r"^pair\.target\.dtype: .*got 'int8'"),
        (ModelSource(path="a", device="gpu"), r"^pair\.target\.device: .*got 'gpu'"),
        (
            ModelSource(path="a", attn_implementation="flash"),
            r"^pair\.target\.attn_implementation: .*treespec, sdpa, eager",
        ),
        (ModelSource(path="a", revision="main"), r"^pair\.target\.revision: "),
        (ModelSource(wheel="x>=1", wheel_sha256=SHA256), r"name==version, got 'x>=1'"),
        (ModelSource(wheel="-r==1", wheel_sha256=SHA256), r"name==version"),
        (ModelSource(wheel="x==1"), r"^pair\.target\.wheel_sha256: .*got None"),
        (ModelSource(wheel="x==1", wheel_sha256="abc"), r"64 lower-case hex digits"),
    ],
)
def test_a_wrong_field_is_named_as_the_user_wrote_it(
    source: ModelSource, message: str
) -> None:
    with pytest.raises(TreespecError, match=message) as caught:
        check_source(source, "pair.target")
    assert "\n" not in str(caught.value)


def test_a_sound_source_passes() -> None:
    check_source(ModelSource(wheel="llm-x==0.1.2", wheel_sha256=SHA256), "pair.target")
    check_source(ModelSource(hub_id="a/b", revision="main"), "pair.draft")


@pytest.mark.parametrize(("device", "count"), [("cuda", 0), ("cuda:2", 2)])
def test_a_cuda_device_that_is_absent_is_refused(
    device: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(TreespecError, match=r"^pair\.draft\.device: .*device=cpu"):
        resolve_device(ModelSource(path="a", device=device), "pair.draft")


def test_auto_takes_cuda_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    source = ModelSource(path="a")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for available, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=available: found)
        assert resolve_device(source, "pair.target") == torch.device(expected)
