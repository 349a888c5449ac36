"""Hydra's and OmegaConf's errors as one line that names the key and the way out."""

from __future__ import annotations

import difflib
from pathlib import Path

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException


def config_folder() -> Path:
    """Return ``conf/``: inside the package if installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    folders = [package / "conf", package.parent / "conf"]
    return next(f for f in folders if (f / "config.yaml").is_file())


def explain_any(error: Exception) -> str:
    """Return what stopped Hydra, whatever it was, as one line with the way out."""
    if isinstance(error, HydraException | OmegaConfBaseException):
        return explain(error)
    if isinstance(error, OSError):  # a launcher that needs a folder of its own
        return f"output_root: {error}; choose another place with output_root=DIR"
    # Hydra's word for a group that is set to null.
    return f"{explain(error)}; write group=OPTION, see treespec --help"


def explain(error: Exception) -> str:
    """Return Hydra's or OmegaConf's error as one line with the way out."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _explain_missing(error)
    if isinstance(error, OverrideParseException):
        return f"cannot read {error.override!r}: write key=value, with quotes if needed"
    cause = error.__cause__
    lines = str(error).splitlines()
    first = lines[0].rstrip(".") if lines else type(error).__name__
    if first.startswith("Could not override"):
        return _explain_unknown_key(first.split("'")[1], cause)
    if isinstance(cause, OmegaConfBaseException):
        return f"{first}: {str(cause).splitlines()[0]}"
    return ". ".join(line.strip() for line in (first, *lines[1:2]))


def _explain_missing(error: MissingConfigException) -> str:
    group, _, option = str(error.missing_cfg_file).rpartition("/")
    if not error.options:
        return f"there is no configuration {error.missing_cfg_file!r}"
    options = sorted(error.options)
    close = difflib.get_close_matches(option, options, n=1)
    hint = f" Did you mean {group}={close[0]}?" if close else ""
    return f"unknown {group}={option}.{hint} Available: {', '.join(options)}"


def _explain_unknown_key(key: str, cause: BaseException | None) -> str:
    node = getattr(cause, "parent_node", None)
    names = [str(name) for name in node] if isinstance(node, DictConfig) else []
    measure = key.split(".")[1] if key.startswith("quality.") else ""
    is_known = (config_folder() / "quality" / f"{measure}.yaml").is_file()
    if is_known and "_target_" not in names:
        return (
            f"{key}: the measure is not in use; choose it as well, with "
            f"quality={measure}, or quality=[{measure},...] for several"
        )
    prefix = key.rpartition(".")[0]
    known = [f"{prefix}.{name}" if prefix else name for name in names]
    known = [n for n in known if n != "hydra" and not n.endswith("_target_")]
    close = difflib.get_close_matches(key, known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    listed = f" Available: {', '.join(known)}." if known else ""
    own = f" An argument of a class of yours takes a +: +{key}=VALUE" if prefix else ""
    return f"unknown key {key}.{hint}{listed}{own}"
