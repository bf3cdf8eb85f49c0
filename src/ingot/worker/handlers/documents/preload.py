"""What handlers of documents would read of Python and Pillow only when they need it, read ahead.

An isolated handler has given up its rights by then, and Python may be in root's own folder.
"""

from __future__ import annotations

import codecs

from PIL import Image, TiffImagePlugin, WebPImagePlugin

__all__ = ["TiffImagePlugin", "WebPImagePlugin"]

Image.preinit()  # PNG, JPEG, BMP and what is sent to tesseract.
for _name in ("utf-16-le", "utf-8", "latin-1"):
    codecs.lookup(_name)
