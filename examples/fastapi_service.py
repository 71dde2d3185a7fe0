"""A service: it warms up before it is ready, compiles nothing under traffic, and has a route for Prometheus.

uvicorn examples.fastapi_service:app
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import torch
from fastapi import FastAPI, Response
from pydantic import BaseModel

import burnish

WIDTH, BATCHES = 16, (1, 4)
model = burnish.compile(
    torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3)).eval(),
    name="classifier",
    dynamic=False,
)


@asynccontextmanager
async def warm(app: FastAPI) -> AsyncIterator[None]:
    with torch.inference_mode():
        for batch in BATCHES:
            model(torch.randn(batch, WIDTH))
    burnish.seal(model)
    yield


app = FastAPI(lifespan=warm)


class Request(BaseModel):
    rows: list[list[float]]


@app.post("/classify")
def classify(request: Request) -> dict[str, list[int]]:
    with torch.inference_mode():
        return {"classes": model(torch.tensor(request.rows)).argmax(1).tolist()}


@app.get("/metrics")
def metrics() -> Response:
    return Response(burnish.metrics(), media_type="text/plain; version=0.0.4")


def main() -> None:
    from fastapi.testclient import TestClient

    with TestClient(app) as client:
        for batch in (1, 4, 2):  # nothing was compiled for 2: eager serves it
            print(batch, client.post("/classify", json={"rows": [[0.5] * WIDTH] * batch}).json())
        assert 'burnish_compiles_total{object="classifier"} 2' in client.get("/metrics").text
    print(f"{burnish.stats(model).compiles} compiled, all before the first request")


if __name__ == "__main__":
    main()
