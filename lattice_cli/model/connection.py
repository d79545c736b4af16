"""A connection to where a file is: certificates, proxies, redirects.

Knows URLs and headers; knows nothing of models. urllib is used because it is always there and honours
the proxy variables; apart from huggingface_hub nothing else of ours opens a connection.

Thread: any
"""

from __future__ import annotations

import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from lattice_cli import __version__
from lattice_cli.errors import FetchFailed

TIMEOUT_S = 30.0
# FetchFailed.code, so that a caller can tell: no server answered; one answered and has no such file for us.
UNREACHABLE = "unreachable"
REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Link:
    """Where a file is and what it must be.

    `checksum` is `sha256:HEX` or `git-sha1:HEX` (git's blob id); None, like `nbytes` None, is not
    checked. `ca_bundle` is a file or folder of certificates, `proxy` an URL; None takes the
    environment's. `refused_hint` tells what to do about a 401, 403 or 404.
    """

    url: str
    nbytes: int | None = None
    checksum: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    ca_bundle: str | None = None
    proxy: str | None = None
    refused_hint: str | None = None

    @property
    def host(self) -> str:
        """Who is asked, for messages."""
        return urlsplit(self.url).netloc.rpartition("@")[2] or self.url

    @property
    def file_name(self) -> str:
        """What is asked for, for messages."""
        return unquote(urlsplit(self.url).path.rpartition("/")[2])


def open_url(link: Link, headers: Mapping[str, str] | None = None) -> Any:
    """Open a connection; the answer is a context manager with `read`, `status` and `headers`.

    Raises: what urllib raises.
    """
    request = urllib.request.Request(link.url, headers={"User-Agent": f"lattice-cli/{__version__}", **(headers or {})})
    for name, value in link.headers:
        request.add_header(name, value)
    handlers: list[urllib.request.BaseHandler] = [_Redirects()]
    if link.url.startswith("https:"):
        handlers.append(urllib.request.HTTPSHandler(context=_trust(link.ca_bundle or _ca_bundle())))
    if link.proxy:
        handlers.append(urllib.request.ProxyHandler({"http": link.proxy, "https": link.proxy}))
    return urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT_S)


def unreachable_reason(link: Link, error: Exception) -> str:
    """Why no answer came, in the system's words.

    Raises: FetchFailed where trying again cannot help: an untrusted certificate, a local file not there.
    """
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        raise FetchFailed(
            f"the certificate of `{link.host}` is not trusted: {reason.verify_message}",
            hint="set `SSL_CERT_FILE` to the certificates of your proxy or company",
            code=UNREACHABLE,
        ) from error
    if isinstance(reason, FileNotFoundError) and link.url.startswith("file:"):
        raise FetchFailed(f"`{urlsplit(link.url).path}` is not there") from error
    return str(getattr(reason, "strerror", None) or reason or type(reason).__name__)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect without carrying a token to another host."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            following.remove_header("Authorization")
        return following


def _ca_bundle(env: Mapping[str, str] = os.environ) -> str | None:
    """The certificates the user named for requests or curl; `SSL_CERT_FILE` is read by OpenSSL itself."""
    return env.get("REQUESTS_CA_BUNDLE") or env.get("CURL_CA_BUNDLE") or None


def _trust(ca_bundle: str | None) -> ssl.SSLContext:
    """Trust the bundle alone where one is given, else the system (truststore reaches macOS's keychain)."""
    if ca_bundle:
        folder = os.path.isdir(ca_bundle)
        try:
            return ssl.create_default_context(
                cafile=None if folder else ca_bundle, capath=ca_bundle if folder else None
            )
        except OSError as error:
            raise FetchFailed(
                f"the certificates in `{ca_bundle}` cannot be read: {error.strerror or error}",
                hint="`REQUESTS_CA_BUNDLE`, `CURL_CA_BUNDLE`, `PIP_CERT` or pip's `cert` names that file",
            ) from error
    try:
        import truststore
    except ImportError:
        return ssl.create_default_context()
    return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
