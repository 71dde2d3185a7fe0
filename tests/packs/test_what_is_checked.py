"""What must be as it was where a pack was made: at loading, and in each call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import burnish
from burnish.errors import BadOptionValue, CannotPack, FallbackWarning, PackDiffers, SealedError
from burnish.packs.guards import is_same_constant
from tests.packs import models
from tests.packs.conftest import OPTIONS, packed_as
from tests.packs.models import Tiny, an_input, tiny

JUDGED = "warm start: judged where it was packed: neither compared nor raced before use"


def refused(path: Path, model: Any) -> PackDiffers:
    with pytest.raises(PackDiffers) as caught:
        burnish.load(path, model, missing="error")
    return caught.value


def factors(error: PackDiffers) -> dict[str, tuple[str, str]]:
    return {each.factor: (each.stored, each.current) for each in error.differences}


def eager_calls(loaded: Any) -> int:
    return sum(count for text, count in burnish.stats(loaded).notices.items() if text != JUDGED)


# -- at loading ---------------------------------------------------------------------------------------------------


def test_another_attribute_is_named(of_tiny: Path) -> None:
    model = tiny()
    model.gain = 3.0
    assert factors(refused(of_tiny, model)) == {"target.gain": ("2.0", "3.0")}


def test_every_difference_is_listed(of_tiny: Path) -> None:
    model = tiny()
    model.gain = 3.0
    model.config.squared = True
    assert factors(refused(of_tiny, model)).keys() >= {"target.gain", "target.config.squared"}


def test_another_configuration_is_named(of_tiny: Path) -> None:
    model = tiny()
    model.config.scale = 0.25
    assert factors(refused(of_tiny, model))["target.config.scale"] == ("0.5", "0.25")


def test_another_form_of_a_parameter_is_named(of_tiny: Path) -> None:
    found = factors(refused(of_tiny, tiny(width=16)))
    assert "(8, 8)" in found["target.a.weight"][0] and "(16, 8)" in found["target.a.weight"][1]
    assert "float64" in factors(refused(of_tiny, tiny().double()))["target.a.weight"][1]


def test_another_module_is_named(of_tiny: Path) -> None:
    model = tiny()
    model.b = torch.nn.Sequential(model.b)  # type: ignore[assignment]
    assert any(name.startswith(("target.b", "type of target.b")) for name in factors(refused(of_tiny, model)))


def test_training_mode_is_named(of_tiny: Path) -> None:
    assert factors(refused(of_tiny, tiny().train())) == {"target.drop.training": ("False", "True")}


def test_another_forward_is_named(of_tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tiny, "forward", lambda self, x: {"out": x})
    found = factors(refused(of_tiny, tiny()))
    assert "methods of its classes" in found and "type of target" in found


def test_another_class_is_named(of_tiny: Path) -> None:
    assert factors(refused(of_tiny, torch.nn.Linear(8, 4)))


def test_hooks_are_named(of_tiny: Path) -> None:
    model = tiny()
    model.a.register_forward_hook(lambda module, args, result: result * 2)
    assert factors(refused(of_tiny, model))["hooks"] == ("none", "registered")


def test_hooks_of_a_methods_module_are_named(tmp_path: Path) -> None:
    path = packed_as(tmp_path / "method.burnish", tiny().forward, (an_input(),))
    fitting = burnish.load(path, tiny().forward, missing="error")
    with torch.no_grad():
        torch.testing.assert_close(fitting(an_input()), tiny().forward(an_input()))
    model = tiny()
    model.a.register_forward_hook(lambda module, args, result: result * 2)
    assert any("hooks" in name for name in factors(refused(path, model.forward)))


def test_what_does_not_fit_is_compiled_with_a_warning(of_tiny: Path) -> None:
    model = tiny()
    model.gain = 3.0
    with pytest.warns(FallbackWarning, match=r"target\.gain: 2\.0 in the pack, 3\.0 here"):
        compiled = burnish.load(of_tiny, model, options={"gate": False})
    with torch.no_grad():
        torch.testing.assert_close(compiled(an_input()), model(an_input()))
    assert burnish.stats(compiled).compiles == 1


def test_other_weights_are_fine(of_tiny: Path) -> None:
    model = tiny(seed=1)
    loaded = burnish.load(of_tiny, model, missing="error", strict=True)
    with torch.no_grad():
        torch.testing.assert_close(loaded(an_input()), model(an_input()))


@pytest.fixture(scope="module")
def of_a_closure(tmp_path_factory: pytest.TempPathFactory, _session_cache: Path) -> Path:
    return packed_as(tmp_path_factory.mktemp("packs") / "closure.burnish", models.scaling(2.0), (an_input(),))


@pytest.mark.parametrize(
    ("function", "factor"),
    [
        (models.scaling(3.0), "by"),
        (models.scaling(2), "by"),
        (models.scaling(torch.ones(8)), "by"),
        (models.scaling_and_shifting(2.0, 1.0), "variables of scale"),
        (models.scaling_by_nothing_yet(), "by"),
        (models.scaled, "variables of scaled"),
    ],
)
def test_another_closure_is_named(of_a_closure: Path, function: Any, factor: str) -> None:
    assert factor in factors(refused(of_a_closure, function))


def test_another_closure_is_compiled(of_a_closure: Path) -> None:
    function = models.scaling_and_shifting(2.0, 1.0)
    with pytest.warns(FallbackWarning, match="variables of scale: by in the pack, by, shift here"):
        compiled = burnish.load(of_a_closure, function, options={"gate": False})
    with torch.no_grad():
        torch.testing.assert_close(compiled(an_input()), function(an_input()))
    assert burnish.stats(compiled).compiles == 1


def test_an_unbound_variable_raises_what_eager_raises(of_a_closure: Path) -> None:
    with pytest.warns(FallbackWarning, match="by: there in the pack, not there"):
        compiled = burnish.load(of_a_closure, models.scaling_by_nothing_yet())
    with pytest.raises(NameError, match="free variable 'by'"):
        compiled(an_input())


@pytest.mark.parametrize(
    ("value", "other", "same"),
    [
        (2, 2.0, False),
        (1, True, False),
        (0.0, -0.0, False),
        (float("nan"), float("nan"), True),
        ((2,), (2.0,), False),
        ((0.0, 1), (-0.0, 1), False),
        ((1, (2, 3.5)), (1, (2, 3.5)), True),
        ((float("nan"),), (float("nan"),), True),
        ((1, 2), (1, 2, 3), False),
        ((1, 2), [1, 2], False),
        (0j, complex(0.0, -0.0), False),
        (torch.Size([1]), (1,), False),
        (torch.float32, torch.float32, True),
        (torch.float32, torch.float64, False),
        ("a", "b", False),
    ],
)
def test_constants_are_compared_as_a_graph_needs_it(value: Any, other: Any, same: bool) -> None:
    assert is_same_constant(value, other) is same and is_same_constant(other, value) is same
    assert is_same_constant(value, value)


@pytest.mark.parametrize(("packed", "found"), [(0.0, -0.0), ((1, 2.0), (1, 2)), ((0.0,), (-0.0,))])
def test_another_constant_is_named(tmp_path: Path, packed: Any, found: Any) -> None:
    def total(scale: Any) -> Any:
        model = tiny()
        model.config.scale = scale

        def sum_of(x: torch.Tensor) -> torch.Tensor:
            scale = model.config.scale
            return x * sum(scale) if isinstance(scale, tuple) else torch.atan2(x, x * 0 + scale)

        return sum_of

    path = packed_as(tmp_path / "a.burnish", total(packed), (an_input(),))
    assert any(name.startswith("model.config.scale") for name in factors(refused(path, total(found))))


# -- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [{"backend": "inductor"}, {"backend": "auto"}, {"shapes": "pow2"}])
def test_settings_that_nothing_would_follow_are_refused(of_tiny: Path, setting: dict[str, Any]) -> None:
    with pytest.raises(BadOptionValue, match=f"^{next(iter(setting))}="):
        burnish.load(of_tiny, tiny(), **setting)


@pytest.mark.parametrize("setting", [{"mode": "max-autotune"}, {"dynamic": True}, {"background": True}])
def test_settings_of_compiling_are_refused_where_nothing_compiles(of_tiny: Path, setting: dict[str, Any]) -> None:
    assert burnish.load(of_tiny, tiny(), **setting) is not None
    with pytest.raises(BadOptionValue, match=f"^{next(iter(setting))}=.*nothing is compiled"):
        burnish.load(of_tiny, tiny(), missing="error", **setting)


def test_an_unknown_setting_is_named(of_tiny: Path) -> None:
    with pytest.raises(TypeError, match=r"load\(\) got an unexpected keyword argument 'striict'"):
        burnish.load(of_tiny, tiny(), striict=True)


def test_disabled_it_is_eager(of_tiny: Path) -> None:
    model = tiny()
    loaded = burnish.load(of_tiny, model, missing="error", disable=True)
    with torch.no_grad():
        assert torch.equal(loaded(an_input())["out"], model(an_input())["out"])
    assert burnish.stats(loaded).compiles == 0 and not burnish.stats(loaded).variants


# -- in each call -------------------------------------------------------------------------------------------------


@pytest.fixture
def model() -> Tiny:
    return tiny()


@pytest.fixture
def loaded(of_tiny: Path, model: Tiny) -> Any:
    loaded = burnish.load(of_tiny, model, missing="error")
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(loaded(an_input()), model(an_input()))
    assert eager_calls(loaded) == 0
    return loaded


def test_another_shape_runs_in_eager_and_is_counted(loaded: Any, model: Tiny) -> None:
    with torch.no_grad():
        torch.testing.assert_close(loaded(an_input(5)), model(an_input(5)))
        torch.testing.assert_close(loaded(an_input(), scale=0.5), model(an_input(), scale=0.5))
    assert eager_calls(loaded) == 2
    assert burnish.stats(loaded).compiles == 0


def test_strictly_it_raises(of_tiny: Path, model: Tiny) -> None:
    loaded = burnish.load(of_tiny, model, missing="error", strict=True)
    with torch.no_grad(), pytest.raises(SealedError, match="nothing was compiled for inputs like these"):
        loaded(an_input(5))


def test_weights_may_be_swapped(loaded: Any, model: Tiny) -> None:
    other = tiny(seed=3)

    def same() -> None:
        with torch.no_grad():
            torch.testing.assert_close(loaded(an_input()), model(an_input()))

    model.load_state_dict(other.state_dict())
    same()
    model.load_state_dict(tiny(seed=4).state_dict(), assign=True)
    same()
    with torch.no_grad():
        model.a.weight.mul_(2)
    same()
    model.a.weight.data = torch.randn(8, 8)
    same()
    model.b = tiny(seed=5).b
    same()
    assert eager_calls(loaded) == 0
    model.a.weight.data = torch.randn(8, 8).t()
    same()
    assert eager_calls(loaded) == 1


def _train(model: Tiny) -> None:
    model.train()


def _hook(model: Tiny) -> None:
    model.a.register_forward_hook(lambda module, args, result: result * 2)


def _own_forward(model: Tiny) -> None:
    model.a.forward = lambda x: x * 0  # type: ignore[method-assign]


@pytest.mark.parametrize("change", [_train, _hook, _own_forward])
def test_a_changed_model_runs_in_eager(loaded: Any, model: Tiny, change: Callable[[Tiny], None]) -> None:
    change(model)
    with torch.no_grad():
        for seed in range(2):
            torch.manual_seed(seed)
            found = loaded(an_input())
            torch.manual_seed(seed)
            torch.testing.assert_close(found, model(an_input()))


def test_hooks_before_a_restart(loaded: Any, model: Tiny) -> None:
    """A new seal begins with the hooks that are there."""
    model.a.register_forward_hook(lambda module, args, result: result * 2)
    loaded.burnish.seal(strict=False)
    loaded.burnish.close()
    with torch.no_grad():
        torch.testing.assert_close(loaded(an_input()), model(an_input()))
    assert eager_calls(loaded) == 1


def test_replaced_methods_are_noticed(loaded: Any, model: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: x[:, : self.out_features] * 7)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(loaded(an_input()), model(an_input()))
    assert eager_calls(loaded) == 2


def test_gradients_are_eagers(loaded: Any, model: Tiny) -> None:
    loaded(an_input())["out"].sum().backward()
    assert model.a.weight.grad is not None and eager_calls(loaded) == 1


def test_autocast_is_noticed(loaded: Any, model: Tiny) -> None:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert loaded(an_input())["out"].dtype == model(an_input())["out"].dtype == torch.bfloat16


def test_inference_mode_is_noticed(loaded: Any) -> None:
    with torch.inference_mode():
        assert loaded(an_input())["out"].is_inference()


class _Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result * 2 if function is torch.tanh else result


def test_function_modes_are_noticed(loaded: Any, model: Tiny) -> None:
    with torch.no_grad(), _Doubling():
        torch.testing.assert_close(loaded(an_input()), model(an_input()))


def test_the_stance_of_the_process_is_noticed(loaded: Any, model: Tiny) -> None:
    """`force_eager` means eager, also for what nothing compiles."""
    before = burnish.stats(loaded).variants[0]
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(loaded(an_input()), model(an_input()))
    assert before.engine == "burnish"


def test_forward_is_eagers_and_counted(loaded: Any, model: Tiny) -> None:
    with torch.no_grad():
        torch.testing.assert_close(loaded.forward(an_input()), model(an_input()))
    assert burnish.stats(loaded).notices["call in eager: not in the pack"] == 1


def test_arguments_that_are_one_tensor(loaded: Any, model: Tiny) -> None:
    x = torch.rand(8, 8)
    with torch.no_grad():
        torch.testing.assert_close(loaded(x, x), model(x, x))
    assert models.SCALE == 3.0 and eager_calls(loaded) == 1


# -- the same values under other names ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_a_function(tmp_path_factory: pytest.TempPathFactory, _session_cache: Path) -> Path:
    path = tmp_path_factory.mktemp("packs") / "function.burnish"
    compiled = burnish.compile(models.scaled_and_shifted, options=OPTIONS)
    with torch.no_grad():
        compiled(an_input(), by=3.0)
    burnish.pack(compiled, path)
    return path


def test_a_numbers_name_is_part_of_a_signature(of_a_function: Path) -> None:
    function = models.scaled_and_shifted
    loaded = burnish.load(of_a_function, function, missing="error")
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(loaded(an_input(), by=3.0), function(an_input(), by=3.0))
            torch.testing.assert_close(loaded(an_input(), shift=3.0), function(an_input(), shift=3.0))
    assert eager_calls(loaded) == 2


def test_a_tensors_name_is_part_of_a_signature(tmp_path: Path) -> None:
    compiled = burnish.compile(tiny(), options=OPTIONS)
    with torch.no_grad():
        for _ in range(2):
            compiled(x=an_input(8), mask=torch.ones(8))
    burnish.pack(compiled, tmp_path / "a.burnish")
    model = tiny()
    loaded = burnish.load(tmp_path / "a.burnish", model, missing="error")
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(loaded(x=an_input(8), mask=torch.ones(8)), model(an_input(8), torch.ones(8)))
            torch.testing.assert_close(loaded(an_input(8), torch.ones(8)), model(an_input(8), torch.ones(8)))
            torch.testing.assert_close(loaded(an_input(8), mask=torch.ones(8)), model(an_input(8), torch.ones(8)))


# -- tied weights -------------------------------------------------------------------------------------------------


def test_weights_that_are_no_longer_tied_are_noticed(tmp_path: Path) -> None:
    path = packed_as(tmp_path / "a.burnish", models.Tied(), (an_input(),))
    model = models.Tied()
    loaded = burnish.load(path, model, missing="error")
    with torch.no_grad():
        torch.testing.assert_close(loaded(an_input()), model(an_input()))
        loaded.load_state_dict({name: each + 1 for name, each in model.state_dict().items()})
        torch.testing.assert_close(loaded(an_input()), model(an_input()))
        assert eager_calls(loaded) == 0
        model.b.weight = torch.nn.Parameter(torch.randn(8, 8))  # a graph's inputs name the weight in `a`
        for _ in range(2):
            torch.testing.assert_close(loaded(an_input()), model(an_input()))
    assert eager_calls(loaded) == 2
    assert "one object in the pack, two here" in str(refused(path, model))


# -- objects ------------------------------------------------------------------------------------------------------


def test_a_loaded_object_is_loaded_again_from_its_model(of_tiny: Path) -> None:
    model = tiny()
    loaded = burnish.load(of_tiny, burnish.load(of_tiny, model, missing="error"), missing="error")
    assert loaded.burnish.eager is model
    with torch.no_grad():
        torch.testing.assert_close(loaded(an_input()), model(an_input()))
    assert eager_calls(loaded) == 0


def test_a_loaded_object_is_not_packed(of_tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(CannotPack, match="it was loaded from a pack: copy that file"):
        burnish.pack(burnish.load(of_tiny, tiny(), missing="error"), tmp_path / "a.burnish")
