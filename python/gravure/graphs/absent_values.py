"""What a backward computes of gradients that never come.

Eager computes nothing of them. AOTAutograd's graph has zeros in their place, and computes: zeros
again, with one exception that matters. Behind `log(0)` it has 0 * inf, which is NaN, and adds it.

    %g : the gradient of log(p), which nobody gives     absent
    %d = aten::div.Tensor(%g, %p)                        absent: eager has no such division
    %s = aten::add.Tensor(%d, %h)                        %h
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, fx

_aten = torch.ops.aten

# Of each of these the result is zeros where the first operand is, or, of a list, each member.
_LINEAR = {
    _aten._conj,
    _aten._fft_c2c,
    _aten._fft_c2r,
    _aten._fft_r2c,
    _aten._log_softmax_backward_data,
    _aten._softmax_backward_data,
    _aten._to_copy,
    _aten._unsafe_view,
    _aten.alias,
    _aten.as_strided,
    _aten.cat,
    _aten.clone,
    _aten.conj,
    _aten.constant_pad_nd,
    _aten.cumsum,
    _aten.detach,
    _aten.diagonal,
    _aten.div,
    _aten.expand,
    _aten.flip,
    _aten.gather,
    _aten.imag,
    _aten.index,
    _aten.index_select,
    _aten.masked_fill,
    _aten.mean,
    _aten.mv,
    _aten.neg,
    _aten.new_zeros,
    _aten.permute,
    _aten.real,
    _aten.repeat,
    _aten.reshape,
    _aten.roll,
    _aten.select,
    _aten.slice,
    _aten.split,
    _aten.split_with_sizes,
    _aten.squeeze,
    _aten.stack,
    _aten.sum,
    _aten.t,
    _aten.transpose,
    _aten.tril,
    _aten.triu,
    _aten.unbind,
    _aten.unsqueeze,
    _aten.view,
    _aten.view_as_complex,
    _aten.view_as_real,
    _aten.zeros_like,
}
# Where either operand is.
_PRODUCTS = {_aten.mul, _aten.mm, _aten.bmm, _aten.dot}
# Where all are.
_SUMS = {_aten.add, _aten.sub}
# Where the second and the third operand are zeros, made as such or absent.
_CHOICES = {_aten.where}
# Where the first operand and the one at this position are.
_PUTS = {
    _aten.index_put: 2,
    _aten.index_add: 3,
    _aten.scatter_add: 3,
    _aten.slice_scatter: 1,
}
_MADE_AS_ZEROS = {_aten.zeros, _aten.zeros_like, _aten.new_zeros}
_MADE_OF = {_aten.full, _aten.full_like, _aten.new_full, _aten.scalar_tensor}


def packet(node: fx.Node) -> Any:
    return getattr(node.target, "overloadpacket", None)


def depending(graph: fx.Graph, gradients: Collection[fx.Node]) -> set[fx.Node]:
    """What is computed of these: autograd's part of a backward, which is linear in them."""
    found = set(gradients)
    for node in graph.nodes:
        if not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def is_absent(node: fx.Node, absent: Collection[fx.Node], gradients: Collection[fx.Node]) -> bool:
    """Whether `node` computes nothing but zeros of `absent` ones, and so nothing in eager.

    `gradients`: what depends on any gradient, absent ones too.
    """
    if any(each in gradients and each not in absent for each in node.all_input_nodes):
        return False
    if node.target is operator.getitem:
        return True
    kind = packet(node)
    if kind is None or node.op != "call_function":
        return False

    def are_zeros(operand: Any) -> bool:
        if isinstance(operand, (list, tuple)):
            return bool(operand) and all(map(are_zeros, operand))
        return operand in absent or _was_made_as_zeros(operand)

    args = node.args
    if kind is _aten.masked_fill:
        return are_zeros(args[0]) and args[2] == 0
    if kind is _aten.constant_pad_nd:
        return are_zeros(args[0]) and (len(args) < 3 or args[2] == 0)
    if kind in _LINEAR or _is_backward(node):
        return are_zeros(args[0])
    if kind in _PRODUCTS:
        return are_zeros(args[0]) or are_zeros(args[1])
    if kind in _SUMS:
        return are_zeros(args[0]) and are_zeros(args[1])
    if kind in _CHOICES:
        return are_zeros(args[1]) and are_zeros(args[2])
    return kind in _PUTS and are_zeros(args[0]) and are_zeros(args[_PUTS[kind]])


def _is_backward(node: fx.Node) -> bool:
    """Of an operator that autograd's formulas give its gradient first."""
    name = str(node.target)
    return name.startswith("aten.") and name.partition(".default")[0].endswith("_backward")


def _was_made_as_zeros(operand: Any) -> bool:
    if isinstance(operand, (int, float)):
        return operand == 0
    if not isinstance(operand, fx.Node) or not isinstance(operand.meta.get("val"), Tensor):
        return False
    if packet(operand) in _MADE_AS_ZEROS:
        return True
    values = [a for a in operand.args if isinstance(a, (int, float))]
    return packet(operand) in _MADE_OF and len(values) == 1 and values[0] == 0
