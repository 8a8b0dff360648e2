"""Quantised models on the Hub are described by their headers, and by the tensors that say what was quantised."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.fuzz.seeds import write_seeds
from tests.fuzz.targets import CONFIGS
from tests.hub_server import HubServer, Repo

from aethermind.model.hub_files import HubName
from aethermind.model.hub_headers import fetch_headers
from aethermind.model.source import DirectorySource


@pytest.mark.parametrize("kind", ["compressed", "bitsandbytes", "hqq", "fp8", "torchao", "gptq", "modelopt"])
def test_quantised_matrices_are_described_without_their_values(
    hub_server: HubServer, tmp_path: Path, kind: str
) -> None:
    seeds, whole, headers = (tmp_path / name for name in ("seeds", "whole", "headers"))
    for directory in (seeds, whole, headers):
        directory.mkdir()
    (path,) = (path for path in write_seeds("quantised", seeds) if path.stem == kind)
    files = {
        "config.json": json.dumps({"quantization_config": CONFIGS[kind]}).encode(),
        "model.safetensors": path.read_bytes(),
    }
    for name, content in files.items():
        (whole / name).write_bytes(content)
    hub_server.repos["org/quantised"] = Repo(files)
    name = HubName.parse("org/quantised")
    assert name is not None
    fetched = DirectorySource(fetch_headers(name, headers)).weights()
    wanted = DirectorySource(whole).weights()
    assert fetched.names == wanted.names
    for tensor in wanted.names:
        found, info = fetched.info(tensor), wanted.info(tensor)
        assert (found.shape, found.num_bytes, found.kind) == (info.shape, info.num_bytes, info.kind)
    values = np.fromfile(headers / "model.safetensors", np.uint8)
    assert len(values) == path.stat().st_size
