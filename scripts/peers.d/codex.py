"""Drives a server through the real Codex: codex.py CODEX PROJECT HOME SERVER [ARGUMENT ...].

`codex exec` makes the calls that only need an answer, and a call that its own time limit ends; `codex app-server` lets a
turn be interrupted. Codex shows a server's progress to nobody, but its log has each report that it took. The model behind both is scripted; a step is ok when what Codex sent back to the
model says so. The lines on stdout are what scripts/peers makes its table of; see steps.md beside this file.
"""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

from scripted_model import ScriptedModel

CODEX, PROJECT, HOME, SERVER = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
TOOLS = ["bash", "edit", "glob", "grep", "ls", "read", "write"]
SPACE = "mcp__berth"
HANGING = "sleep 1000 & echo $! >pid; wait"
TIME_LIMIT = 3  # Seconds Codex gives a tool; the progress step takes about one.

ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "TERM", "LANG") if name in os.environ}
ENVIRONMENT |= {"CODEX_HOME": str(HOME), "HOME": str(HOME)}


class Failed(Exception):
    """What a step saw instead of what it wanted."""


def want(condition, seen):
    if not condition:
        raise Failed(seen)


def report(name, step):
    try:
        verdict, detail = "ok", step() or ""
    except Exception as error:  # Whatever went wrong, the steps after it are worth seeing.
        verdict, detail = "FAIL", " ".join(f"{type(error).__name__}: {error}".split())[:500]
    print("step", name, verdict, detail, sep="\t", flush=True)


def gone(pid):
    """Whether no process of that id runs. One that waits for init to collect it runs no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until(fact, seconds, what):
    """Waits until `fact()` is true and says for how many milliseconds it did."""
    start = time.monotonic()
    while not fact():
        want(time.monotonic() - start < seconds, what)
        time.sleep(0.005)
    return round((time.monotonic() - start) * 1000)


def configure(model, server):
    """Writes the configuration of a person who uses this server and trusts its tools."""
    server = [json.dumps(word) for word in server]  # A JSON string is a TOML string.
    (HOME / "config.toml").write_text(f"""
model = "scripted"
model_provider = "scripted"

[model_providers.scripted]
name = "scripted"
base_url = "{model.url}"
wire_api = "responses"

