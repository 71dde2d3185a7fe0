"""The joint graph's common subexpressions, which we merge ourselves."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from burnish.capture.autograd.partition import merge_repeats


def merged(function, *inputs):
    graph = make_fx(function)(*inputs)
    count = merge_repeats(graph.graph)
    graph.recompile()
    torch.testing.assert_close(graph(*inputs), function(*inputs))
    return count


x = torch.randn(3, 4)


def test_repeats_are_merged():
    assert merged(lambda x: x.sin() * x.sin() + (x.sin() + 1) * (x.sin() + 1), x) == 4


def test_equal_numbers_of_different_type_are_not():
    assert merged(lambda x: (x.sum(0, True) + x.sum(0, True)).neg(), x) == 1
    assert merged(lambda x: (torch.full_like(x, 1) * torch.full_like(x, True)).neg(), x) == 0


def test_results_stay_apart():
    assert merged(lambda x: (x.sin(), x.sin()), x) == 0
    assert merged(lambda x: (x.sin().t(), x.sin().view(-1)), x) == 0
    assert merged(lambda x: (x.sin() + 1, x.sin() + 1), x) == 1


def test_draws_and_fresh_memory_stay_apart():
    graph = make_fx(lambda x: (torch.rand_like(x) - torch.rand_like(x)).abs())(x)
    assert merge_repeats(graph.graph) == 0
    graph = make_fx(lambda x: torch.empty_like(x).fill_(1).add(torch.empty_like(x)))(x)
    assert merge_repeats(graph.graph) == 0


def test_graphs_that_mutate_are_left_alone():
    def mutating(x):
        before = x.sin()
        x.add_(1)
        return (before + x.sin()).neg()

    graph = make_fx(mutating)(x.clone())
    assert merge_repeats(graph.graph) == 0
