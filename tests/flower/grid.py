"""Flower's grid in this process: it runs the ClientApp itself, on Flower's own messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class Here(Grid):
    """A grid whose nodes are this process: a message is served when it is pulled for."""

    def __init__(self, app: ClientApp, nodes: dict[int, dict[str, Any]], config: dict[str, Any]):
        self.app, self.nodes, self.config = app, nodes, config
        self.waiting: dict[str, Message] = {}
        self.broken: dict[int, Error] = {}
        self.sent: list[Message] = []
        self.most = 10**9

    def set_run(self, run: Any) -> None: ...
    def create_message(self, *arguments: Any, **named: Any) -> Any: ...
    def send_and_receive(self, *arguments: Any, **named: Any) -> Any: ...

    @property
    def run(self) -> Any:
        return None

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            if len(self.sent) >= self.most:
                raise ConnectionError("the SuperLink is gone")
            self.sent.append(message)
            message.metadata.__dict__["_message_id"] = f"message {len(self.sent)}"
            self.waiting[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        due = [self.waiting.pop(m) for m in message_ids if m in self.waiting]
        return [self.serve(message) for message in due]

    def serve(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if node in self.broken:
            return Message(self.broken[node], reply_to=message)
        context = Context(0, node, self.nodes[node], RecordDict(), self.config)
        return self.app(message, context)


def as_in_a_run() -> None:
    """What a process of `flwr run` is told about itself, and messages cannot do without."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
