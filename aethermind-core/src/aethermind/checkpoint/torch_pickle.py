"""One checkpoint file written by torch.save, read by torch with `weights_only=True`, its restricted unpickler.

torch is an extra, imported when such a file is opened. Only data is unpickled; a file that needs anything else is
refused. Files of the current format (since torch 1.6) are mapped into memory, older ones are read as a whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NoReturn

import numpy.typing as npt

from aethermind.checkpoint.source import TensorInfo
from aethermind.errors import CheckpointError, remedy
from aethermind.first_party import pip_install_command

__all__ = ["TorchFile"]

_ZIP_MAGIC = b"PK\x03\x04"
# Keys under which trainers store the weights beside their own state.
_WRAPPERS = ("state_dict", "model")
_DTYPE_NAMES = {
    "torch.bool": "BOOL",
    "torch.uint8": "U8",
    "torch.uint16": "U16",
    "torch.uint32": "U32",
    "torch.uint64": "U64",
    "torch.int8": "I8",
    "torch.int16": "I16",
    "torch.int32": "I32",
    "torch.int64": "I64",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.float32": "F32",
    "torch.float64": "F64",
    "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
}
# Dtypes unknown to NumPy are passed as integers of the same width.
_INTEGER_VIEWS = {"BF16": "int16", "F8_E4M3": "uint8", "F8_E5M2": "uint8"}


class TorchFile:
    """A state_dict in a .bin, .pt or .pth file; implements `TensorSource`. Immutable.

    The file must not be changed while this object, or any array taken from it, lives.
    """

    def __init__(self, path: Path) -> None:
        """Unpickle the file's names and shapes, and map its values.

        Raises:
            CheckpointError: torch is not installed; the file cannot be read, is corrupt, or needs anything but
                data; it holds something other than dense tensors by name.
        """
        self.path = Path(path)
        self._torch = self._import_torch()
        self._tensors = {name: self._checked(name, value) for name, value in self._read_state_dict().items()}

    @property
    def names(self) -> tuple[str, ...]:
        """Every tensor's name, in the order in which they were saved."""
        return tuple(self._tensors)

    @property
    def total_bytes(self) -> int:
        """Size of all values together; tensors that share memory count each."""
        return sum(self.info(name).num_bytes for name in self._tensors)

    def info(self, name: str) -> TensorInfo:
        """Describe a tensor. Raises CheckpointError for an unknown name."""
        tensor = self._tensor(name)
        shape = tuple(tensor.shape)
        return TensorInfo(_DTYPE_NAMES[str(tensor.dtype)], shape, 0, math.prod(shape) * tensor.element_size())

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return a tensor's values, read-only and C-contiguous: a view of the file, or a copy of a strided tensor.

        Raises CheckpointError for an unknown name.
        """
        info = self.info(name)
        tensor = self._tensor(name).contiguous()
        if info.dtype_name in _INTEGER_VIEWS:
            tensor = tensor.view(getattr(self._torch, _INTEGER_VIEWS[info.dtype_name]))
        array: npt.NDArray[Any] = tensor.numpy().view(info.dtype)
        array.flags.writeable = False
        return array

    def _tensor(self, name: str) -> Any:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"{self.path} has no tensor {name!r} among its {len(self._tensors)}.")
        return tensor

    def _import_torch(self) -> Any:
        try:
            return import_module("torch")
        except ImportError as error:
            raise CheckpointError(
                f"{self.path} is a PyTorch checkpoint, which needs torch, and torch cannot be imported ({error}). "
                f"Run `{pip_install_command('aethermind-core[torch]')}`, or convert the checkpoint to safetensors."
            ) from None

    def _read_state_dict(self) -> Mapping[Any, Any]:
        try:
            with open(self.path, "rb") as file:
                is_zip = file.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC
            content = self._torch.load(self.path, weights_only=True, mmap=is_zip, map_location="cpu")
        except OSError as error:
            raise CheckpointError(
                f"{self.path} cannot be read: {error.strerror}. Check the path and its permissions."
            ) from error
        except Exception as error:  # torch raises many kinds of errors for invalid files
            self._refuse(error)
        if isinstance(content, Mapping):
            content = next((content[key] for key in _WRAPPERS if isinstance(content.get(key), Mapping)), content)
        if not isinstance(content, Mapping):
            self._fail(f"holds a {type(content).__name__}, not tensors by name")
        return content

    def _refuse(self, error: Exception) -> NoReturn:
        """Raise CheckpointError for an error of `torch.load`."""
        wanted = re.search(r"GLOBAL ([\w.]+)", str(error)) if isinstance(error, UnpicklingError) else None
        if wanted is not None:
            raise CheckpointError(
                f"{self.path} asks for {wanted[1]} while it is unpickled, which is more than data and could run any "
                "code, so it is not read. Save the model's state_dict alone, or convert it to safetensors."
            ) from None
        reason = " ".join(re.split(r"\.\s|\n", str(error))[0].split())[:120] or type(error).__name__
        if isinstance(error, UnpicklingError):
            reason = "its pickle is not one of tensors"
        raise CheckpointError(
            f"{self.path} is corrupt, or is no PyTorch checkpoint ({reason}). "
            + remedy(self.path, error, otherwise="Fetch or write the file again.")
        ) from error

    def _checked(self, name: Any, value: Any) -> Any:
        """Return the tensor `value`; CheckpointError unless it is a dense tensor in host memory of a known dtype."""
        if not isinstance(name, str) or not isinstance(value, self._torch.Tensor):
            self._fail(f"holds {name!r:.80} of type {type(value).__name__}, not a tensor by name")
        dtype = str(value.dtype)
        if value.layout != self._torch.strided or value.device.type != "cpu" or dtype not in _DTYPE_NAMES:
            self._fail(
                f"has a tensor {name!r:.80} that is not plain and dense ({dtype}, {value.layout}, {value.device})"
            )
        return value.detach()

    def _fail(self, problem: str) -> NoReturn:
        raise CheckpointError(f"{self.path} {problem}. Save the model's state_dict alone, as dense tensors.")
