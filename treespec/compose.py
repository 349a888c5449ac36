"""From overrides to a job without the command line: what scripts compose with."""

from __future__ import annotations

from collections.abc import Sequence
from warnings import catch_warnings, filterwarnings

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from treespec.build import build_job
from treespec.cli import VERSION_BASE
from treespec.errors import TreespecError
from treespec.explaining import config_folder, explain
from treespec.job import Job
from treespec.sweeping import gives_permission


def compose_job(overrides: Sequence[str]) -> Job:
    """Return the job that ``treespec OVERRIDE ...`` would run.

    Args:
        overrides: As they are typed, one value per key: no sweeps. Import paths among
            them (``_target_``) are trusted.

    Raises:
        TreespecError: An override cannot be read, or names what does not exist, or a
            value is wrong; in one line, as the command tells it.
    """
    pairs = (text.partition("=") for text in overrides)
    trusted = [value for key, _, value in pairs if key.endswith("_target_")]
    try:
        with (
            catch_warnings(),
            initialize_config_dir(str(config_folder()), **VERSION_BASE),
        ):
            filterwarnings("ignore", message=r"provider=hydra\.searchpath")
            config = compose("config", list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise TreespecError(explain(error)) from error
    except ValueError as error:  # Hydra's word for a group that is set to null
        raise TreespecError(
            f"{explain(error)}; write group=OPTION, see treespec --help"
        ) from error
    may_execute = any(map(gives_permission, overrides))
    return build_job(config, trusted, may_execute=may_execute)
