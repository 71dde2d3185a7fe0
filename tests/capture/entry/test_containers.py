"""What a compiled function does to containers that were there before it was called, and to copies of them."""

from collections import Counter, OrderedDict, defaultdict, deque

import pytest
import torch
from torch import nn

import burnish

pytestmark = pytest.mark.filterwarnings("ignore")


def _letters():
    return OrderedDict(a=1, b=2, c=3)


def _last_three():
    return deque("abc", maxlen=3)


CHANGES = [
    (_letters, lambda c: c.move_to_end("a")),
    (_letters, lambda c: c.move_to_end("c", last=False)),
    (_letters, lambda c: OrderedDict.move_to_end(c, "a")),
    (_letters, lambda c: (c.move_to_end("a"), c.move_to_end("b", last=False), list(c))),
    (_letters, lambda c: (c.move_to_end("a"), c.__setitem__("a", 9))),
    (_letters, lambda c: (c.__setitem__("n", 1), c.move_to_end("n", last=False))),
    (_letters, lambda c: (c.clear(), c.update(b=2, a=1))),
    (dict(_letters()).copy, lambda c: (c.pop("a"), c.update(a=1))),
    (_last_three, lambda c: c.append(1)),
    (_last_three, lambda c: c.appendleft(1)),
    (_last_three, lambda c: c.extend([7, 8, 9, 10])),
    (_last_three, lambda c: c.extendleft([7, 8, 9, 10])),
    (_last_three, lambda c: (c.appendleft(9), c.rotate(1), c.extend([8]), c.popleft())),
    (_last_three, lambda c: (c.append(1), c.append(2), c.appendleft(3), list(c))),
    (_last_three, lambda c: (c.clear(), c.extendleft(range(5)), len(c))),
    (_last_three, lambda c: (c.copy(), c * 2, c + deque("x"), c.maxlen)),
    (_last_three, lambda c: c.copy().appendleft(1)),
    (lambda: deque(maxlen=0), lambda c: (c.append(1), c.extendleft([1]), list(c))),
    (lambda: deque("ab"), lambda c: (c.appendleft(1), c.extend([8]), c.maxlen)),
    (lambda: ["a"], lambda c: c.__iadd__([1])),
    (lambda: ["a"], lambda c: (c.__iadd__(range(2)), c.__imul__(2), len(c))),
    (lambda: defaultdict(list, a=[1]), lambda c: (c["z"].append(2), c.pop("a"), c["a"].append(1))),
    (lambda: Counter(a=3, b=1), lambda c: (c.update("ccc"), c.subtract("ab"), c.most_common(1))),
]


class Holder(nn.Module):
    def __init__(self, change, held):
        super().__init__()
        self.change, self.held = change, held

    def forward(self, x):
        return x + 1, self.change(self.held)


def _of_argument(change, held, how):
    function = how(lambda x, held: (x + 1, change(held)))
    return lambda x: function(x, held)


def _of_attribute(change, held, how):
    return how(Holder(change, held))


def _of_cell(change, held, how):
    return how(lambda x: (x + 1, change(held)))


def _shown(container):
    pairs = list(container.items()) if isinstance(container, dict) else list(container)
    return type(container), pairs, getattr(container, "maxlen", None)


def _answers(call):
    return [repr(call(torch.full((2,), float(k)))) for k in range(3)]


@pytest.mark.parametrize("place", [_of_argument, _of_attribute, _of_cell])
@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_containers_are_changed_as_in_eager(number, place):
    make, change = CHANGES[number]
    expected, given = make(), make()
    wanted = _answers(place(change, expected, lambda f: f))
    assert _answers(place(change, given, burnish.compile)) == wanted
    assert _shown(given) == _shown(expected)


def test_a_bound_that_is_another_is_noticed():
    compiled = burnish.compile(lambda x, c: (x + 1, c.append(1), list(c)))
    for bound in (3, 2, None, 4, 3):
        c = deque("ab", maxlen=bound)
        assert compiled(torch.ones(2), c)[2] == list(c) == [*list(deque("ab1", maxlen=bound))[:-1], 1]


def test_a_bound_that_is_another_is_noticed_after_a_warm_start(monkeypatch):
    monkeypatch.setenv("BURNISH_WARM_START", "on")
    for bound in (3, 2, None, 3):
        compiled = burnish.compile(lambda x, c: (x + 1, c.append(1), list(c)))
        c = deque("ab", maxlen=bound)
        wanted = [*c, 1][-(bound or 3) :]
        assert compiled(torch.ones(2), c)[2] == list(c) == wanted


def test_none_of_it_breaks_the_graph():
    def function(x, history, letters):
        history.append(x.shape[0])
        history.appendleft(1)
        letters.move_to_end("a")
        return x + len(history)

    compiled = burnish.compile(function, fullgraph=True)
    history, letters = deque((5, 6), maxlen=2), _letters()
    assert compiled(torch.ones(2), history, letters).tolist() == [3, 3]
    assert list(history) == [1, 6] and list(letters) == ["b", "c", "a"]


TAKEN = {
    "list": list,
    "sorted": lambda c: sorted(c, key=len),
    "joined": "|".join,
    "keywords": lambda c: (lambda **given: list(given))(**c),
    "text": str,
}


@pytest.mark.parametrize("now", [{"b": 2, "a": 1}, {"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 2}, {}], ids=str)
@pytest.mark.parametrize("name", TAKEN)
def test_other_keys_or_another_order_are_noticed(name, now):
    held = {"a": 1, "b": 2}
    eager = Holder(TAKEN[name], held)
    compiled = burnish.compile(eager, gate=False)
    x = torch.ones(3)
    assert compiled(x)[1] == eager(x)[1]
    held.clear()
    held.update(now)
    assert compiled(x)[1] == eager(x)[1]


@pytest.mark.parametrize("look", [lambda c: c["z"], lambda c: "z" in c, len], ids=["item", "in", "len"])
def test_another_length_is_noticed_after_a_warm_start(look, monkeypatch):
    """Of a dictionary whose keys are looked at in their order, no guard's text says how many there are."""
    monkeypatch.setenv("BURNISH_WARM_START", "on")
    x = torch.ones(3)
    for held in (Counter(a=1), Counter(a=1, z=2), Counter(a=1)):
        eager = Holder(look, held)
        compiled = burnish.compile(eager, gate=False)
        assert compiled(x)[1] == eager(x)[1]


def test_a_warm_start_puts_nothing_into_a_dictionary(monkeypatch):
    monkeypatch.setenv("BURNISH_WARM_START", "on")
    x = torch.ones(3)
    for held in (defaultdict(int, z=3), defaultdict(int)):
        compiled = burnish.compile(Holder(lambda c: c.get("z", 7), held), gate=False)
        assert compiled(x)[1] == held.get("z", 7)
    assert not held
