"""Charts of the stored benchmarks, drawn anew from their JSON."""

import json
from pathlib import Path

from result_charts import draw_result


def add_charts(results: Path, pages: Path) -> None:
    """Draw each result of the folder `results` below the introduction of its page in `pages`."""
    for source in sorted(results.glob("*.json")):
        drawing = pages / f"{source.stem}.svg"
        draw_result(json.loads(source.read_text(encoding="utf-8")), drawing)
        page = pages / f"{source.stem}.md"
        title, introduction, rest = page.read_text(encoding="utf-8").split("\n\n", 2)
        pictures = [
            f"![Chart of the table below]({picture.name})"
            for picture in (drawing, drawing.with_stem(f"{drawing.stem}-time"))
            if picture.exists()
        ]
        text = "\n\n".join([title, introduction, *pictures, rest])
        page.write_text(text, encoding="utf-8")
