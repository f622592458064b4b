"""Write the schema of `GpuJob` in helm/crds/gpujobs.yaml, from the request that it stores.

`make docs` runs it; `tests/meta/test_docs.py` holds the file to the code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from runai.hub_service.model.records import WorkloadSpec

CRD = Path(__file__).parents[1] / "helm/crds/gpujobs.yaml"
MARKS = re.compile(r"( *# spec, written by make docs\n).*?( *# end of spec\n)", re.DOTALL)
INDENT = 12


def main() -> None:
    """Put the schema of the spec between its marks."""
    CRD.write_text(with_schema(CRD.read_text(encoding="utf-8")), encoding="utf-8")


def with_schema(text: str) -> str:
    """Return the file with the schema that the code has."""
    lines = yaml.safe_dump({"spec": spec_schema()}, sort_keys=False, width=120).splitlines()
    schema = "".join(f"{' ' * INDENT}{line}\n" for line in lines)
    return MARKS.sub(lambda found: found[1] + schema + found[2], text)


def spec_schema() -> Mapping[str, Any]:
    """Return the schema of a request as Kubernetes takes it: no references, no unions."""
    schema = TypeAdapter(WorkloadSpec).json_schema()
    definitions = schema.pop("$defs", {})
    return {**_structural(schema, definitions), "description": "What was asked; never changed."}


def _structural(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return _structural(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        (one,) = (part for part in schema["anyOf"] if part.get("type") != "null")
        return {**_structural(one, definitions), "nullable": True}
    structural = {key: schema[key] for key in ("type", "enum") if key in schema}
    if "properties" in schema:
        properties = schema["properties"].items()
        structural["properties"] = {
            name: _structural(part, definitions) for name, part in properties
        }
        if "required" in schema:
            structural["required"] = list(schema["required"])
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            structural[key] = _structural(schema[key], definitions)
    return structural


if __name__ == "__main__":
    main()
