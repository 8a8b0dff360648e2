"""Signatures: reading them, filling in attributes, inferring outputs, refusing what does not fit."""

from __future__ import annotations

import pytest

from aethermind.errors import OperatorError
from aethermind.hal.dtype import DType
from aethermind.ops import catalog
from aethermind.ops.dims import SymDim
from aethermind.ops.schema import AttributeSpec, OperatorSchema, TensorSpec, TensorType

RMS_NORM = OperatorSchema.parse("rms_norm(x: F[..., D], weight: F[D]; eps: float) -> (out: F[..., D] ~ x)")
LINEAR = OperatorSchema.parse("linear(x: F[T, K], weight: W[N, K], bias: F[N]?) -> (out: F[T, N])")
SPLIT = OperatorSchema.parse("split(x: F[T, Q]; num_heads: int) -> (out: F[T, num_heads, Q/num_heads] = x)")
OPTIONS = OperatorSchema.parse(
    "options(x: F[T]; a: int = 3, b: float = 1e-6, c: bool = False, d: bool = True) -> (y: F[T])"
)
GATHER = OperatorSchema.parse("gather(ids: i32[T], offsets: i64[T+1], table: W[V, D]) -> (out: F[T, D])")

T = SymDim("T")


def f32(*shape):
    return TensorType(DType.FLOAT32, shape)


def bf16(*shape):
    return TensorType(DType.BFLOAT16, shape)


def i32(*shape):
    return TensorType(DType.INT32, shape)


def i64(*shape):
    return TensorType(DType.INT64, shape)


def test_parse_reads_every_part():
    assert LINEAR.name == "linear"
    assert LINEAR.inputs == (
        TensorSpec("x", "F", ("T", "K")),
        TensorSpec("weight", "W", ("N", "K")),
        TensorSpec("bias", "F", ("N",), is_optional=True),
    )
    assert LINEAR.outputs == (TensorSpec("out", "F", ("T", "N")),)
    assert RMS_NORM.attributes == (AttributeSpec("eps", float, None),)
    assert RMS_NORM.outputs[0].inplace == "x"
    assert SPLIT.outputs[0].alias == "x"
    assert [spec.default for spec in OPTIONS.attributes] == [3, 1e-6, False, True]


def test_parse_ignores_line_breaks():
    broken = OperatorSchema.parse("linear(x: F[T, K],\n    weight: W[N, K], bias: F[N]?)\n    -> (out: F[T, N])")
    assert broken == LINEAR


@pytest.mark.parametrize(
    "text",
    [
        "linear",
        "linear(x: F[T]) -> out: F[T]",
        "linear(x F[T]) -> (out: F[T])",
        "linear(x: Q[T]) -> (out: F[T])",
    ],
)
def test_a_malformed_signature_is_a_programmers_mistake(text):
    with pytest.raises(AssertionError):
        OperatorSchema.parse(text)


def test_every_signature_of_the_catalog_prints_as_it_was_written():
    for operator in catalog.load():
        assert OperatorSchema.parse(operator.schema.text) == operator.schema


def test_views_are_told_from_operators_that_change_memory():
    views = {operator.name for operator in catalog.load() if operator.schema.is_view}
    assert views == {"split_heads", "merge_heads", "split_last", "merge_last", "reshape"}
    assert not OperatorSchema.parse("scale(x: F[T]) -> (out: F[T] = x)").is_view


def test_complete_fills_in_defaults_in_order():
    assert list(OPTIONS.complete({"c": True, "a": 5}).items()) == [
        ("a", 5),
        ("b", 1e-6),
        ("c", True),
        ("d", True),
    ]
    assert RMS_NORM.complete({"eps": 1}) == {"eps": 1.0}


def test_infer_keeps_symbols():
    assert LINEAR.infer((bf16(T, 8), bf16(5, 8), None), {}) == (bf16(T, 5),)
    assert RMS_NORM.infer((f32(T, 4, 8), f32(8)), {"eps": 1e-6}) == (f32(T, 4, 8),)
    assert SPLIT.infer((f32(T, 8),), {"num_heads": 2}) == (f32(T, 2, 4),)
    assert GATHER.infer((i32(T), i64(T + 1), bf16(9, 4)), {}) == (bf16(T, 4),)


