"""Reading pictures: real files, and every way in which one can be wrong."""

from __future__ import annotations

import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from media_files import WHERE, refused
from splitreel.media import read_image
from splitreel.media.files import MAX_PIXELS


def test_image_array_and_pil_and_path_agree(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    for source in (pixels, Image.fromarray(pixels), tmp_path / "a.png", str(tmp_path / "a.png")):
        assert np.array_equal(read_image(source, WHERE), pixels)


def test_image_exif_orientation_is_applied(tmp_path: Path) -> None:
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:, :16] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned a quarter clockwise
    Image.fromarray(pixels).save(tmp_path / "phone.jpg", exif=exif, quality=95)
    upright = read_image(tmp_path / "phone.jpg", WHERE)
    assert upright.shape == (32, 16, 3)
    assert upright[:16].min() > 240
    assert upright[16:].max() < 15


def test_image_alpha_is_dropped_not_composited(tmp_path: Path) -> None:
    Image.new("RGBA", (4, 4), (200, 100, 50, 0)).save(tmp_path / "clear.png")
    assert (read_image(tmp_path / "clear.png", WHERE) == (200, 100, 50)).all()


@pytest.mark.parametrize("transparency", [None, 0, b"\x00\xff"])
def test_image_palette(tmp_path: Path, transparency: int | bytes | None) -> None:
    image = Image.new("P", (4, 2), 1)
    image.putpalette([10, 20, 30, 200, 100, 50])
    options = {} if transparency is None else {"transparency": transparency}
    image.save(tmp_path / "palette.png", **options)
    assert (read_image(tmp_path / "palette.png", WHERE) == (200, 100, 50)).all()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "CMYK", "YCbCr", "HSV", "PA"])
def test_image_modes_convert(mode: str) -> None:
    assert read_image(Image.new("L", (3, 2), 255).convert(mode), WHERE).shape == (2, 3, 3)


def test_image_sixteen_bits_that_would_be_clipped(tmp_path: Path) -> None:
    Image.fromarray(np.full((2, 2), 40_000, np.uint16)).save(tmp_path / "deep.png")
    refused(lambda: read_image(tmp_path / "deep.png", WHERE), "8-bit", "40000", "deep.png")
    refused(lambda: read_image(Image.new("F", (2, 2), 300.5), WHERE), "8-bit")
    assert (read_image(Image.new("I", (2, 2), 77), WHERE) == 77).all()


def test_image_one_pixel(tmp_path: Path) -> None:
    Image.new("RGB", (1, 1), (1, 2, 3)).save(tmp_path / "dot.png")
    assert read_image(tmp_path / "dot.png", WHERE).tolist() == [[[1, 2, 3]]]


def test_image_arrays_of_another_kind() -> None:
    refused(lambda: read_image(np.zeros((4, 4, 3), np.float32), WHERE), "uint8", "float32")  # type: ignore[arg-type]
    refused(lambda: read_image(np.zeros((4, 4, 4), np.uint8), WHERE), "(4, 4, 4)")
    refused(lambda: read_image(np.zeros((4, 4), np.uint8), WHERE), "(4, 4)")
    refused(lambda: read_image(np.zeros((0, 4, 3), np.uint8), WHERE), "4 x 0")
    refused(lambda: read_image(Image.new("RGB", (0, 3)), WHERE), "0 x 3")
    refused(lambda: read_image(None, WHERE), "NoneType")  # type: ignore[arg-type]


def png_header(width: int, height: int) -> bytes:
    """A PNG that states a size and holds one pixel's worth of data."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 4)) + chunk(b"IEND", b"")
    )


# PIL warns from 89 million pixels and raises from 179 million; neither may escape as it is.
@pytest.mark.parametrize(("width", "height"), [(10_001, 10_000), (60_000, 60_000)])
def test_image_too_large_is_refused_before_decoding(tmp_path: Path, width: int, height: int) -> None:
    (tmp_path / "huge.png").write_bytes(png_header(width, height))
    began = time.monotonic()
    refused(lambda: read_image(tmp_path / "huge.png", WHERE), str(MAX_PIXELS), "huge.png")
    assert time.monotonic() - began < 1


def test_image_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("no picture\n" * 100)
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for name in ("cut.png", "cut.jpg"):
        Image.fromarray(noise).save(tmp_path / name)
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        refused(lambda name=name: read_image(tmp_path / name, WHERE), name)
    refused(lambda: read_image(tmp_path / "empty.png", WHERE), "empty file", "empty.png")
    refused(lambda: read_image(tmp_path / "text.png", WHERE), "text.png")
    refused(lambda: read_image(tmp_path / "gone.png", WHERE), "no file", "gone.png")
    refused(lambda: read_image(tmp_path, WHERE), "not a file")
