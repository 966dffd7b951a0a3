"""The Triton kernels of `moe_rows`: one program per token and block of columns, its k rows in order."""

import triton
import triton.language as tl


@triton.jit
def sum_rows_kernel(rows, index, out, hidden, k, BLOCK: tl.constexpr):  # noqa: N803
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < hidden
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in range(k):
        row = tl.load(index + token * k + i)
        total += tl.load(rows + row * hidden + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * hidden + columns, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def spread_rows_kernel(tokens, index, out, hidden, k, BLOCK: tl.constexpr):  # noqa: N803
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < hidden
    values = tl.load(tokens + token * hidden + columns, mask=inside, other=0.0)
    for i in range(k):
        row = tl.load(index + token * k + i)
        tl.store(out + row * hidden + columns, values, mask=inside)
