"""Tool results that are not text: how they are typed, shown and found."""
from __future__ import annotations

import base64
import importlib
import json
import pathlib
import sys
import unittest
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

from pydantic import RootModel  # noqa: E402

import ipybox_kernel  # noqa: E402
from ipybox_kernel import Audio, Blob, Image, Parts, Resource, ResourceLink, media  # noqa: E402

client = importlib.import_module("ipybox_kernel.client")
models = importlib.import_module("ipybox_kernel.models")
results = importlib.import_module("ipybox_kernel.results")

DATA = base64.b64encode(b"\x00\xff").decode()
IMAGE = {"type": "image", "data": DATA, "mimeType": "image/png"}


def value_of(reply: Any) -> Any:
    body = json.dumps(reply).encode()
    response = client._Response()
    response.feed(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return response.value()


class ResultsTest(unittest.TestCase):
    def test_one_block_is_its_value_and_several_are_parts(self):
        self.assertEqual(results.from_content([IMAGE]), Image(b"\x00\xff", "image/png"))
        parts = results.from_content([{"type": "text", "text": "a"}, IMAGE])
        self.assertIsInstance(parts, list)
        self.assertEqual(parts, ["a", Image(b"\x00\xff", "image/png")])
        self.assertEqual(results.from_content([]), [])

    def test_every_kind_of_block(self):
        cases = [
            ({"type": "audio", "data": DATA}, Audio(b"\x00\xff", "application/octet-stream")),
            ({"type": "resource", "resource": {"uri": "u:", "blob": DATA, "mimeType": "a/b"}},
             Blob(b"\x00\xff", "a/b", "u:")),
            ({"type": "resource", "resource": {"uri": "u:", "text": "t"}}, Resource("u:", "t")),
            ({"type": "resource_link", "uri": "u:", "name": "n", "size": 3}, ResourceLink("u:", "n", size=3)),
        ]
        for block, value in cases:
            with self.subTest(block=block):
                self.assertEqual(results.from_content([block]), value)

    def test_base64_in_lines(self):
        self.assertEqual(results.from_content([{**IMAGE, "data": "AAEC\r\nAwQF\n"}]).data, bytes(range(6)))

    def test_blocks_that_are_broken_stay_as_they_came(self):
        for block in [{}, {"type": "image"}, {"type": "image", "data": 5}, {"type": "image", "data": "x"}, {"type": "image", "data": "%%%%%"},
                      {"type": "text"}, {"type": "resource"}, {"type": "resource", "resource": {}},
                      {"type": "resource_link"}, {"type": "video", "data": DATA}, 5, None, "text"]:
            with self.subTest(block=block):
                self.assertEqual(results.from_content([block]), block)

    def test_images_and_audio_show_and_blobs_only_by_name(self):
        self.assertEqual(Image(b"\x00\xff", "image/png")._repr_mimebundle_(),
                         {"text/plain": "Image(image/png, 2 bytes)", "image/png": DATA})
        self.assertEqual(Image(b"<svg/>", "image/svg+xml")._repr_mimebundle_()["image/svg+xml"], "<svg/>")
        self.assertIn("image/gif", Blob(b"x", "image/gif")._repr_mimebundle_())
        self.assertIn("audio/wav", Audio(b"x", "audio/wav")._repr_mimebundle_())
        self.assertEqual(Blob(b"x" * 100, "application/zip")._repr_mimebundle_(),
                         {"text/plain": "Blob(application/zip, 100 bytes)"})

    def test_structured_content_beside_media(self):
        answer = value_of({"result": {"n": 1}, "content": [IMAGE]})
        self.assertIsInstance(answer, Parts)
        self.assertEqual(answer.structured, {"n": 1})
        self.assertEqual(media(answer), [Image(b"\x00\xff", "image/png")])

        class Result(models.Out):
            n: int
        typed = models._result(answer, Result)
        self.assertEqual((typed.n, typed.model_dump()), (1, {"n": 1}))
        self.assertEqual(media(typed), [Image(b"\x00\xff", "image/png")])
        numbers = models._result(value_of({"result": [1, 2], "content": [IMAGE]}), RootModel[list[int]])
        self.assertEqual((numbers.root, len(media(numbers))), ([1, 2], 1))

    def test_any_json_is_a_result(self):
        for value in [None, True, 0, 1.5, "", "a", [], [None], {}, {"a": [1, {"b": None}]}]:
            with self.subTest(value=value):
                self.assertEqual(value_of({"result": value}), value)

    def test_media_of_what_has_none(self):
        for value in [None, "text", 5, {"a": 1}, [], ["text"], models.Out()]:
            self.assertEqual(media(value), [])
        image = Image(b"x", "image/png")
        self.assertEqual(media(image), [image])

    def test_errors_bring_what_the_tool_returned(self):
        with self.assertRaises(ipybox_kernel.ToolRunnerError) as caught:
            value_of({"error": "it broke", "content": [IMAGE], "result": {"code": 7}})
        self.assertEqual(str(caught.exception), "it broke")
        self.assertEqual(media(caught.exception.content), [Image(b"\x00\xff", "image/png")])
        self.assertEqual(caught.exception.content.structured, {"code": 7})
        with self.assertRaises(ipybox_kernel.ApprovalRejectedError) as rejected:
            value_of({"error": "rejected", "type": "rejected"})
        self.assertEqual(rejected.exception.content, [])


if __name__ == "__main__":
    unittest.main()