def test_float_type_is_that_of_the_first_float():
    assert GATHER.float_type((i32(3), i64(4), bf16(9, 4))) is DType.BFLOAT16
    assert LINEAR.float_type((f32(1, 1), f32(1, 1), None)) is DType.FLOAT32


@pytest.mark.parametrize(
    ("schema", "inputs", "problem"),
    [
        (LINEAR, (f32(2, 8), f32(5, 8)), "Operator linear takes 3 inputs, got 2."),
        (LINEAR, (f32(2, 8), None, None), "Operator linear needs the input 'weight'."),
        (LINEAR, (f32(2, 8), f32(5, 7), None), "input 'weight' is float32[5,7], but K is 8 elsewhere."),
        (
            LINEAR,
            (f32(2, 8), bf16(5, 8), None),
            "input 'weight' is bfloat16[5,8], but dtype should be float32.",
        ),
        (LINEAR, (f32(2, 8, 1), f32(5, 8), None), "input 'x' is float32[2,8,1], but needs 2 dims."),
        (
            LINEAR,
            (i32(2, 8), f32(5, 8), None),
            "input 'x' is int32[2,8], but dtype should be a floating-point type.",
        ),
        (GATHER, (f32(3), i64(4), f32(9, 4)), "input 'ids' is float32[3], but dtype should be int32."),
        (GATHER, (i32(T), i64(T), f32(9, 4)), "input 'offsets' is int64[T], but T is T elsewhere."),
    ],
)
def test_inputs_that_do_not_fit_are_one_sentence_that_names_them(schema, inputs, problem):
    with pytest.raises(OperatorError) as raised:
        schema.infer(inputs, {})
    sentence, signature = str(raised.value).split(" Signature: ")
    assert sentence.endswith(problem)
    assert sentence.startswith(f"Operator {schema.name}")
    assert signature == schema.text


@pytest.mark.parametrize(
    ("schema", "attributes", "problem"),
    [
        (RMS_NORM, {}, "Operator rms_norm needs the attribute 'eps'."),
        (RMS_NORM, {"eps": 1e-6, "axis": 1}, "Operator rms_norm has no attribute 'axis'."),
    ],
)
def test_attributes_that_do_not_fit_are_one_sentence_that_names_them(schema, attributes, problem):
    with pytest.raises(OperatorError) as raised:
        schema.complete(attributes)
    assert str(raised.value) == f"{problem} Signature: {schema.text}"


def test_an_attribute_names_the_type_of_an_output():
    schema = OperatorSchema.parse("cast(x: F[...]; dtype: dtype) -> (out: dtype[...])")
    for given in (DType.BFLOAT16, "bfloat16"):
        attributes = schema.complete({"dtype": given})
        assert attributes == {"dtype": DType.BFLOAT16}
        assert schema.infer([TensorType(DType.FLOAT32, (2, 3))], attributes) == (TensorType(DType.BFLOAT16, (2, 3)),)
    for wrong in ("int8", DType.INT32, "bf16x", 1):
        with pytest.raises(OperatorError, match="'dtype' should be of type float32, bfloat16, float16, got"):
            schema.complete({"dtype": wrong})


def test_an_output_without_a_size_is_one_sentence_that_names_the_operator():
    with pytest.raises(OperatorError) as raised:
        SPLIT.infer((f32(3, 10),), {"num_heads": 4})
    assert str(raised.value) == f"Operator split: Dim 10 is not a multiple of 4. Signature: {SPLIT.text}"


ADD = catalog.page("add").schema
SUM = catalog.page("sum").schema
RESHAPE = catalog.page("reshape").schema
PERMUTE = catalog.page("permute").schema
EXPAND = catalog.page("expand").schema


@pytest.mark.parametrize(
    ("a", "b", "out"),
    [
        ((3, 1), (4,), (3, 4)),
        ((), (2, 3), (2, 3)),
        ((2, 1, 5), (4, 1), (2, 4, 5)),
        ((T, 8), (8,), (T, 8)),
        ((1, 8), (T, 1), (T, 8)),
        ((0, 8), (1, 8), (0, 8)),
    ],
)
def test_shapes_are_broadcast_from_the_last_dim(a, b, out):
    assert ADD.infer((f32(*a), f32(*b)), {}) == (f32(*out),)
    assert ADD.infer((f32(*b), f32(*a)), {}) == (f32(*out),)


