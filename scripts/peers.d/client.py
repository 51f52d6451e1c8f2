"""Drives a server through the Python SDK: client.py ERA PROJECT SERVER [ARGUMENT ...], ERA being `legacy` or `auto`.

The lines on stdout are what scripts/peers makes its table of; see steps.md beside this file.
"""

import sys
import time
from importlib.metadata import version
from pathlib import Path

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters

ERA, PROJECT, SERVER = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
TOOLS = ["bash", "edit", "glob", "grep", "ls", "read", "write"]


class Failed(Exception):
    """What a step saw instead of what it wanted."""


def want(condition, seen):
    if not condition:
        raise Failed(seen)


def text_of(result):
    return "".join(part.text for part in result.content if part.type == "text")


async def until(fact, seconds):
    """Waits until `fact()` is true and says for how many milliseconds it did; None when it never was."""
    start = time.monotonic()
    while not fact():
        if time.monotonic() - start > seconds:
            return None
        await anyio.sleep(0.005)
    return round((time.monotonic() - start) * 1000)


def gone(pid):
    """Whether no process of that id runs. One that waits for init to collect it runs no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def list_tools(client):
    names = [tool.name for tool in (await client.list_tools()).tools]
    want(names == TOOLS, names)


async def read(client):
    text = text_of(await client.call_tool("read", {"path": "notes.txt"}))
    want("     2\tbeta\n" in text, text)


async def edit(client):
    arguments = {"path": "notes.txt", "old_string": "beta", "new_string": "delta"}
    result = await client.call_tool("edit", arguments)
    want(not result.is_error, result)
    want((PROJECT / "notes.txt").read_text() == "alpha\ndelta\ngamma\n", "the file does not hold the edit")


async def grep(client):
    text = text_of(await client.call_tool("grep", {"pattern": "needle", "path": "src"}))
    want("src/lib.rs:2:" in text, text)


async def failing(client):
    text = text_of(await client.call_tool("bash", {"command": "echo before; exit 3"}))
    want(text == "before\n[exit 3]\n" or text == "before\n[exit 3]", text)


async def cancel(client):
    pid_file = PROJECT / "pid"
    async with anyio.create_task_group() as group:
        group.start_soon(client.call_tool, "bash", {"command": "sleep 1000 & echo $! >pid; wait"})
        waited = await until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"), 10)
        want(waited is not None, "the command never started")
        pid = int(pid_file.read_text())
        group.cancel_scope.cancel()
    waited = await until(lambda: gone(pid), 5)
    want(waited is not None, f"process {pid} outlives the cancel")
    text = text_of(await client.call_tool("read", {"path": "notes.txt"}, read_timeout_seconds=5))
    want("alpha" in text, text)
    return f"gone after {waited} ms"


async def progress(client):
    seen = []

    async def note(progress, total, message):
        seen.append((progress, message))

    command = "for i in 1 2 3 4; do echo line $i; sleep 0.3; done"
    text = text_of(await client.call_tool("bash", {"command": command}, progress_callback=note))
    want("line 4\n[exit 0]" in text, text)
    want(len(seen) >= 2, seen)
    want(all(a[0] < b[0] for a, b in zip(seen, seen[1:])), seen)
    want("line 1" in (seen[0][1] or ""), seen)
    return f"{len(seen)} reports"


STEPS = [list_tools, read, edit, grep, failing, cancel, progress]


async def main():
    parameters = StdioServerParameters(command=SERVER[0], args=SERVER[1:], cwd=PROJECT)
    async with Client(parameters, mode=ERA, cache=None) as client:
        print("client", "Python mcp", version("mcp"), client.protocol_version, sep="\t", flush=True)
        for step in STEPS:
            try:
                with anyio.fail_after(20):
                    detail = await step(client) or ""
                verdict = "ok"
            except Exception as error:  # Whatever went wrong, the steps after it are worth seeing.
                verdict, detail = "FAIL", " ".join(f"{type(error).__name__}: {error}".split())
            print("step", step.__name__, verdict, detail, sep="\t", flush=True)
        start = time.monotonic()
    print("step", "close", "ok" if time.monotonic() - start < 1 else "FAIL", f"{(time.monotonic() - start) * 1000:.0f} ms", sep="\t")


anyio.run(main)
