"""The adapter for federations that already run Flower: two apps for a Flower project."""

try:
    import flwr  # noqa: F401
except ImportError:
    raise ImportError(
        "aspire.engines.flower needs Flower: pip install 'aspire-ease[flower]'"
    ) from None

from aspire.engines.flower.apps import client_app, server_app

__all__ = ["client_app", "server_app"]
