"""Where the examples are inside operations that torch puts together of others, which a watch sees from outside only.

``torch.matmul`` is a product of two matrices, or of many, between reshapes, and so is ``einsum``. The results of these
have nodes of their own in autograd's graph, but no Python ever sees them. Where such a node has one user only, what is
known of the user tells of it: reshaping keeps the order of elements, a factor that all rows of a product meet has
nothing of the examples, and many products at once, of which each is one example's, have each its own factors.

>>> import torch
>>> from dpfed.training.engine.capture import Leaves
>>> model = torch.nn.Bilinear(1, 2, 1, bias=False)
>>> result = torch.ones(3, 4, 2) @ model.weight[0].t()      # (12, 2) @ (2, 1), reshaped
>>> graph = Leaves(model).graph([result.grad_fn])
>>> find_places(graph, {0: Place(0)}, size=3)[1]      # of the product, with four rows for each of three examples
Place(axis=0, outer=1, inner=4)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.autograd.graph import Node

from dpfed.training.engine.capture import Graph
from dpfed.training.engine.rules.meeting import shape_of
from dpfed.training.engine.rules.product import is_free
from dpfed.training.engine.watch.marks import Place, mark_of, place_of

# Nodes whose result has the elements of their one input in the same order, and others with one input.
_IN_ORDER = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "CloneBackward0", "UnsqueezeBackward0")
_TURNED = ("PermuteBackward0", "TransposeBackward0", "TBackward0", "ExpandBackward0", "SqueezeBackward1")
_MANY = "BmmBackward0"


def find_places(graph: Graph, seen: Mapping[int, Place | None], size: int) -> dict[int, Place | None]:
    """Return where nodes have the examples, by number: those seen, and those for which it follows from their user."""
    found = dict(seen)
    users = _find_users(graph)
    for node, number in graph.numbers.items():  # in the order of a walk, which comes to a node from its first user
        if number in found or len(users.get(node, ())) != 1:
            continue
        user, place = users[node][0]
        if graph.numbers[user] in found:
            _follow(found, number, node, user, place, found[graph.numbers[user]], size)
    return found


def _find_users(graph: Graph) -> dict[Node, list[tuple[Node, int]]]:
    """Return who uses each node's result, and as which input."""
    users: dict[Node, list[tuple[Node, int]]] = {}
    for node in graph.numbers:
        for place, (child, _) in enumerate(node.next_functions):
            if child is not None:
                users.setdefault(child, []).append((node, place))
    return users


def _follow(
    found: dict[int, Place | None], number: int, node: Any, user: Any, place: int, at: Place | None, size: int
) -> None:
    """Note what a user with the examples at a place says of the node that is its input, if anything."""
    name = user.name()
    if at is None:
        if name in (*_IN_ORDER, *_TURNED):
            found[number] = None
    elif name in _IN_ORDER:
        inside = place_of(shape_of(node, 0), mark_of(shape_of(user, 0), at), size)
        if inside is not None:
            found[number] = inside
    elif is_free(user, place, at):
        found[number] = None
    elif name == _MANY and at.axis == 0:
        found[number] = at
