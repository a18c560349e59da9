"""Archives without their weights, small enough to carry, and the same archives with weights drawn from a seed.

    python -m headwater_tools.weightless strip model.pt2 model.weightless.pt2
    python -m headwater_tools.weightless fill model.weightless.pt2 model.pt2 --seed 0

For measuring times, where the values do not matter. Tensors of f32 of at least 64 KiB are left out, and their mean and standard
deviation are noted; `fill` draws numbers with these. All else stays, so that norms, constants and positions are the model's own.
Headwater and PyTorch refuse an archive without weights. Filling needs neither PyTorch nor numpy; the same seed gives the same file.
"""

import argparse
import array
import json
import math
import random
import struct
import sys
import zipfile
from pathlib import Path

LEAST = 64 << 10  # bytes of a tensor that is left out
F32 = 7  # PyTorch's code of the dtype in archives
PERIOD = 65521  # elements drawn for a tensor, a prime; then they repeat
NOTE = "weightless.json"
CONFIG = "data/weights/model_weights_config.json"


class NotWeightless(ValueError):
    """The archive has all its weights, or is none."""


def write_entry(archive, name, data):
    """Adds an entry: JSON deflated; all else stored at a multiple of 64, to be memory-mapped."""
    info = zipfile.ZipInfo(name)
    if name.endswith(".json"):
        info.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(info, data)
        return
    size = data.size if isinstance(data, Drawn) else len(data)
    wide = 20 if size * 1.05 > zipfile.ZIP64_LIMIT else 0  # as zipfile decides
    padding = -(archive.fp.tell() + 30 + len(name.encode()) + 4 + wide) % 64  # 30: a local header, 4: this field's
    info.extra, info.file_size = struct.pack("<2sH", b"FB", padding) + bytes(padding), size
    with archive.open(info, "w", force_zip64=wide > 0) as entry:
        for part in data.parts() if isinstance(data, Drawn) else (data,):
            entry.write(part)


class Drawn:
    """Numbers of f32, uniform around a mean with a standard deviation: drawn from a seed, repeated after `PERIOD`."""

    def __init__(self, seed, size, mean, deviation):
        self.seed, self.size, self.mean, self.deviation = seed, size, mean, deviation

    def parts(self):
        draw, width = random.Random(self.seed), 2 * math.sqrt(3) * self.deviation
        block = array.array("f", (self.mean + width * (draw.random() - 0.5) for _ in range(PERIOD)))
        if sys.byteorder == "big":
            block.byteswap()
        block = block.tobytes()
        for start in range(0, self.size, len(block)):
            yield block[: self.size - start]


def root_of(archive, path):
    """The folder that all entries are in."""
    names = archive.namelist()
    if not any(name.endswith("/" + CONFIG) for name in names):
        raise NotWeightless(f"{path} is no archive of torch.export: it has no {CONFIG}")
    return names[0].split("/")[0]


def moments(data):
    """Mean and standard deviation of f32 numbers."""
    numbers = array.array("f")
    numbers.frombytes(data)
    mean = math.fsum(numbers) / len(numbers)
    return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in numbers) / len(numbers))


def strip(path, to, moments=moments):
    """Writes the archive without its large weights. Returns their bytes."""
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(to, "w") as out:
        root = root_of(archive, path)
        config = json.loads(archive.read(f"{root}/{CONFIG}"))["config"]
        dtypes = {}
        for tensor in config.values():
            dtypes.setdefault(tensor["path_name"], set()).add(tensor["tensor_meta"]["dtype"])
        left = {}
        for info in archive.infolist():
            name = info.filename.removeprefix(f"{root}/")
            file = name.removeprefix("data/weights/")
            data = archive.read(info)
            if info.file_size >= LEAST and file != name and dtypes.get(file) == {F32}:
                mean, deviation = moments(data)
                left[name] = {"bytes": len(data), "mean": mean, "deviation": deviation}
            else:
                write_entry(out, info.filename, data)
        write_entry(out, f"{root}/{NOTE}", json.dumps(left))
    return sum(tensor["bytes"] for tensor in left.values())


def fill(path, to, seed=0):
    """Writes the archive with its weights drawn from the seed. Returns their bytes."""
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(to, "w") as out:
        root = root_of(archive, path)
        if f"{root}/{NOTE}" not in archive.namelist():
            raise NotWeightless(f"{path} has its weights: `strip` leaves them out")
        left = json.loads(archive.read(f"{root}/{NOTE}"))
        for info in archive.infolist():
            if info.filename != f"{root}/{NOTE}":
                write_entry(out, info.filename, archive.read(info))
        for name, tensor in left.items():
            drawn = Drawn(f"{seed} {name}", tensor["bytes"], tensor["mean"], tensor["deviation"])
            write_entry(out, f"{root}/{name}", drawn)
    return sum(tensor["bytes"] for tensor in left.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("strip", "fill"):
        one = commands.add_parser(command)
        one.add_argument("archive", type=Path)
        one.add_argument("out", type=Path)
    commands.choices["fill"].add_argument("--seed", type=int, required=True, help="seed of the weights")
    args = parser.parse_args()
    try:
        size = strip(args.archive, args.out) if args.command == "strip" else fill(args.archive, args.out, args.seed)
    except (NotWeightless, zipfile.BadZipFile, OSError) as error:
        raise SystemExit(f"{args.archive}: {error}") from None
    print(f"{args.out}: {size / 1e6:.1f} MB of weights {'left out' if args.command == 'strip' else 'drawn'}")


if __name__ == "__main__":
    main()
