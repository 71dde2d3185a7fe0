"""A compiled module is still the module it was."""

import abc
import copy
import gc
import io
import pickle
import warnings
import weakref
from typing import ClassVar

import pytest
import torch
from torch import nn

import burnish
from burnish.errors import CannotPickle


class Net(nn.Module):
    """A small net."""

    def __init__(self, width=8):
        super().__init__()
        self.first = nn.Linear(4, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(width, 2)
        self.calls = 0

    def forward(self, x, *, scale: float = 1.0):
        return self.last(self.drop(self.norm(self.first(x)).relu())) * scale

    def describe(self):
        return f"net of {self.last.in_features}"


@pytest.fixture
def x():
    return torch.randn(6, 4)


def test_class_and_name():
    model = Net()
    compiled = burnish.compile(model)
    assert isinstance(compiled, Net) and isinstance(compiled, nn.Module)
    assert type(compiled).__name__ == "Net" and type(compiled).__module__ == Net.__module__
    assert type(compiled).__qualname__ == "Net" and compiled.__doc__ == "A small net."
    assert type(model) is Net, "the original is untouched"


def test_the_state_is_one():
    model = Net()
    compiled = burnish.compile(model)
    assert compiled.__dict__ is model.__dict__
    assert list(compiled.state_dict()) == list(model.state_dict())
    assert all(a is b for a, b in zip(compiled.parameters(), model.parameters(), strict=True))
    compiled.calls = 3
    assert model.calls == 3
    model.extra = nn.Linear(1, 1)
    assert "extra.weight" in compiled.state_dict()
    assert compiled.describe() == "net of 8"


def test_the_original_is_reachable_and_eager(x):
    model = Net().eval()
    compiled = burnish.compile(model)
    assert compiled.eager is model and compiled.burnish.eager is model
    compiled(x)
    compiles = burnish.stats(compiled).compiles
    model(x[:3])
    assert burnish.stats(compiled).compiles == compiles


def test_attributes_of_the_users_are_not_hidden(x):
    class Taken(Net):
        eager = "mine"

        def __init__(self):
            super().__init__()
            self.burnish = nn.Linear(4, 4)

    model = Taken().eval()
    compiled = burnish.compile(model)
    assert compiled.eager == "mine" and compiled.burnish is model.burnish
    torch.testing.assert_close(compiled(x), model(x))
    assert burnish.stats(compiled).compiles == 1


def test_weights_that_change_are_seen(x):
    model = Net().eval()
    compiled = burnish.compile(model)
    compiled(x)
    with torch.no_grad():
        model.last.weight.mul_(2)
    torch.testing.assert_close(compiled(x), model(x))
    compiled.load_state_dict(Net().state_dict())
    torch.testing.assert_close(compiled(x), model(x))
    model.last.weight = nn.Parameter(torch.ones_like(model.last.weight))
    torch.testing.assert_close(compiled(x), model(x))
    model.last = nn.Linear(8, 2)
    torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("options", [{"gate": False, "verify": "off"}, {}], ids=["forced", "judged"])
def test_weights_that_are_swapped(x, options):
    model = Net().eval()
    compiled = burnish.compile(model, options=options)
    compiled(x), compiled(x)
    torch.utils.swap_tensors(model.last.weight, nn.Parameter(torch.ones_like(model.last.weight)))
    torch.testing.assert_close(compiled(x), model(x))


def test_load_state_dict_with_assign(x):
    model = Net().eval()
    compiled = burnish.compile(model)
    compiled(x)
    compiled.load_state_dict(Net().state_dict(), assign=True)
    torch.testing.assert_close(compiled(x), model(x))


def test_train_and_eval_recompile_at_most_once_each(x):
    model = Net()
    compiled = burnish.compile(model)
    for _ in range(3):
        compiled.train()
        assert model.training
        compiled(x)
        model.eval()
        assert not compiled.training
        torch.testing.assert_close(compiled(x), model(x))
    assert burnish.stats(compiled).compiles == 2


def test_to_another_dtype(x):
    model = Net().eval()
    compiled = burnish.compile(model)
    compiled(x)
    assert compiled.to(torch.float64) is compiled
    torch.testing.assert_close(compiled(x.double()), model(x.double()))
    assert compiled(x.double()).dtype == torch.float64


def test_an_optimiser_steps_the_same_parameters(x):
    model = Net().eval()
    reference = copy.deepcopy(model)
    compiled = burnish.compile(model)
    optimisers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in (compiled, reference)]
    for _ in range(3):
        for net, optimiser in zip((compiled, reference), optimisers, strict=True):
            optimiser.zero_grad()
            net(x).square().sum().backward()
            optimiser.step()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert burnish.stats(compiled).compiles == 1