@pytest.mark.parametrize(("a", "b"), [((3, 7), (3,)), ((2, 3), (3, 2)), ((T, 8), (4, 8)), ((0,), (2,))])
def test_shapes_that_cannot_be_broadcast_are_one_sentence(a, b):
    with pytest.raises(
        OperatorError, match=r"^Operator add: input 'b' is .*, but it cannot be broadcast with \[.*\]: "
    ):
        ADD.infer((f32(*a), f32(*b)), {})


@pytest.mark.parametrize(
    ("shape", "attributes", "out"),
    [
        ((2, 3, 4), {}, (2, 3)),
        ((2, 3, 4), {"dim": 0}, (3, 4)),
        ((2, 3, 4), {"dim": [0, -1], "keepdim": True}, (1, 3, 1)),
        ((2, 3, 4), {"dim": None}, ()),
        ((2, 3, 4), {"dim": (), "keepdim": True}, (1, 1, 1)),
        ((T, 3, 4), {"dim": (1, 2)}, (T,)),
        ((T, 3), {"dim": 0}, (3,)),
    ],
)
def test_reduced_dims_are_left_out_or_kept_as_1(shape, attributes, out):
    assert SUM.infer((f32(*shape),), SUM.complete(attributes)) == (f32(*out),)


@pytest.mark.parametrize(
    ("schema", "shape", "attributes", "out"),
    [
        (RESHAPE, (2, 12), {"shape": (4, -1)}, (4, 6)),
        (RESHAPE, (T, 896), {"shape": (-1, 14, 64)}, (T, 14, 64)),
        (RESHAPE, (T, 14, 64), {"shape": (1, -1, 896)}, (1, T, 896)),
        (PERMUTE, (T, 14, 64), {"dims": (1, 0, -1)}, (14, T, 64)),
        (EXPAND, (T, 1, 64), {"shape": (-1, 7, 64)}, (T, 7, 64)),
        (EXPAND, (5,), {"shape": (2, 3, -1)}, (2, 3, 5)),
    ],
)
def test_shapes_by_lists_of_sizes_and_dims(schema, shape, attributes, out):
    assert schema.infer((f32(*shape),), schema.complete(attributes)) == (f32(*out),)


@pytest.mark.parametrize(
    ("schema", "shape", "attributes", "problem"),
    [
        (SUM, (2, 3), {"dim": 2}, "Dim 2 is out of range for a tensor of 2 dims."),
        (SUM, (2, 3), {"dim": (1, -1)}, "Dims [1, -1] name a dim twice."),
        (SUM, (2, 3), {"dim": 0.5}, "attribute 'dim' should be of type ints, got 0.5."),
        (RESHAPE, (2, 3), {"shape": (4, -1)}, "[2,3] does not have the elements of a shape [4, -1]."),
        (RESHAPE, (2, 3), {"shape": (-1, -1)}, "Shape [-1, -1] should have one -1 at most."),
        (RESHAPE, (0, 3), {"shape": (0, -1)}, "[0,3] does not have the elements of a shape [0, -1]."),
        (RESHAPE, (T, 6), {"shape": (-1, 4)}, "[T,6] does not have the elements of a shape [-1, 4]."),
        (PERMUTE, (2, 3, 4), {"dims": (1, 0)}, "Dims [1, 0] should name each of the 3 dims once."),
        (
            EXPAND,
            (2, 3),
            {"shape": (4, 3)},
            "[2,3] cannot be expanded to [4, 3]: aligned at the end, only dims of 1 grow.",
        ),
    ],
)
def test_lists_that_do_not_fit_are_one_sentence(schema, shape, attributes, problem):
    with pytest.raises(OperatorError) as raised:
        schema.infer((f32(*shape),), schema.complete(attributes))
    assert str(raised.value) == f"Operator {schema.name}: {problem} Signature: {schema.text}"
