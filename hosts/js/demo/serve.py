"""Serves a folder with the headers that threads in a page need: serve.py FOLDER [PORT].

Prints its address. Port 0 takes any that is free; without one, it is 8000.
"""

import functools
import http.server
import os
import sys


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files with the headers of an isolated page."""

    def guess_type(self, path: str | os.PathLike[str]) -> str:
        """Types that a browser insists on, whatever the system knows."""
        types = {".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm"}
        return types.get(os.path.splitext(path)[1]) or super().guess_type(path)

    def end_headers(self) -> None:
        """Add the headers."""
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()


def server(folder: str, port: int = 0) -> http.server.ThreadingHTTPServer:
    """A server of a folder; port 0 takes any."""
    handler = functools.partial(Handler, directory=folder)
    return http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)


if __name__ == "__main__":
    folder, *port = sys.argv[1:]
    started = server(folder, int(port[0]) if port else 8000)
    print(f"http://127.0.0.1:{started.server_port}", flush=True)
    started.serve_forever()
