"""A tiny HTTP endpoint for Prometheus, with nothing but the standard library."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from burnish.observe.exposition import metrics
from burnish.observe.prometheus import CONTENT_TYPE
from burnish.observe.registry import all_stats


class Endpoint:
    """`/metrics` in Prometheus's text format, `/stats` as JSON. A `with` block or `close()` ends it; it never keeps a
    process alive."""

    def __init__(self, port: int, host: str) -> None:
        self._server = ThreadingHTTPServer((host, port), _Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="burnish-metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The one it listens on, also where port 0 (any free one) was asked for."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        host = str(self._server.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(200, CONTENT_TYPE, metrics())
        elif path == "/stats":
            body = json.dumps({label: stats.to_dict() for label, stats in all_stats().items()}, ensure_ascii=False)
            self._answer(200, "application/json; charset=utf-8", body)
        else:
            self._answer(404, "text/plain; charset=utf-8", "burnish serves /metrics and /stats\n")

    def _answer(self, status: int, content_type: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """A scrape every few seconds is nothing to print a line about."""
