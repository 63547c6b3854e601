"""Pictures as files: the format of the suffix, and the same shapes in each."""

import io
from pathlib import Path

import pypdfium2
import pytest
from PIL import Image

from synth.errors import SynthError
from synth.records.overwrite_guard import PICTURE
from synth.report.picture.formats import PIXELS, check_drawable, format_of, png_bytes, save_picture
from synth.report.picture.pdf import pdf_bytes
from synth.report.picture.picture import Picture
from synth.system import extras

STYLES = {
    "box": "fill:#197cff;stroke:none",
    "area": "fill:#ee5319",
    "line": "stroke:#681949;stroke-width:3;fill:none;stroke-dasharray:6 4",
    "name": "font-size:14px;font-weight:bold;fill:#22282d",
}


def picture() -> Picture:
    drawn = Picture(200, 100, STYLES, "all shapes")
    drawn.rectangle((20, 10), 50, 30, "box", "F0.1")
    drawn.area([(100, 10), (140, 10), (140, 40), (100, 40)], "area")
    drawn.line([(10, 60), (190, 60)], "line")
    drawn.circle((180, 20), 8, "box")
    drawn.text((20, 90), "rank 3: 12 µs ≤ 1 ↑", "name")
    drawn.text((190, 80), "turned", "name", "end", -90)
    return drawn


def test_a_png_has_each_colour_where_the_shape_is() -> None:
    image = Image.open(io.BytesIO(png_bytes(picture()))).convert("RGB")
    assert image.size == (200 * PIXELS, 100 * PIXELS)
    expected = {
        (45, 25): (0x19, 0x7C, 0xFF),
        (120, 25): (0xEE, 0x53, 0x19),
        (180, 20): (0x19, 0x7C, 0xFF),
        (13, 60): (0x68, 0x19, 0x49),  # the first dash
        (18, 60): (255, 255, 255),  # and the gap behind it
        (80, 25): (255, 255, 255),
    }
    at = {(x, y): image.getpixel((x * PIXELS, y * PIXELS)) for x, y in expected}
    assert at == expected
    edges = [x for x in range(200 * PIXELS) if image.getpixel((x, 25 * PIXELS)) == (25, 124, 255)]
    assert (edges[0], edges[0] + 50 * PIXELS) == (20 * PIXELS, 70 * PIXELS)
    words = image.crop((20 * PIXELS, 78 * PIXELS, 160 * PIXELS, 96 * PIXELS)).getcolors()
    assert words is not None and len(words) > 10


def test_a_pdf_has_its_texts_and_its_font_and_is_the_same_each_time() -> None:
    data = pdf_bytes(picture())
    assert data == pdf_bytes(picture())
    assert b"/FontFile2" in data
    document = pypdfium2.PdfDocument(data)
    page = document[0]
    assert page.get_size() == (150, 75)
    words = page.get_textpage()
    text = words.get_text_range(0, words.count_chars())
    document.close()
    assert "rank 3: 12 µs ≤ 1 ^" in text and "turned" in text


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf", ".PNG", ""])
def test_a_picture_is_known_as_one_made_by_synth_in_every_format(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"picture{suffix}"
    save_picture(path, picture())
    assert PICTURE.is_kind_of(path)
    begins = {".png": b"\x89PNG", ".pdf": b"%PDF"}.get(suffix.lower(), b"<svg")
    assert path.read_bytes().startswith(begins)


def test_pictures_of_others_are_not_taken_for_ours(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    Image.new("RGB", (3, 3)).save(path)
    assert not PICTURE.is_kind_of(path)
    path = tmp_path / "paper.pdf"
    path.write_bytes(pdf_bytes(picture()).replace(b"made by synth", b"made by other"))
    assert not PICTURE.is_kind_of(path)


@pytest.mark.parametrize("name", ["a.jpg", "a.json", "a.svg.txt"])
def test_another_suffix_is_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(SynthError, match=r"ends in \.svg, \.png, \.pdf"):
        format_of(Path(name))


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    for name in ("a.png", "a.pdf"):
        message = r"reportlab and pypdfium2, .*; pip install 'synth-pipeline\[picture\]', or give a"
        with pytest.raises(SynthError, match=message):
            check_drawable(Path(name))
    check_drawable(Path("a.svg"))
