"""Proxies between a site and its server: gRPC knows them by lower-case variables alone."""

import os

VARIABLES = ("https_proxy", "http_proxy", "no_proxy")


def accept_upper_case() -> None:
    """Give HTTPS_PROXY and the like to gRPC, where their lower-case names say nothing."""
    for name in VARIABLES:
        if name.upper() in os.environ:
            os.environ.setdefault(name, os.environ[name.upper()])
