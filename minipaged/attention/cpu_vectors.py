"""The two innermost loops on a CPU, spelled out in vectors: sums of products over a row, and rows added up.

Numba leaves it to LLVM to find vectors in a loop. For these two loops it finds poor ones: it reads every number from
memory again for each of its uses. Here one step of the loop is written as the processor is to do it, in LLVM's own
terms (`llvmlite.ir`): load vectors, multiply and add them in registers, use each loaded vector for several results.
That is two to three times as fast, and the same idea as the tiles of a Triton kernel. Any processor will do: LLVM cuts
the vectors into what it has.

``a`` and the rest are float32. Nothing is checked: the callers pass rows of the right length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

FLOAT, INDEX, WORD = ir.FloatType(), ir.IntType(64), ir.IntType(32)
FLOAT_BYTES = 4  # rows begin anywhere: no more than a float's own alignment may be counted on
B_ROWS = 4  # rows of the second factor that one step takes


def width_for(size: int) -> int | None:
    """How many numbers a vector holds, for rows of ``size`` numbers: 16, 8 or 4, or None where none of them fits."""
    return next((width for width in (16, 8, 4) if size % width == 0), None)


@intrinsic(prefer_literal=True)
def dots(typing, rows, width, a, row, b, b0, b1, b2, b3, out, column):
    """out[row + r, column + t] = a[row + r] · (the row of b at b_t).

    r counts ``rows`` rows of ``a``, t the four rows of ``b``, which is flat. ``a`` and ``out`` are two-dimensional and
    contiguous. A row is as long as those of ``a``, a multiple of ``width``. rows and width are constants.
    """

    def codegen(context, builder, signature, args):
        emit = _Emitter(context, builder, signature, args, width.literal_value)
        a_at = emit.row_starts(2, emit.index(3), rows.literal_value)
        b_at = [emit.index(5 + t) for t in range(B_ROWS)]
        sums = [[emit.zeros() for _ in b_at] for _ in a_at]
        with emit.each_vector(emit.row_length(2)) as d:
            a_vectors = [emit.load(2, at, d) for at in a_at]
            for t, at in enumerate(b_at):
                b_vector = emit.load(4, at, d)
                for r, a_vector in enumerate(a_vectors):
                    total = emit.multiply_add(a_vector, b_vector, builder.load(sums[r][t]))
                    builder.store(total, sums[r][t])
        for r, out_at in enumerate(emit.row_starts(9, emit.index(3), rows.literal_value)):
            emit.store(9, out_at, emit.index(10), emit.four_sums([builder.load(s) for s in sums[r]]))
        return context.get_dummy_value()

    return types.void(rows, width, a, row, b, b0, b1, b2, b3, out, column), codegen


@intrinsic(prefer_literal=True)
def adds(typing, rows, width, acc, row, b, b0, b1, b2, b3, weights, column):
    """acc[row + r] += Σₜ weights[row + r, column + t] · (the row of b at b_t).

    The arguments are those of ``dots``, with ``acc`` in the place of ``a`` and ``weights`` in that of ``out``.
    """

    def codegen(context, builder, signature, args):
        emit = _Emitter(context, builder, signature, args, width.literal_value)
        acc_at = emit.row_starts(2, emit.index(3), rows.literal_value)
        b_at = [emit.index(5 + t) for t in range(B_ROWS)]
        weights_at = emit.row_starts(9, emit.index(3), rows.literal_value)
        factors = [[emit.spread(9, at, emit.index(10), t) for t in range(B_ROWS)] for at in weights_at]
        with emit.each_vector(emit.row_length(2)) as d:
            b_vectors = [emit.load(4, at, d) for at in b_at]
            for r, at in enumerate(acc_at):
                total = emit.load(2, at, d)
                for factor, b_vector in zip(factors[r], b_vectors, strict=True):
                    total = emit.multiply_add(factor, b_vector, total)
                emit.store(2, at, d, total)
        return context.get_dummy_value()

    return types.void(rows, width, acc, row, b, b0, b1, b2, b3, weights, column), codegen


class _Emitter:
    """Writes the instructions of one call. An argument is named by its number."""

    def __init__(self, context, builder: ir.IRBuilder, signature, args: Sequence[ir.Value], width: int) -> None:
        self.context, self.builder, self.signature, self.args = context, builder, signature, args
        self.vector = ir.VectorType(FLOAT, width)

    def index(self, argument: int) -> ir.Value:
        """A whole number among the arguments, of whatever type, in 64 bits."""
        return self.context.cast(self.builder, self.args[argument], self.signature.args[argument], types.int64)

    def _array(self, argument: int):
        return self.context.make_array(self.signature.args[argument])(self.context, self.builder, self.args[argument])

    def row_length(self, argument: int) -> ir.Value:
        return cgutils.unpack_tuple(self.builder, self._array(argument).shape)[1]

    def row_starts(self, argument: int, first: ir.Value, count: int) -> list[ir.Value]:
        """Where ``count`` rows of a two-dimensional array begin, in its flat memory."""
        length = self.row_length(argument)
        rows = [self.builder.add(first, INDEX(r)) for r in range(count)]
        return [self.builder.mul(row, length) for row in rows]

    @contextmanager
    def each_vector(self, size: ir.Value) -> Iterator[ir.Value]:
        """A loop over a row: the offset of each of its vectors."""
        with cgutils.for_range_slice(self.builder, INDEX(0), size, INDEX(self.vector.count), INDEX) as (offset, _):
            yield offset

    def _address(self, argument: int, start: ir.Value, offset: ir.Value, kind: ir.Type) -> ir.Value:
        at = self.builder.gep(self._array(argument).data, [self.builder.add(start, offset)])
        return self.builder.bitcast(at, kind.as_pointer())

    def load(self, argument: int, start: ir.Value, offset: ir.Value) -> ir.Value:
        loaded = self.builder.load(self._address(argument, start, offset, self.vector))
        loaded.align = FLOAT_BYTES
        return loaded

    def store(self, argument: int, start: ir.Value, offset: ir.Value, value: ir.Value) -> None:
        self.builder.store(value, self._address(argument, start, offset, value.type)).align = FLOAT_BYTES

    def spread(self, argument: int, start: ir.Value, offset: ir.Value, more: int) -> ir.Value:
        """One number of an array, in every place of a vector."""
        number = self.builder.load(self._address(argument, start, self.builder.add(offset, INDEX(more)), FLOAT))
        alone = self.builder.insert_element(ir.Constant(self.vector, ir.Undefined), number, WORD(0))
        return self._pick(alone, alone, [0] * self.vector.count)

    def zeros(self) -> ir.Value:
        """A variable that holds a vector; LLVM keeps it in a register."""
        nothing = ir.Constant(self.vector, [0.0] * self.vector.count)
        variable = cgutils.alloca_once(self.builder, self.vector)
        self.builder.store(nothing, variable)
        return variable

    def multiply_add(self, x: ir.Value, y: ir.Value, total: ir.Value) -> ir.Value:
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        name = f"llvm.fma.v{self.vector.count}f32"
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), [x, y, total])

    def four_sums(self, vectors: Sequence[ir.Value]) -> ir.Value:
        """The sums over four vectors, as one vector of four: neighbours are added in all of them at once."""
        while vectors[0].type.count > 4:
            half = vectors[0].type.count // 2
            vectors = [self._add(v, v, range(half), range(half, 2 * half)) for v in vectors]
        first, second, third, fourth = vectors
        left = self._add(first, second, (0, 4, 2, 6), (1, 5, 3, 7))
        right = self._add(third, fourth, (0, 4, 2, 6), (1, 5, 3, 7))
        return self._add(left, right, (0, 1, 4, 5), (2, 3, 6, 7))

    def _add(self, x: ir.Value, y: ir.Value, one: Iterable[int], other: Iterable[int]) -> ir.Value:
        return self.builder.fadd(self._pick(x, y, one), self._pick(x, y, other))

    def _pick(self, x: ir.Value, y: ir.Value, places: Iterable[int]) -> ir.Value:
        """A vector made of elements of x and y; those of y are counted on from x's."""
        places = list(places)
        return self.builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(WORD, len(places)), places))
