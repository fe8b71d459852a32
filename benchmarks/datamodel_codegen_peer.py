"""The peer of `ipybox apigen`: datamodel-code-generator, in this process.

Usage: datamodel_codegen_peer.py TOOLS.json

Generates the models of each tool and prints one JSON line: nanoseconds as it comes (`formatted`)
and without its formatters (`plain`), the tools generated and failed, and the version. Starting
Python and importing costs the peer nothing, nor does the first model, which loads its templates.
"""
import json
import sys
import time
import warnings
from importlib.metadata import version

from datamodel_code_generator import DataModelType, InputFileType, generate
from datamodel_code_generator.format import PythonVersion


def models(schema: dict, name: str, **options) -> None:
    generate(
        json.dumps(schema), input_file_type=InputFileType.JsonSchema, class_name=name, use_annotated=True,
        output_model_type=DataModelType.PydanticV2BaseModel, target_python_version=PythonVersion.PY_311, **options)


def measure(tools: list, **options) -> tuple:
    models({"type": "object", "properties": {"a": {"type": "string"}}}, "Warm", **options)
    failed = 0
    before = time.perf_counter_ns()
    for tool in tools:
        try:
            models(tool.get("inputSchema") or {"type": "object"}, "Params", **options)
            if isinstance(tool.get("outputSchema"), dict):
                models(tool["outputSchema"], "Result", **options)
        except Exception:
            failed += 1
    return time.perf_counter_ns() - before, failed


warnings.simplefilter("ignore")
with open(sys.argv[1], encoding="utf-8") as file:
    tools = json.load(file)
formatted, failed = measure(tools)
plain, _ = measure(tools, formatters=[])
print(json.dumps({"formatted": formatted, "plain": plain, "tools": len(tools), "failed": failed,
                  "version": version("datamodel-code-generator")}))