def test_forward_is_compiled_too(x):
    model = Net().eval()
    compiled = burnish.compile(model)
    torch.testing.assert_close(compiled.forward(x, scale=2.0), model.forward(x, scale=2.0))
    assert burnish.stats(compiled).compiles == 1


def test_the_signature_is_the_originals():
    import inspect

    assert inspect.signature(burnish.compile(Net()).forward) == inspect.signature(Net().forward)


def test_as_part_of_a_model(x):
    part = Net(4).eval()
    whole = nn.Sequential(nn.Linear(4, 4), burnish.compile(part))
    assert list(whole.state_dict()) == list(nn.Sequential(nn.Linear(4, 4), part).state_dict())
    expected = part(whole[0](x))
    torch.testing.assert_close(whole(x), expected)
    compiled = burnish.compile(whole)
    torch.testing.assert_close(compiled(x), expected)
    assert burnish.stats(compiled).compiles == 1, "the part is taken into the larger graph"
    assert burnish.stats(compiled).graph_breaks == ()


def test_compiling_again_replaces_the_settings(x):
    model = Net().eval()
    once = burnish.compile(model, mode="max-autotune")
    twice = burnish.compile(once, dynamic=True)
    assert twice.eager is model and twice.burnish.options.mode is None and twice.burnish.options.dynamic
    torch.testing.assert_close(twice(x), model(x))
    of_torchs = burnish.compile(torch.compile(model, backend="eager"))
    assert of_torchs.eager is model


def test_the_class_builds_plain_models():
    compiled = burnish.compile(Net())
    another = type(compiled)(width=16)
    assert type(another) is Net and another.last.in_features == 16
    assert type(type(compiled)()) is Net


def test_replicas_as_data_parallel_makes_them():
    compiled = burnish.compile(nn.Linear(4, 3))
    replica = compiled._replicate_for_data_parallel()
    assert type(replica) is nn.Linear


def test_what_is_dropped_is_freed(x):
    compiled = burnish.compile(Net().eval())
    compiled(x), compiled.forward(x)
    gone = [weakref.ref(compiled), weakref.ref(compiled.eager), weakref.ref(compiled.first.weight)]
    del compiled
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3


def test_export_and_jit_trace_see_the_model_as_written(x):
    model = Net().eval()
    compiled = burnish.compile(model)
    compiled(x)
    for strict in (False, True):
        exported = torch.export.export(compiled, (x,), strict=strict)
        torch.testing.assert_close(exported.module()(x), model(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(compiled, (x,))
    torch.testing.assert_close(traced(x), model(x))


def test_the_repr_shows_the_mode_and_the_models_own():
    model = nn.Linear(4, 2)
    compiled = burnish.compile(model, mode="max-autotune")
    assert repr(compiled) == f"burnish.compile(mode='max-autotune', nothing compiled yet)(\n  {model!r}\n)"


def test_the_repr_says_who_serves(x):
    compiled = burnish.compile(Net().eval())
    with torch.no_grad():
        compiled(x)
    assert "1 graph served by burnish" in repr(compiled)


def test_the_repr_says_that_a_graph_is_on_trial(x):
    compiled = burnish.compile(Net().eval())
    compiled(x)  # its backward is still to come
    assert "1 graph on trial" in repr(compiled)


def test_the_repr_says_that_eager_took_over(x):
    compiled = burnish.compile(Net().eval())
    compiled(x)
    compiled.burnish.rollback()
    assert "1 graph served by eager" in repr(compiled)


def test_the_repr_says_that_it_is_sealed(x):
    compiled = burnish.compile(Net().eval())
    compiled(x)
    burnish.seal(compiled)
    assert repr(compiled).splitlines()[0].endswith(", sealed)(")


@pytest.mark.parametrize(
    ("given", "says"), [({"disable": True}, "disabled"), ({"backend": "eager"}, "served by backend 'eager'")]
)
def test_the_repr_says_that_another_engine_serves(given, says):
    assert says in repr(burnish.compile(Net(), **given))


# -- classes that are not plain ----------------------------------------------------------------------------------


class Registry(type):
    seen: ClassVar[list[str]] = []

    def __new__(mcs, name, bases, namespace, **extra):
        mcs.seen.append(name)
        return super().__new__(mcs, name, bases, namespace)

    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        made.made_by_registry = True
        return made


class Slotted(nn.Module):
    __slots__ = ("__hidden", "scale")

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        object.__setattr__(self, "scale", 3.0)
        object.__setattr__(self, "_Slotted__hidden", 1)

    def forward(self, x):
        return self.inner(x) * self.scale


class WithNew(nn.Module):
    def __new__(cls, width):
        assert width > 0
        return super().__new__(cls)

    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(4, width)

    def forward(self, x):
        return self.inner(x)


class WithMeta(nn.Module, metaclass=Registry):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x)


class Abstract(nn.Module, abc.ABC):
    @abc.abstractmethod
    def forward(self, x): ...


class Concrete(Abstract):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x)


