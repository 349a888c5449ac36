"""A profile as a picture, if the libraries of the extra ``analysis`` are there."""

from __future__ import annotations

from importlib.util import find_spec

from treespec.profile_cache import KeptProfile

HOW_TO_GET_IT = "for a plot of it: pip install 'treespec[analysis]'"


def plot_kept(kept: KeptProfile) -> str:
    """Draw a profile beside its file, if it is not there yet.

    Returns:
        Where it is, or how to get it.
    """
    path = kept.path.with_suffix(".svg")
    if not kept.is_new and path.is_file():
        return str(path)
    if not kept.path.parent.is_dir():
        return "no plot: the cache cannot be written"
    if find_spec("matplotlib") is None or find_spec("pandas") is None:
        return HOW_TO_GET_IT
    from treespec.analysis import plots  # noqa: PLC0415 (optional, and slow to load)

    plots.cost_profile(kept.profile).save(path)
    return str(path)