[mcp_servers.berth]
command = {server[0]}
args = [{", ".join(server[1:])}]
tool_timeout_sec = {TIME_LIMIT}
default_tools_approval_mode = "approve"
""")


def call(name, tool, **arguments):
    return ("call", name, SPACE, tool, arguments)


def run_exec(model):
    """One turn of `codex exec`, in which the scripted model makes one call after the other."""
    # What Codex says to the server passes through a file on its way, since nothing else tells the version it speaks.
    trace = HOME / "trace"
    words = " ".join("'" + word.replace("'", "'\\''") + "'" for word in SERVER)
    configure(model, ["sh", "-c", f"tee '{trace}' | {words}"])
    edit = {"path": "notes.txt", "old_string": "beta", "new_string": "delta"}
    model.follow([
        call("read", "read", path="notes.txt"),
        call("edit", "edit", **edit),
        call("grep", "grep", pattern="needle", path="src"),
        call("failing", "bash", command="echo before; exit 3"),
        call("limit", "bash", command=HANGING),
        call("after", "read", path="notes.txt"),
        ("text", "done"),
    ])
    command = [CODEX, "exec", "--skip-git-repo-check", "--json", "-C", str(PROJECT), "go"]
    done = subprocess.run(command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    version = subprocess.run([CODEX, "--version"], env=ENVIRONMENT, capture_output=True, text=True).stdout.split()[-1]
    spoken = "?"
    for line in trace.read_text().splitlines() if trace.exists() else []:
        message = json.loads(line)
        if message.get("method") == "initialize":
            spoken = message["params"]["protocolVersion"]
    print("client", "Codex", version, spoken, sep="\t", flush=True)

    def output(name):
        want(name in model.outputs, f"Codex never answered the call; it said: {(done.stdout + done.stderr)[-300:]}")
        return model.outputs[name]

    def list_tools():
        offered = model.offered.get(SPACE, [])
        want(offered == TOOLS, offered)

    def edited():
        output("edit")
        want((PROJECT / "notes.txt").read_text() == "alpha\ndelta\ngamma\n", "the file does not hold the edit")

    def limited():
        want("timed out" in output("limit"), output("limit"))
        pid = int((PROJECT / "pid").read_text())
        until(lambda: gone(pid), 5, f"process {pid} outlives its time limit")
        want("alpha" in output("after"), output("after"))
        return f"after its limit of {TIME_LIMIT} s"

    report("list_tools", list_tools)
    report("read", lambda: want("     2\tbeta\n" in output("read"), output("read")))
    report("edit", edited)
    report("grep", lambda: want("src/lib.rs:2:" in output("grep"), output("grep")))
    report("failing", lambda: want("before\n[exit 3]" in output("failing"), output("failing")))
    report("time_limit", limited)


class AppServer:
    """A running `codex app-server` and the messages it has sent."""

    def __init__(self):
        self.log = HOME / "log"
        environment = ENVIRONMENT | {"RUST_LOG": "codex_rmcp_client=info"}
        with open(self.log, "w") as log:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
            self.process = subprocess.Popen([CODEX, "app-server"], env=environment, cwd=PROJECT, text=True, **pipes)
        self.messages = queue.Queue()
        self.calls = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.messages.put(json.loads(line))

    def send(self, message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def wait(self, wanted, what, seconds=20):
        """The first message not yet taken that `wanted` says yes to; those before it are dropped."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                message = self.messages.get(timeout=max(0.001, deadline - time.monotonic()))
            except queue.Empty:
                raise Failed(f"no {what} within {seconds} s") from None
            if wanted(message):
                return message

    def request(self, method, **params):
        self.calls += 1
        number = self.calls
        self.send({"id": number, "method": method, "params": params})
        answer = self.wait(lambda message: message.get("id") == number and "method" not in message, f"answer to {method}")
        want("result" in answer, answer)
        return answer["result"]

    def turn(self, thread):
        started = self.request("turn/start", threadId=thread, input=[{"type": "text", "text": "go"}])
        return started["turn"]["id"]

    def turn_end(self):
        end = self.wait(lambda message: message.get("method") == "turn/completed", "end of the turn")
        return end["params"]["turn"]["status"]

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Failed("Codex did not end with its input") from None


def run_app_server(model):
    """Turns of `codex app-server`: one that is interrupted, and one that shows progress."""
    configure(model, SERVER)
    (PROJECT / "pid").unlink(missing_ok=True)
    server = AppServer()
    try:
        server.request("initialize", clientInfo={"name": "peers", "title": None, "version": "1"})
        server.send({"method": "initialized"})
        thread = server.request("thread/start", cwd=str(PROJECT), approvalPolicy="never", ephemeral=True)["thread"]["id"]

        def cancel():
            model.follow([call("hang", "bash", command=HANGING)])
            turn = server.turn(thread)
            pid_file = PROJECT / "pid"
            until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"), 10, "the command never started")
            pid = int(pid_file.read_text())
            start = time.monotonic()
            server.request("turn/interrupt", threadId=thread, turnId=turn)
            until(lambda: gone(pid), 2, f"process {pid} outlives the interrupt")
            waited = round((time.monotonic() - start) * 1000)
            status = server.turn_end()
            want(status == "interrupted", status)
            model.follow([call("alive", "read", path="notes.txt"), ("text", "done")])
            server.turn(thread)
            server.turn_end()
            want("alpha" in model.outputs.get("alive", ""), model.outputs.get("alive"))
            return f"gone after {waited} ms"

        def progress():
            command = "for i in 1 2 3 4; do echo line $i; sleep 0.3; done"
            model.follow([call("slow", "bash", command=command), ("text", "done")])
            server.turn(thread)
            server.turn_end()
            output = model.outputs.get("slow", "")
            want("line 4\n[exit 0]" in output, output)
            lines = server.log.read_text().splitlines()
            told = [line.split("progress notification ")[1] for line in lines if "progress notification " in line]
            # The command that was interrupted printed nothing, so all of them are of this one.
            want(len(told) >= 2, f"{len(told)} reports in the log")
            want("line 1" in told[0], told)
            return f"{len(told)} reports in its log"

        report("cancel", cancel)
        report("progress", progress)
    finally:
        report("close", server.close)


scripted = ScriptedModel()
try:
    run_exec(scripted)
    run_app_server(scripted)
finally:
    scripted.close()
