"""What PYTORCH_ALLOC_CONF can say: the values, bounds and refusals of torch 2.13."""

from __future__ import annotations

import pytest

from nooom.formulas.errors import UsageError
from nooom.profiler.simulator.settings import MIB, Order, Settings, order_for


def test_nothing_said_is_pytorchs_defaults() -> None:
    settings = Settings.parse("")
    assert settings == Settings()
    assert (settings.large_segment_size_bytes, settings.max_non_split_rounding_bytes) == (20 * MIB, 20 * MIB)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("expandable_segments:True", "expandable_segments", True),
        ("expandable_segments:True,expandable_segments:False", "expandable_segments", False),
        (" max_split_size_mb : 128 , ", "max_split_size_bytes", 128 * MIB),
        ("max_split_size_mb:20", "max_split_size_bytes", 20 * MIB),
        ("max_non_split_rounding_mb:30", "max_non_split_rounding_bytes", 30 * MIB),
        ("large_segment_size_mb:11", "large_segment_size_bytes", 11 * MIB),
        ("garbage_collection_threshold:0.8", "garbage_collection_threshold", 0.8),
        ("per_process_memory_fraction:0.5", "per_process_memory_fraction", 0.5),
        ("pinned_use_cuda_host_register:True,expandable_segments:True", "expandable_segments", True),
        ("backend:native,expandable_segments:True", "expandable_segments", True),
    ],
)
def test_an_option_is_its_field(text: str, field: str, value: object) -> None:
    assert getattr(Settings.parse(text), field) == value


@pytest.mark.parametrize(
    ("value", "table"),
    [
        ("8", [8] * 16),
        ("1", [1] * 16),
        ("[256:1,512:2,>:4]", [1] * 9 + [2] + [4] * 6),
        ("[1:8,4:2,16:4,>:1]", [8, 0, 2, 0, 4, *[1] * 11]),  # what lies between two bounds is left as it was
        ("[>:4]", [0, *[4] * 15]),
        ("[4:2]", [2, 2, 2, *[0] * 13]),
        ("[4:2,]", [2, 2, 2, *[0] * 13]),
        ("[4:0,>:2]", [0, 0, 0, *[2] * 13]),
        ("[65536:2]", [2] * 16),
    ],
)
def test_tables_of_divisions_are_filled_as_pytorch_fills_them(value: str, table: list[int]) -> None:
    assert list(Settings.parse(f"roundup_power2_divisions:{value}").roundup_power2_divisions) == table


@pytest.mark.parametrize("text", ["pinned_num_register_threads:8", "throw_on_cudamalloc_oom:True", "backend:native"])
def test_what_changes_no_size_is_accepted(text: str) -> None:
    assert Settings.parse(text) == Settings()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("expandable_segment:True", "did you mean expandable_segments"),
        ("max_split_size:64", "did you mean max_split_size_mb"),
        ("expandable_segments", "written name:value"),
        ("expandable_segments:", "written name:value"),
        (",expandable_segments:True", "'' is no option"),
        ("expandable_segments:true", "expandable_segments is 'true'; valid: True, False"),
        ("max_split_size_mb:19", "max_split_size_mb is 19; at least 20 is wanted"),
        ("large_segment_size_mb:64,max_split_size_mb:40", "at least 64 is wanted"),
        ("max_split_size_mb:-1", "a whole number is wanted"),
        ("max_non_split_rounding_mb:10", "max_non_split_rounding_mb is 10; at least 20 is wanted"),
        ("large_segment_size_mb:10", "more than 10 is wanted"),
        ("garbage_collection_threshold:0", "above 0 and below 1"),
        ("garbage_collection_threshold:1.0", "above 0 and below 1"),
        ("garbage_collection_threshold:nan", "between 0 and 1"),
        ("per_process_memory_fraction:1.1", "between 0 and 1"),
        ("roundup_power2_divisions:3", "powers of two"),
        ("roundup_power2_divisions:0", "powers of two"),
        ("roundup_power2_divisions:[3:2]", "powers of two"),
        ("roundup_power2_divisions:[4:2", "closing bracket"),
        ("roundup_power2_divisions:[4:2,8]", "a whole number is wanted"),
        ("backend:cudaMallocAsync", "only native is simulated"),
        ("backend:other", "valid: native"),
    ],
)
def test_a_refusal_is_one_line_that_says_what_is_right(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        Settings.parse(text)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("version", "order"),
    [
        ("2.6.0", Order.ADDRESS),
        ("2.11.0+cu128", Order.ADDRESS),
        ("2.12.1", Order.REGISTRATION),
        ("2.13.0+cpu", Order.SEGMENT),
        ("2.14.0a0", Order.SEGMENT),
        ("3.0", Order.SEGMENT),
    ],
)
def test_releases_order_free_blocks_differently(version: str, order: Order) -> None:
    assert order_for(version) is order


def test_a_version_is_two_numbers_at_least() -> None:
    with pytest.raises(UsageError, match="no release of torch: 'main'"):
        order_for("main")
