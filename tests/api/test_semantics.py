"""Results, gradients, side effects and modes are eager's."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import burnish


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(F.gelu(self.norm(self.first(x))))


def pair(make=Net):
    model = make()
    return copy.deepcopy(model), burnish.compile(model)


def test_training_matches_eager_over_steps():
    eager, compiled = pair()
    # Not Adam: BatchNorm makes the gradient of the bias before it noise around zero, which Adam would blow up.
    optimisers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in (eager, compiled)]
    for step in range(4):
        x = torch.randn(6, 4)
        for net, optimiser in zip((eager, compiled), optimisers, strict=True):
            optimiser.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimiser.step()
        for (name, ours), theirs in zip(compiled.named_parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, msg=f"gradient of {name} in step {step}")
    for ours, theirs in zip(compiled.state_dict().values(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs)  # weights, and BatchNorm's running statistics
    assert compiled.norm.num_batches_tracked == 4
    assert burnish.stats(compiled).compiles == 1


def test_gradients_of_inputs_and_double_use():
    eager, compiled = pair()
    x = torch.randn(5, 4)
    grads = []
    for net in (eager, compiled):
        leaf = x.clone().requires_grad_()
        (net(leaf).sum() + net(leaf * 2).square().sum()).backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_grad_modes(mode):
    eager, compiled = pair()
    eager.eval(), compiled.eval()
    x = torch.randn(5, 4)
    with mode():
        ours, theirs = compiled(x), eager(x)
    torch.testing.assert_close(ours, theirs)
    assert ours.requires_grad == theirs.requires_grad and ours.is_inference() == theirs.is_inference()


def test_modes_one_after_another():
    eager, compiled = pair()
    eager.eval(), compiled.eval()
    x = torch.randn(5, 4)
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode, torch.no_grad):
        with mode():
            torch.testing.assert_close(compiled(x), eager(x))
            assert compiled(x).requires_grad == eager(x).requires_grad


def test_frozen_parameters_and_partial_gradients():
    eager, compiled = pair()
    x = torch.randn(5, 4)
    for net in (eager, compiled):
        net.first.requires_grad_(False)
        net(x).sum().backward()
    assert compiled.first.weight.grad is None
    torch.testing.assert_close(compiled.last.weight.grad, eager.last.weight.grad)


def test_results_that_need_no_gradient_though_weights_do():
    model = nn.Linear(4, 4)
    compiled = burnish.compile(lambda x: model(x).argmax(-1))
    x = torch.randn(5, 4)
    assert torch.equal(compiled(x), model(x).argmax(-1))


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_autocast(inside, grad):
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))

    def run(x):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            return model(x)

    compiled = burnish.compile(run)
    x = torch.randn(4, 16)
    with torch.set_grad_enabled(grad), torch.autocast("cpu", dtype=torch.bfloat16, enabled=not inside):
        ours, theirs = compiled(x), run(x)
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours.float(), theirs.float(), atol=2e-2, rtol=2e-2)
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_state_survives_an_error(use_pipeline):
    def broken(*args, **kwargs):
        raise ValueError("no")

    use_pipeline(broken)

    def run(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.linalg.cholesky(x.float()) @ y

    compiled = burnish.compile(run)
    with pytest.warns(burnish.errors.FallbackWarning), pytest.raises(RuntimeError):
        compiled(-torch.eye(3), torch.eye(3))
    assert not torch.is_autocast_enabled("cpu")


def test_inputs_changed_in_place():
    def accumulate(total, x):
        total.add_(x)
        total[0] = 7
        return total * 2

    x = torch.randn(4)
    ours, theirs = torch.ones(4), torch.ones(4)
    compiled = burnish.compile(accumulate)
    for _ in range(3):
        torch.testing.assert_close(compiled(ours, x), accumulate(theirs, x))
        torch.testing.assert_close(ours, theirs)
    assert burnish.stats(compiled).compiles == 1


def test_a_changed_input_moves_its_version():
    def fill(x):
        x.mul_(2)
        return x.sum()

    x = torch.randn(3)
    version = x._version
    burnish.compile(fill)(x)
    assert x._version > version


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(8, 4))
        self.register_buffer("length", torch.zeros((), dtype=torch.long))

    def forward(self, x, position):
        self.cache.index_copy_(0, position, x)
        self.length += 1
        return self.cache.sum(0)


def test_buffers_changed_in_place():
    eager, compiled = pair(Cache)
    place = compiled.cache.data_ptr()
    for step in range(3):
        x, position = torch.randn(1, 4), torch.tensor([step])
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, position), eager(x, position))
        torch.testing.assert_close(compiled.cache, eager.cache)
    assert compiled.length == 3 and compiled.cache.data_ptr() == place
    assert burnish.stats(compiled).compiles == 1


def test_views_and_aliases_between_results_and_inputs():
    def aliases(x):
        y = x + 1
        return y, y.t(), x.view(-1), x

    x = torch.randn(3, 4)
    y, transposed, flat, same = burnish.compile(aliases)(x)
    assert same is x and flat.data_ptr() == x.data_ptr()
    y.zero_()
    assert transposed.abs().sum() == 0, "results that share memory in eager share it here"
    flat[0] = 5
    assert x[0, 0] == 5


def test_equal_results_do_not_share_memory():
    def twice(x):
        return x + 1, x + 1

    x = torch.randn(3, requires_grad=True)
    first, second = burnish.compile(twice)(x)
    assert first.data_ptr() != second.data_ptr()


def test_one_tensor_in_two_arguments():
    def both(a, b):
        a.add_(1)
        return a * b

    compiled = burnish.compile(both)
    x, y = torch.randn(3), torch.randn(3)
    for arguments in ((x, y), (x, x)):
        expected = both(*(tensor.clone() for tensor in arguments)) if arguments[0] is not arguments[1] else None
        if expected is None:
            z = x.clone()
            expected = both(z, z)
        torch.testing.assert_close(compiled(*arguments), expected)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 0, 3)])
def test_small_and_empty(shape):
    def f(x):
        return x.exp() + 1, x.sum()

    x = torch.randn(shape)
    torch.testing.assert_close(burnish.compile(f)(x), f(x))


def test_strides_of_inputs():
    def f(x):
        return (x * 2).sum(0)

    base = torch.randn(6, 8)
    compiled = burnish.compile(f)
    for x in (base, base.t(), base[::2, 1::3], base[:, :1].expand(6, 8), base.flip(0)):
        torch.testing.assert_close(compiled(x), f(x))


def test_random_numbers_are_eagers():
    def noisy(x):
        return F.dropout(x, 0.5) + torch.rand_like(x) + torch.randn(x.shape)

    x = torch.ones(64)
    compiled = burnish.compile(noisy)
    torch.manual_seed(7)
    theirs = [noisy(x) for _ in range(3)]
    after = torch.rand(1)
    torch.manual_seed(7)
    for expected in theirs:
        torch.testing.assert_close(compiled(x), expected)
    assert torch.equal(torch.rand(1), after), "the generator is where eager would leave it"


def test_dropout_in_training_draws_eagers_masks():
    eager, compiled = pair(lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 8)))
    x = torch.randn(5, 8)
    for net in (eager, compiled):
        torch.manual_seed(3)
        net(x).square().sum().backward()
    for ours, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_two_threads_on_one_object():
    model = Net().eval()
    compiled = burnish.compile(model)
    inputs = [torch.randn(rows, 4) for rows in (2, 3, 4, 5, 6, 7)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
    errors: list[BaseException] = []
    start = threading.Barrier(4)

    def work(offset):
        try:
            start.wait()
            with torch.no_grad():
                for turn in range(30):
                    i = (turn + offset) % len(inputs)
                    torch.testing.assert_close(compiled(inputs[i]), expected[i])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_two_threads_train_their_own_models():
    errors: list[BaseException] = []

    def work(seed):
        try:
            torch.manual_seed(seed)
            eager, compiled = pair()
            for _ in range(3):
                x = torch.randn(5, 4)
                for net in (eager, compiled):
                    net.zero_grad()
                    net(x).sum().backward()
                torch.testing.assert_close(compiled.last.weight.grad, eager.last.weight.grad)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_under_vmap_and_functional_call():
    model = nn.Linear(4, 4)
    compiled = burnish.compile(model)
    x = torch.randn(5, 4)
    weights = {name: torch.randn_like(value) for name, value in model.named_parameters()}
    torch.testing.assert_close(
        torch.func.functional_call(compiled, weights, (x,)), torch.func.functional_call(model, weights, (x,))
    )
    torch.testing.assert_close(torch.func.vmap(compiled)(x), torch.func.vmap(model)(x))


def test_checkpointing():
    eager, compiled = pair(lambda: nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)))
    x = torch.randn(5, 8, requires_grad=True)
    for net in (eager, compiled):
        torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False).square().sum().backward()
    for ours, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
