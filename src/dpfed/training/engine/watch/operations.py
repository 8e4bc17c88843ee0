"""The allow-list: which of torch's operations keep examples apart and in their places, and where they put them.

A rule (``after_permute``, ``after_matmul``) says where in an operation's outputs the examples are, from where they are
in its inputs: a `Place`, or a mark (`marks`). An operation without a rule, or used so that examples could meet or move,
gives MIXED. What has nothing of any example in it stays so, whatever is done to it.

>>> import torch
>>> from dpfed.training.engine.watch.marks import Marks
>>> marks = Marks(size=4)
>>> x = torch.ones(4, 3)
>>> marks.put(x, 3)
>>> locate_examples(Operation(torch.ops.aten.sum.dim_IntList, (x, [1]), {}, x.sum(1), marks))
Place(axis=0, outer=1, inner=1)
>>> locate_examples(Operation(torch.ops.aten.flip.default, (x, [0]), {}, x.flip(0), marks)) == MIXED
True
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dpfed.training.engine.forward import tensors_of
from dpfed.training.engine.watch.index_rules import (
    after_embedding,
    after_embedding_bag,
    after_gather,
    after_index,
    after_index_select,
    after_masked_fill,
)
from dpfed.training.engine.watch.layout_rules import (
    after_batch_first,
    after_batch_norm,
    after_complex_view,
    after_concat,
    after_copy,
    after_expand,
    after_group_norm,
    after_layer_norm,
    after_loss,
    after_mixing_along,
    after_mixing_last,
    after_pad,
    after_permute,
    after_pointwise,
    after_reduce,
    after_repeat,
    after_reshape,
    after_rnn,
    after_select,
    after_slice,
)
from dpfed.training.engine.watch.marks import COUNT, MIXED, NOISE, NONE, Place, mark_in
from dpfed.training.engine.watch.operation import FRONT, Found, Operation
from dpfed.training.engine.watch.product_rules import (
    after_attention,
    after_batched_matmul,
    after_bilinear,
    after_cdist,
    after_linear,
    after_matmul,
)


def locate_examples(operation: Operation) -> Found:
    """Return where the examples are after the operation, as a place in its outputs or as their mark."""
    if operation.kind in MADE_NEW:
        return NOISE if operation.kind in RANDOM else NONE
    marked = {operation.marks.of(tensor) for tensor in operation.tensors}
    if MIXED in marked:
        return MIXED
    if not any(mark > NONE for mark in marked):
        return _mark_without_examples(operation, marked)
    rule = RULES.get(operation.kind)
    found = None if rule is None else rule(operation)
    return MIXED if found is None else found


def _mark_without_examples(operation: Operation, marked: set[int]) -> int:
    """Return the mark of a result of random numbers and constants only."""
    if operation.name == "arange":
        return COUNT
    if operation.kind in RANDOM:
        return NOISE if _is_flat(operation) else NONE
    if operation.kind in ("fill", "zero"):
        return NONE
    if operation.kind in IN_ORDER and len(marked) == 1:
        return marked.pop()
    is_kept = NOISE in marked and operation.kind in POINTWISE | SHAPES
    return NOISE if is_kept and _is_flat(operation) else NONE


def _is_flat(operation: Operation) -> bool:
    """Return whether every constant that an operation combines with random numbers is one number everywhere."""
    marks = operation.marks
    values = operation.tensors[1:] if operation.name.endswith("_") and operation.kind in RANDOM else operation.tensors
    constants = [value.detach() for value in values if marks.of(value) != NOISE and value.numel() > 1]
    return all(bool((value == value.flatten()[0]).all()) for value in constants)


def marks_of(operation: Operation, found: Found) -> list[tuple[Tensor, int]]:
    """Return every output with its mark."""
    return [(output, _compute_mark(output, found, operation)) for output in tensors_of(operation.output)]


def _compute_mark(output: Tensor, found: Found, operation: Operation) -> int:
    """Return the mark of one of an operation's outputs."""
    if isinstance(found, Place) and operation.kind == "mkldnn_rnn_layer" and output.dim() == 2:
        found = FRONT  # the last states, without an axis of time
    return mark_in(output, found, operation.marks.size)


def split_words(*names: str) -> frozenset[str]:
    """Split all arguments into words."""
    return frozenset(" ".join(names).split())


def assign(rule: Callable[[Operation], Found | None], *names: str) -> dict[str, Callable[[Operation], Found | None]]:
    """Return a table that assigns one rule to all these operations."""
    return dict.fromkeys(split_words(*names), rule)


