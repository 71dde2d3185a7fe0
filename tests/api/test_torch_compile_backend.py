"""`torch.compile(model, backend="burnish")`, and what importing burnish pulls in."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import burnish


def test_by_name():
    assert "burnish" in torch._dynamo.list_backends()
    model = nn.Linear(4, 4)
    compiled = torch.compile(model, backend="burnish")
    x = torch.randn(2, 4)
    before = burnish.stats().compiles
    torch.testing.assert_close(compiled(x), model(x))
    compiled(x).sum().backward()
    assert burnish.stats().compiles == before + 1


@pytest.mark.skipif(not hasattr(torch.compiler, "set_default_backend"), reason="this torch has one default backend")
def test_as_the_default_of_torch_compile():
    """In a process of its own: the name is found without burnish having been imported, where it is installed."""
    program = """
import torch
torch.compiler.set_default_backend("burnish")
model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
try:
    compiled = torch.compile(model)
    result = compiled(x)
except Exception as error:  # not installed: it has to be imported first
    assert "burnish" in str(error), error
    import burnish
    compiled = torch.compile(model)
    result = compiled(x)
import burnish
torch.testing.assert_close(result, model(x))
compiled(x).sum().backward()
torch.compile(lambda x: x * 3, mode="max-autotune", fullgraph=True)(x)
assert burnish.stats().compiles == 2, burnish.stats()
torch.compiler.set_default_backend(None)
torch.compile(lambda x: x * 3, backend="eager")(x)
assert burnish.stats().compiles == 2 and not burnish.stats().fallbacks
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=120)


def test_mode_and_options_arrive(plain_pipeline):
    torch.compile(lambda x: x + 1, backend="burnish", mode="max-autotune")(torch.ones(2))
    torch.compile(lambda x: x + 2, backend="burnish", options={"threads": 2})(torch.ones(2))
    assert plain_pipeline[0]["options"].mode == "max-autotune" and plain_pipeline[1]["options"].threads == 2


@pytest.mark.parametrize(
    ("arguments", "told"), [({"mode": "fats"}, "unknown mode 'fats'"), ({"options": {"x": 1}}, "unknown option 'x'")]
)
def test_mistakes_are_told(arguments, told):
    with pytest.raises(RuntimeError, match=told):
        torch.compile(lambda x: x + 1, backend="burnish", **arguments)(torch.ones(2))


def test_importing_is_light_and_inference_leaves_inductors_compiler_alone():
    program = """
import sys, torch, burnish
model = burnish.compile(torch.nn.Linear(4, 4))
with torch.no_grad():
    model(torch.randn(2, 4))
model(torch.randn(2, 4)).sum().backward()
heavy = [name for name in ("lowering", "scheduler", "pattern_matcher", "codegen.cpp", "compile_fx")
         if "torch._inductor." + name in sys.modules]
assert heavy == [], heavy
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=120)
