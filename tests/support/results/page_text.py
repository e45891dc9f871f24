"""What a browser would read in a page: tags, addresses, ids, and text outside of scripts and styles."""

from html.parser import HTMLParser
from typing import final


@final
class PageText(HTMLParser):
    """The tags, addresses, ids and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self._inside = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag and its attributes."""
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self._inside += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        """Leave a script or style."""
        self._inside -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        """Collect visible text."""
        if not self._inside:
            self.text += data
