"""All that Flower's runtime API offers an app, called with the app's own token."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.proto import log_pb2, message_pb2, node_pb2, runtime_pb2, task_pb2
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient


def call_everything(message: Message, text: str) -> None:
    """Send a text through every call that takes one; say for each whether it was taken."""
    retry = make_simple_http_retry_invoker()
    retry.max_tries = 1
    client = RuntimeHttpClient.from_server_address(
        server_address=_argument("--runtime-api-address", "--clientappio-api-address"),
        insecure=True,
        root_certificates=None,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
            RuntimeTokenHttpInterceptor(_token()),
        ],
        retry_invoker=retry,
    )
    metadata = message_pb2.Metadata(
        run_id=message.metadata.run_id,
        message_id=text,
        src_node_id=message.metadata.dst_node_id,
        dst_node_id=message.metadata.src_node_id,
        group_id=text,
        message_type=text,
        ttl=3600.0,
    )
    node = node_pb2.Node(node_id=message.metadata.dst_node_id)
    one = message_pb2.Message(metadata=metadata)
    tree = message_pb2.ObjectTree(object_id="0" * 64)
    calls = {
        "PushLogs": log_pb2.PushLogsRequest(node=node, run_id=message.metadata.run_id, logs=[text]),
        "PushMessages": runtime_pb2.PushAppMessagesRequest(
            messages_list=[one], message_object_trees=[tree]
        ),
        "PushObject": message_pb2.PushObjectRequest(
            node=node, run_id=message.metadata.run_id, object_id=text, object_content=text.encode()
        ),
        "PushTaskMessage": runtime_pb2.PushTaskMessageRequest(message=one),
        "PushTaskEvents": runtime_pb2.PushTaskEventsRequest(
            events=[task_pb2.TaskEvent(event=text, data=text)]
        ),
        "CreateTask": runtime_pb2.CreateTaskRequest(type="flwr-clientapp", fab_hash="0" * 64),
        "PushTaskOutput": runtime_pb2.PushTaskOutputRequest(sub_status=text, details=text),
    }
    for name, request in calls.items():
        print(f"{name} was {_taken(getattr(client, name), request)}", flush=True)


def _taken(call: Callable[[Any], Any], request: Any) -> str:
    try:
        call(request)
    except Exception as error:
        return f"not taken: {type(error).__name__}"
    return "taken"


def _token() -> str:
    """Return this app's own token: of a sandboxed node it comes on the standard input."""
    if "--token-file" in sys.argv:
        return Path(_argument("--token-file")).read_text(encoding="utf-8").strip()
    return _argument("--token")


def _argument(*names: str) -> str:
    return next(sys.argv[sys.argv.index(name) + 1] for name in names if name in sys.argv)
