"""Makes the wheel of the Python package (PEP 517 and 660): package, library that `make` built, embedded model.

The library comes from build/release of the source tree, or from the folder that `--config-settings build=FOLDER` names.
"""

import base64
import hashlib
import pathlib
import re
import sysconfig
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
LIBRARY = "libdeepinfer.so.0"
MODEL = "models/tiny"
STORED = (".safetensors",)  # quantised weights do not compress
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same files give the same wheel


def version():
    return re.search(r'"(.+)"', (HERE / "deepinfer/_version.py").read_text(encoding="utf-8"))[1]


def metadata_text():
    return (
        "Metadata-Version: 2.1\n"
        "Name: deepinfer\n"
        f"Version: {version()}\n"
        "Summary: Inference for DeepSeek-V4.1-Flash: fast, and the same bits every time\n"
        "License: Apache-2.0; weights in deepinfer/models/tiny under CC BY-SA 4.0\n"
        "Requires-Python: >=3.9\n"
    )


def wheel_text(tag):
    return f"Wheel-Version: 1.0\nGenerator: deepinfer\nRoot-Is-Purelib: false\nTag: {tag}\n"


class Wheel:
    def __init__(self, folder, tag):
        self.name = f"deepinfer-{version()}-{tag}.whl"
        self.info = f"deepinfer-{version()}.dist-info"
        self.file = zipfile.ZipFile(pathlib.Path(folder) / self.name, "w")
        self.records = []
        self.add(f"{self.info}/METADATA", metadata_text().encode())
        self.add(f"{self.info}/WHEEL", wheel_text(tag).encode())
        self.add(f"{self.info}/LICENSE", (ROOT / "LICENSE").read_bytes())

    def add(self, name, data):
        entry = zipfile.ZipInfo(name, EPOCH)
        entry.external_attr = 0o644 << 16
        entry.compress_type = zipfile.ZIP_STORED if name.endswith(STORED) else zipfile.ZIP_DEFLATED
        self.file.writestr(entry, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.records.append(f"{name},sha256={digest},{len(data)}")

    def close(self):
        self.records.append(f"{self.info}/RECORD,,")
        self.file.writestr(zipfile.ZipInfo(f"{self.info}/RECORD", EPOCH), "\n".join(self.records) + "\n")
        self.file.close()
        return self.name


def platform_tag():
    return "py3-none-" + re.sub(r"[-.]", "_", sysconfig.get_platform())


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    build = pathlib.Path((config_settings or {}).get("build") or ROOT / "build/release")
    library = build / LIBRARY
    if not library.exists():
        raise SystemExit(f"deepinfer: {library} does not exist; run `make` in {ROOT} first")
    wheel = Wheel(wheel_directory, platform_tag())
    for file in sorted((HERE / "deepinfer").iterdir()):
        if file.suffix == ".py" or file.name == "py.typed":
            wheel.add(f"deepinfer/{file.name}", file.read_bytes())
    wheel.add(f"deepinfer/{LIBRARY}", library.read_bytes())
    for file in sorted((ROOT / MODEL).iterdir()):
        wheel.add(f"deepinfer/{MODEL}/{file.name}", file.read_bytes())
    return wheel.close()


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """Points at this folder; library and model are found in the source tree around it."""
    wheel = Wheel(wheel_directory, "py3-none-any")
    wheel.add("deepinfer.pth", f"{HERE}\n".encode())
    return wheel.close()


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit("deepinfer: the package is built out of the source tree: make && pip wheel ./python")
