"""A folder in which reference services work on documents, and documents for them."""

import io
import json
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from tests.support.webhook_receiver import Received

from lucius.sdk import Directive, Handler, Task, parse_directive
from lucius.services import REFERENCE_SERVICES
from lucius.workspace import ObjectWorkspace

OCR, EMBEDDING, SIS = (REFERENCE_SERVICES[name] for name in ("ocr", "embedding", "sis"))


class Bench:
    """A folder with documents in it, and tasks that work there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workspace = ObjectWorkspace([folder], retries_max=0, timeout_seconds=2)
        self.reported: list[tuple[int, str]] = []
        self.stop_after: int | None = None
        self.received: list[Received] = []  # by an endpoint that was asked

    def uri(self, name: str) -> str:
        return (self.folder / name).as_uri()

    def directive(self, step_type: str, **more: Any) -> Directive:
        directive = parse_directive(
            {
                "jobId": "job_1",
                "stepId": "step_01",
                "tenant_id": "tenant_a",
                "step_type": step_type,
                "attempt_no": 2,
                "lease_id": "lease-1",
                "input_ref": {"uri": self.uri("input")},
                "workspace_ref": {"uri": self.uri("work/job_1/")},
                "output_ref": {"uri": self.uri("output")},
                "payload": {},
                **more,
            }
        )
        assert directive is not None
        return directive

    async def report(self, task: Task) -> None:
        self.reported.append((task.percent, task.note))
        task.stop_requested = self.stop_after is not None and len(self.reported) >= self.stop_after

    async def run(self, handler: Handler, step_type: str, **more: Any) -> dict[str, Any]:
        task = Task(self.directive(step_type, **more), self.workspace, self.report, heartbeat_seconds=60)
        ref = await handler(task)
        assert ref is not None
        return ref

    def answers(self) -> list[dict[str, Any]]:
        """Of SIS, from the job's output."""
        found: list[dict[str, Any]] = json.loads((self.folder / "output").read_bytes())["answers"]
        return found

    async def ocr(self, document: bytes, handler: Handler = OCR, **more: Any) -> str:
        (self.folder / "input").write_bytes(document)
        ref = await self.run(handler, "OCR", **more)
        place = f"work/job_1/ocr/{more.get('attempt_no', 2)}/output.txt"
        assert ref == {"uri": self.uri(place)}
        made = (self.folder / place).read_bytes()
        assert (self.folder / "output").read_bytes() == made
        return made.decode()


def a_picture(*lines: str) -> Image.Image:
    image = Image.new("L", (1400, 120 + 90 * len(lines)), 255)
    font = ImageFont.load_default(size=56)
    for number, line in enumerate(lines):
        ImageDraw.Draw(image).text((60, 60 + 90 * number), line, fill=0, font=font)
    return image


def as_bytes(image: Image.Image, form: str, **more: Any) -> bytes:
    kept = io.BytesIO()
    image.save(kept, form, **more)
    return kept.getvalue()


def as_pdf(*objects: bytes) -> bytes:
    """A PDF of these objects, numbered from 1; the first is the catalogue."""
    made, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        places.append(len(made))
        made += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    end = b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, table)
    return made + end + b"trailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (size, len(made))


def a_stream(content: bytes, dictionary: bytes = b"") -> bytes:
    return b"<<%s/Length %d>>\nstream\n%s\nendstream" % (dictionary, len(content), content)


def text_pdf(*pages: str) -> bytes:
    """A PDF with a text layer; an empty text is an empty page."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * place) for place in range(len(pages)))
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[%s]/Count %d>>" % (kids, len(pages)),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    for place, text in enumerate(pages):
        fonts = b"/Resources<</Font<</F 3 0 R>>>>"
        page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]%s/Contents %d 0 R>>"
        objects.append(page % (fonts, 5 + 2 * place))
        objects.append(a_stream(b"BT /F 12 Tf 72 700 Td (%s) Tj ET" % text.encode() if text else b""))
    return as_pdf(*objects)


def unfolding_pdf(depth: int = 9, wide: int = 10, *, self_referring: bool = False) -> bytes:
    """Two kilobytes that draw `wide ** (depth - 1)` rectangles; the last may draw the first again."""
    box = b"/Type/XObject/Subtype/Form/BBox[0 0 612 792]"
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</XObject<</X 5 0 R>>>>>>",
        a_stream(b"/X Do"),
    ]
    objects += [
        a_stream(b"/X Do " * wide, b"%s/Resources<</XObject<</X %d 0 R>>>>" % (box, number))
        for number in range(6, 5 + depth)
    ]
    if self_referring:
        return as_pdf(
            *objects, a_stream(b"0 0 1 1 re f /X Do", b"%s/Resources<</XObject<</X 5 0 R>>>>" % box)
        )
    return as_pdf(*objects, a_stream(b"0 0 1 1 re f", box))
