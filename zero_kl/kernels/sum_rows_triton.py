"""The Triton kernel of `moe_rows.sum_rows`: one program per token and block of columns, k additions in order."""

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
