"""Find a model on the Hugging Face hub without downloading it."""

from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from treespec.errors import FetchError, TreespecError
from treespec.models.weights import one_line

_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class HubModel:
    """A commit of a model on the hub.

    Attributes:
        commit: What branch or tag meant when it was looked up.
        offline: Whether the hub was out of reach and the local cache answered.
    """

    commit: str
    offline: bool


def find_on_hub(hub_id: str, revision: str | None, key: str) -> HubModel:
    """Return the commit of a hub id; one request, no weights.

    Raises:
        TreespecError: There is no such model or revision.
        FetchError: The hub is out of reach and its cache here does not have the model.
    """
    try:
        found = HfApi().model_info(hub_id, revision=revision, timeout=_TIMEOUT_S)
    except HFValidationError as error:
        raise TreespecError(
            f"{key}.hub_id: must read owner/name, got {hub_id!r} ({one_line(error)}); "
            f"a local folder goes to {key}.path"
        ) from error
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code < 500:
            at = "" if revision is None else f" at revision {revision!r}"
            raise TreespecError(
                f"{key}.hub_id: the hub has no {hub_id!r}{at} that you may read "
                f"({one_line(error)}); mend the id, or log in with `hf auth login`"
            ) from error
        return _cached(hub_id, revision, error, key)
    # The hub's client raises what its HTTP library does, which differs by version.
    except Exception as error:
        return _cached(hub_id, revision, error, key)
    if found.sha is None:
        raise FetchError(f"{key}.hub_id: the hub names no commit for {hub_id!r}")
    return HubModel(found.sha, offline=False)


def _cached(hub_id: str, revision: str | None, error: Exception, key: str) -> HubModel:
    config = try_to_load_from_cache(hub_id, "config.json", revision=revision)
    if not isinstance(config, str):
        raise FetchError(
            f"{key}.hub_id: the hub is out of reach ({one_line(error)}) and "
            f"{hub_id!r} is not in its local cache; check the network and "
            f"HF_HUB_OFFLINE, or give {key}.path=FOLDER"
        ) from error
    return HubModel(Path(config).parent.name, offline=True)
