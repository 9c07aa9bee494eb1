"""Objects to save, and what it means that two of them are equal."""

from __future__ import annotations

import collections
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Build = Callable[[str], Any]
BUILDS: dict[str, Build] = {}


def build(function: Build) -> Build:
    BUILDS[function.__name__] = function
    return function


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64,
    torch.complex32, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip


def numbers(shape: tuple[int, ...], device: str) -> torch.Tensor:
    return torch.rand(shape, device=device) * 100


@build
def every_dtype(device: str) -> Any:
    return {str(d): numbers((7, 5), device).to(d) for d in DTYPES}


@build
def sizes(device: str) -> Any:
    shapes = [(), (0,), (1,), (3, 0, 2), (65,), (4097,), (1024, 1025)]
    return [numbers(shape, device) for shape in shapes]


@build
def nested_containers(device: str) -> Any:
    inner = collections.OrderedDict(a=(numbers((3,), device), None), b=[1, "two", 3.0, b"four"])
    return {"inner": inner, ("key", 1): {2, 3}, "deep": [[[[numbers((2, 2), device)]]]]}


@build
def shared_storages(device: str) -> Any:
    whole = numbers((100, 100), device)
    same = numbers((10,), device)
    return {"rows": whole[10:20], "all": whole, "columns": whole[:, 3], "same": [same, same]}


@build
def not_contiguous(device: str) -> Any:
    base = numbers((6, 8, 4), device)
    strided = base.permute(2, 0, 1)[:, ::2]
    return [strided, base.t() if base.dim() == 2 else base.mT, base.expand(3, 6, 8, 4)]


@build
def only_a_view_of_a_large_one(device: str) -> Any:
    return numbers((1000, 100), device)[500]


@build
def conjugate_and_negative(device: str) -> Any:
    values, others = (torch.complex(numbers((5,), device), numbers((5,), device)) for _ in "ab")
    return [values.conj(), others.conj().imag]


@build
def sparse(device: str) -> Any:
    dense = (numbers((20, 30), device) > 90).float()
    return [
        dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc(),
        dense.to_sparse_bsr((5, 3)), dense.to_sparse_bsc((4, 10)),
    ]  # fmt: skip


@build
def quantized(device: str) -> Any:
    values = numbers((4, 6), "cpu")
    scales, zeros = torch.full((4,), 0.5), torch.zeros(4)
    return [
        torch.quantize_per_tensor(values, 0.5, 3, torch.qint8),
        torch.quantize_per_channel(values, scales, zeros, 0, torch.quint8),
        torch.quantize_per_tensor(values, 0.01, 0, torch.qint32),
    ]


@build
def nested_tensors(device: str) -> Any:
    return torch.nested.nested_tensor([numbers((2, 3), device), numbers((4, 3), device)])


@build
def meta(device: str) -> Any:
    return torch.empty(3, 4, device="meta")


class Named(torch.Tensor):
    pass


@build
def tensor_subclass(device: str) -> Any:
    named = numbers((4,), device).as_subclass(Named)
    named.label = "weights"  # type: ignore[attr-defined]
    return named


def net(device: str) -> torch.nn.Module:
    layers = [torch.nn.Linear(40, 30), torch.nn.BatchNorm1d(30), torch.nn.Linear(30, 5)]
    return torch.nn.Sequential(*layers).to(device)


@build
def module(device: str) -> Any:
    return net(device)


@build
def parameters_that_require_gradients(device: str) -> Any:
    return [torch.nn.Parameter(numbers((3,), device)), numbers((3,), device).requires_grad_()]


@build
def training_state(device: str) -> Any:
    model = net(device)
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(3):
        model(numbers((8, 40), device)).square().mean().backward()
        optimizer.step()
        schedule.step()
    return {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(), "random": torch.get_rng_state(), "step": 3,
    }  # fmt: skip


@build
def optimizers(device: str) -> Any:
    """Themselves, and not only their state."""
    model = net(device)
    made = [torch.optim.AdamW(model.parameters()), torch.optim.SGD(model.parameters(), momentum=1)]
    model(numbers((8, 40), device)).square().mean().backward()
    for optimizer in made:
        optimizer.step()
    return [model, *made]


@build
def storages(device: str) -> Any:
    return numbers((12,), device).untyped_storage()


class SavesItself:
    """Calls `torch.save` to be pickled, as some metrics and samplers do."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def __getstate__(self) -> bytes:
        buffer = io.BytesIO()
        torch.save(self.values, buffer)
        return buffer.getvalue()

    def __setstate__(self, state: bytes) -> None:
        self.values = torch.load(io.BytesIO(state))


@build
def one_that_saves_itself(device: str) -> Any:
    return {"before": numbers((5,), device), "own": SavesItself(numbers((300,), device))}


@dataclass
class Plain:
    name: str
    weights: Any


@build
def objects(device: str) -> Any:
    return [Plain("x", numbers((2,), device)), torch.Size([1, 2]), torch.device("cpu"), torch.int8]


@build
def no_tensor_at_all(device: str) -> Any:
    return {"epoch": 3, "text": "ä" * 100_000}


def outline(value: Any) -> Any:
    """Something that is equal for equal values, with every bit of every tensor."""
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, torch.TypedStorage):
        value = value._untyped_storage
    if isinstance(value, torch.UntypedStorage):
        return ("storage", value.device.type, bytes(value.cpu().tolist()))
    if isinstance(value, dict):
        return (type(value).__name__, [(k, outline(v)) for k, v in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [outline(v) for v in value])
    if isinstance(value, torch.nn.Module):
        return (type(value).__name__, outline(value.state_dict()), str(value))
    if isinstance(value, torch.optim.Optimizer):
        groups = [outline(group["params"]) for group in value.param_groups]
        return (type(value).__name__, outline(value.state_dict()), value.defaults, groups)
    if isinstance(value, (SavesItself, Plain)):
        return (type(value).__name__, outline(vars(value)))
    return value


def _tensor(value: torch.Tensor) -> Any:
    about: list[Any] = [
        type(value).__name__, str(value.dtype), value.device.type, value.requires_grad,
        str(value.layout), getattr(value, "label", None), value.is_quantized, value.is_nested,
    ]  # fmt: skip
    if value.is_nested:
        return [*about, [outline(part) for part in value.unbind()]]
    about.append(tuple(value.shape))
    if value.device.type == "meta":
        return [*about, value.stride()]
    if value.is_quantized:
        return [
            *about,
            str(value.qscheme()),
            outline(value.int_repr()),
            outline(value.dequantize()),
        ]
    if value.layout != torch.strided:
        return [*about, outline(value.to_dense())]
    plain = value.detach().resolve_conj().resolve_neg().contiguous().cpu().as_subclass(torch.Tensor)
    return [*about, value.stride(), bytes(plain.reshape(-1).view(torch.uint8).tolist())]
