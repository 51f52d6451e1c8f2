"""A model endpoint on loopback in the Responses wire that follows a script, so that a real agent runs with no network.

Each request of the agent is answered with the script's next step: a call of a tool, or a text, which ends the turn. What
the agent sends back as a call's output is kept, and is the only proof of success that the callers of this take.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ScriptedModel:
    """Serves on a free port of 127.0.0.1 from construction until `close`."""

    def __init__(self):
        self.offered = {}  # What tools the last request offered: the namespace (or "") to the names in it.
        self.outputs = {}  # Call id to the text the agent answered the call with.
        self._script = []
        self._answered = 0
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def follow(self, script):
        """Takes `script`, a list of steps, for the turns to come. A step is ("call", id, namespace, name, arguments) or
        ("text", text). A request past its end is answered with a text, so that no agent waits for ever."""
        with self._changed:
            self._script = list(script)

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def _next(self, request):
        """Notes what `request` tells, and picks the step to answer it with."""
        with self._changed:
            self.offered = {}
            for tool in request.get("tools", []):
                if tool.get("type") == "namespace":
                    self.offered[tool["name"]] = [inner["name"] for inner in tool["tools"]]
                elif "name" in tool:
                    self.offered.setdefault("", []).append(tool["name"])
            for item in request.get("input", []):
                if item.get("type") == "function_call_output":
                    self.outputs[item["call_id"]] = _plain(item["output"])
            self._answered += 1
            step = self._script.pop(0) if self._script else ("text", "The script is at its end.")
            self._changed.notify_all()
            return self._answered, step

    def _handler(model):
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments):
                pass

            def do_GET(self):
                body = b'{"data": [], "models": []}'
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                number, step = model._next(json.loads(body))
                item = _item(number, step)
                response = {"id": f"response-{number}"}
                usage = dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), 1)
                events = [
                    {"type": "response.created", "response": response},
                    {"type": "response.output_item.added", "output_index": 0, "item": item},
                    {"type": "response.output_item.done", "output_index": 0, "item": item},
                    {"type": "response.completed", "response": {**response, "usage": usage}},
                ]
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                for event in events:
                    self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

        return Handler


def _plain(output):
    """A call's output as one text: agents send it as a string or as a list of parts."""
    if isinstance(output, str):
        return output
    return "".join(part.get("text", "") for part in output)


def _item(number, step):
    if step[0] == "text":
        content = [{"type": "output_text", "text": step[1]}]
        return {"type": "message", "role": "assistant", "id": f"message-{number}", "content": content}
    _, call_id, namespace, name, arguments = step
    item = {"type": "function_call", "id": f"item-{number}", "call_id": call_id, "name": name}
    item["arguments"] = json.dumps(arguments)
    if namespace:
        item["namespace"] = namespace
    return item
