"""Asks `Access` before a request goes anywhere, and lets pages of other origins read what they are told.

Thread: request
"""

from __future__ import annotations

from typing import Any

import falcon

from lattice_cli.errors import Unauthorized
from lattice_cli.serve.access import CHALLENGE, Access


class Guard:
    """Falcon middleware; stands behind `Visits`, so that what is refused here has its line too."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Raises: Forbidden, Unauthorized."""
        refused = self._access.refusal(req.method, req.path, req.get_header)
        if isinstance(refused, Unauthorized):
            resp.set_header(*CHALLENGE)
        if refused is not None:
            raise refused
        if self._access.is_preflight(req.method, req.get_header):
            resp.status = falcon.HTTP_204
            resp.set_headers(dict(self._access.preflight(req.get_header)))
            resp.complete = True

    def process_response(self, req: falcon.Request, resp: falcon.Response, resource: Any, succeeded: bool) -> None:
        resp.set_headers(dict(self._access.cross_origin(req.get_header)))
