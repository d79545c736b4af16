"""A repository of a Hugging Face hub: which of its files we need, and where each is.

The only place that imports huggingface_hub: names, tokens (`HF_TOKEN`), endpoint (`HF_ENDPOINT`) and
the hub's ways of saying no are its business. The bytes come through `download`.
UPSTREAM: huggingface_hub 2.4 no longer resumes a download that another process began (its PR 4228).

Thread: any
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lattice_cli.errors import FetchFailed
from lattice_cli.model.catalog import HubSource
from lattice_cli.model.connection import UNREACHABLE, Link

if TYPE_CHECKING:
    from huggingface_hub.hf_api import HfApi, ModelInfo, RepoSibling

WANTED = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt", "LICENSE*", "README.md")


@dataclass(frozen=True, slots=True)
class HubModel:
    """The files of one commit that make up a model, by name, and what the hub says of its licence."""

    host: str
    commit: str
    licence: str | None
    links: dict[str, Link]

    @property
    def nbytes(self) -> int:
        """Size of all files together."""
        return sum(link.nbytes or 0 for link in self.links.values())


def hub_model(source: HubSource, endpoint: str | None = None) -> HubModel:
    """Ask the hub for the newest commit of `source.revision`. One request; blocks.

    Raises: FetchFailed where the hub cannot be reached, refuses, or holds no weights that we read.
    """
    from huggingface_hub import HfApi, hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    hub = HfApi(endpoint=endpoint)
    info = _model_info(hub, source)
    commit = info.sha or source.revision
    headers = tuple((name, value) for name, value in build_hf_headers().items() if name.lower() == "authorization")
    links = {}
    for file in wanted_files(source.repository, info.siblings or []):
        links[file.rfilename] = Link(
            url=hf_hub_url(source.repository, file.rfilename, revision=commit, endpoint=endpoint),
            nbytes=file.size,
            checksum=_checksum(file),
            headers=headers,
            refused_hint="a private or gated repository needs `HF_TOKEN`",
        )
    return HubModel(_host(hub), commit, _licence(info), links)


def _model_info(hub: HfApi, source: HubSource) -> ModelInfo:
    from huggingface_hub import errors

    name, where = source.repository, _host(hub)
    try:
        return hub.model_info(name, revision=source.revision, files_metadata=True, timeout=30)
    except errors.OfflineModeIsEnabled as error:
        raise FetchFailed(f"`{name}` is not here, and `HF_HUB_OFFLINE` forbids asking for it") from error
    except errors.GatedRepoError as error:
        hint = f"accept its terms on {hub.endpoint}/{name}, then set `HF_TOKEN`"
        raise FetchFailed(f"`{name}` is gated, and `{where}` did not let us in", hint=hint) from error
    except errors.RepositoryNotFoundError as error:
        hint = "check the name; a private repository needs `HF_TOKEN`"
        raise FetchFailed(f"`{where}` has no `{name}`, or it is private", hint=hint) from error
    except errors.HfHubHTTPError as error:
        reason = f"{error.response.status_code} {error.response.reason_phrase}"
        advice = "check `HF_TOKEN`" if error.response.status_code in (401, 403) else None
        raise FetchFailed(f"`{where}` refused `{name}`: {reason}", hint=advice) from error
    except errors.HFValidationError as error:
        raise FetchFailed(f"`{name}` cannot be the name of a repository") from error
    except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]
        reason = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
        hint = "check the network; `HF_ENDPOINT` names another hub, `SSL_CERT_FILE` your company's certificates"
        raise FetchFailed(f"`{where}` could not be reached: {reason}", hint=hint, code=UNREACHABLE) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        hint = "a proxy or a sign-in page may have answered; `HF_ENDPOINT` names another hub"
        raise FetchFailed(f"`{where}` did not answer as a hub does", hint=hint) from error


def _host(hub: HfApi) -> str:
    return urlsplit(hub.endpoint).netloc or hub.endpoint


def wanted_files(repository: str, files: list[RepoSibling]) -> list[RepoSibling]:
    """Configuration, tokenizer and weights in the repository's own folder; no code, no second copy.

    Weights are `model*.safetensors` as mlx-lm reads them, else a lone GGUF file.
    Raises: FetchFailed where none of these are there.
    """
    own = [file for file in files if "/" not in file.rfilename and not file.rfilename.startswith(".")]
    plain = [file for file in own if any(fnmatchcase(file.rfilename, pattern) for pattern in WANTED)]
    if weights := [file for file in own if fnmatchcase(file.rfilename, "model*.safetensors")]:
        return plain + weights
    ggufs = [file for file in own if file.rfilename.endswith(".gguf")]
    if len(ggufs) == 1:
        return plain + ggufs
    if ggufs:
        raise FetchFailed(
            f"`{repository}` holds {len(ggufs)} GGUF files and no safetensors, so it is not clear which is meant",
            hint="download the one you want and give its path, as in `--model ./NAME.gguf`",
        )
    raise FetchFailed(f"`{repository}` holds neither `model*.safetensors` nor a GGUF file")


def _checksum(file: RepoSibling) -> str | None:
    if file.lfs is not None:
        return f"sha256:{file.lfs.sha256}"
    return f"git-sha1:{file.blob_id}" if file.blob_id and file.size is not None else None


def _licence(info: ModelInfo) -> str | None:
    card_licence = info.card_data.get("license") if info.card_data else None
    return card_licence if isinstance(card_licence, str) else None
