"""A picture as a PNG file: its PDF, rendered by PDFium."""

import io

from synth.report.picture.pdf import POINTS_PER_PIXEL, pdf_bytes
from synth.report.picture.picture import Picture

# Pixels of the file for each pixel of CSS: sharp in print, and on screens with small pixels.
PIXELS = 2

# By this text at its beginning a PNG is known as one made by synth.
SOFTWARE = "synth"


def png_bytes(picture: Picture) -> bytes:
    """Return the file, `PIXELS` times as wide and high as the picture."""
    import pypdfium2
    from PIL.PngImagePlugin import PngInfo

    document = pypdfium2.PdfDocument(pdf_bytes(picture))
    try:
        image = document[0].render(scale=PIXELS / POINTS_PER_PIXEL).to_pil()
    finally:
        document.close()
    about = PngInfo()
    about.add_text("Software", SOFTWARE)
    file = io.BytesIO()
    image.save(file, "PNG", pnginfo=about, dpi=(96 * PIXELS, 96 * PIXELS), optimize=True)
    return file.getvalue()
