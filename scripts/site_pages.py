"""What MkDocs cannot do alone: pages from outside docs/, and the reference of the commands and of study files.

Links are written for GitHub, relative to the file. On the site, docs/ is the root, and the rest is beside it.
"""

import json
import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click

from phyla.cli.app import app

ROOT = Path(__file__).parents[1]
LINK_OR_CODE = re.compile(r"^```.*?^```$|(?<=\]\()(?!\w+:|#)([^)#\s]+)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/, and a page for the source of each example."""
    examples = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "examples").rglob("*"))]
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "tests/README.md", *examples):
        if name.endswith(".md"):
            where = InclusionLevel.NOT_IN_NAV if name.startswith("tests/") else InclusionLevel.UNDEFINED
            files.append(File.generated(config, name, abs_src_path=str(ROOT / name), inclusion=where))
        elif name.endswith(".py"):
            shown = f"# {Path(name).name}\n\n`{name}`\n\n```python\n{(ROOT / name).read_text()}```\n"
            files.append(File.generated(config, f"{name}.md", content=shown, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what is generated, and let links lead to pages of the site."""
    name = page.file.src_uri
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]
    here = f"docs/{name}" if (ROOT / "docs" / name).exists() else name

    def target(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0]
        path = normpath(join(dirname(here), found[1])).removeprefix("docs/")
        return relpath(f"{path}.md" if path.endswith(".py") else path, dirname(name) or ".")

    more = {"reference/commands.md": commands, "reference/study-file.md": study_file}.get(name, str)
    return LINK_OR_CODE.sub(target, markdown) + more()


def commands() -> str:
    """Return the help of every command."""
    group = typer.main.get_command(app)
    text: str = get_docs_for_click(obj=group, ctx=typer.Context(group), name="phyla")
    return re.sub(r"^\* `--help`: .*\n|^Also: --home.*\n", "", text.partition("\n")[2], flags=re.MULTILINE)


def study_file() -> str:
    """Return the keys of a study file, from its JSON Schema: its own, those of strategies, and those of rules."""
    schema = json.loads((ROOT / "docs/study.schema.json").read_text())
    strategies = [one["required"][0] for one in schema["oneOf"]]
    own = {name: key for name, key in schema["properties"].items() if name not in strategies}
    text = table("Keys", {"properties": own, "required": schema["required"]})
    for name in strategies:
        text += table(f"`[{name}]`", schema["properties"][name])
    for name, one in schema["definitions"].items():
        for choice in one.get("anyOf", ()):
            if title := choice.get("properties", {}).get("name", {}).get("const"):
                text += table(f"{name}: `{title}`", choice)
    return text + table("A parameter of `[space]`", schema["definitions"]["parameter"])


def table(title: str, one: dict[str, Any]) -> str:
    """Return the keys of one table of a study file."""
    text = (
        f"\n## {title}\n\n{one.get('description', '')}\n\n| key | type | default | meaning |\n|---|---|---|---|\n"
    )
    for name, key in one["properties"].items():
        default = f"`{json.dumps(key['default'])}`" if "default" in key else ""
        default = "required" if name in one.get("required", ()) else default
        about = key.get("description", "").replace("|", "\\|")
        text += f"| `{name}` | {kind(key)} | {default} | {about} |\n"
    return text


def kind(key: dict[str, Any]) -> str:
    """Return the type of a value, in a word or two."""
    if "anyOf" in key:
        return " or ".join(dict.fromkeys(kind(one) for one in key["anyOf"]))
    if values := key.get("enum", [key["const"]] if "const" in key else []):
        return ", ".join(f"`{json.dumps(one)}`" for one in values)
    named: str = key.get("$ref", "").rpartition("/")[2] or key.get("type", "any")
    return {"object": "table", "array": "list"}.get(named, named)