POINTWISE = split_words(
    "abs acos acosh add addcdiv addcmul angle asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or",
    "bitwise_xor ceil celu clamp clamp_max clamp_min conj_physical copysign cos cosh deg2rad digamma div",
    "elu eq erf erfc erfinv exp exp2 expm1 floor floor_divide fmax fmin fmod frac ge gelu gt hardshrink",
    "hardsigmoid hardswish hardtanh heaviside hypot isinf isnan isneginf isposinf ldexp le leaky_relu",
    "lerp lgamma log log10 log1p log2 logaddexp log_sigmoid_forward logical_and logical_not logical_or",
    "logical_xor logit lt masked_fill maximum minimum mish mul nan_to_num ne neg polygamma pow rad2deg",
    "reciprocal relu remainder round rsqrt rsub sgn sigmoid sign signbit silu sin sinc sinh softplus",
    "softshrink special_entr special_erfcx special_i0e special_i1 special_log_ndtr special_ndtri",
    "special_xlog1py special_zeta sqrt sub tan tanh threshold trunc where xlogy",
    "_prelu_kernel native_dropout complex polar bernoulli normal poisson",
)
IN_ORDER = split_words(
    "view _unsafe_view unsqueeze squeeze alias detach clone _lazy_clone",
    "_to_copy lift_fresh lift _conj _neg_view view_copy fill zero",
)
SHAPES = split_words("expand permute transpose t select slice")
# Filled with what lay in memory, which no program may depend on.
EMPTY = split_words("empty empty_like empty_strided new_empty new_empty_strided")
MADE_NEW = split_words(
    "ones_like zeros_like full_like empty_like new_zeros new_ones new_full new_empty new_empty_strided rand_like",
    "randn_like randint_like",
)
# Independent at every place. Not randperm: each of its numbers depends on how many there are, and on the others.
RANDOM = split_words(
    "bernoulli uniform normal exponential rand randn rand_like randn_like randint randint_like cauchy log_normal",
    "geometric random poisson",
)
# What gives Python, or a shape, something of the numbers themselves.
ESCAPES = split_words(
    "_local_scalar_dense equal nonzero masked_select _unique _unique2 unique_dim unique_consecutive",
    "bincount nonzero_static allclose",
)
# What raises an error for some values of its tensors, NaN among them; and a value that it always takes.
REFUSING = split_words("binary_cross_entropy bernoulli multinomial normal poisson")
ALLOWED = 0.5
# Marks of what has nothing of any example.
EXAMPLE_FREE = (NONE, NOISE, COUNT)
# Whose lists of numbers are sizes, which follow from the batch's.
SIZED = IN_ORDER | MADE_NEW | split_words("expand repeat")
RULES: dict[str, Callable[[Operation], Found | None]] = {
    **dict.fromkeys(POINTWISE, after_pointwise),
    **dict.fromkeys(IN_ORDER, after_reshape),
    "copy": after_copy,
    **assign(after_permute, "permute transpose t"),
    "expand": after_expand,
    "repeat": after_repeat,
    **assign(
        after_reduce,
        "sum mean prod amax amin argmax argmin any all logsumexp var std var_mean std_mean norm linalg_vector_norm",
        "nansum max min median nanmedian mode kthvalue count_nonzero aminmax",
    ),
    **assign(
        after_mixing_along("dim"),
        "_softmax _safe_softmax _log_softmax cumsum cumprod logcumsumexp cummax cummin sort topk glu",
    ),
    **assign(after_mixing_along("dim"), "_fft_r2c _fft_c2c _fft_c2r"),
    **assign(after_mixing_along("dims"), "flip roll"),
    "unfold": after_mixing_along("dimension"),
    "mm": after_matmul("self", "mat2"),
    "mv": after_matmul("self", "vec"),
    "addmm": after_matmul("mat1", "mat2", "self"),
    "addmv": after_matmul("mat", "vec", "self"),
    "bmm": after_batched_matmul("self", "mat2"),
    "baddbmm": after_batched_matmul("batch1", "batch2", "self"),
    "_cdist_forward": after_cdist,
    "_trilinear": after_bilinear,
    "linear": after_linear,
    **assign(after_batch_first("input", clean=("weight", "bias")), "convolution mkldnn_convolution"),
    "native_group_norm": after_group_norm,
    **assign(after_layer_norm, "native_layer_norm"),
    **assign(after_batch_norm, "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training"),
    **assign(
        after_mixing_last(1), "avg_pool1d adaptive_avg_pool1d upsample_nearest1d upsample_linear1d reflection_pad1d"
    ),
    **assign(after_mixing_last(1), "replication_pad1d multinomial"),
    **assign(
        after_mixing_last(2),
        "max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d tril triu",
        "upsample_nearest2d upsample_bilinear2d upsample_bicubic2d _upsample_nearest_exact2d _upsample_bilinear2d_aa",
        "reflection_pad2d replication_pad2d linalg_inv_ex _linalg_det",
    ),
    **assign(
        after_mixing_last(3),
        "max_pool3d_with_indices avg_pool3d _adaptive_avg_pool3d adaptive_avg_pool3d adaptive_max_pool3d",
        "upsample_nearest3d upsample_trilinear3d replication_pad3d reflection_pad3d pixel_shuffle pixel_unshuffle",
        "channel_shuffle",
    ),
    **assign(after_batch_first("self"), "im2col col2im"),
    **assign(after_batch_first("input", "grid"), "grid_sampler_2d grid_sampler_3d"),
    "affine_grid_generator": after_batch_first("theta"),
    **assign(after_batch_first("self", "indices"), "max_unpool2d max_unpool3d"),
    "_scaled_dot_product_flash_attention_for_cpu": after_attention,
    **assign(after_batch_first("self", "target", clean=("weight",)), "nll_loss_forward nll_loss2d_forward"),
    **assign(
        after_batch_first("self", "target", clean=("weight",)), "multi_margin_loss multilabel_margin_loss_forward"
    ),
    **assign(
        after_loss,
        "mse_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss",
    ),
    "embedding": after_embedding,
    **assign(after_embedding_bag, "_embedding_bag _embedding_bag_forward_only"),
    **assign(after_gather, "gather scatter scatter_add scatter_reduce"),
    "index_select": after_index_select,
    "index": after_index,
    "index_put": after_masked_fill,
    "slice": after_slice,
    **assign(after_select, "select unbind"),
    **assign(after_mixing_along("dim"), "split split_with_sizes unsafe_split unsafe_split_with_sizes"),
    **assign(after_concat, "cat stack"),
    "constant_pad_nd": after_pad,
    "mkldnn_rnn_layer": after_rnn,
    **assign(after_complex_view, "view_as_real view_as_complex"),
}
