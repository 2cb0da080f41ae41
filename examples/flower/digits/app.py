"""The two apps that pyproject.toml names: they train what problem.py defines."""

from pathlib import Path

from aspire.engines.flower import client_app, server_app

FILE = Path(__file__).with_name("problem.py")

server = server_app(FILE)
client = client_app(FILE)