class Demanding(nn.Module):
    names: ClassVar[list[str]] = []

    def __init_subclass__(cls, /, name, **kwargs):
        super().__init_subclass__(**kwargs)
        Demanding.names.append(name)


class Named(Demanding, name="named"):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("make", [Slotted, lambda: WithNew(4), WithMeta, Concrete, Named])
def test_unusual_classes(make, x):
    model = make().eval()
    compiled = burnish.compile(model)
    assert isinstance(compiled, type(model))
    torch.testing.assert_close(compiled(x), model(x))
    assert burnish.stats(compiled).compiles == 1


def test_registries_do_not_meet_the_compiled_class():
    before = list(Registry.seen), list(Demanding.names)
    burnish.compile(WithMeta())
    burnish.compile(Named())
    assert (Registry.seen, Demanding.names) == before


def test_abstract_classes_keep_telling_instances_apart():
    model, compiled = Concrete(), burnish.compile(Concrete())
    assert not isinstance(model, type(compiled))
    assert isinstance(model, Concrete) and isinstance(compiled, Concrete) and isinstance(compiled, Abstract)


def test_slots_are_shared(x):
    model = Slotted()
    compiled = burnish.compile(model)
    compiled(x)
    compiled.scale = 5.0
    assert model.scale == 5.0 and compiled.scale == 5.0
    torch.testing.assert_close(compiled(x), model(x))


def test_a_forward_set_on_the_instance(x):
    model = Net().eval()
    model.forward = lambda x: x * 2
    compiled = burnish.compile(model)
    torch.testing.assert_close(compiled(x), x * 2)


# -- copies and pickles ------------------------------------------------------------------------------------------


def test_deepcopy_is_compiled_and_independent(x):
    model = Net().eval()
    compiled = burnish.compile(model, dynamic=True, name="net")
    compiled(x)
    copied = copy.deepcopy(compiled)
    assert isinstance(copied, Net) and copied.eager is not model
    assert copied.burnish.options.dynamic is True and burnish.stats(copied).compiles == 0
    with torch.no_grad():
        copied.last.weight.zero_()
        copied.last.bias.zero_()
    assert copied(x).abs().sum() == 0 and compiled(x).abs().sum() > 0
    assert burnish.stats(copied).compiles == 1


def test_deepcopy_of_a_model_around_it(x):
    whole = nn.Sequential(burnish.compile(Net().eval()))
    copied = copy.deepcopy(whole)
    torch.testing.assert_close(copied(x), whole(x))
    assert copied[0].eager is not whole[0].eager


def test_shallow_copy(x):
    compiled = burnish.compile(Net().eval())
    copied = copy.copy(compiled)
    assert copied.last is compiled.last and copied.__dict__ is not compiled.__dict__
    torch.testing.assert_close(copied(x), compiled(x))


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_pickle(x, protocol):
    compiled = burnish.compile(Net().eval(), dynamic=False, name="net")
    expected = compiled(x)
    loaded = pickle.loads(pickle.dumps(compiled, protocol))
    assert isinstance(loaded, Net) and loaded.burnish.settings == compiled.burnish.settings
    torch.testing.assert_close(loaded(x), expected)


def test_torch_save_and_load(x):
    compiled = burnish.compile(Net().eval())
    buffer = io.BytesIO()
    torch.save(compiled, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    torch.testing.assert_close(loaded(x), compiled(x))
    buffer = io.BytesIO()
    torch.save(compiled.state_dict(), buffer)
    buffer.seek(0)
    Net().load_state_dict(torch.load(buffer, weights_only=True))


def test_what_does_not_pickle_says_so(x):
    class Local(Net):
        pass

    compiled = burnish.compile(Local())
    with pytest.raises(CannotPickle, match="state_dict"):
        pickle.dumps(compiled)
    with pytest.raises(pickle.PicklingError):  # what a caller who knows nothing of burnish would catch
        torch.save(compiled, io.BytesIO())


def test_settings_are_read_anew_where_a_pickle_arrives(monkeypatch, tmp_path):
    data = pickle.dumps(burnish.compile(Net()))
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(tmp_path))
    assert pickle.loads(data).burnish.options.cache_dir == tmp_path
