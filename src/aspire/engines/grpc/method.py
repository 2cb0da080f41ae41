"""A method on the wire: its name, and the arguments that a site's work depends on, as data.

Whatever a server sends, a site runs one of its own factories with plain values, or method() of its
own FILE.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from aspire.engines.grpc.wire_pb2 import Settings
from aspire.methods import by_name
from aspire.types import Method

OWN = "method()"  # in the place of a name: that of FILE.py


def sent(method: Method, *, own: bool) -> dict[str, str]:
    """Fields of Settings; `own`: FILE.py makes the method, here and at the sites."""
    if own:
        return {"method": OWN, "arguments": ""}
    if method.site_arguments is None:
        raise ValueError(
            f"method {method.name!r} cannot be sent to sites: expected one of aspire.methods with "
            "plain arguments, or method() in FILE.py"
        )
    arguments = dict(method.site_arguments)
    if by_name.at_site(method.name, arguments).kinds != method.kinds:
        raise ValueError(
            f"method {method.name!r} asks sites for more than its site_arguments say: expected all "
            "arguments that its work depends on"
        )
    return {"method": method.name, "arguments": json.dumps(arguments, sort_keys=True)}


def received(settings: Settings, own: Callable[[], Method] | None) -> Method:
    """The method that a server asks for; `own` makes that of FILE.py, None: there is none."""
    if settings.method == OWN:
        if own is None or settings.arguments:
            raise ValueError("method() of our FILE.py: expected one there, and no arguments for it")
        return own()
    try:
        arguments = json.loads(settings.arguments)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise ValueError("the arguments of the method: expected an object in JSON")
    return by_name.at_site(settings.method, arguments)
