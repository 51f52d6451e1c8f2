"""The smallest server that the Python SDK makes of one `read` tool: what berth is measured beside."""

from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("python-read", log_level="ERROR")


@server.tool(structured_output=False)
def read(path: str) -> str:
    """Reads a file."""
    return Path(path).read_text()


server.run()
