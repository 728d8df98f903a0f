"""The digest by its definition, in plain Python, and what it must never overlook."""

import pytest
import torch

from ttrace.measure.digest import BLOCK, bit_digest

MASK = (1 << 64) - 1
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.complex64, torch.bool)


def odd(x: int) -> int:
    z = (x + 1) * 0x9E3779B97F4A7C15 & MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return (z ^ (z >> 31)) | 1


def defined(data: bytes) -> int:
    """What the docstring of the module says."""
    data += bytes(-len(data) % 8)
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    keys = (odd(i % BLOCK) * odd((1 << 32) + i // BLOCK) for i in range(len(words)))
    return sum(word * key for word, key in zip(words, keys, strict=True)) & MASK


def made(tensor: torch.Tensor) -> int:
    return int(bit_digest(tensor)) & MASK


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 8, 1001])
def test_digest_is_what_its_definition_says(dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(0)
    tensor = (10 * torch.randn(size)).to(dtype)
    assert made(tensor) == defined(bytes_of(tensor))


@pytest.mark.parametrize("blocks", [0.5, 1, 4, 5.25])
def test_long_tensors_too(blocks: float) -> None:
    torch.manual_seed(0)
    tensor = torch.randn(int(blocks * BLOCK * 2))
    assert made(tensor) == defined(bytes_of(tensor))


def test_where_values_lie_in_memory_does_not_matter() -> None:
    torch.manual_seed(0)
    flat = torch.randn(1 + 6 * 10, dtype=torch.bfloat16)
    values = flat[1:].view(6, 10)  # at an odd offset
    assert made(values) == made(values.clone())
    assert made(values.t()) == made(values.t().contiguous()) != made(values)
    assert made(torch.tensor(3.0)) == made(torch.tensor([3.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_one_ulp_in_any_element_changes_it(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tensor = torch.randn(257).to(dtype)
    before = made(tensor)
    for place in range(tensor.numel()):
        changed = tensor.clone()
        changed[place] = torch.nextafter(tensor[place], torch.tensor(torch.inf, dtype=dtype))
        assert made(changed) != before


def test_order_and_sign_count() -> None:
    tensor = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert made(tensor) != made(tensor[[2, 3, 0, 1]])
    assert made(torch.tensor([0.0])) != made(torch.tensor([-0.0]))
    assert made(torch.zeros(100)) == 0
    assert made(torch.empty(0)) == 0
