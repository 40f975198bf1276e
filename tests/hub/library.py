"""Point huggingface_hub, in this process, to a local server.

The conftest of a folder of tests imports the fixture `hub` from here.
"""

import runpy
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants, file_download, hf_api
from huggingface_hub.utils import _http
from tests.hub.server import Hub, live_hub


def point_library_at(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make huggingface_hub use a server, as if it were imported in `hub.environment`.

    Waits before retries are skipped and appended to `hub.sleeps`. Afterwards, call
    `huggingface_hub.close_session`, or connections to the server stay open.
    """
    huggingface_hub.close_session()  # the next one reads the variables of proxies again
    for name, value in hub.environment.items():
        monkeypatch.setenv(name, value)
    fresh = runpy.run_path(constants.__file__)
    changed = {
        name: value
        for name, value in fresh.items()
        if name.isupper() and value != vars(constants).get(name)
    }
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] == "huggingface_hub":
            for name in changed.keys() & vars(module).keys():  # other modules have copies
                monkeypatch.setattr(module, name, changed[name])
    monkeypatch.setattr(hf_api.api, "endpoint", hub.url)
    skipping = SimpleNamespace(**{**vars(time), "sleep": hub.sleeps.append})
    monkeypatch.setattr(_http, "time", skipping)
    monkeypatch.setattr(file_download, "time", skipping)
    # Uploads call httpx2 in a deprecated way. pytest restores the filters after each test.
    warnings.filterwarnings("ignore", "Use 'content=", DeprecationWarning)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A server without repositories that huggingface_hub uses, and an empty cache."""
    with live_hub(tmp_path / "hf") as hub:
        point_library_at(hub, monkeypatch)
        yield hub
        huggingface_hub.close_session()
