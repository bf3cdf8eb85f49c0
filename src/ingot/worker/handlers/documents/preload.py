"""Imports modules that Python and Pillow would otherwise load on demand.

An isolated handler runs as an unprivileged user, which may be unable to read the Python installation.
"""

from __future__ import annotations

import codecs

from PIL import Image, TiffImagePlugin, WebPImagePlugin

__all__ = ["TiffImagePlugin", "WebPImagePlugin"]

Image.preinit()  # PNG, JPEG, BMP, and PPM for tesseract.
for _name in ("utf-16-le", "utf-8", "latin-1"):
    codecs.lookup(_name)
