"""Reading a picture: one policy, that of diffusers' `load_image`.

The EXIF orientation is applied, then the picture is converted to RGB: alpha is dropped (not composited over anything),
palettes and grey are expanded. Of an animation, the first frame is taken.
"""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

from splitreel.errors import InvalidRequest
from splitreel.media.files import MAX_PIXELS, PathLike, check_file, refuse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    ImageSource = PathLike | Image.Image | NDArray[np.uint8]

_EXPECTED = "a picture"
# Raster formats only: PIL hands EPS to an external interpreter, and the rest is not what people send.
_FORMATS = ("PNG", "JPEG", "WEBP", "AVIF", "GIF", "BMP", "DIB", "TIFF", "JPEG2000", "PPM", "TGA", "ICO")
_WIDE_MODES = ("I", "F")  # and I;16 in its byte orders: PIL clips these to 0..255 instead of scaling them
_warnings_lock = threading.Lock()  # catch_warnings swaps state of the whole process


def read_image(source: ImageSource, where: str) -> NDArray[np.uint8]:
    """The picture as uint8 RGB (H, W, 3), upright.

    `source`: a path, a PIL image, or a uint8 (H, W, 3) array. Raises InvalidRequest with `field=where` for a file that
    is missing, empty, damaged or no picture, more than `MAX_PIXELS` pixels (before decoding them), and 16-bit or
    float pixels that an 8-bit conversion would clip.
    """
    if isinstance(source, np.ndarray):
        return _check_array(source, where)
    name = "a PIL image" if isinstance(source, Image.Image) else repr(str(source))
    try:
        with _warnings_lock, warnings.catch_warnings():
            # A size of 89 million pixels is where PIL starts to warn of bombs; the bound below is ours.
            warnings.simplefilter("ignore")
            if isinstance(source, Image.Image):
                return _to_rgb(source, where, name)
            with Image.open(check_file(source, where, _EXPECTED), formats=_FORMATS) as image:
                return _to_rgb(image, where, name)
    except (InvalidRequest, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        refuse(where, f"at most {MAX_PIXELS} pixels", f"{name} ({error})", "Scale the picture down.")
    except Exception as error:  # PIL's plugins raise OSError, SyntaxError, struct.error, EOFError, KeyError...
        refuse(
            where,
            _EXPECTED,
            f"{name}, which cannot be decoded ({error or type(error).__name__})",
            "The file is damaged, cut short or of another kind: copy or export it again, for example as PNG.",
        )


def probe_image(path: PathLike, where: str) -> tuple[int, int]:
    """Width and height in pixels as the file's header states them, nothing decoded. Raises as `read_image` does."""
    name = repr(str(path))
    try:
        with _warnings_lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(check_file(path, where, _EXPECTED), formats=_FORMATS) as image:
                _check_size(image.width, image.height, where, name)
                return image.width, image.height
    except (InvalidRequest, MemoryError):
        raise
    except Exception as error:
        refuse(where, _EXPECTED, f"{name}, which is none ({error or type(error).__name__})", "Send PNG, JPEG or WebP.")


def _check_array(pixels: NDArray[np.uint8], where: str) -> NDArray[np.uint8]:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        refuse(
            where,
            "a uint8 (H, W, 3) array",
            f"{pixels.dtype} {pixels.shape}",
            "Scale to 0..255, convert to uint8 and drop the alpha channel.",
        )
    _check_size(pixels.shape[1], pixels.shape[0], where, "an array")
    return np.ascontiguousarray(pixels)


def _check_size(width: int, height: int, where: str, name: str) -> None:
    if width < 1 or height < 1:
        refuse(where, _EXPECTED, f"{name} of {width} x {height} pixels", "Send one with pixels in it.")
    if width * height > MAX_PIXELS:
        refuse(where, f"at most {MAX_PIXELS} pixels", f"{name} of {width} x {height}", "Scale the picture down.")


def _to_rgb(image: Image.Image, where: str, name: str) -> NDArray[np.uint8]:
    _check_size(image.width, image.height, where, name)
    if image.mode in _WIDE_MODES or image.mode.startswith("I;"):
        low, high = image.getextrema()
        if not 0 <= float(low) <= float(high) <= 255:  # type: ignore[arg-type]
            refuse(
                where,
                "8-bit pixels",
                f"{name} of mode {image.mode} with values {low}..{high}, which 8 bits would clip",
                "Convert it to 8-bit RGB first.",
            )
    upright = ImageOps.exif_transpose(image)
    if upright.mode == "P":
        # The same pixels as straight to RGB, without a warning about transparency.
        upright = upright.convert("RGBA")
    return np.array(upright.convert("RGB"))
