"""What kernels take for themselves: each rule beside blocks that the allocator was seen to hand out.

The figures are from the CUDA build of torch 2.13 on phantom GPUs; the reductions' from an A100's, an RTX 4090's and an
H100's sizes.
"""

from __future__ import annotations

import pytest

from nooom.formulas import hidden

A100 = {"sms": 108, "max_threads_per_sm": 2048}


def test_cublas_takes_more_on_hopper() -> None:
    assert hidden.cublas_workspace_bytes((8, 0)) == 8_519_680
    assert hidden.cublas_workspace_bytes((9, 0)) == 32 << 20


def test_flash_attention_divides_the_keys_where_there_are_few_queries() -> None:
    # One query of Qwen2.5-0.5B after 4096 tokens: 14 heads on 2 of keys.
    splits = hidden.flash_splits(1, 2, 7, 4097, 64, sms=108)
    assert splits == 17
    assert hidden.flash_forward_bytes(1, 2, 7, 64, splits) == (952, 60_928)
    assert hidden.flash_splits(4, 14, 1024, 1024, 64, sms=108) == 1
    assert hidden.flash_forward_bytes(4, 14, 1024, 64, 1) == ()


def test_flash_attentions_backward_pass_keeps_sums_and_a_gradient_in_fp32() -> None:
    assert hidden.flash_backward_bytes(4, 12, 12, 1024, 1024, 64, 2) == (196_608, 12_582_912)
    # Grouped keys are expanded, and 136 queries are rounded up to 256.
    assert hidden.flash_backward_bytes(4, 14, 2, 136, 136, 64, 2) == (57_344, 3_670_016, 974_848, 974_848)
    assert hidden.flash_backward_bytes(2, 4, 1, 2048, 2048, 256, 2) == (65_536, 16_777_216, 8_388_608, 8_388_608)


def test_efficient_attention() -> None:
    assert hidden.efficient_backward_bytes(4, 14, 1024, 64, 2) == (229_376, 14_694_400)
    assert hidden.efficient_backward_bytes(4, 12, 1024, 64, 4) == (12_582_912, 196_608, 196_608, 12_595_200)
    # Mistral's heads are 128 wide: counters for 128 rows each.
    assert hidden.efficient_backward_bytes(4, 32, 4096, 128, 2) == (2_097_152, 268_500_992)
    assert hidden.efficient_forward_bytes(1, 16, 1024, 128, 2, widest=192) == (8_388_608,)
    assert hidden.efficient_forward_bytes(1, 16, 1024, 128, 2, widest=128) == ()


@pytest.mark.parametrize(
    ("rows", "columns", "sizes"),
    [
        (4096, 3072, (100_663_296, 96)),
        (4096, 896, (29_360_128, 28)),
        (151_936, 896, (113_311_744, 28)),
        (1020, 3072, ()),  # below 1021 rows one block has them all
    ],
)
def test_sums_over_rows(rows: int, columns: int, sizes: tuple[int, ...]) -> None:
    assert hidden.row_sum_bytes(rows, columns, **A100) == sizes


def test_an_embeddings_gradient_is_summed_in_parts_above_3072_tokens() -> None:
    assert hidden.embedding_backward_bytes(3072, 151_936, 896) == 0
    assert hidden.embedding_backward_bytes(4096, 151_936, 896) == 4505 * 896 * 4


def test_clipping_takes_a_norm_for_each_chunk_of_the_largest_tensor() -> None:
    elements = [151_936 * 896] + [896] * 289
    assert hidden.foreach_norm_bytes(elements) == 2_410_480


def test_softmax_and_draws_are_in_fp32() -> None:
    assert hidden.softmax_backward_bytes(2 * 14 * 2048 * 2048) == 469_762_048
    assert hidden.safe_softmax_bytes(2 * 14 * 2048 * 2048) == 117_440_512
    assert hidden.multinomial_bytes(1, 151_936) == 607_744
