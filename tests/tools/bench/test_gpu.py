"""What only a GPU has: calls that return early, kernels, the allocator's peaks."""

from __future__ import annotations

import pytest
import torch

from burnish.tools.bench import bench

pytestmark = pytest.mark.gpu


def test_a_gpu_tells_host_time_kernels_and_memory() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 512)).cuda()
    result = bench(model, torch.ones(64, 512, device="cuda"), candidates="burnish,burnish:reduce-overhead", seconds=0.5)
    assert result.device == "cuda" and result.machine.gpu
    for row in result.candidates:
        assert row.failure is None and row.latency is not None and row.host is not None
        assert row.host.value < row.latency.p50.value, "a call returns before it is done"
        assert row.profile is not None and (row.profile.device_kernels or 0) >= 2
        assert 0 < (row.profile.device_seconds or 0) < row.latency.p50.value * 1.5
        assert row.memory is not None
        assert (row.memory.device_compile_peak or 0) > 1 << 20 and (row.memory.device_steady_peak or 0) > 1 << 20
        assert row.energy is not None and (row.energy.joules or row.energy.missing)
    assert "GPU" in str(result)
